"""The page `/msd` of the scheduler that hosts runs: one document for each browser, on the scheduler's loop."""

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from bokeh.layouts import column, row
from bokeh.models import (
    ColumnDataSource,
    DataTable,
    Div,
    HoverTool,
    NumberFormatter,
    NumeralTickFormatter,
    Range1d,
    Select,
    TableColumn,
)
from bokeh.palettes import Category10
from bokeh.plotting import figure

from msd.runtime.dask.watching.view import RunView, failures_of, memory_of, sources_by_share

MOST_LINES = 8
"""Sources with a line of their own: those with the largest shares."""
MOST_BARS = 40
UPDATE_MS = 1000
OTHERS = "others"
_COLOURS = [*Category10[10]]
_LINE = {"height": 260, "x_axis_type": "datetime", "sizing_mode": "stretch_width", "tools": "xpan,xwheel_zoom,reset"}


class Page:
    """What one browser shows."""

    def __init__(self, views: Callable[[], Iterable[RunView]]) -> None:
        """Make all parts, empty; `update` fills them."""
        self._views = views
        self._shown: tuple[str, float] = ("", 0.0)
        self._choice = Select(title="run", options=[], name="msd_run", width=220, visible=False)
        self._headline = Div(name="msd_headline", sizing_mode="stretch_width", text="no run is under way")
        self._mixture = ColumnDataSource({"xs": [], "ys": [], "name": [], "colour": [], "dash": []}, name="msd_mixture")
        self._ready = ColumnDataSource({"name": [], "ready": [], "wanted": []}, name="msd_ready")
        self._balance = ColumnDataSource({"at": [], "padding": [], "imbalance": [], "floor": []}, name="msd_balance")
        self._time = ColumnDataSource(
            {"at": [], "waited": [], "load": [], "plan": [], "construct": [], "steps": []}, name="msd_timeline"
        )
        self._memory = ColumnDataSource({"process": [], "role": [], "mib": []}, name="msd_memory")
        self._sources = ColumnDataSource(dict.fromkeys(_SOURCE_COLUMNS, ()), name="msd_sources")
        self._decisions = ColumnDataSource({"at": [], "about": [], "why": []}, name="msd_decisions")
        self._losses = ColumnDataSource({"at": [], "what": [], "how": [], "took": []}, name="msd_losses")
        self._failures = ColumnDataSource({"source": [], "reason": [], "rows": []}, name="msd_failures")
        self._bars = self._occupancy_figure()
        self.root = column(
            row(self._headline, self._choice, sizing_mode="stretch_width"),
            row(self._mixture_figure(), self._bars, sizing_mode="stretch_width"),
            row(self._balance_figure(), self._time_figure(), sizing_mode="stretch_width"),
            row(
                _table(self._sources, _SOURCE_COLUMNS, title="Sources", height=300),
                _table(self._memory, {"process": "process", "role": "role", "mib": "memory, MiB"}, title="Memory"),
                sizing_mode="stretch_width",
            ),
            row(
                _table(self._decisions, {"at": "at", "about": "about", "why": "why"}, title="Sizes"),
                sizing_mode="stretch_width",
            ),
            row(
                _table(
                    self._losses, {"at": "at", "what": "what", "how": "how", "took": "replaced after, s"},
                    title="Losses and recoveries",
                ),
                _table(self._failures, {"source": "source", "reason": "reason", "rows": "rows"}, title="Bad samples"),
                sizing_mode="stretch_width",
            ),
            sizing_mode="stretch_width",
        )  # fmt: skip

    def update(self) -> None:
        """Show the newest figures of the run that is chosen; nothing is sent to the browser while there are none."""
        views = {view.name: view for view in self._views() if view.latest}
        names = sorted(views, key=lambda name: -views[name].at_s)
        if self._choice.options != names:
            self._choice.options = names
            self._choice.visible = len(names) > 1
        if self._choice.value not in views:
            self._choice.value = names[0] if names else ""
        view = views.get(self._choice.value)
        if view is None:
            self._headline.text = "no run is under way"
            return
        if self._shown == (view.name, view.at_s):
            return
        self._shown = (view.name, view.at_s)
        self._headline.text = headline(view)
        self._mixture.data = mixture_lines(view)
        self._show_occupancy(view)
        points = list(view.points)
        at = [_when(point.at_s) for point in points]
        self._balance.data = {
            "at": at,
            "padding": [float("nan") if point.fill is None else 1.0 - point.fill for point in points],
            "imbalance": [_number(point.imbalance) for point in points],
            "floor": [_number(point.floor) for point in points],
        }
        self._time.data = {
            "at": at,
            **{key: [getattr(point, key) for point in points] for key in ("waited", "load", "plan", "construct")},
            "steps": [point.steps_per_s for point in points],
        }
        memory = memory_of(view.latest)
        self._memory.data = {
            "process": [process for process, _, _ in memory],
            "role": [role for _, role, _ in memory],
            "mib": [round(nbytes / 2**20, 1) for _, _, nbytes in memory],
        }
        self._sources.data = source_rows(view)
        decisions = (view.latest.get("scaling") or {}).get("decisions", [])[::-1]
        self._decisions.data = {key: [one[key] for one in decisions] for key in ("at", "about", "why")}
        losses = view.latest["recoveries"][::-1]
        self._losses.data = {
            "at": [one["at"] for one in losses],
            "what": [one["name"] for one in losses],
            "how": [one["how"] for one in losses],
            "took": ["not yet" if one["took_s"] is None else f"{one['took_s']:.1f}" for one in losses],
        }
        failures = failures_of(view.latest)
        self._failures.data = {
            "source": [source for source, _, _ in failures],
            "reason": [reason for _, reason, _ in failures],
            "rows": [rows for _, _, rows in failures],
        }

    def _show_occupancy(self, view: RunView) -> None:
        names, others = sources_by_share(view.latest, MOST_BARS)
        sources = view.latest["sources"]
        self._bars.y_range.factors = names[::-1]
        self._bars.height = max(260, 40 + 14 * len(names))
        more = f" of the {MOST_BARS} largest of {len(names) + len(others)} sources" if others else ""
        self._bars.title.text = f"Rows ready and wanted{more}"
        self._ready.data = {
            "name": names,
            "ready": [sources[name]["ready_rows"] for name in names],
            "wanted": [sources[name]["wanted_rows"] for name in names],
        }

    def _mixture_figure(self) -> Any:
        plot = figure(title="Mixture: drawn (lines) against target (dashed), by tokens", y_range=Range1d(0, 1), **_LINE)
        lines = plot.multi_line("xs", "ys", source=self._mixture, line_color="colour", line_width=2, line_dash="dash")
        plot.add_tools(HoverTool(renderers=[lines], tooltips=[("source", "@name")]))
        plot.yaxis.formatter = NumeralTickFormatter(format="0 %")
        return plot

    def _occupancy_figure(self) -> Any:
        plot = figure(
            title="Rows ready and wanted", y_range=[], height=260, sizing_mode="stretch_width", tools="hover",
            tooltips=[("source", "@name"), ("ready", "@ready"), ("wanted", "@wanted")],
        )  # fmt: skip
        plot.hbar(y="name", right="wanted", height=0.8, source=self._ready, color="#d9d9d9", legend_label="wanted")
        plot.hbar(y="name", right="ready", height=0.5, source=self._ready, color=_COLOURS[0], legend_label="ready")
        plot.legend.location = "bottom_right"
        return plot

    def _balance_figure(self) -> Any:
        plot = figure(title="Padding, and imbalance over ranks with its floor", **_LINE)
        for key, colour, dash in (
            ("padding", _COLOURS[2], "solid"), ("imbalance", _COLOURS[3], "solid"), ("floor", _COLOURS[3], "dashed"),
        ):  # fmt: skip
            plot.line("at", key, source=self._balance, color=colour, line_dash=dash, line_width=2, legend_label=key)
        plot.yaxis.formatter = NumeralTickFormatter(format="0.00 %")
        plot.add_layout(plot.legend[0], "right")
        return plot

    def _time_figure(self) -> Any:
        plot = figure(
            title="Parts of the time that is waited, and cores in use",
            **_LINE,
        )
        for number, (key, label) in enumerate(
            (
                ("waited", "ranks wait"),
                ("load", "planning waits for rows"),
                ("plan", "planning"),
                ("construct", "assembly"),
            )
        ):
            plot.line("at", key, source=self._time, color=_COLOURS[number], line_width=2, legend_label=label)
        plot.add_layout(plot.legend[0], "right")
        return plot


