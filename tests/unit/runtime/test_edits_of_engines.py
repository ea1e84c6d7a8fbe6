import msgspec
import pytest

from msd.core.journal import Edit, Resume, SetWeights, SkipRows, SkipSteps, Suspend
from msd.errors import ConfigError
from msd.runtime.edits import TakesEdits


class Notes(TakesEdits):
    """Takes edits and has planned ten steps."""

    def __init__(self) -> None:
        self.taken: list[tuple[Edit, bool]] = []

    def _edit(self, edit: Edit, *, move_late: bool) -> int:
        self.taken.append((edit, move_late))
        return max(edit.at_step, 10) if move_late else edit.at_step

    def _edits(self):
        return [msgspec.to_builtins(edit) for edit, _ in self.taken]


def test_without_a_step_an_edit_may_move_to_the_first_that_is_free_and_with_one_it_may_not():
    engine = Notes()
    assert engine.suspend("web") == 10
    assert engine.suspend("web", at_step=12) == 12
    assert [move_late for _, move_late in engine.taken] == [True, False]


def test_every_edit_says_what_was_meant_and_when():
    engine = Notes()
    engine.skip("web", 5)
    engine.skip("web", 5, 8, at_step=3)
    engine.skip_steps(2, at_step=4)
    engine.suspend("web", reason="too slow")
    engine.resume_source("web")
    engine.mix({"web": 3, "books": 1.5}, ramp=4, who="somebody")
    edits = [edit for edit, _ in engine.taken]
    assert [type(edit) for edit in edits] == [SkipRows, SkipRows, SkipSteps, Suspend, Resume, SetWeights]
    assert (edits[0].first, edits[0].last) == (5, 5)
    assert (edits[1].first, edits[1].last, edits[1].at_step) == (5, 8, 3)
    assert (edits[2].count, edits[2].at_step) == (2, 4)
    assert edits[3].reason == "too slow"
    assert (edits[5].weights, edits[5].ramp, edits[5].who) == ({"web": 3.0, "books": 1.5}, 4, "somebody")
    assert all(edit.when and edit.who for edit in edits)
    assert [entry["edit"] for entry in engine.edits()][-1] == "set_weights"


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda engine: engine.skip("web", -1), "from first 0 or more to last, got first=-1"),
        (lambda engine: engine.skip("web", 5, 4), "got first=5, last=4"),
        (lambda engine: engine.skip("web", 1.5), "first"),
        (lambda engine: engine.skip_steps(0), "count must be 1 step or more, got 0"),
        (lambda engine: engine.suspend("web", at_step=-1), "at_step must be 0 or more, got -1"),
        (lambda engine: engine.skip(None, 5), r"source must be a text, got 'None' \(NoneType\)"),
        (lambda engine: engine.suspend(["web"]), r"source must be a text, got .*\(list\)"),
        (lambda engine: engine.suspend("web", reason=5), r"reason must be a text, got '5' \(int\)"),
        (lambda engine: engine.mix({}), "mix takes weights by source"),
        (lambda engine: engine.mix([("web", 1)]), "mix takes weights by source"),
        (lambda engine: engine.mix({"web": True}), "the weight of 'web' must be a number of 0 or more, got True"),
        (lambda engine: engine.mix({"web": float("inf")}), "must be a number of 0 or more, got inf"),
        (lambda engine: engine.mix({"web": 0, "books": 0.0}), "every weight is 0"),
        (lambda engine: engine.mix({"web": 1}, ramp=-2), "ramp must be 0 steps or more, got -2"),
        (lambda engine: engine.resume_source(0), r"source must be a text, got '0' \(int\)"),
    ],
)
def test_what_means_nothing_is_refused(ask, said):
    engine = Notes()
    with pytest.raises(ConfigError, match=said):
        ask(engine)
    assert engine.taken == []
