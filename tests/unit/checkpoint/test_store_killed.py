"""A writer that is killed at any moment leaves a store that works, with all that it had reported as saved."""

import os
import random
import subprocess
import sys
import time

import pytest

from msd.checkpoint import open_store

pytestmark = pytest.mark.faults

PROGRAM = """
import sys
from msd.checkpoint import open_store
store = open_store(sys.argv[1], keep=2)
store.sweep()
newest = store.newest()
step = 0 if newest is None else newest.step
while True:
    step += 1
    store.append({"step": step}, run="r")
    store.save({"step": step, "filler": "x" * 20_000}, step=step, run="r")
    print(step, flush=True)
"""


def test_a_save_loop_that_is_killed_at_random_points_loses_nothing_that_it_reported(tmp_path):
    draw = random.Random(4)
    reported = 0
    for _ in range(32):
        said = ""
        child = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        try:
            assert child.stdout is not None
            said = child.stdout.readline()
            assert said, "it ended by itself"
            time.sleep(draw.random() * 0.02)
        finally:
            child.kill()
            said += child.stdout.read()
            child.wait()
            child.stdout.close()
        reported = max([reported, *map(int, said.split("\n")[:-1])])
        store = open_store(str(tmp_path), keep=2)
        newest = store.newest()
        assert newest is not None
        assert newest.step >= reported
        assert newest.state["step"] == newest.step
        assert all(snapshot.is_whole for snapshot in store.snapshots())
        numbers = [entry.number for entry in store.entries()]
        assert numbers == list(range(numbers[0], numbers[-1] + 1)) if numbers else newest.journal >= reported
    store.sweep()
    names = os.listdir(tmp_path)
    assert not [name for name in names if name.startswith(".")]
    assert len(names) < 10
