"""Layouts by name."""

import difflib
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from msd.client.layouts.flash import flash
from msd.client.layouts.hf import hf
from msd.client.layouts.megatron import megatron, megatron_packed
from msd.client.layouts.qwen import qwen
from msd.client.layouts.torchtitan import torchtitan
from msd.core.batch import RankBatch
from msd.errors import ConfigError

Layout: TypeAlias = Callable[[RankBatch], Any]

NAMED: Mapping[str, Layout] = {
    "megatron": megatron,
    "megatron_packed": megatron_packed,
    "hf": hf,
    "flash": flash,
    "torchtitan": torchtitan,
    "qwen": qwen,
}
"""The layouts that are here, by the name that `msd.torch.DataLoader` takes."""


def layout_named(layout: str | Layout) -> Layout:
    """Return the layout of a name; a function is returned as it is.

    Raises:
        ConfigError: If there is no such name, or what is given is neither a name nor a function.
    """
    if callable(layout):
        return layout
    if isinstance(layout, str) and layout in NAMED:
        return NAMED[layout]
    near = difflib.get_close_matches(str(layout), NAMED, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"name one of {', '.join(NAMED)}, or pass a function (RankBatch)"
    raise ConfigError(f"there is no layout {layout!r}; {hint}")
