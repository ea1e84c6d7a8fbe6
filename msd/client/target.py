"""From what a training loop names to the client of its rank."""

import importlib
import os
from typing import Any, Protocol

from msd.client.client import RankClient
from msd.core.mesh import Mesh
from msd.errors import ConfigError


class HasClients(Protocol):
    """An engine, as far as a loader needs it."""

    @property
    def mesh(self) -> Mesh:
        """The trainer mesh of the run."""
        ...

    def client(self, rank: int = 0) -> RankClient:
        """Return a client for one rank."""
        ...


def client_of(target: "str | HasClients | RankClient", rank: int | None, security: Any = None) -> RankClient:
    """Return the client of a rank; None takes the environment's `RANK`; `security` counts for an address.

    Raises:
        ConfigError: If the rank is not said or lies outside the mesh, or nothing runs there.
    """
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
    chosen = rank_of(target) if rank is None else rank
    if isinstance(target, str):
        # Only the top of the package knows what may run at an address; rooms do not import it.
        client: RankClient = importlib.import_module("msd").connect(target, rank=chosen, security=security)
        return client
    return target.client(chosen)


def check_mesh(mesh: Mesh, trainer: Mesh | None, *, from_environment: bool) -> None:
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


def rank_of(target: "str | HasClients") -> int:
    """Return the rank from the environment; without it, 0 where there is no other.

    Raises:
        ConfigError: If it is not said, or is no number.
    """
    given = os.environ.get("RANK")
    if given is not None:
        if not given.isdecimal():
            raise ConfigError(f"the environment's RANK must be a number from 0, got {given!r}; or pass rank=")
        return int(given)
    if not isinstance(target, str) and target.mesh.world_size == 1:
        return 0
    raise ConfigError("whose batches? pass rank=, or start the script with torchrun, which sets RANK")