_SOURCE_COLUMNS = {
    "source": "source",
    "target": "target, %",
    "drawn": "drawn of late, %",
    "tokens": "tokens so far, %",
    "samples": "samples",
    "starved": "waited for, s",
    "failed": "failed rows",
}


def headline(view: RunView) -> str:
    """Return where a run stands, in a line of HTML."""
    stats = view.latest
    point = view.points[-1] if view.points else None
    parts = [f"run <b>{_escaped(view.name)}</b>", f"step <b>{stats['next_step']:,}</b>"]
    if point is not None:
        parts += [f"{point.steps_per_s:.2f} steps/s", f"ranks wait {point.waited:.0%} of the time"]
    connected = sum(len(one["connected"]) for one in stats["constructors"])
    parts += [f"{connected} ranks", f"{len(stats['sources'])} sources", f"{len(stats['hosts'])} loader hosts"]
    limit = stats.get("limited_by")
    if limit is not None:
        parts.append(f"<b>{_escaped(limit['text'])}</b>")
    if stats.get("waits_for"):
        parts.append(f"now waits for {_escaped(stats['waits_for'])}")
    return " · ".join(parts)


def mixture_lines(view: RunView) -> dict[str, list[Any]]:
    """Return for the largest sources, and the others together, what was drawn and what was the target over time."""
    names, others = sources_by_share(view.latest, MOST_LINES)
    at = [_when(point.at_s) for point in view.points]
    groups = [(name, [name]) for name in names] + ([(OTHERS, others)] if others else [])
    found: dict[str, list[Any]] = {"xs": [], "ys": [], "name": [], "colour": [], "dash": []}
    for number, (title, members) in enumerate(groups):
        for key, dash in (("realised", "solid"), ("targets", "dashed")):
            found["xs"].append(at)
            of_points = [getattr(point, key) for point in view.points]
            # Where nothing was drawn there is a gap.
            found["ys"].append(
                [sum(one.get(name, 0.0) for name in members) if one else float("nan") for one in of_points]
            )
            found["name"].append(title)
            found["colour"].append("#7f7f7f" if title == OTHERS else _COLOURS[number % len(_COLOURS)])
            found["dash"].append(dash)
    return found


