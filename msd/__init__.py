"""Feed the training of language and vision-language models from hundreds of sources.

config = msd.load_config("configs/text_mix.yaml")
with msd.start(config) as engine:
    for batch in engine.client(rank=0):
        train_step(batch)
"""

import importlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from msd.core.batch import Microbatch, RankBatch
from msd.core.mesh import Mesh
from msd.errors import (
    BadSampleRateError,
    ClosedError,
    ConfigError,
    DeadlineError,
    EngineError,
    InputError,
    LeaseError,
    MsdError,
    PlanError,
    SourceError,
    StateError,
)

if TYPE_CHECKING:
    from msd.client import RankClient, layouts, torch
    from msd.config import Config, load_config
    from msd.core.plan import StepPlan
    from msd.look import init
    from msd.planner.dgraph import DGraph
    from msd.planner.explain import explain
    from msd.runtime.base import Engine
    from msd.runtime.control import RunControl
    from msd.runtime.evaluation import evaluation
    from msd.simulator import simulate

__version__ = "0.1.0"

__all__ = [
    "BadSampleRateError",
    "ClosedError",
    "Config",
    "ConfigError",
    "DeadlineError",
    "EngineError",
    "InputError",
    "LeaseError",
    "Mesh",
    "Microbatch",
    "MsdError",
    "PlanError",
    "RankBatch",
    "SourceError",
    "StateError",
    "StepPlan",
    "connect",
    "control",
    "evaluation",
    "explain",
    "graph",
    "init",
    "layouts",
    "load_config",
    "plan",
    "simulate",
    "start",
    "torch",
]

# A trainer imports this package to connect: what it does not need then is imported on first use.
_LAZY = {
    "Config": ("msd.config", "Config"),
    "StepPlan": ("msd.core.plan", "StepPlan"),
    "evaluation": ("msd.runtime.evaluation", "evaluation"),
    "explain": ("msd.planner.explain", "explain"),
    "init": ("msd.look", "init"),
    "layouts": ("msd.layouts", None),
    "load_config": ("msd.config", "load_config"),
    "simulate": ("msd.simulator", "simulate"),
    "torch": ("msd.torch", None),
}


def start(
    config: "Config", *, runtime: str | None = None, scheduler: str | None = None, cluster: Any = None
) -> "Engine":
    """Start a run and return its engine: use it as a context manager.

    Args:
        config: From `load_config`, `init`, or `Config(...)`.
        runtime: `dask` runs on a cluster, `local` in this process; None takes the configuration's `runtime.kind`.
        scheduler: Address of a running Dask scheduler, such as `tcp://host:8786`; None takes `runtime.scheduler`,
            which is null for a cluster of the run's own.
        cluster: A Dask cluster object instead, such as `LocalCluster()` or one of dask-jobqueue or dask-kubernetes: its
            scheduler is used, and `scaling` may start and end its workers.

    Raises:
        ConfigError: If the configuration cannot be built, or the cluster is not there or does not fit.
        SourceError: If a source cannot be read.
    """
    _check_config(config, "msd.start")
    if runtime is not None:
        config = config.replace(runtime={"kind": runtime})
    if scheduler is not None:
        config = config.replace(runtime={"kind": "dask", "scheduler": scheduler})
    if cluster is not None:
        if scheduler is not None:
            raise ConfigError("msd.start takes cluster= or scheduler=, not both; a cluster object knows its scheduler")
        config = config.replace(runtime={"kind": "dask"})
    if config.runtime.kind == "local":
        from msd.runtime.local import LocalEngine

        return LocalEngine(config)
    from msd.runtime.dask.engine import DaskEngine

    return DaskEngine(config, cluster=cluster)


def connect(
    address: "str | Engine",
    rank: int,
    *,
    deadline_s: float | None = None,
    warn_s: float | None = 30.0,
    security: Any = None,
) -> "RankClient":
    """Return a client for one rank of a run.

    Args:
        address: `engine.address`, from this process or another: `local://...`, `msd://host:port?token=...`,
            `unix:///path?token=...`, or `file:///path` of a file that holds one; or the engine itself.
        rank: Of the trainer mesh.
        deadline_s: Over the link, the longest wait for a batch, for the run to appear, or for it to come back; it ends
            in an error that names what it waited for. None takes `runtime.deadline_s` of the run; before the run has
            answered, 300 s. Keep it below the time-out of the trainer's collectives (nccl, gloo), whose own error says
            nothing of the reason.
        warn_s: Over the link, a wait that lasts so long is logged as a warning of logger `msd` with what is waited for,
            and again each time it has lasted twice as long; None logs none.
        security: Over the link, `{"ca": ..., "certificate": ..., "key": ...}`: files in PEM, with which nothing but TLS
            is spoken on TCP. None takes the environment's MSD_TLS_CA, MSD_TLS_CERT and MSD_TLS_KEY; where they are not
            set either, no TLS.

    Raises:
        ConfigError: If nothing can run at the address, the rank is outside the mesh, or one side refuses the other's
            certificate.
        DeadlineError: If the run does not appear there in time.
    """
    if not isinstance(address, str):
        if not callable(getattr(address, "client", None)):
            raise ConfigError(f"msd.connect takes engine.address or an engine, got {type(address).__name__}")
        return address.client(rank)
    if address.startswith("local://"):
        from msd.runtime.local import running_engine

        return running_engine(address).client(rank)
    from msd.client import RankClient
    from msd.client.link.certificates import certificates_of
    from msd.client.remote import SocketTransport

    certificates = certificates_of(security)
    return RankClient(
        SocketTransport(address, deadline_s=deadline_s, warn_s=warn_s, certificates=certificates), rank=rank
    )


