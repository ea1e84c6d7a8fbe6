"""What the order and content of a run depend on, part by part: kept in every state, and compared when one is loaded."""

from collections.abc import Mapping
from typing import Any

import msgspec

from msd.config import PipelineConfig, import_dotted
from msd.core.order import SourceOrder
from msd.core.state import StateDict, canonical_json, fingerprint
from msd.loader.transforms.chain import TransformChain
from msd.loader.transforms.function import code_of
from msd.planner.config import GroupConfig, MixtureConfig, StageConfig

FEEDBACK = "mixture.feedback"
UNENDING = "unending"
"""Stands for the data of a source of which more may come: its ledger is told of in the progress."""
_READ_BYTES = 512


def identity(
    config: PipelineConfig, orders: Mapping[str, SourceOrder], chains: Mapping[str, TransformChain]
) -> StateDict:
    """Return what the order and content of a run depend on: kept in every state.

    Settings by the name they have in a configuration, as they are; data and transforms of a source as fingerprints.
    """
    parts: dict[str, Any] = {
        "seed": config.seed,
        "mixture.unit": config.mixture.unit,
        **_mixture_identity(config),
        "batch.sequence_length": config.batch.sequence_length,
        "batch.global_batch_size": config.batch.global_batch_size,
        "batch.packing.method": config.batch.packing.method,
        "batch.packing.lookahead": config.lookahead,
        "batch.last": config.batch.last,
        **batch_identity(config),
    }
    for name, source in config.sources.items():
        order = orders[name]
        # The length of a sequence has its own entry; it is not to be told a second time for every source.
        transforms = {key: value for key, value in chains[name].identity.items() if key != "sequence_length"}
        parts |= {
            f"sources.{name}.data": UNENDING if order.is_unbounded else _short(order.blocks.digest),
            f"sources.{name}.order": {"shuffled": source.is_shuffled, "window": order.window_blocks},
            f"sources.{name}.end": {"max_epochs": config.max_epochs(name), "then": config.end_of(name)},
            f"sources.{name}.transforms": _short([transforms, source.overflow]),
        }
    return parts


def _short(value: Any) -> str:
    """Return a fingerprint that tells what one source was from what it is: 48 bits, since a state has many."""
    return fingerprint(value)[:12]


def batch_identity(config: PipelineConfig) -> StateDict:
    """Return what sizes of steps and packing make the order depend on; settings that say nothing are left out."""
    parts: dict[str, Any] = {}
    for section, chosen, settings in (
        ("batch", config.batch, ("tokens_per_step", "schedule", "limits", "oversize")),
        ("batch.packing", config.batch.packing, ("objective", "max_age")),
    ):
        usual = type(chosen)()
        for setting in settings:
            value = getattr(chosen, setting)
            if value != getattr(usual, setting):
                parts[f"{section}.{setting}"] = msgspec.to_builtins(value)
    return parts


def _mixture_identity(config: PipelineConfig) -> StateDict:
    """Return what the mixture makes the order depend on; settings that say nothing are left out."""
    mixture = config.mixture
    is_flat = not any(isinstance(weight, GroupConfig) for weight in (mixture.weights or {}).values())
    parts: dict[str, Any] = {
        "mixture.weights": _folded(config.weights if is_flat else msgspec.to_builtins(mixture.weights)),
        "mixture.schedule": _folded([_stage_identity(stage) for stage in mixture.schedule]),
    }
    for setting in ("mode", "temperature", "clock"):
        if getattr(mixture, setting) != getattr(MixtureConfig(), setting):
            parts[f"mixture.{setting}"] = getattr(mixture, setting)
    if mixture.clock == "microbatch":
        parts["num_microbatches"] = config.num_microbatches
    if mixture.feedback is not None:
        function = mixture.feedback.function
        code = fingerprint(code_of(import_dotted(function, name=FEEDBACK) if isinstance(function, str) else function))
        parts[FEEDBACK] = {"function": code, "every": mixture.feedback.every}
    return parts


def _folded(value: Any) -> Any:
    """Return a value that states keep as it is while a person would read it, else its fingerprint."""
    return value if len(canonical_json(value)) <= _READ_BYTES else {"fingerprint": fingerprint(value)}


def _stage_identity(stage: StageConfig) -> StateDict:
    """Return a stage of the schedule, without what it does not say."""
    place = {"at": stage.at} if stage.step is None else {"step": stage.step}
    mode = {} if stage.mode == "explicit" else {"mode": stage.mode, "temperature": stage.temperature}
    return {**place, "weights": msgspec.to_builtins(stage.weights), "ramp": stage.ramp, **mode}
