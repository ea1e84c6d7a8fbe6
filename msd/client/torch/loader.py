"""The loader that a training loop iterates."""

import importlib
import os
from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NoReturn, Protocol

import torch
from torch.utils.data import IterableDataset, get_worker_info

from msd.client.client import RankClient
from msd.client.layouts import Layout, layout_named
from msd.client.torch.batch import TorchBatch
from msd.client.torch.broadcast import shared
from msd.client.torch.tensors import as_tensors, changed
from msd.core.batch import RankBatch
from msd.core.mesh import Mesh
from msd.core.state import StateDict
from msd.errors import ConfigError

_WORKERS = (
    "msd.torch.DataLoader cannot be copied into a worker process, where a second run would load the same steps again; "
    "use torch.utils.data.DataLoader(loader, batch_size=None, num_workers=0), or iterate the loader itself"
)


class HasClients(Protocol):
    """An engine, as far as a loader needs it."""

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run."""
        ...

    def client(self, rank: int = 0) -> RankClient:
        """Return a client for one rank."""
        ...


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

        Raises:
            ConfigError: If the rank is not said or lies outside the mesh, the trainer's mesh is not the run's, nothing
                runs at the address, there is no such layout, or memory is to be pinned without an accelerator.
        """
        super().__init__()
        if steps is not None and steps < 0:
            raise ConfigError(f"steps must be None or at least 0, got {steps}")
        if pin_memory and not torch.accelerator.is_available():
            raise ConfigError("pin_memory=True needs an accelerator; pass pin_memory=torch.accelerator.is_available()")
        self._layout = None if layout is None else layout_named(layout)
        trainer = None
        if device_mesh is not None:
            trainer = Mesh.from_device_mesh(device_mesh, names=device_mesh_names)
            rank = device_mesh.get_rank() if rank is None else rank
        self._client = _connect(address_or_engine, rank)
        try:
            _check_mesh(self._client.mesh, trainer, from_environment=rank is None)
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
        return self._batches()

    def state_dict(self) -> StateDict:
        """Return the position after the last batch handed out: JSON-able, the same on every rank, legal at any time."""
        return self._client.state_dict()

    def load_state_dict(self, state: StateDict) -> None:
        """Go on from a saved position; see `RankClient.load_state_dict`."""
        self._client.load_state_dict(state)

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

    def _batches(self) -> Iterator[Any]:
        num_taken = 0
        while self._steps is None or num_taken < self._steps:
            try:
                batch = next(self._client)
            except StopIteration:
                return
            num_taken += 1
            if self._broadcast_group is not None:
                batch = shared(batch, self._broadcast_group)
            yield self._placed(TorchBatch.of(batch) if self._layout is None else _laid_out(self._layout, batch))

    def _placed(self, item: Any) -> Any:
        if self._pin_memory:
            item = _each(item, lambda tensor: tensor.pin_memory())
        if self._device is None:
            return item
        return _each(item, lambda tensor: tensor.to(self._device, non_blocking=self._pin_memory))


def _connect(target: "str | HasClients | RankClient", rank: int | None) -> RankClient:
    if isinstance(target, RankClient):
        if rank not in (None, target.rank):
            raise ConfigError(
                f"the client given is of rank {target.rank}, not {rank}; leave rank out, or pass the engine"
            )
        return target
    if not isinstance(target, str) and not hasattr(target, "client"):
        raise ConfigError(
            f"msd.torch.DataLoader takes an engine, its address or a client, got {type(target).__name__}; "
            "start an engine with msd.start(config)"
        )
    chosen = _rank(target) if rank is None else rank
    if isinstance(target, str):
        # Only the top of the package knows what may run at an address; rooms do not import it.
        client: RankClient = importlib.import_module("msd").connect(target, rank=chosen)
        return client
    return target.client(chosen)


def _check_mesh(mesh: Mesh, trainer: Mesh | None, *, from_environment: bool) -> None:
    """Raise `ConfigError` unless the run's mesh is the trainer's, as far as that is known."""
    world_size = os.environ.get("WORLD_SIZE", "")
    if trainer is not None:
        mesh.check_world_size(trainer.world_size)
        if not mesh.is_like(trainer):
            raise ConfigError(
                f"the device mesh of the trainer is {trainer}, the mesh of the run {mesh}, so that ranks would receive "
                f"data of others; set mesh: {trainer.as_dict()}"
            )
    elif from_environment and world_size.isdecimal():
        mesh.check_world_size(int(world_size))


def _rank(target: "str | HasClients") -> int:
    """Return the rank from the environment; without it, 0 where there is no other."""
    given = os.environ.get("RANK")
    if given is not None:
        if not given.isdecimal():
            raise ConfigError(f"the environment's RANK must be a number from 0, got {given!r}; or pass rank=")
        return int(given)
    if not isinstance(target, str) and target.mesh.world_size == 1:
        return 0
    raise ConfigError("whose batches? pass rank=, or start the script with torchrun, which sets RANK")


def _laid_out(layout: Layout, batch: RankBatch) -> Any:
    try:
        return as_tensors(layout(batch))
    except Exception as error:
        name = getattr(layout, "__name__", repr(layout))
        error.add_note(f"while layout {name} laid out step {batch.step} of rank {batch.rank}")
        raise


def _each(item: Any, change: Callable[[Any], Any]) -> Any:
    return item.each(change) if isinstance(item, TorchBatch) else changed(item, torch.Tensor, change)
