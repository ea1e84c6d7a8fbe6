import heapq

import numpy as np
import pytest

from msd.core.pipeline import one_f_one_b


def simulated(forward_MP, backward_MP):
    """Run a 1F1B schedule event by event: each stage works through its list as soon as what it waits for has ended."""
    num_microbatches, num_stages = forward_MP.shape
    todo = []
    for stage in range(num_stages):
        warm = min(num_microbatches, num_stages - 1 - stage)
        forwards = [("F", m) for m in range(num_microbatches)]
        backwards = [("B", m) for m in range(num_microbatches)]
        passes = forwards[:warm]
        for forward, backward in zip(forwards[warm:], backwards, strict=False):
            passes += [forward, backward]
        todo.append(passes + backwards[num_microbatches - warm :])
    ended, busy = set(), [False] * num_stages
    events, now = [], 0.0
    while any(todo) or events:
        for stage, passes in enumerate(todo):
            if busy[stage] or not passes:
                continue
            kind, m = passes[0]
            if kind == "F":
                waits_for = {("F", m, stage - 1)} if stage else set()
            else:
                waits_for = {("F", m, stage)} | ({("B", m, stage + 1)} if stage + 1 < num_stages else set())
            if waits_for <= ended:
                busy[stage] = True
                duration = (forward_MP if kind == "F" else backward_MP)[m, stage]
                heapq.heappush(events, (now + duration, stage, kind, m))
                passes.pop(0)
        now, stage, kind, m = heapq.heappop(events)
        ended.add((kind, m, stage))
        busy[stage] = False
    return now


@pytest.mark.parametrize("num_microbatches", [1, 2, 3, 5, 9])
@pytest.mark.parametrize("num_stages", [1, 2, 3, 4, 7])
def test_it_ends_when_a_simulation_of_the_events_ends(num_microbatches, num_stages):
    draw = np.random.default_rng(num_microbatches * 10 + num_stages)
    forward, backward = draw.exponential(size=(2, num_microbatches, num_stages))
    assert one_f_one_b(forward, backward) == pytest.approx(simulated(forward, backward), rel=1e-12)


def test_equal_microbatches_take_the_familiar_time():
    forward, backward = np.full((8, 4), 1.0), np.full((8, 4), 2.0)
    assert one_f_one_b(forward, backward) == (8 + 4 - 1) * 3.0


def test_one_stage_takes_the_sum():
    forward, backward = np.array([[1.0], [5.0]]), np.array([[2.0], [7.0]])
    assert one_f_one_b(forward, backward) == 15.0


def test_a_batch_of_pipelines_is_each_of_them():
    forward, backward = np.random.default_rng(0).exponential(size=(2, 6, 5, 3))
    assert one_f_one_b(forward, backward).tolist() == [
        float(one_f_one_b(f, b)) for f, b in zip(forward, backward, strict=True)
    ]


def test_no_microbatch_takes_no_time():
    assert one_f_one_b(np.zeros((0, 3)), np.zeros((0, 3))) == 0.0


def test_shapes_that_differ_are_refused():
    with pytest.raises(ValueError, match=r"of one shape, got \(2, 3\) and \(3, 2\)"):
        one_f_one_b(np.zeros((2, 3)), np.zeros((3, 2)))
