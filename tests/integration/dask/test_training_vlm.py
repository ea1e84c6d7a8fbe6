"""The vision-language example: ranks that encode for one another learn what ranks with their own images learn."""

import re

import pytest

pytest.importorskip("torch")
pytestmark = [pytest.mark.cluster, pytest.mark.torch, pytest.mark.slow, pytest.mark.timeout(240)]

from processes import ROOT, programs  # noqa: E402

SMALL = ["batch.sequence_length=512", "batch.global_batch_size=4", "num_microbatches=2"]
LINE = re.compile(r"rank (\d)  step +(\d+)  loss (\S+)  encodes (\d+) patches")


def trained(start, corpus, strategy):
    """Return {(rank, step): (loss, patches)} of two ranks and four steps."""
    overrides = [word for setting in SMALL for word in ("--set", setting)]
    options = ("--ranks", 2, "--steps", 4, "--strategy", strategy, *overrides)
    output = start(strategy, ROOT / "docs/examples/train_vlm.py", corpus / "corpus.yaml", *options).wait(100)
    return {(int(r), int(s)): (float(loss), int(patches)) for r, s, loss, patches in LINE.findall(output)}


def test_encoding_for_one_another_teaches_the_same_and_is_evener(tiny_corpus, tmp_path):
    with programs(tmp_path) as start:
        own, shared = (trained(start, tiny_corpus, strategy) for strategy in ("vlm_backbone", "vlm_hybrid"))
    assert own.keys() == shared.keys() == {(rank, step) for rank in range(2) for step in range(4)}
    for key, (loss, _) in own.items():
        assert shared[key][0] == pytest.approx(loss, rel=1e-4)
    slowest = [sum(max(run[rank, step][1] for rank in range(2)) for step in range(4)) for run in (own, shared)]
    total = [sum(patches for _, patches in run.values()) for run in (own, shared)]
    assert total[0] == total[1] > 0
    assert slowest[1] < slowest[0]
