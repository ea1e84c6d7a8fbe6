"""What an engine's process does, simulated: it notices who is gone or silent, and puts others in their place."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from msd.coordinator import Coordinator, Placement, Standing, deal, merged
from msd.runtime.simulated.clock import Clock
from msd.runtime.simulated.cluster import Cluster
from msd.runtime.simulated.constructor import SimulatedConstructor
from msd.runtime.simulated.host import SimulatedHost
from msd.runtime.simulated.network import Network
from msd.runtime.simulated.planner import TICK_S, SimulatedPlanner

_PROCESS = "supervisor"
STANDINGS_S = 1.0
"""So long survivors have to say what they know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Makes:
    """How processes are made."""

    host: Callable[[str, str], SimulatedHost]
    """From its name, and which process of that name it is."""
    constructor: Callable[[str, str], SimulatedConstructor]
    coordinator: Callable[[Placement, tuple[str, ...], Standing | None], Coordinator]
    """From a placement, shadows, and what survivors know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Care:
    """How a supervisor cares for its processes."""

    silence_s: float = 2.0
    """Whoever says nothing for so long is taken for lost."""
    start_s: float = 1.5
    """Until a process is there that was started."""
    kills: bool = True
    """Whether what is silent is killed; otherwise it may speak again after others are in its place."""


class Supervisor:
    """Makes the processes of a run, and others in place of those that are lost."""

    def __init__(
        self,
        cluster: Cluster,
        makes: Makes,
        network: Network,
        clock: Clock,
        *,
        partitions: Mapping[str, int],
        hosts: list[str],
        shadows: list[str],
        constructors: list[str],
        care: Care | None,
    ) -> None:
        """Start everybody.

        Args:
            cluster: Where they are entered.
            makes: How they are made.
            network: Reaches them.
            clock: Tells the time.
            partitions: Of each source.
            hosts: Names of loader hosts.
            shadows: Names of loader hosts that stand by.
            constructors: Names.
            care: How they are cared for; None leaves everything to whoever kills them.
        """
        self._cluster = cluster
        self._makes = makes
        self._network = network
        self._clock = clock
        self._partitions = partitions
        self._hosts, self._shadows, self._constructors = hosts, shadows, constructors
        self._care = care
        self._epoch = 0
        self._term = 0
        self._heard: dict[str, float] = {}
        self._starting: set[str] = set()
        self._lost_hosts: set[str] = set()
        self._asking: dict[str, Standing | None] = {}
        self.num_replaced = 0
        self.start()
        if care is not None:
            self._beat(care)

    def start(self) -> None:
        """Start a run that knows nothing of an earlier one; what is left of that is gone."""
        for process in self.processes():
            self._network.kill(process)
        self._starting.clear()
        self._lost_hosts.clear()
        for name in (*self._hosts, *self._shadows):
            self._cluster.hosts[name] = self._makes.host(name, self._process(name))
        for name in self._constructors:
            self._cluster.constructors[name] = self._makes.constructor(name, self._process(name))
        self._make_planner(None)

    def processes(self) -> list[str]:
        """Return the processes that hold a post."""
        planner = self._cluster.planner
        return [
            *(host.process for host in self._cluster.hosts.values()),
            *(one.process for one in self._cluster.constructors.values()),
            *([] if planner is None else [planner.process]),
        ]

    def process_of(self, name: str) -> str | None:
        """Return the process that holds a post, None while nobody does."""
        if name == "planner":
            return None if self._cluster.planner is None else self._cluster.planner.process
        holder = self._cluster.hosts.get(name) or self._cluster.constructors.get(name)
        return None if holder is None else holder.process

    def _process(self, name: str) -> str:
        self._epoch += 1
        process = f"{name}#{self._epoch}"
        self._heard[process] = self._clock.now
        return process

    def _beat(self, care: Care) -> None:
        """Look who is gone or silent."""
        for process in self.processes():
            self._send(process, partial(self._network.send, process, _PROCESS, partial(self._hear, process)))
        planner = self._cluster.planner
        if planner is not None and self._is_lost(planner.process, care.silence_s):
            self._lose_planner(planner, care)
        for name, constructor in list(self._cluster.constructors.items()):
            if self._is_lost(constructor.process, care.silence_s):
                self._lose_constructor(name, constructor.process, care)
        for name, host in list(self._cluster.hosts.items()):
            # Of a silent one the planner takes the rows away; it is killed only much later.
            if name not in self._starting and self._is_lost(host.process, 3 * care.silence_s):
                self._lose_host(name, host.process, care)
        self._clock.after(TICK_S, lambda: self._beat(care))

    def _hear(self, process: str) -> None:
        self._heard[process] = self._clock.now

    def _is_lost(self, process: str, silence_s: float) -> bool:
        return self._network.is_gone(process) or self._clock.now - self._heard[process] > silence_s

    def _lose_host(self, name: str, process: str, care: Care) -> None:
        self._network.kill(process)
        self._starting.add(name)
        self._lost_hosts.add(name)
        self._tell_planner(lambda planner: planner.host_gone(name, process))

        def come() -> None:
            if name in self._starting:
                self._starting.discard(name)
                self._lost_hosts.discard(name)
                self.num_replaced += 1
                self._cluster.hosts[name] = self._makes.host(name, self._process(name))
                is_shadow = bool(self._shadows)
                self._tell_planner(lambda planner: planner.host_joined(name, is_shadow=is_shadow))

        self._clock.after(care.start_s, come)

    def _lose_constructor(self, name: str, process: str, care: Care) -> None:
        if care.kills:
            self._network.kill(process)
        del self._cluster.constructors[name]
        self._starting.add(name)
        self._tell_planner(lambda planner: planner.constructor_lost(name, process))

        def come() -> None:
            if name in self._starting:
                self._starting.discard(name)
                self.num_replaced += 1
                constructor = self._makes.constructor(name, self._process(name))
                self._cluster.constructors[name] = constructor
                planner = self._cluster.planner
                if planner is not None:
                    self._send(constructor.process, lambda: constructor.begin(planner.term, planner))
                self._tell_planner(lambda planner: planner.constructor_joined(name))

        self._clock.after(care.start_s, come)

    def _lose_planner(self, planner: SimulatedPlanner, care: Care) -> None:
        """Ask all that are left what they know, and make a planner that is born from it."""
        if care.kills:
            self._network.kill(planner.process)
        self._cluster.planner = None
        self._term += 1
        self.num_replaced += 1
        self._asking = {}
        term = self._term
        for constructor in self._cluster.constructors.values():
            self._ask_standing(constructor.process, partial(constructor.standing, term))
        for host in self._cluster.hosts.values():
            self._ask_standing(host.process, partial(_standing_of, host, term))
        self._clock.after(STANDINGS_S, lambda: self._make_planner_again(term))

    def _ask_standing(self, process: str, ask: Callable[[], Standing | None]) -> None:
        def answer() -> None:
            standing = ask()
            self._network.send(process, _PROCESS, lambda: self._asking.update({process: standing}))

        self._send(process, answer)

    def _make_planner_again(self, term: int) -> None:
        if term == self._term and self._cluster.planner is None:
            self._make_planner(merged(one for one in self._asking.values() if one is not None))

    def _make_planner(self, standing: Standing | None) -> None:
        self._term += standing is None
        there = [name for name in (*self._hosts, *self._shadows) if name not in self._lost_hosts]
        owners, shadows = there[: len(self._hosts)], there[len(self._hosts) :]
        placement = deal(self._partitions, owners or self._hosts)
        coordinator = self._makes.coordinator(placement, tuple(shadows), standing)
        planner = SimulatedPlanner(
            self._process("planner"),
            self._term,
            coordinator,
            self._network,
            self._clock,
            self._cluster,
            silence_s=None if self._care is None else self._care.silence_s,
        )
        self._cluster.planner = planner
        for constructor in self._cluster.constructors.values():
            self._send(constructor.process, partial(constructor.begin, planner.term, planner))
        planner.begin()
        for name in self._constructors:
            if name not in self._cluster.constructors:
                planner.constructor_lost(name)
        if not owners:
            for name in self._hosts:
                planner.host_gone(name, self._cluster.hosts[name].process)

    def _tell_planner(self, tell: Callable[[SimulatedPlanner], None]) -> None:
        planner = self._cluster.planner
        if planner is not None:
            self._send(planner.process, lambda: tell(planner))

    def _send(self, process: str, act: Callable[[], None]) -> None:
        self._network.send(_PROCESS, process, act)


def _standing_of(host: SimulatedHost, term: int) -> Standing | None:
    return host.standing if host.hears(term) else None
