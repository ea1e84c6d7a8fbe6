"""A network that keeps no order: every message takes its own time, some come twice, those of the dead not at all.

Who sends and receives is a *process*: a name, and behind `#` which process of that name it is.
"""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msd.runtime.simulated.clock import Clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Weather:
    """What befalls messages."""

    delay_s: tuple[float, float] = (0.0, 0.05)
    """Shortest and longest time under way: evenly spread, so that messages overtake one another."""
    duplicated: float = 0.1
    """Share that arrives once more, later."""
    lost: float = 0.0
    """Share that is lost and sent again after `resend_s`."""
    resend_s: float = 1.0
    slow: Mapping[str, float] = field(default_factory=dict)
    """Seconds more, by whoever sends or receives: `host-0`, `constructor-1`, `planner`, `rank-3`, or `source:web`."""


class Network:
    """Carries messages between processes."""

    def __init__(self, clock: Clock, weather: Weather, *, seed: int) -> None:
        """Begin with everybody alive.

        Args:
            clock: Shared by all.
            weather: What befalls messages.
            seed: Of every draw.
        """
        self._clock = clock
        self._weather = weather
        self._draw = random.Random(seed)
        self._gone: set[str] = set()
        self._frozen: dict[str, list[Callable[[], None]]] = {}
        self.num_messages = 0

    def send(self, sender: str, to: str, act: Callable[[], None], *, about: str = "") -> None:
        """Have `act` called at the receiver, once or twice, unless either of them is gone by then.

        Args:
            sender: Who sends.
            to: Who receives.
            act: What the receiver does with the message.
            about: Whose slowness adds to that of sender and receiver.
        """
        for _ in range(2 if self._draw.random() < self._weather.duplicated else 1):
            delay = self._draw.uniform(*self._weather.delay_s)
            delay += sum(self._weather.slow.get(name.partition("#")[0], 0.0) for name in (sender, to, about))
            while self._draw.random() < self._weather.lost:
                delay += self._weather.resend_s
            self.num_messages += 1
            self._clock.after(delay, lambda: self._arrive(sender, to, act))

    def wake(self, process: str, seconds: float, act: Callable[[], None]) -> None:
        """Have a process do something in so many seconds, if it is there; a frozen one does it once it is thawed."""
        self._clock.after(seconds, lambda: self._arrive(process, process, act))

    def kill(self, process: str) -> None:
        """End a process: what it sent and has not arrived is lost, and so is what is sent to it."""
        self._gone.add(process)
        self._frozen.pop(process, None)

    def is_gone(self, process: str) -> bool:
        """Return whether a process has ended."""
        return process in self._gone

    def freeze(self, process: str) -> None:
        """Stop a process without closing anything: what is sent to it waits."""
        if process not in self._gone:
            self._frozen.setdefault(process, [])

    def thaw(self, process: str) -> None:
        """Let a frozen process go on with what has come meanwhile."""
        for act in self._frozen.pop(process, []):
            self._clock.after(0.0, act)

    def _arrive(self, sender: str, to: str, act: Callable[[], None]) -> None:
        if sender in self._gone or to in self._gone:
            return
        if to in self._frozen:
            self._frozen[to].append(lambda: self._arrive(sender, to, act))
        else:
            act()
