"""Which stages a rank of the pipeline holds, and what they need."""

import pytest

from msd.core.stages import FIELDS, FIRST_FIELDS, LAST_FIELDS, Stages
from msd.errors import ConfigError


@pytest.mark.parametrize(
    ("stages", "held"),
    [
        (Stages(), [(0,), (1,), (2,), (3,)]),
        # As torch.distributed.pipelining deals stages to ranks for "loop" and "v".
        (Stages(per_rank=2), [(0, 4), (1, 5), (2, 6), (3, 7)]),
        (Stages(per_rank=2, style="v"), [(0, 7), (1, 6), (2, 5), (3, 4)]),
        (Stages(per_rank=3, style="v"), [(0, 7, 8), (1, 6, 9), (2, 5, 10), (3, 4, 11)]),
    ],
)
def test_stages_lie_on_ranks_as_the_style_says(stages, held):
    assert [stages.of(index, 4) for index in range(4)] == held


@pytest.mark.parametrize(
    ("stages", "fields"),
    [
        (Stages(), [FIRST_FIELDS, (), LAST_FIELDS]),
        (Stages(per_rank=2), [FIRST_FIELDS, (), LAST_FIELDS]),
        (Stages(per_rank=2, style="v"), [FIELDS, (), ()]),
        (Stages(per_rank=3, style="v"), [FIRST_FIELDS, (), LAST_FIELDS]),
    ],
)
def test_a_rank_gets_what_the_first_and_last_of_all_stages_need(stages, fields):
    assert [stages.fields_of(index, 3) for index in range(3)] == fields


def test_one_rank_is_the_first_and_the_last():
    assert Stages().fields_of(0, 1) == FIELDS


def test_a_rank_without_a_stage_is_refused():
    with pytest.raises(ConfigError, match=r"stages.per_rank must lie in \[1, "):
        Stages(per_rank=0)