def source_rows(view: RunView) -> dict[str, list[Any]]:
    """Return a row of figures for every source, the largest share first."""
    stats = view.latest
    names, _ = sources_by_share(stats, len(stats["sources"]))
    late = view.points[-1].realised if view.points else {}
    rows = [stats["sources"][name] for name in names]
    return {
        "source": [
            f"{name} (suspended)" if one["is_suspended"] else name for name, one in zip(names, rows, strict=True)
        ],
        "target": [round(100 * one["target_share"], 2) for one in rows],
        "drawn": [round(100 * late.get(name, 0.0), 2) for name in names],
        "tokens": [round(100 * one["token_share"], 2) for one in rows],
        "samples": [one["samples"] for one in rows],
        "starved": [round(one["starved_s"], 1) for one in rows],
        "failed": [one.get("failed_rows", 0) for one in rows],
    }


_WIDTHS = {"why": 520, "at": 170, "how": 160, "what": 120, "reason": 160, "source": 130, "process": 130}
"""Of columns, in pixels, before they share what there is."""


def _table(source: ColumnDataSource, columns: dict[str, str], *, title: str, height: int = 220) -> Any:
    number = NumberFormatter(format="0,0.[00]")
    shown = [
        TableColumn(
            field=key,
            title=text,
            width=_WIDTHS.get(key, 90),
            **({"formatter": number} if key in ("samples", "rows", "mib") else {}),
        )
        for key, text in columns.items()
    ]
    table = DataTable(source=source, columns=shown, height=height, index_position=None, sizing_mode="stretch_width")
    return column(Div(text=f"<b>{title}</b>"), table, sizing_mode="stretch_width")


def _when(at_s: float) -> datetime:
    return datetime.fromtimestamp(at_s, UTC).replace(tzinfo=None)


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
