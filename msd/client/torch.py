"""What a PyTorch training loop iterates, and what its ranks exchange. The only file that imports torch."""

# T = tokens of a row, or of the rank's context-parallel slice of it. N = documents of the whole row.

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, NoReturn

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import IterableDataset, get_worker_info

from msd.client.client import RankClient
from msd.client.layouts import Layout, encoder_rounds, layout_named
from msd.client.nested import changed
from msd.client.target import HasClients, check_mesh, client_of
from msd.core.batch import TOKEN_FIELDS, BatchMarker, Microbatch, RankBatch
from msd.core.checks import whole_number
from msd.core.mesh import Mesh
from msd.core.state import StateDict, wrapped
from msd.errors import ConfigError, told

__all__ = ["DataLoader", "EmbeddingExchange", "TorchBatch"]

_WORKERS = (
    "msd.torch.DataLoader cannot be copied into a worker process, where a second run would load the same steps again; "
    "use torch.utils.data.DataLoader(loader, batch_size=None, num_workers=0), or iterate the loader itself"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TorchBatch:
    """What one rank receives for one optimizer step, as tensors."""

    step: int
    rank: int
    sample_ids: list[tuple[str, int, int]]
    """(source, ordinal, part) of the documents of the rank's rows, in order; repeated for each piece of a cut part."""
    microbatches: list[dict[str, Any]]
    """One dictionary a row. Of shape [T]: input_ids, labels, position_ids, segment_ids (int64), loss_mask (float32).
    Of shape [N + 1]: cu_seqlens, cu_seqlens_padded (int32). Besides: num_tokens (T) and max_seqlen, and images, which
    is None or pixels (uint8), grids, owner, starts (int32); see `msd.core.batch`. `labels[j]` is already the target at
    position j: do not shift again. With `fields_by_stage`, what the rank's pipeline stages do not need is None."""
    num_valid_tokens: int
    """Labelled positions that this rank holds."""
    global_num_valid_tokens: int
    """Labelled positions of the step: divide the summed loss by it, on every rank."""
    sequence_length: int
    """Tokens of a sequence: a whole row reshapes to [sequences, sequence_length]."""
    markers: list[BatchMarker] = field(default_factory=list)
    """Where to receive the microbatches from, when a broadcast axis says that another rank fetches them."""
    encoder: list[dict[str, Any]] = field(default_factory=list)
    """With `strategy: vlm_hybrid`, one dictionary a round: pixels (uint8), grids (int32), num_embeddings (int), ranks,
    returns, send_counts, receive_counts (lists), send_rows, slots, positions (int64); see
    `msd.core.batch.EncoderShare` and `EmbeddingExchange`."""

    def __repr__(self) -> str:
        rows = f"{len(self.microbatches)} microbatches" if not self.markers else f"{len(self.markers)} markers"
        documents = f"{len(self.sample_ids)} documents, {self.num_valid_tokens} labelled tokens"
        encodes = f", encodes {sum(len(share['grids']) for share in self.encoder)} images" if self.encoder else ""
        return f"<TorchBatch step={self.step} rank={self.rank}: {rows}, {documents}{encodes}>"

    @classmethod
    def of(cls, batch: RankBatch) -> "TorchBatch":
        """Return a rank batch as tensors; float and boundary arrays are shared with it, not copied."""
        return cls(
            step=batch.step,
            rank=batch.rank,
            sample_ids=batch.sample_ids,
            microbatches=[_row_tensors(row) for row in batch.microbatches],
            num_valid_tokens=batch.num_valid_tokens,
            global_num_valid_tokens=batch.global_num_valid_tokens,
            sequence_length=batch.sequence_length,
            markers=batch.markers,
            encoder=_as_tensors(encoder_rounds(batch)),
        )

    def to(self, device: Any, *, non_blocking: bool = False) -> "TorchBatch":
        """Return the batch with its tensors on `device`."""
        return self.each(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "TorchBatch":
        """Return the batch in page-locked memory, from which copies to an accelerator overlap with computation."""
        return self.each(lambda tensor: tensor.pin_memory())

    def each(self, change: Callable[[Any], Any]) -> "TorchBatch":
        """Return the batch with every tensor changed."""
        return replace(
            self,
            microbatches=changed(self.microbatches, torch.Tensor, change),
            encoder=changed(self.encoder, torch.Tensor, change),
        )


class DataLoader(IterableDataset):  # type: ignore[misc]  # torch is not followed by mypy
    """Iterates the steps of one rank; also a dataset for `torch.utils.data.DataLoader`.

        with msd.start(config) as engine:
            for batch in msd.torch.DataLoader(engine, rank=0):
                ...

    An item is one step: a `TorchBatch`, or with `layout=` what that makes of the rank's batch, its arrays as tensors.
    The named layouts make a list of the step's microbatches (`msd.layouts.LaidOutBatch`), each what that trainer feeds
    to its model at once.

    Iterating again goes on where the rank stands. Inside `torch.utils.data.DataLoader` pass `batch_size=None,
    num_workers=0`. Ranks of one process share arrays: do not write into tensors in place.

    Both the loader and what `iter` returns have `state_dict` and `load_state_dict`; it is a `Stateful` of
    `torch.distributed.checkpoint`, to be saved and loaded with a model:

        dcp.save({"model": model, "data": loader}, checkpoint_id=folder)
    """

    def __init__(
        self,
        address_or_engine: "str | HasClients | RankClient",
        rank: int | None = None,
        *,
        device_mesh: Any = None,
        device_mesh_names: Mapping[str, str] | None = None,
        layout: str | Layout | None = None,
        broadcast_group: Any = None,
        pin_memory: bool = False,
        device: Any = None,
        steps: int | None = None,
        security: Any = None,
    ) -> None:
        """Connect a rank.

        Args:
            address_or_engine: A running engine, its address, or a client of one of its ranks.
            rank: Of the trainer mesh; None takes that of `device_mesh`, or the environment's `RANK`, as torchrun sets
                it.
            device_mesh: The trainer's `torch.distributed.DeviceMesh` over all ranks: it must arrange them as the run
                does.
            device_mesh_names: Of its dimensions to axes, where they differ; see `Mesh.from_device_mesh`.
            layout: `megatron`, `megatron_packed`, `hf`, `flash`, `torchtitan`, `qwen`, or a function `(RankBatch) ->
                anything`; see `msd.layouts`. None hands out `TorchBatch`.
            broadcast_group: Process group of the ranks that share what one of them fetches, when the run has a
                `broadcast` axis: that rank sends its rows and every rank has microbatches. Rows are sent from the CPU,
                by a backend such as gloo. None hands out markers.
            pin_memory: Hand out batches in page-locked memory.
            device: Move batches there.
            steps: Each iteration over the loader ends after so many steps; None goes on to the end of the run.
            security: Certificates for an address, as `msd.connect` takes them.

        Raises:
            ConfigError: If the rank is not said or lies outside the mesh, the trainer's mesh is not the run's, nothing
                runs at the address, there is no such layout or device, or memory is to be pinned without an
                accelerator.
        """
        super().__init__()
        if steps is not None and whole_number(steps, name="steps") < 0:
            raise ConfigError(f"steps must be None or at least 0, got {steps}")
        if device is not None:
            _check_device(device)
        if pin_memory and not torch.accelerator.is_available():
            raise ConfigError("pin_memory=True needs an accelerator; pass pin_memory=torch.accelerator.is_available()")
        self._layout = None if layout is None else layout_named(layout)
        trainer = None
        if device_mesh is not None:
            trainer = Mesh.from_device_mesh(device_mesh, names=device_mesh_names)
            rank = device_mesh.get_rank() if rank is None else rank
        self._client = client_of(address_or_engine, rank, security)
        try:
            check_mesh(self._client.mesh, trainer, from_environment=rank is None)
        except ConfigError:
            if self._client is not address_or_engine:
                self._client.close()
            raise
        self._broadcast_group = broadcast_group
        self._pin_memory = pin_memory
        self._device = device
        self._steps = steps

    @property
    def rank(self) -> int:
        """The rank whose batches these are."""
        return self._client.rank

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run."""
        return self._client.mesh

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise ConfigError(_WORKERS)
        # An evaluation begins again here; the client of a run goes on where it stands.
        iter(self._client)
        return _Steps(self)

    def metrics(self) -> dict[str, float]:
        """Return figures of the last batch for an experiment tracker; see `RankClient.metrics`."""
        return self._client.metrics()

    def report(self, losses: Mapping[str, float]) -> None:
        """Say what training sees of the sources, for `mixture.feedback`; see `RankClient.report`."""
        self._client.report(losses)

    def state_dict(self) -> StateDict:
        """Return the position after the last batch handed out: JSON-able, the same on every rank, legal at any time.

        It has one key with one text, at every position: stores of model states look for what they saved under the keys
        of what they load into.
        """
        return wrapped(self._client.state_dict())

    def load_state_dict(self, state: StateDict, force: bool = False) -> None:
        """Go on from a saved position, of a loader or of a client; see `RankClient.load_state_dict`."""
        self._client.load_state_dict(state, force)

    def close(self) -> None:
        """Release the rank. Closing twice is fine."""
        self._client.close()

    def __enter__(self) -> "DataLoader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> NoReturn:
        raise ConfigError(_WORKERS)

    def _next(self) -> Any:
        batch = next(self._client)
        if self._broadcast_group is not None:
            batch = _shared(batch, self._broadcast_group)
        return self._placed(TorchBatch.of(batch) if self._layout is None else _laid_out(self._layout, batch))

    def _placed(self, item: Any) -> Any:
        if self._pin_memory:
            item = _each(item, lambda tensor: tensor.pin_memory())
        if self._device is None:
            return item
        return _each(item, lambda tensor: tensor.to(self._device, non_blocking=self._pin_memory))


class _Steps:
    """One iteration over a loader. Who keeps only this can still save and load."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._num_taken = 0

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        steps = self._loader._steps
        if steps is not None and self._num_taken >= steps:
            raise StopIteration
        item = self._loader._next()
        self._num_taken += 1
        return item

    def state_dict(self) -> StateDict:
        """Return the loader's position; see `DataLoader.state_dict`."""
        return self._loader.state_dict()

    def load_state_dict(self, state: StateDict, force: bool = False) -> None:
        """Move the loader; see `DataLoader.load_state_dict`."""
        self._loader.load_state_dict(state, force)


class EmbeddingExchange:
    """Sends embeddings from the ranks that encode images to those whose rows hold them, and gradients back.

    For `strategy: vlm_hybrid`. All ranks of `share["ranks"]` call it once a round, in order, also those that have no
    image to encode or no embedding to receive:

        exchange = msd.torch.EmbeddingExchange()
        for row, share in zip(batch.microbatches, batch.encoder):  # encoder.every: slot
            embeddings = encoder(share["pixels"], share["grids"])
            received = exchange(embeddings, share)
            x = tokens(row["input_ids"]).index_copy(0, share["positions"], received)

    With `encoder.every: step` one round is for all rows: those of row m are `received[share["slots"] == m]`. Either all
    ranks run the backward pass through what they received, also where that is empty, or none: it is a collective too.
    Gradients sum up at the rank that encoded; scale the loss as for the rows.
    """

    def __init__(self, group: Any = None) -> None:
        """Exchange within a process group (gloo, nccl); None is all processes."""
        self._group = group

    def __call__(self, embeddings: Any, share: dict[str, Any]) -> Any:
        """Return the embeddings that this rank receives, in the order of `share["positions"]`: [received, dim].

        Args:
            embeddings: [share["num_embeddings"], dim], of the images that this rank encodes, in their order.
            share: An entry of `TorchBatch.encoder`.

        Raises:
            ConfigError: If these are not the embeddings of the share, or the group has other ranks than the exchange.
        """
        if embeddings.ndim != 2 or len(embeddings) != share["num_embeddings"]:
            raise ConfigError(
                f"the exchange takes embeddings of shape [{share['num_embeddings']}, dim], one for each placeholder of "
                f"the images in share['pixels'], got {list(embeddings.shape)}"
            )
        ranks = dist.get_process_group_ranks(self._group or dist.group.WORLD)
        if ranks != share["ranks"]:
            raise ConfigError(
                f"the process group has ranks {_few(ranks)}, the exchange is among {_few(share['ranks'])}; pass "
                "EmbeddingExchange(torch.distributed.new_group(share['ranks']))"
            )
        return _Exchanged.apply(embeddings, share, self._group)


class _Exchanged(torch.autograd.Function):  # type: ignore[misc]  # torch is not followed by mypy
    @staticmethod
    def forward(ctx: Any, embeddings: Any, share: dict[str, Any], group: Any) -> Any:
        ctx.share, ctx.group, ctx.shape = share, group, embeddings.shape
        sent = embeddings.index_select(0, share["send_rows"])
        return _all_to_all(sent, share["send_counts"], share["receive_counts"], group)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Any) -> tuple[Any, None, None]:
        share, returns = ctx.share, ctx.share["returns"]
        is_returned = returns[share["ranks"].index(dist.get_rank())]
        counts = [count * is_returned for count in share["receive_counts"]]
        back_counts = [count * flag for count, flag in zip(share["send_counts"], returns, strict=True)]
        came_back = _all_to_all(gradient[: sum(counts)], counts, back_counts, ctx.group)
        pieces = share["send_rows"].split(share["send_counts"])
        rows = torch.cat([piece for piece, flag in zip(pieces, returns, strict=True) if flag])
        return gradient.new_zeros(ctx.shape).index_add_(0, rows, came_back), None, None


def _all_to_all(rows: Any, send_counts: list[int], receive_counts: list[int], group: Any) -> Any:
    received = rows.new_empty(sum(receive_counts), *rows.shape[1:])
    dist.all_to_all_single(received, rows.contiguous(), receive_counts, send_counts, group=group)
    return received


def _few(ranks: list[int], shown: int = 8) -> str:
    return f"{ranks}" if len(ranks) <= shown else f"{ranks[:shown]} and {len(ranks) - shown} more"


def _row_tensors(row: Microbatch) -> dict[str, Any]:
    arrays = {name: getattr(row, name) for name in (*TOKEN_FIELDS, "cu_seqlens", "cu_seqlens_padded")}
    fields: dict[str, Any] = {
        name: None if array is None else torch.from_numpy(array) for name, array in arrays.items()
    }
    for name in ("input_ids", "labels", "position_ids", "segment_ids"):
        fields[name] = None if fields[name] is None else fields[name].long()
    images = row.images
    return fields | {
        "num_tokens": row.num_tokens,
        "max_seqlen": row.max_seqlen,
        "images": None
        if images is None
        else {name: torch.from_numpy(getattr(images, name)) for name in ("pixels", "grids", "owner", "starts")},
    }


def _check_device(device: Any) -> None:
    """Raise `ConfigError` unless tensors can be had on a device."""
    try:
        torch.empty(0, device=device)
    except Exception as error:
        raise ConfigError(f"device={device!r} cannot be used: {told(error)}; name one that this torch has") from error


def _laid_out(layout: Layout, batch: RankBatch) -> Any:
    try:
        return _as_tensors(layout(batch))
    except Exception as error:
        name = getattr(layout, "__name__", repr(layout))
        error.add_note(f"while layout {name} laid out step {batch.step} of rank {batch.rank}")
        raise


def _each(item: Any, change: Callable[[Any], Any]) -> Any:
    return item.each(change) if isinstance(item, TorchBatch) else changed(item, torch.Tensor, change)


def _as_tensors(value: Any) -> Any:
    """Return a copy of nested mappings, lists and tuples with tensors for arrays of numbers, sharing their memory."""
    return changed(value, np.ndarray, _tensor)


def _tensor(array: np.ndarray[Any, Any]) -> Any:
    return torch.from_numpy(array) if array.dtype.kind in "biufc" else array


def _shared(batch: RankBatch, group: Any) -> RankBatch:
    """Return a batch with microbatches on every rank of a group: the one that fetched them sends them."""
    for row in batch.microbatches:
        counts = np.array([row.num_tokens, row.max_seqlen], dtype=np.int64)
        _broadcast([counts, *row.arrays.values()], batch.rank, group)
    if not batch.markers:
        return batch
    return replace(batch, microbatches=[_received(marker, group) for marker in batch.markers], markers=[])


def _received(marker: BatchMarker, group: Any) -> Microbatch:
    counts = np.empty(2, dtype=np.int64)
    arrays = {name: np.empty(shape, dtype) for name, (shape, dtype) in marker.shapes.items()}
    _broadcast([counts, *arrays.values()], marker.root, group)
    return Microbatch.of(arrays, num_tokens=int(counts[0]), max_seqlen=int(counts[1]))


def _broadcast(arrays: Sequence[np.ndarray[Any, Any]], root: int, group: Any) -> None:
    for array in arrays:
        dist.broadcast(torch.from_numpy(np.ascontiguousarray(array)), src=root, group=group)
