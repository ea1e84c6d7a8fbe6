"""Graphs and plans as small pictures for notebooks: SVG, without a library."""

from collections.abc import Sequence
from html import escape

from msd.core.plan import StepPlan

_COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#e45756", "#72b7b2", "#eeca3b", "#b279a2", "#ff9da6", "#9d755d")
_TEXT = 'font-family="sans-serif" font-size="11"'
_HOLDS, _GOES = _COLOURS[0], _COLOURS[2]
_ROWS_SHOWN = 48
_BAR, _LEFT, _RIGHT, _LINE = 560, 120, 90, 16
_BOX, _GAP = 104, 26


def graph_svg(ops: Sequence[tuple[str, str, bool]]) -> str:
    """Return the ops of a graph from left to right, what decides what a step holds in another colour.

    Args:
        ops: Name and arguments of each, and whether it decides what a step holds.
    """
    step = _BOX + _GAP
    num_holding = sum(holds for _, _, holds in ops)
    parts = [
        f'<text x="4" y="14" fill="{_HOLDS}">what a step holds</text>'
        f'<text x="{max(1, num_holding) * step + 4}" y="14" fill="{_GOES}">where it goes</text>'
    ]
    for number, (name, arguments, holds) in enumerate(ops):
        left, colour = number * step + 4, _HOLDS if holds else _GOES
        if number:
            parts.append(f'<path d="M{left - _GAP} 40 H{left - 6} m-4 -4 l4 4 l-4 4" stroke="#888" fill="none"/>')
        parts.append(
            f"<g><title>{escape(f'{name}({arguments})')}</title>"
            f'<rect x="{left}" y="22" width="{_BOX}" height="36" rx="5" fill="{colour}" fill-opacity=".15" '
            f'stroke="{colour}"/><text x="{left + _BOX / 2}" y="38" text-anchor="middle" font-weight="bold">'
            f'{escape(name)}</text><text x="{left + _BOX / 2}" y="52" text-anchor="middle" font-size="9">'
            f"{escape(_cut(arguments, 20))}</text></g>"
        )
    return _svg(max(2, len(ops)) * step + 8, 66, parts)


def plan_svg(plan: StepPlan) -> str:
    """Return the rows of a plan, documents in the colour of their source, and at the right what each row costs."""
    rows = [(bucket, slot) for bucket in range(plan.num_buckets) for slot in range(plan.num_microbatches)]
    shown = rows[:_ROWS_SHOWN]
    cost_R = [float(plan.cost_D[plan.documents_of(*row)].sum()) for row in shown]
    most = max(cost_R, default=0.0) or 1.0
    report = plan.report
    title = (
        f"step {plan.step}: fill {report.fill:.2%}, imbalance {report.imbalance:.2%}, lockstep {report.lockstep:.2%}"
    )
    parts = [f'<text x="4" y="12">{title}</text><text x="{_LEFT + _BAR + 8}" y="12">cost</text>']
    for line, ((bucket, slot), cost) in enumerate(zip(shown, cost_R, strict=True)):
        top = 20 + line * _LINE
        parts.append(f'<text x="4" y="{top + 11}">bucket {bucket} slot {slot}</text>')
        parts.append(f'<rect x="{_LEFT}" y="{top}" width="{_BAR}" height="{_LINE - 3}" fill="#eee"/>')
        parts.extend(_document(plan, document, top) for document in plan.documents_of(bucket, slot).tolist())
        width = cost / most * (_RIGHT - 10)
        parts.append(
            f'<g><title>cost {cost:.4g}</title><rect x="{_LEFT + _BAR + 8}" y="{top}" width="{width:.1f}" '
            f'height="{_LINE - 3}" fill="#999"/></g>'
        )
    bottom = 20 + len(shown) * _LINE
    if len(rows) > len(shown):
        parts.append(f'<text x="4" y="{bottom + 11}">and {len(rows) - len(shown)} rows more</text>')
        bottom += _LINE
    for place, name in enumerate(plan.source_names[: len(_COLOURS)]):
        left = 4 + place * 90
        parts.append(
            f'<rect x="{left}" y="{bottom + 4}" width="9" height="9" fill="{_COLOURS[place]}"/>'
            f'<text x="{left + 13}" y="{bottom + 12}">{escape(_cut(name, 12))}</text>'
        )
    return _svg(_LEFT + _BAR + _RIGHT, bottom + 20, parts)


def _document(plan: StepPlan, document: int, top: int) -> str:
    source, ordinal, part = plan.sample_id(document)
    scale = _BAR / plan.row_length
    left, width = _LEFT + int(plan.offset_D[document]) * scale, int(plan.length_D[document]) * scale
    colour = _COLOURS[int(plan.source_D[document]) % len(_COLOURS)]
    title = escape(f"{source}:{ordinal}.{part}, {plan.length_D[document]} tokens")
    return (
        f'<g><title>{title}</title><rect x="{left:.1f}" y="{top}" width="{max(width - 0.5, 0.5):.1f}" '
        f'height="{_LINE - 3}" fill="{colour}"/></g>'
    )


def _svg(width: float, height: float, parts: Sequence[str]) -> str:
    body = "".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{height:g}" '
        f'viewBox="0 0 {width:g} {height:g}" {_TEXT}>{body}</svg>'
    )


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
