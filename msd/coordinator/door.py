"""Where ranks come in: those that say where they stand go on from there, or bring the run there, or are refused."""

from collections.abc import Callable

from msd.coordinator.admission import brings_the_run
from msd.coordinator.commands import Command, Refuse, Warn
from msd.coordinator.course import Course
from msd.coordinator.edits import Edits
from msd.coordinator.generations import Generations
from msd.coordinator.handout import Handout
from msd.coordinator.standing import RankStanding, Standing
from msd.core.state import StateDict
from msd.errors import StateError
from msd.planner.planner import Planner


class Door:
    """Takes in ranks; `Course.go_on` is called after."""

    def __init__(
        self,
        *,
        new_planner: Callable[[StateDict | None], Planner],
        generations: Generations,
        course: Course,
        handout: Handout,
        edits: Edits,
        depth: int,
        is_survived: bool,
    ) -> None:
        """Take the parts that are looked at and changed.

        Args:
            new_planner: Returns a planner at a saved progress, or before the first step.
            generations: Where ranks stand.
            course: Goes on from where a rank brings the run.
            handout: What constructors were told.
            edits: The journal.
            depth: Steps that a rank can be ahead of another.
            is_survived: Whether survivors said how the generation began: ranks may stand ahead of what is planned.
        """
        self._new_planner = new_planner
        self._generations = generations
        self._course = course
        self._handout = handout
        self._edits = edits
        self._depth = depth
        self._is_survived = is_survived

    def note_brought(self, standing: Standing) -> None:
        """Take from survivors how far steps may have been planned: before any rank came, a few."""
        steps = [rank.next_step for rank in standing.ranks if rank.session] if standing.ranks else [standing.first_step]
        for step in (*steps, *(step - self._depth for step in standing.positions)):
            self._course.note_brought(step)

    def admit(self, at: RankStanding) -> list[Command]:
        """Take where a rank stands; return what tells constructors and people if the run goes on from there.

        Raises:
            StateError: If this run cannot have brought it there.
        """
        course, generations = self._course, self._generations
        brings = brings_the_run(
            at,
            generations,
            course.history,
            next_step=course.planning.main.step,
            is_survived=self._is_survived,
            depth=self._depth,
        )
        if at.generation < generations.generation:
            return []
        if self._is_survived and not brings:
            course.note_brought(at.next_step)
        if at.progress is None:
            return []
        if brings:
            return self._go_there(at, at.progress)
        if not generations.is_start_known:
            if not generations.first_step <= at.next_step <= course.planning.main.step:
                # Else the rank may have come there here.
                generations.reach(at.next_step)
            course.note_brought(at.next_step)
        course.history.learn(at.rank, at.next_step, at.progress)
        return []

    def seat(self, at: RankStanding) -> list[Command]:
        """Take a rank for connected that another planner connected; one that cannot be of this run is refused."""
        try:
            commands = self.admit(at)
            self._generations.seat(at)
        except StateError as error:
            name = self._generations.group_of(at.rank)
            return [] if name is None else [Refuse(name, at.generation, at.rank, at.session, error)]
        return commands + self.refusals(at.rank)

    def refusals(self, rank: int | None = None, *, constructor: str | None = None) -> list[Command]:
        """Return what has ranks refused that must load first: all, one, or those of one constructor."""
        generations, refused = self._generations, []
        for held, session in generations.held(rank):
            name = generations.group_of(held)
            if name is not None and constructor in (None, name):
                refused.append(Refuse(name, generations.generation, held, session, generations.refusal(held)))
        return list(refused)

    def _go_there(self, at: RankStanding, progress: StateDict) -> list[Command]:
        """Have the run go on from the first step at which a rank stands that brought its position."""
        generations, history = self._generations, self._course.history
        positions = {at.next_step: progress}
        if at.generation > generations.generation:
            self._edits.begin()
        for stands in generations.brought(at.generation).values():
            known = history.position_before(stands.next_step)
            if known is not None:
                positions[stands.next_step] = known
        first_step = min(positions)
        generations.adopt(at.generation, first_step)
        generations.reach(max(positions))
        self._course.begin(self._new_planner(positions[first_step]), positions, was_planned=True)
        self._course.note_brought(max(positions))
        return [
            *self._handout.rewind(generations.generation),
            *self.refusals(),
            Warn(f"the run goes on at step {at.next_step} of generation {at.generation}, where rank {at.rank} stands"),
        ]
