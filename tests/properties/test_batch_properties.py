"""Whole runs over random sizes, limits, packings and meshes: what a step holds is a matter of the configuration."""

import itertools
import json

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from msd.core.mesh import Mesh
from msd.planner.check import check_plan
from msd.planner.config import BalanceConfig, BatchStageConfig, LimitsConfig
from msd.planner.planner import Planner
from msd.planner.primitives.pack import Limits
from msd.testing.tables import LengthCost, Part, Row, feed_of, row, settings_of, steps_of

PROFILE = settings(derandomize=True, deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
LONGEST = 48
LENGTHS = (24, 48, 96)
LIMITS = {"patches": 64, "image_tokens": 16, "images": 2, "attention": LONGEST**2}

MESHES_OF_20 = [
    (Mesh.of(dp=1), 1), (Mesh.of(dp=1), 48), (Mesh.of(dp=2), 1), (Mesh.of(dp=2), 12), (Mesh.of(dp=3), 4),
    (Mesh.of(dp=4), 3), (Mesh.of(dp=6), 2), (Mesh.of(dp=8), 2), (Mesh.of(dp=12), 4), (Mesh.of(dp=16), 1),
    (Mesh.of(dp=24), 2), (Mesh.of(dp=48), 1), (Mesh.of(dp=2, cp=2), 4), (Mesh.of(dp=4, cp=3), 2),
    (Mesh.of(dp=2, cp=6, tp=2), 6), (Mesh.of(dp=8, cp=2, tp=4), 1), (Mesh.of(pp=2, dp=4), 6),
    (Mesh.of(pp=4, dp=2, tp=2), 8), (Mesh.of(pp=3, dp=3, cp=2), 2), (Mesh.of(pp=2, dp=2, cp=2, tp=2), 3),
]  # fmt: skip
"""All are served by a document multiple of 12 and by 48 sequences."""


@st.composite
def sources(draw):
    def sample():
        num_tokens = draw(st.integers(1, LONGEST))
        return Part(num_tokens, draw(st.one_of(st.just(0), st.just(0), st.integers(0, min(16, num_tokens)))))

    count = st.sampled_from([0, 1, 1, 1, 2])
    return {
        name: [row(draw(st.integers(1, 20))), *(Row(tuple(sample() for _ in range(draw(count)))) for _ in range(20))]
        for name in ("a", "b")[: draw(st.integers(1, 2))]
    }


@st.composite
def batches(draw):
    """Sizes by step, limits and packing; every number of sequences is a multiple of 4."""
    packing = draw(
        st.sampled_from(
            [
                {"method": "best_fit"}, {"method": "best_fit", "max_age": 1}, {"method": "first_fit_decreasing"},
                {"method": "first_fit_decreasing", "objective": "cost", "max_age": 3}, {"method": "concat"},
                {"method": "none"},
            ]
        )
    )  # fmt: skip
    by_tokens = draw(st.booleans())
    amount = st.sampled_from([400, 900, 1700] if by_tokens else [4, 8, 20])
    name = "tokens_per_step" if by_tokens else "global_batch_size"
    stages = []
    for step in sorted(draw(st.sets(st.integers(0, 8), max_size=3))):
        sizes = {"sequence_length": draw(st.sampled_from(LENGTHS))} if draw(st.booleans()) else {}
        if not sizes or draw(st.booleans()):
            sizes |= {name: draw(amount), "ramp": draw(st.integers(0, 4))}
        stages.append(BatchStageConfig(step=step, **sizes))
    limited = draw(st.sets(st.sampled_from(sorted(LIMITS)), max_size=2))
    batch = {
        "schedule": stages,
        "limits": LimitsConfig(**{limit: LIMITS[limit] for limit in limited}),
        # A stage may be shorter than a run of placeholders, and a longest sample of an attention limit.
        "oversize": "drop",
        "last": draw(st.sampled_from(["drop", "pad", "repeat_tail"])),
        **({"tokens_per_step": draw(amount)} if by_tokens else {}),
    }
    return {"packing": packing, "batch": batch, "global_batch_size": 64 if by_tokens else draw(amount)}


def settings_for(made, sizes, *, mesh, num_microbatches, epochs=2, **changes):
    return settings_of(
        made,
        **sizes,
        sequence_length=LONGEST,
        document_multiple=4,
        multiple_of=4,
        mesh=mesh,
        num_microbatches=num_microbatches,
        max_epochs=dict.fromkeys(made, epochs),
        end=dict.fromkeys(made, "drop"),
        **changes,
    )


def run(made, chosen):
    planner = Planner(chosen)
    return list(steps_of(planner, feed_of(made, chosen))), planner


def ranges_of(plans):
    """Return {(source, ordinal, part): its (start, end) in order} over all plans, repeated documents left out."""
    ranges = {}
    for plan in plans:
        if plan.annotations.get("num_repeated"):
            continue
        for d, sample_id in enumerate(plan.sample_ids()):
            start = int(plan.start_D[d])
            ranges.setdefault(sample_id, []).append((start, start + int(plan.length_D[d])))
    return {sample_id: sorted(held) for sample_id, held in ranges.items()}


@PROFILE
@given(made=sources(), sizes=batches())
def test_every_step_keeps_its_sizes_and_limits_and_no_token_stands_twice(made, sizes):
    chosen = settings_for(made, sizes, mesh=Mesh.of(dp=2), num_microbatches=2)
    plans, planner = run(made, chosen)
    limits = Limits(**{name: getattr(chosen.batch.limits, name) for name in LIMITS})
    for plan in plans:
        assert check_plan(plan, None, limits) == []
        pack = planner.strategy.pack.at(plan.step)
        num_sequences = plan.num_buckets * plan.num_microbatches * plan.sequences_per_microbatch
        assert plan.sequence_length == pack.sequence_length
        assert num_sequences % 4 == 0
        if pack.method != "none" or pack.max_tokens is None:
            assert num_sequences == pack.num_sequences
        elif not plan.is_last and num_sequences > 4:
            assert int(plan.length_D.sum()) <= pack.max_tokens
        assert plan.global_num_valid_tokens == int(plan.num_valid_D.sum())
        rows = {(int(b), int(m)) for b, m in zip(plan.bucket_D, plan.slot_D, strict=True)}
        assert plan.is_last or len(rows) == 4
    for held in ranges_of(plans).values():
        assert all(left[1] <= right[0] for left, right in itertools.pairwise(held)), held


@PROFILE
@given(made=sources(), sizes=batches())
def test_everything_is_delivered_whole_but_for_what_notes_count(made, sizes):
    sizes = {**sizes, "batch": {**sizes["batch"], "last": "pad"}}
    plans, planner = run(made, settings_for(made, sizes, mesh=Mesh.of(dp=2), num_microbatches=2))
    notes = [note for plan in plans for note in plan.notes] + list(planner.closing_notes)
    lost = sum(int(note.split(": ")[1].split(" ")[0]) for note in notes if "left out: " in note)
    ranges = ranges_of(plans)
    whole = 0
    for name, rows in made.items():
        for epoch, r in itertools.product(range(2), range(len(rows))):
            for part, one in enumerate(rows[r].parts):
                held = ranges.get((name, epoch * len(rows) + r, part), [])
                whole += sum(end - start for start, end in held) == one.num_tokens
    total = 2 * sum(len(one.parts) for rows in made.values() for one in rows)
    assert whole == total - lost


@PROFILE
@given(made=sources(), sizes=batches())
def test_layout_knows_the_mesh_and_membership_does_not(made, sizes):
    digests = []
    for mesh, num_microbatches in ((Mesh.of(dp=1), 1), (Mesh.of(dp=4), 1), (Mesh.of(dp=2, cp=2), 2)):
        plans, _ = run(made, settings_for(made, sizes, mesh=mesh, num_microbatches=num_microbatches))
        digests.append([(plan.membership_digest, plan.progress, plan.is_last) for plan in plans])
    assert digests[0] == digests[1] == digests[2]


@PROFILE
@given(made=sources(), sizes=batches(), stop=st.integers(0, 12))
def test_a_restored_planner_goes_on_whatever_the_sizes(made, sizes, stop):
    chosen = settings_for(made, sizes, mesh=Mesh.of(dp=2), num_microbatches=2)
    plans, _ = run(made, chosen)
    states = [Planner(chosen).state_dict(), *(plan.progress for plan in plans)]
    stop = min(stop, len(plans))
    saved = json.loads(json.dumps(states[stop]))
    planner = Planner(chosen)
    planner.load_state_dict(saved)
    assert planner.state_dict() == saved
    rest = list(steps_of(planner, feed_of(made, chosen, chunk=3)))
    assert [plan.digest for plan in rest] == [plan.digest for plan in plans[stop:]]


@PROFILE
@given(
    made=sources(), max_age=st.integers(2, 4), num=st.sampled_from([4, 8]), objective=st.sampled_from(["fill", "cost"])
)
def test_nothing_in_hand_waits_longer_than_its_age(made, max_age, num, objective):
    packing = {"method": "first_fit_decreasing", "max_age": max_age, "objective": objective}
    chosen = settings_of(made, packing=packing, sequence_length=LONGEST, global_batch_size=num)
    drawn = {}
    plans = itertools.islice(steps_of(Planner(chosen), feed_of(made, chosen)), 25)
    for plan in plans:
        for piece in plan.progress["carry"]:
            drawn.setdefault((piece["source"], piece["ordinal"], piece["part"]), piece["drawn"])
        for sample_id in plan.sample_ids():
            assert plan.step - drawn.get(tuple(sample_id), plan.step) <= max_age


def test_twenty_meshes_hold_the_same_samples_in_each_of_a_hundred_steps():
    rng = np.random.default_rng(11)
    made = {
        name: [
            Row((Part(int(length), int(length) // 4 if name == "photos" else 0),))
            for length in np.clip(rng.lognormal(4.2, 0.8, 300), 2, 144)
        ]
        for name in ("web", "code", "photos")
    }
    stages = [
        BatchStageConfig(step=20, global_batch_size=96, ramp=30),
        BatchStageConfig(step=60, sequence_length=72),
        BatchStageConfig(step=80, sequence_length=144, global_batch_size=48),
    ]
    held = []
    for mesh, num_microbatches in MESHES_OF_20:
        chosen = settings_of(
            made,
            weights={"web": 0.5, "code": 0.3, "photos": 0.2},
            sequence_length=144,
            global_batch_size=48,
            document_multiple=12,
            multiple_of=48,
            mesh=mesh,
            num_microbatches=num_microbatches,
            balance=BalanceConfig(method="none"),
            cost={"backbone": LengthCost(1.0, 0.01)},
            batch={"schedule": stages},
        )
        plans = list(itertools.islice(steps_of(Planner(chosen), feed_of(made, chosen, chunk=64)), 100))
        held.append([plan.membership_digest for plan in plans])
    assert len(held) == 20
    assert len(set(held[0])) == 100
    assert all(digests == held[0] for digests in held)
