"""Whole runs of the planner over made-up metadata: exactly once, same membership on any mesh, resume from anywhere."""

import itertools
import json
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.core.sample import Outcome
from msd.planner.check import check_plan
from msd.planner.planner import Planner
from msd.testing.tables import Part, Row, failed_row, feed_of, row, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=25, suppress_health_check=[HealthCheck.too_slow])
LENGTH = 48
METHODS = ["best_fit", "concat", "none"]


@st.composite
def parts(draw):
    num_tokens = draw(st.integers(1, LENGTH))
    return Part(num_tokens, draw(st.one_of(st.just(0), st.integers(0, num_tokens))))


@st.composite
def rows(draw):
    kind = draw(st.sampled_from(["one", "one", "one", "many", "none", "failed"]))
    if kind == "failed":
        return failed_row()
    count = {"one": 1, "none": 0}.get(kind) if kind != "many" else draw(st.integers(2, 5))
    return Row(tuple(draw(parts()) for _ in range(count)), Outcome.OK if count else Outcome.FILTERED)


@st.composite
def sources(draw):
    # The first row survives, so that no epoch is barren.
    return {
        name: [row(draw(st.integers(1, LENGTH))), *draw(st.lists(rows(), min_size=3, max_size=25))]
        for name in draw(st.sampled_from([["a"], ["a", "b"], ["a", "b", "c"]]))
    }


def finite(made, packing, *, last="pad", epochs=1, end="drop", **changes):
    return settings_of(
        made,
        packing=packing,
        sequence_length=LENGTH,
        max_epochs=dict.fromkeys(made, epochs),
        end=dict.fromkeys(made, end),
        terms={name: {"max_rate": 1.0} for name in made},
        batch={"last": last},
        **changes,
    )


def run(made, chosen, chunk=7):
    planner = Planner(chosen)
    return list(steps_of(planner, feed_of(made, chosen, chunk))), planner


def delivered(plans):
    """Return {(source, ordinal, part): tokens covered}, after seeing that no token stands twice."""
    ranges = defaultdict(list)
    for plan in plans:
        for d, sample_id in enumerate(plan.sample_ids()):
            start = int(plan.start_D[d])
            ranges[sample_id].append((start, start + int(plan.length_D[d])))
    for held in ranges.values():
        held.sort()
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(held)), held
    return {sample_id: sum(end - start for start, end in held) for sample_id, held in ranges.items()}


def survivors(made, epochs=1):
    return {
        (name, epoch * len(held) + r, p): part.num_tokens
        for name, held in made.items()
        for epoch in range(epochs)
        for r, one in enumerate(held)
        for p, part in enumerate(one.parts)
    }


@pytest.mark.parametrize("packing", METHODS)
@pytest.mark.parametrize("multiple", [1, 4])
@PROFILE
@given(made=sources(), epochs=st.integers(1, 2), chunk=st.integers(1, 40))
def test_every_surviving_token_is_delivered_exactly_once(packing, multiple, made, epochs, chunk):
    """Answers LB-9."""
    plans, _ = run(made, finite(made, packing, epochs=epochs, document_multiple=multiple), chunk)
    assert delivered(plans) == survivors(made, epochs)
    assert all(check_plan(plan) == [] for plan in plans)
    assert [plan.step for plan in plans] == list(range(len(plans)))


@pytest.mark.parametrize("packing", METHODS)
@PROFILE
@given(made=sources())
def test_dropping_the_last_step_leaves_out_only_what_the_notes_count(packing, made):
    chosen = finite(made, packing, last="drop", mesh=Mesh.of(dp=2), num_microbatches=2)
    plans, planner = run(made, chosen)
    got, wanted = delivered(plans), survivors(made)
    missing = sum(wanted.values()) - sum(got.values())
    notes = [
        note for note in (*planner.closing_notes, *(n for plan in plans for n in plan.notes)) if "undelivered" in note
    ]
    told = {int(note.split(" tokens")[0].split()[-1]) for note in notes}
    assert told == ({missing} if missing else set())
    assert all(bool(len(plan.documents_of(b, m))) for plan in plans for b in range(2) for m in range(2))


@pytest.mark.parametrize("packing", METHODS)
@PROFILE
@given(made=sources())
def test_repeating_the_tail_delivers_everything_and_leaves_no_sequence_empty(packing, made):
    plans, _ = run(made, finite(made, packing, last="repeat_tail", mesh=Mesh.of(dp=4), num_microbatches=2))
    held = {sample_id for plan in plans for sample_id in plan.sample_ids()}
    assert held == set(survivors(made))
    repeated = [plan for plan in plans if plan.annotations.get("num_repeated")]
    assert repeated in ([], plans[-1:])
    assert all(plan.is_last and not plan.progress["carry"] for plan in repeated)
    assert all(len(plan.documents_of(b, m)) for plan in plans for b in range(4) for m in range(2))


@pytest.mark.parametrize("packing", METHODS)
@PROFILE
@given(made=sources(), across=st.sampled_from([["bucket"], ["microbatch"], ["bucket", "microbatch"]]))
def test_layout_never_changes_what_a_step_holds(packing, made, across):
    """Answers HF-17, LH-4."""
    layouts = [
        (Mesh.of(dp=1), 8), (Mesh.of(dp=8), 1), (Mesh.of(dp=2, cp=2, tp=2), 2), (Mesh.of(pp=2, dp=4), 1),
    ]  # fmt: skip
    digests = []
    for mesh, num_microbatches in layouts:
        chosen = settings_of(
            made,
            packing=packing,
            sequence_length=LENGTH,
            document_multiple=4,
            mesh=mesh,
            num_microbatches=num_microbatches,
            terms={name: {"max_rate": 1.0} for name in made},
        )
        steps = steps_of(Planner(chosen), feed_of(made, chosen, chunk=11))
        digests.append([plan.membership_digest for _, plan in zip(range(6), steps, strict=False)])
    assert all(digest == digests[0] for digest in digests)
    assert len(set(digests[0])) == 6


@pytest.mark.parametrize("packing", METHODS)
@PROFILE
@given(made=sources(), stop=st.integers(0, 6), chunk=st.integers(1, 30), end=st.sampled_from(["drop", "stop"]))
def test_a_restored_planner_goes_on_as_if_nothing_had_happened(packing, made, stop, chunk, end):
    chosen = finite(made, packing, epochs=3, end=end)
    plans, _ = run(made, chosen)
    states = [Planner(chosen).state_dict(), *(plan.progress for plan in plans)]
    stop = min(stop, len(plans))
    saved = json.loads(json.dumps(states[stop]))
    planner = Planner(chosen)
    planner.load_state_dict(saved)
    assert planner.state_dict() == saved
    assert all(planner.needs(name) == saved["sources"][name]["ordinal"] for name in made)
    rest = list(steps_of(planner, feed_of(made, chosen, chunk)))
    assert [plan.digest for plan in rest] == [plan.digest for plan in plans[stop:]]


@PROFILE
@given(made=sources(), chunk=st.integers(1, 40))
def test_how_metadata_arrives_changes_nothing(made, chunk):
    chosen = finite(made, "best_fit", epochs=2)
    first, _ = run(made, chosen, chunk=1)
    second, _ = run(made, chosen, chunk=chunk)
    assert [plan.digest for plan in first] == [plan.digest for plan in second]
