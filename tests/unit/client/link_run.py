"""A run of made-up batches behind a real link, for tests of both ends."""

# T = tokens of a row.

import contextlib
import json
import logging
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from msd.client.link.batches import Encoded, encode
from msd.client.link.messages import Ended, Load, Moved, NotYet, Place, Stated, Welcome
from msd.client.link.server import LinkServer
from msd.core.batch import SHARE_FIELDS, BatchMarker, EncoderShare, Microbatch, RankBatch, RowImages
from msd.core.mesh import Mesh
from msd.errors import EngineError, StateError

ROW_FIELDS = ("input_ids", "labels", "position_ids", "segment_ids", "loss_mask", "cu_seqlens", "cu_seqlens_padded")
IMAGE_FIELDS = ("pixels", "grids", "owner", "starts")
TOKEN = "open sesame & more"
SETTINGS = {"run": "r1", "token": TOKEN, "version": "0.0-test"}


def make_row(seed: int, tokens: int = 64, *, documents: int = 3, images: bool = False) -> Microbatch:
    draw = np.random.default_rng(seed)
    ids_T = draw.integers(0, 1000, tokens, dtype=np.int32)
    starts = np.linspace(0, tokens, documents + 1).astype(np.int32)
    pictures = None
    if images:
        pictures = RowImages(
            pixels=draw.integers(0, 255, (8, 12), dtype=np.uint8),
            grids=np.array([[1, 2, 4]], np.int32),
            owner=np.array([0], np.int32),
            starts=np.array([0], np.int32),
        )
    return Microbatch(
        num_tokens=tokens,
        input_ids=ids_T,
        labels=np.roll(ids_T, -1),
        position_ids=np.arange(tokens, dtype=np.int32),
        segment_ids=np.ones(tokens, np.int32),
        loss_mask=np.ones(tokens, np.float32),
        cu_seqlens=starts,
        cu_seqlens_padded=starts.copy(),
        max_seqlen=int(np.diff(starts).max()),
        images=pictures,
    )


def make_share(seed: int, *, images: int = 2, ranks: int = 2) -> EncoderShare:
    draw = np.random.default_rng(seed)
    counts = draw.integers(0, 4, (2, ranks), dtype=np.int32)
    sent, received = (int(total) for total in counts.sum(axis=1))
    return EncoderShare(
        pixels=draw.integers(0, 255, (4 * images, 12), dtype=np.uint8),
        grids=np.array([[1, 2, 2]] * images, np.int32).reshape(-1, 3),
        num_embeddings=images,
        ranks=np.arange(ranks, dtype=np.int32),
        returns=np.ones(ranks, np.int32),
        send_counts=counts[0],
        send_rows=draw.integers(0, max(1, images), sent, dtype=np.int32),
        receive_counts=counts[1],
        slots=np.zeros(received, np.int32),
        positions=np.arange(received, dtype=np.int32),
    )


def make_batch(step: int, rank: int = 0, *, generation: int = 0, tokens: int = 64, **changes: object) -> RankBatch:
    fields = {
        "step": step,
        "rank": rank,
        "generation": generation,
        "sample_ids": [("web", step, 0), ("photos", 7, 1), ("web", 2**40, 0)],
        "microbatches": [make_row(1000 * generation + step, tokens), make_row(step + 1, tokens, images=True)],
        "num_valid_tokens": 2 * tokens,
        "global_num_valid_tokens": 4 * tokens,
        "sequence_length": tokens // 2,
        "progress": position_after(step, generation),
    }
    return RankBatch(**{**fields, **changes})


def position_after(step: int, generation: int = 0) -> str:
    return json.dumps({"step": step, "generation": generation})


def _content(array: np.ndarray | None) -> object:
    return None if array is None else (array.dtype.str, array.shape, array.tobytes())


def contents(batch: RankBatch) -> list[object]:
    """Everything in a batch, comparable."""
    rows = [
        [_content(getattr(row, name)) for name in ROW_FIELDS]
        + [row.num_tokens, row.max_seqlen]
        + ([] if row.images is None else [_content(getattr(row.images, name)) for name in IMAGE_FIELDS])
        for row in batch.microbatches
    ]
    markers: list[BatchMarker] = batch.markers
    shares = [
        [
            share.num_embeddings,
            *((a.dtype.str, a.shape, a.tobytes()) for a in (getattr(share, n) for n in SHARE_FIELDS)),
        ]
        for share in batch.encoder
    ]
    return [
        batch.step, batch.rank, batch.generation, batch.sample_ids, batch.num_valid_tokens,
        batch.global_num_valid_tokens, batch.sequence_length, batch.slice_method, batch.progress, markers, rows, shares,
    ]  # fmt: skip


