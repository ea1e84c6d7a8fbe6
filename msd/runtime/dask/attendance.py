"""Which ranks a constructor serves at the moment, through which client, and where each of them stands."""

from dataclasses import dataclass

from msd.coordinator.standing import RankStanding
from msd.core.state import StateDict


@dataclass(slots=True)
class _Rank:
    client: str
    session: int
    """0 once its connection has ended."""
    generation: int
    next_step: int
    num_loads: int
    progress: StateDict | None
    """The run's position before `next_step`, where the rank has stated it."""
    to_fetch: int | None = None
    """The step that it fetches next: it has those before, and this one at most if it was answered."""
    waited_s: float = 0.0
    """For which its loop has waited, as it says."""


class Attendance:
    """The ranks of one constructor. For one thread at a time."""

    def __init__(self) -> None:
        """Nobody is there yet."""
        self._ranks: dict[int, _Rank] = {}
        self.most_session = 0
        """The highest session that a rank was seen with."""

    @property
    def connected(self) -> list[int]:
        """The ranks that are connected, in order."""
        return sorted(rank for rank, known in self._ranks.items() if known.session)

    def arrive(self, rank: int, client: str, *, session: int, generation: int, first_step: int, num_loads: int,
               stated: RankStanding | None) -> None:  # fmt: skip
        """Take that a rank is connected: at the step it stated, or where the generation begins."""
        goes_on = stated is not None and stated.generation == generation and stated.next_step >= first_step
        self._ranks[rank] = _Rank(
            client=client,
            session=session,
            generation=generation,
            next_step=stated.next_step if stated is not None and goes_on else first_step,
            num_loads=num_loads,
            progress=stated.progress if stated is not None and goes_on else None,
        )
        self.most_session = max(self.most_session, session)

    def leave(self, rank: int, session: int) -> bool:
        """Take that a connection has ended; return whether it was the rank's present one."""
        known = self._ranks.get(rank)
        if known is None or known.session != session:
            return False
        known.session = 0
        return True

    def speaks(self, rank: int, session: int) -> bool:
        """Return whether a session is the rank's present one."""
        return rank in self._ranks and self._ranks[rank].session == session

    def is_taken(self, rank: int, client: str) -> bool:
        """Return whether another client is connected for a rank."""
        known = self._ranks.get(rank)
        return known is not None and known.session > 0 and known.client != client

    def asks(self, rank: int, generation: int, step: int) -> bool:
        """Take that the loop of a connected rank asks for a step; return whether that is news."""
        known = self._ranks[rank]
        if (generation, step) <= (known.generation, known.next_step):
            return False
        known.to_fetch = known.to_fetch if known.generation == generation else None
        known.generation, known.next_step, known.progress = generation, step, None
        return True

    def fetches(self, rank: int, generation: int, step: int) -> bool:
        """Take that a connected rank fetches a step; return whether it was not known before how far it has come."""
        known = self._ranks[rank]
        is_news = known.to_fetch is None and generation == known.generation
        if generation == known.generation:
            known.to_fetch = step
        return is_news

    def waited(self, rank: int, waited_s: float) -> None:
        """Take for how long the loop of a connected rank has waited, all together."""
        self._ranks[rank].waited_s = waited_s

    def waits(self) -> dict[int, float]:
        """Return for how long the loop of each connected rank has waited."""
        return {rank: known.waited_s for rank, known in self._ranks.items() if known.session}

    def lacks(self, rank: int, generation: int) -> int | None:
        """Return the first step of a generation that a connected rank may lack, None while that is not known."""
        known = self._ranks[rank]
        if known.generation != generation or known.to_fetch is None:
            return None
        return max(known.to_fetch, known.next_step)

    def loaded(self, rank: int, generation: int, first_step: int, number: int) -> None:
        """Take that the n-th load of a rank was answered."""
        known = self._ranks[rank]
        known.generation, known.next_step, known.num_loads, known.progress = generation, first_step, number, None
        known.to_fetch = None

    def asked(self, generation: int) -> list[list[int]]:
        """Return (rank, session, step) of the connected ranks of a generation, in order."""
        return [
            [rank, known.session, known.next_step]
            for rank, known in sorted(self._ranks.items())
            if known.session and known.generation == generation
        ]

    def standings(self) -> list[RankStanding]:
        """Return where each rank stands that was ever connected here."""
        return [
            RankStanding(
                rank=rank,
                generation=known.generation,
                next_step=known.next_step,
                num_loads=known.num_loads,
                session=known.session,
                progress=known.progress,
            )
            for rank, known in sorted(self._ranks.items())
        ]
