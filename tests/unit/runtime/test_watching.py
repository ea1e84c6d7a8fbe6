"""A run as whoever watches it sees it, also of three hundred sources."""

import asyncio
import time
from typing import Any

import pytest

from msd.runtime.dask.plugin import RunPlugin
from msd.runtime.dask.watching.metrics import Collector
from msd.runtime.dask.watching.page import MOST_BARS, MOST_LINES, OTHERS, Page, headline, mixture_lines, source_rows
from msd.runtime.dask.watching.view import KEPT, RunView, failures_of, memory_of


def stats(step: int = 0, *, num_sources: int = 3, **changes: Any) -> dict[str, Any]:
    sources = {
        f"s{number}": {
            "tokens": 100 * step * (number + 1),
            "samples": 10 * step,
            "token_share": 1 / num_sources,
            "target_share": (number + 1) / (num_sources * (num_sources + 1) / 2),
            "is_suspended": number == 1,
            "starved_s": 0.1 * step if number == 0 else 0.0,
            "ready_rows": 5,
            "wanted_rows": 8,
            "failed_rows": number,
            "failed_by_reason": {"ValueError": number} if number else {},
            "killed": 1 if number == 2 else 0,
        }
        for number in range(num_sources)
    }
    figures = {"fill": 0.9, "imbalance": 0.02, "imbalance_floor": 0.01}
    return {
        "next_step": step,
        "generation": 0,
        "term": 1,
        "waited_s": 0.5 * step,
        "plan_s": 0.01 * step,
        **figures,
        "limited_by": None,
        "waits_for": None,
        "sources": sources,
        "hosts": [{"host": "msd-loader-0", "role": "host", "pid": 11, "pss_bytes": 3 << 20, "payload_bytes": 7}],
        "constructors": [
            {"constructor": "constructor-0", "pid": 12, "pss_bytes": 2 << 20, "connected": [0, 1], "ranks": [0, 1],
             "assemble_s": 0.02 * step, "held_bytes": 0},
        ],
        "recoveries": [],
        "scaling": None,
        "recent": [{"step": number, **figures} for number in range(max(0, step - 60), step)],
        **changes,
    }  # fmt: skip


def viewed(*looks: dict[str, Any], seconds: float = 2.0) -> RunView:
    view = RunView("run")
    for number, look in enumerate(looks):
        view.take(look, 1000.0 + seconds * number)
    return view


def test_a_point_is_what_happened_between_two_looks():
    view = viewed(stats(0), stats(4))
    (point,) = view.points
    assert (point.step, point.steps_per_s) == (4, 2.0)
    assert point.waited == pytest.approx(1.0), "no more than all of the time"
    assert point.load == pytest.approx(0.2)
    assert point.plan == pytest.approx(0.02)
    assert point.construct == pytest.approx(0.04)
    assert point.realised == pytest.approx({"s0": 1 / 6, "s1": 2 / 6, "s2": 3 / 6})
    assert (point.fill, point.imbalance, point.floor) == (0.9, 0.02, 0.01)


@pytest.mark.parametrize("later", [{"generation": 1}, {"term": 2}, {"next_step": 0}])
def test_what_began_anew_makes_no_point(later):
    assert not viewed(stats(4), stats(8, **later)).points


def test_points_are_bounded():
    assert len(viewed(*(stats(step) for step in range(KEPT + 50))).points) == KEPT


def test_processes_with_two_roles_and_rows_that_failed_are_told_once():
    shared = stats(1)
    shared["hosts"][0]["pid"] = 12
    assert memory_of(shared) == [("msd-loader-0", "host", 3 << 20)]
    assert failures_of(shared) == [("s2", "ValueError", 2), ("s1", "ValueError", 1), ("s2", "killed", 1)]


def test_three_hundred_sources_stay_readable():
    view = viewed(stats(0, num_sources=300), stats(4, num_sources=300))
    lines = mixture_lines(view)
    assert len(lines["name"]) == 2 * (MOST_LINES + 1)
    assert lines["name"][-1] == OTHERS
    assert sum(
        ys[-1] for ys, dash in zip(lines["ys"], lines["dash"], strict=True) if dash == "dashed"
    ) == pytest.approx(1)
    page = Page(lambda: [view])
    page.update()
    assert len(page._ready.data["name"]) == MOST_BARS
    assert len(source_rows(view)["source"]) == 300
    assert page._bars.title.text.endswith("of the 40 largest of 300 sources")


def test_a_page_without_a_run_says_so_and_shows_one_that_comes():
    views: list[RunView] = []
    page = Page(lambda: views)
    page.update()
    assert page._headline.text == "no run is under way"
    views.append(viewed(stats(0), stats(4)))
    page.update()
    assert "<b>4</b>" in page._headline.text
    assert page._choice.visible is False
    views.append(RunView("other"))
    views[-1].take(stats(9), 5000.0)
    page.update()
    assert page._choice.options == ["other", "run"]
    assert page._choice.visible is True


def test_the_headline_names_what_limits_and_escapes_what_it_is_given():
    limited = stats(4, limited_by={"text": "<b> limits the step"}, waits_for="row 3 of 'a' & 'b'")
    said = headline(viewed(stats(0), limited))
    assert "<b>&lt;b&gt; limits the step</b>" in said
    assert "now waits for row 3 of 'a' &amp; 'b'" in said


def test_numbers_have_every_family_also_before_the_first_look():
    assert {family.name for family in Collector(list).collect()} == {
        family.name for family in Collector(lambda: [viewed(stats(3))]).collect()
    }
    samples = {
        (sample.name, sample.labels.get("source")): sample.value
        for family in Collector(lambda: [viewed(stats(3, limited_by={"source": "s1"}))]).collect()
        for sample in family.samples
    }
    assert samples["msd_next_step", None] == 3
    assert samples["msd_source_tokens_total", "s2"] == 900
    assert samples["msd_source_limits_step", "s1"] == 1
    assert samples["msd_source_suspended", "s1"] == 1


def test_two_schedulers_of_a_process_show_their_runs_together_and_one_that_never_closed_is_no_hindrance():
    from prometheus_client import REGISTRY, generate_latest

    class Scheduler:
        def __init__(self) -> None:
            self.handlers: dict[str, Any] = {}

    plugins = [RunPlugin(), RunPlugin()]
    for number, plugin in enumerate(plugins):
        asyncio.run(plugin.start(Scheduler()))
        plugin.report(f"run-{number}", stats(3), time.time())
    shown = generate_latest(REGISTRY).decode()
    assert 'msd_next_step{run="run-0"} 3.0' in shown
    assert 'msd_next_step{run="run-1"} 3.0' in shown
    asyncio.run(plugins[0].close())
    shown = generate_latest(REGISTRY).decode()
    assert "run-0" not in shown
    assert "run-1" in shown
    asyncio.run(plugins[1].close())
    assert "run-1" not in generate_latest(REGISTRY).decode()