class ScriptedRun:
    """Answers ranks as a test says: steps below `ready` exist, those from `end` on never will."""

    def __init__(self, *, ready: int = 1_000_000, end: int | None = None, tokens: int = 64) -> None:
        self.mesh = Mesh.of(dp=2)
        self.generation, self.first_step = 0, 0
        self.ready, self.end, self.tokens = ready, end, tokens
        self.places: list[Place] | NotYet = []
        self.not_welcome: str | None = None
        self.num_asked = 0
        self.only_run: str | None = None
        self.deadline_s = 30.0
        self.error: Exception | None = None
        self.hellos: list[tuple[int, Stated | None]] = []
        self.clients: list[str] = []
        self.num_loads = 0
        self.origin = ""
        self.takes: list[tuple[int, int, int, int]] = []
        self.loads: dict[str, Moved] = {}
        self.asked_loads: list[Load] = []
        self.farewells: list[int] = []
        self.losses: list[int] = []
        self.waits: dict[int, float] = {}
        self.changed = threading.Condition()

    def change(self, **fields: object) -> None:
        with self.changed:
            for name, value in fields.items():
                setattr(self, name, value)
            self.changed.notify_all()

    def where(self, rank: int) -> list[Place] | NotYet:
        self.mesh.check_rank(rank)
        return self.places

    def hello(self, rank: int, client: str, stated: Stated | None) -> Welcome | NotYet:
        self.num_asked += 1
        if self.not_welcome is not None:
            return NotYet(waits_for=self.not_welcome)
        if self.only_run is not None and stated is not None and stated.run != self.only_run:
            raise EngineError(f"a rank of run {stated.run} is not of run {self.only_run}")
        with self.changed:
            self.hellos.append((rank, stated))
            self.clients.append(client)
            self.changed.notify_all()
            return Welcome(
                session=len(self.hellos),
                mesh=self.mesh.as_dict(),
                generation=self.generation,
                first_step=self.first_step,
                position=position_after(self.first_step - 1, self.generation),
                deadline_s=self.deadline_s,
                num_loads=self.num_loads,
                origin=self.origin,
            )

    def take(
        self, rank: int, session: int, generation: int, step: int, taken_through: int, wait_s: float
    ) -> Encoded | Ended | Moved | NotYet:
        with self.changed:
            if not self.takes or self.takes[-1] != (rank, generation, step, taken_through):
                self.takes.append((rank, generation, step, taken_through))
                self.changed.notify_all()
            self.changed.wait_for(lambda: self._answer(generation, step) is not None, wait_s)
            if self.error is not None:
                raise self.error
            answer = self._answer(generation, step)
        if answer == "ready":
            return encode(make_batch(step, generation=generation, tokens=self.tokens))
        return answer if answer is not None else NotYet(waits_for="source 'slow'")

    def load(self, rank: int, session: int, load: Load) -> Moved:
        with self.changed:
            self.asked_loads.append(load)
            if load.load_id not in self.loads:
                if load.state.get("kind") == "foreign" and not load.force:
                    raise StateError("cannot resume: the state is foreign")
                self.generation += 1
                self.first_step = load.state["step"] + 1
                self.num_loads = load.number
                self.loads[load.load_id] = self.moved()
            self.changed.notify_all()
            return self.loads[load.load_id]

    def waited(self, rank: int, session: int, waited_s: float) -> None:
        self.waits[rank] = waited_s

    def bye(self, rank: int, session: int) -> None:
        with self.changed:
            self.farewells.append(rank)
            self.changed.notify_all()

    def lost(self, rank: int, session: int) -> None:
        with self.changed:
            self.losses.append(rank)
            self.changed.notify_all()

    def stated(self, number: int) -> tuple[int, int] | None:
        """Return the generation and step that a rank stated with its n-th hello."""
        stated = self.hellos[number][1]
        return None if stated is None else (stated.generation, stated.next_step)

    def moved(self) -> Moved:
        return Moved(
            generation=self.generation,
            first_step=self.first_step,
            position=position_after(self.first_step - 1, self.generation),
        )

    def until(self, condition, timeout_s: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout_s), "it did not come to that"

    def _answer(self, generation: int, step: int) -> object:
        if self.error is not None:
            return self.error
        if generation != self.generation:
            return self.moved()
        if self.end is not None and step >= self.end:
            return Ended(step=self.end)
        return "ready" if step < self.ready else None


@contextlib.contextmanager
def short_folder() -> Iterator[Path]:
    """A folder whose path is short enough for Unix sockets."""
    folder = Path(tempfile.mkdtemp(prefix="msd-link-test-", dir="/tmp"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def url(server: LinkServer, number: int = 0, *, token: str = TOKEN, run: str | None = None) -> str:
    from msd.client.link.address import Address

    plain = Address.parse(server.addresses[number])
    return replace(plain, token=token, run=run).url()


def heard(monkeypatch, module: str) -> None:
    """Let a module's log be heard, also after a test that configured logging and silenced all there were."""
    monkeypatch.setattr(logging.getLogger(module), "disabled", False)


def until_held(client, count: int) -> None:
    """Wait until so many steps have been fetched ahead."""
    for _ in range(2000):
        if client._transport._prefetch.num_held == count:
            return
        time.sleep(0.01)
    raise AssertionError(f"{count} steps were not fetched ahead")


def raw_socket(server: LinkServer) -> socket.socket:
    host, port = server.addresses[-1].partition("://")[2].split(":")
    return socket.create_connection((host, int(port)), timeout=20)
