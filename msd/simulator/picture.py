"""Rows of a step drawn as bars, as SVG text: nothing to install, shown by any notebook or browser."""

# M = slots. B = buckets.

from collections.abc import Mapping
from html import escape

import numpy as np

from msd.core.arrays import Float64Array

_PANEL_WIDTH, _PANEL_HEIGHT, _LEFT, _TOP, _GAP = 360, 180, 44, 34, 28
_MAX_BARS = 64
_DARK, _LIGHT, _LINE = "#2f6690", "#81a4c4", "#c1440e"


def rows_svg(panels: Mapping[str, Float64Array]) -> str:
    """Return a drawing with one panel for each assignment, all on one scale.

    A bar is a data-parallel rank, its pieces are the rank's microbatches from the first slot up; the line is the mean.
    Over 64 ranks, 64 evenly spread ones of those sorted by cost are drawn.

    Args:
        panels: Cost of each row [M, B] by the title of its panel.
    """
    tallest = max(1.0, *(float(_over_mean(cost_MB).sum(axis=0).max()) for cost_MB in panels.values()))
    width = _LEFT + len(panels) * (_PANEL_WIDTH + _GAP)
    height = _TOP + _PANEL_HEIGHT + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, (title, cost_MB) in enumerate(panels.items()):
        parts += _panel(title, cost_MB, _LEFT + number * (_PANEL_WIDTH + _GAP), tallest)
    return "\n".join([*parts, "</svg>"])


def _panel(title: str, cost_MB: Float64Array, left: float, tallest: float) -> list[str]:
    share_MB = _over_mean(cost_MB)
    excess = float(share_MB.sum(axis=0).max()) - 1.0
    num_ranks = share_MB.shape[1]
    if num_ranks > _MAX_BARS:
        order = np.argsort(-share_MB.sum(axis=0), kind="stable")
        share_MB = share_MB[:, order[np.linspace(0, num_ranks - 1, _MAX_BARS).astype(np.int64)]]
    step = _PANEL_WIDTH / share_MB.shape[1]
    scale, floor = _PANEL_HEIGHT / tallest, _TOP + _PANEL_HEIGHT
    parts = [f'<text x="{left}" y="{_TOP - 14}" font-weight="bold">{escape(title)}: slowest {excess:+.1%}</text>']
    for bucket, share_M in enumerate(share_MB.T.tolist()):
        below = 0.0
        for slot, share in enumerate(share_M):
            top = floor - (below + share) * scale
            parts.append(
                f'<rect x="{left + bucket * step:.1f}" y="{top:.1f}" width="{max(0.5, step - 1):.1f}" '
                f'height="{max(0.0, share * scale - 0.5):.1f}" fill="{_LIGHT if slot % 2 else _DARK}"/>'
            )
            below += share
    mean = floor - scale
    parts.append(
        f'<line x1="{left}" x2="{left + _PANEL_WIDTH}" y1="{mean:.1f}" y2="{mean:.1f}" stroke="{_LINE}" '
        'stroke-dasharray="4 3"/>'
    )
    parts.append(f'<text x="{left}" y="{floor + 18}">{num_ranks} data-parallel ranks, cost over the mean</text>')
    return parts


def _over_mean(cost_MB: Float64Array) -> Float64Array:
    """Return rows as shares of the mean bucket."""
    mean = float(cost_MB.sum()) / cost_MB.shape[1]
    over: Float64Array = cost_MB / mean if mean > 0 else np.zeros_like(cost_MB)
    return over
