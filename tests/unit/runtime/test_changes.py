"""What may change across a resume, part by part."""

import pytest

import msd
from msd.config.identity import identity
from msd.runtime.changes import RULES, compare
from msd.runtime.encoding import joined_identity, packed, split_identity, unpacked

SOURCE = {"data": "d1", "order": {"shuffled": True, "window": 4}, "end": {"max_epochs": 1.0}, "transforms": "t1"}


def identity_of(settings=None, **sources):
    parts = {"seed": 1, "batch.last": "drop", **(settings or {})}
    for name, changes in sources.items():
        parts |= {f"sources.{name}.{what}": value for what, value in {**SOURCE, **changes}.items()}
    return parts


def rules(saved, here, **options):
    return {difference.part: difference.rule for difference in compare(saved, here, **options)}


def test_the_same_has_no_difference():
    assert compare(identity_of(a={}), identity_of(a={})) == ()


@pytest.mark.parametrize(
    ("what", "value", "rule"),
    [
        ("data", "d2", "refused"),
        ("order", {"shuffled": False, "window": 4}, "refused"),
        ("end", {"max_epochs": 2.0}, "allowed"),
        ("transforms", "t2", "forced"),
    ],
)
def test_a_part_of_a_source(what, value, rule):
    assert rules(identity_of(a={}), identity_of(a={what: value})) == {f"sources.a.{what}": rule}


def test_the_end_of_a_source_that_has_ended_cannot_be_moved():
    here = identity_of(a={"end": {"max_epochs": 2.0}})
    (difference,) = compare(identity_of(a={}), here, ended={"a"})
    assert difference.rule == "refused"
    assert "has ended already" in difference.why


def test_sources_may_come_and_go_also_with_dots_in_their_names():
    saved, here = identity_of(**{"a.b": {}, "c": {}}), identity_of(a={}, c={})
    found = compare(saved, here)
    assert [str(difference) for difference in found] == [
        "sources.a.b is in the state and not in this run",
        "sources.a is in this run and not in the state",
    ]
    assert {difference.rule for difference in found} == {"allowed"}


@pytest.mark.parametrize(("part", "rule"), [(part, rule) for part, (rule, _) in RULES.items()])
def test_each_setting_has_its_rule(part, rule):
    assert rules({part: 1}, {part: 2}) == {part: rule}


def test_a_part_that_this_release_does_not_know_is_refused():
    assert rules({"new.thing": 1}, {}) == {"new.thing": "refused"}


def test_a_clock_that_counts_no_microbatches_any_more_does_not_jump():
    saved = {"mixture.clock": "microbatch", "num_microbatches": 4}
    assert rules(saved, {}) == {"mixture.clock": "allowed", "num_microbatches": "allowed"}
    assert rules(saved, {**saved, "num_microbatches": 8}) == {"num_microbatches": "refused"}


def test_feedback_may_be_added_and_is_taken_away_only_by_force():
    assert rules({}, {"mixture.feedback": {"function": "f"}}) == {"mixture.feedback": "allowed"}
    assert rules({"mixture.feedback": {"function": "f"}}, {}) == {"mixture.feedback": "forced"}


def test_every_part_of_an_identity_has_a_rule():
    rows = {"rows": [{"text": "a"}], "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}
    chosen = msd.Config(
        sources={"a": rows},
        mixture={"mode": "temperature", "temperature": 2, "clock": "microbatch"},
        batch={
            "tokens_per_step": 4096,
            "sequence_length": 512,
            "schedule": [{"step": 3, "sequence_length": 256}],
            "limits": {"images": 3},
            "oversize": "drop",
            "packing": {"method": "first_fit_decreasing", "objective": "cost", "max_age": 2},
        },
        mesh={"dp": 1},
        num_microbatches=1,
    )
    parts = set(identity(chosen, *_built(chosen)))
    assert {part for part in parts if not part.startswith("sources.")} <= set(RULES)
    assert {part.rpartition(".")[2] for part in parts if part.startswith("sources.")} == set(SOURCE)


def _built(chosen):
    from msd.build import build_chains, build_orders, index_all

    return build_orders(chosen, index_all(chosen)), build_chains(chosen)


def test_an_identity_survives_being_split():
    parts = identity_of(**{"a.b": {}, "ä": {"data": "d3"}})
    assert joined_identity(*split_identity(parts)) == parts


@pytest.mark.parametrize("text", ["", "x", packed("[1, 2, 3]")[:-1], packed("{}") + packed("{}"), "\x00é"])
def test_text_that_was_not_packed_is_a_value_error(text):
    with pytest.raises(ValueError, match=r".*"):
        unpacked(text)