def control(address: "str | Engine", *, deadline_s: float = 30.0, security: Any = None) -> "RunControl":
    """Return a run that is under way, to look at it and to change what it draws: `mix`, `suspend`, `stats`, ...

    Args:
        address: `engine.address`, or what `msd.connect` takes besides; or the engine itself.
        deadline_s: For how long a run that does not answer is tried again.
        security: Certificates, as `msd.connect` takes them; an engine knows its own.
    """
    from msd.client.link.certificates import certificates_of
    from msd.runtime.control import RunControl

    found = address if isinstance(address, str) else getattr(address, "address", None)
    if not isinstance(found, str) or found.startswith("local://"):
        raise ConfigError(
            "msd.control takes the address of a run on Dask, or its engine; a local engine has methods of its own"
        )
    is_own = not isinstance(address, str) and security is None
    certificates = getattr(address, "certificates", None) if is_own else certificates_of(security)
    return RunControl(found, deadline_s=deadline_s, certificates=certificates)


def plan(
    config: "Config", steps: int | None = None, mesh: Mesh | Mapping[str, int] | None = None
) -> "Iterator[StepPlan]":
    """Return an iterator of the plans that a run of `config` would follow, without assembling a batch.

    Args:
        config: The configuration.
        steps: How many; None goes on to the end of the data, for ever where a source repeats.
        mesh: Plan for another mesh than the configured one: axis sizes such as `{"dp": 8}`.

    Raises:
        ConfigError: If the configuration, or one of the arguments, cannot mean anything.
        SourceError: With the first step, if a source cannot be read.
    """
    from msd.core.checks import whole_number

    config = _on_mesh(config, mesh, "msd.plan")
    if steps is not None and whole_number(steps, name="steps") < 0:
        raise ConfigError(f"steps must be 0 or more, got {steps}; None goes on to the end of the data")
    return _plans(config, steps)


def graph(config: "Config", mesh: Mesh | Mapping[str, int] | None = None) -> "DGraph":
    """Return what the strategy of a run declares: printed, drawn in a notebook, or as a table by `to_pandas`.

    Args:
        config: The configuration.
        mesh: For another mesh than the configured one; see `plan`.

    Raises:
        ConfigError: If the configuration, or its strategy, cannot mean anything.
        SourceError: If a source cannot be read.
    """
    from msd.build import build_orders, build_planner, index_all

    config = _on_mesh(config, mesh, "msd.graph")
    return build_planner(config, build_orders(config, index_all(config))).strategy.graph


def _plans(config: "Config", steps: int | None) -> "Iterator[StepPlan]":
    from msd.build import build_loaders, build_orders, build_planner, index_all, plan_steps

    orders = build_orders(config, index_all(config))
    loaders = build_loaders(config, orders)
    try:
        yield from plan_steps(build_planner(config, orders), loaders, steps=steps)
    finally:
        for loader in loaders.values():
            loader.close()


def _on_mesh(config: "Config", mesh: Any, where: str) -> "Config":
    _check_config(config, where)
    if mesh is None:
        return config
    if not isinstance(mesh, Mesh | Mapping):
        raise ConfigError(f'mesh must be axis sizes such as {{"dp": 8}}, got {type(mesh).__name__}')
    return config.on_mesh(mesh.as_dict() if isinstance(mesh, Mesh) else dict(mesh))


def _check_config(config: Any, where: str) -> None:
    from msd.config import Config

    if not isinstance(config, Config):
        raise ConfigError(
            f"{where} takes a configuration, got {type(config).__name__}; see msd.load_config and msd.init"
        )


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        module, attribute = _LAZY[name]
        found = importlib.import_module(module)
        value = found if attribute is None else getattr(found, attribute)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'msd' has no attribute {name!r}")
