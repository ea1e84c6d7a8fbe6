"""What a scheduler shows of a run: the page, the same as JSON, and numbers for Prometheus."""

import asyncio
import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bokeh.client import pull_session
from chromium import CHROMIUM, browser

import msd
from msd.runtime.dask.watching import feed
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

ROOT = Path(__file__).resolve().parents[3]
TOKENS = {"kind": "tokens", "field": "ids"}


def fails(sample: dict[str, Any]) -> dict[str, Any]:
    if len(sample["ids"]) % 7 == 0:
        raise ValueError("a bad row")
    return sample


@pytest.fixture(scope="module")
def watched(tmp_path_factory) -> Iterator[Any]:
    """A run that has taken some steps and takes no more: what is shown stays the same."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MSD_CACHE", str(tmp_path_factory.mktemp("cache")))
        patch.setattr(feed, "INTERVAL_S", 0.25)
        tolerant = {"on_error": {"policy": "skip", "max_rate": 0.9}}
        sources = {
            "books": {"rows": scenarios.token_rows(1, 400, 20), "transforms": [TOKENS]},
            "web": {"rows": scenarios.token_rows(2, 400, 20), "transforms": [fails, TOKENS], **tolerant},
        }
        config = scenarios.text(
            sources=sources,
            mixture={"weights": {"books": 1, "web": 3}},
            scaling={"interval_s": 0.5, "rate": 100.0},
            runtime={"kind": "dask", "workers": 2},
        )
        with msd.start(config) as engine:
            clients = [engine.client(rank) for rank in range(2)]
            for _ in range(30):
                for client in clients:
                    next(client)
                time.sleep(0.05)
            time.sleep(1.5)
            yield engine


def at(engine: Any, path: str) -> str:
    return engine.dashboard_link.replace("/status", path)


def read(engine: Any, path: str) -> str:
    with urllib.request.urlopen(at(engine, path), timeout=30) as answer:
        return answer.read().decode()


def shown(engine: Any) -> dict[str, Any]:
    (one,) = json.loads(read(engine, "/msd/api")).values()
    return one["stats"]


def test_the_json_is_what_the_engine_tells(watched):
    found, stats = shown(watched), watched.stats()
    assert found.keys() == stats.keys()
    for key in ("next_step", "generation", "steps_planned", "fill", "imbalance", "mesh", "term"):
        assert found[key] == stats[key], key
    for name, one in stats["sources"].items():
        for key in ("tokens", "samples", "target_share", "failed_rows", "rows_examined"):
            assert found["sources"][name][key] == one[key], (name, key)


def test_prometheus_has_every_name_that_is_documented_and_the_numbers_of_the_engine(watched):
    text, stats = read(watched, "/metrics"), watched.stats()
    page = (ROOT / "docs/reference/metrics.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`(msd_[a-z_]+)`", page))
    given = set(re.findall(r"^# TYPE (msd_\w+)", text, flags=re.MULTILINE))
    assert documented == {name for name in given if not name.endswith("_created")}
    values = dict(re.findall(r"^(msd_\S+) (\S+)$", text, flags=re.MULTILINE))
    # Runs of other tests in this process may be shown for a while.
    run = watched._run
    assert float(values[f'msd_next_step{{run="{run}"}}']) == stats["next_step"]
    for name, one in stats["sources"].items():
        assert float(values[f'msd_source_tokens_total{{run="{run}",source="{name}"}}']) == one["tokens"]
        assert float(values[f'msd_source_failed_rows_total{{run="{run}",source="{name}"}}']) == one["failed_rows"]
    assert values[f'msd_process_memory_bytes{{process="msd-loader-0",role="host",run="{run}"}}']


def test_the_page_is_in_the_navigation_and_its_parts_have_the_numbers_of_the_engine(watched):
    assert 'href="msd"' in read(watched, "/status")
    stats = watched.stats()
    with pull_session(url=at(watched, "/msd")) as session:
        document = session.document

        def data(name: str) -> Any:
            return document.get_model_by_name(name).data

        sources = data("msd_sources")
        assert list(sources["source"]) == ["web", "books"]
        assert list(sources["samples"]) == [stats["sources"][name]["samples"] for name in ("web", "books")]
        assert list(sources["failed"]) == [stats["sources"][name]["failed_rows"] for name in ("web", "books")]
        assert list(sources["target"]) == [75.0, 25.0]
        assert set(data("msd_memory")["process"]) == {"constructor-0", "msd-loader-0", "msd-loader-1"}
        assert list(data("msd_failures")["reason"]) == ["ValueError"]
        assert len(data("msd_timeline")["at"]) > 2
        assert f"<b>{stats['next_step']}</b>" in document.get_model_by_name("msd_headline").text


@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")
def test_a_browser_shows_the_page_with_figures_that_go_on_and_no_errors(watched, tmp_path):
    async def look() -> None:
        with browser() as tab:
            await tab.open(at(watched, "/msd"))
            model = "Bokeh.documents[0].get_model_by_name"
            await tab.until("window.Bokeh && Bokeh.documents.length && Bokeh.index.roots && Bokeh.index.roots.length")
            stats = watched.stats()
            samples = await tab.until(f"Array.from({model}('msd_sources').data.samples)")
            assert samples == [stats["sources"][name]["samples"] for name in ("web", "books")]
            before = await tab.value(f"Array.from({model}('msd_timeline').data.at).length")
            await tab.until(f"Array.from({model}('msd_timeline').data.at).length > {before}")
            # Every part is drawn: figures have a canvas, tables have rows.
            deep = (
                "(function all(node, kind) { let found = node.querySelectorAll(kind).length; "
                "for (const one of node.querySelectorAll('*')) if (one.shadowRoot) found += all(one.shadowRoot, kind); "
                "return found; })"
            )
            assert await tab.until(f"{deep}(document, 'canvas') >= 4")
            assert await tab.until(f"{deep}(document, '.slick-row') >= 4")
            folder = os.environ.get("MSD_SCREENSHOTS")
            await tab.screenshot(Path(folder) / "page.png" if folder else tmp_path / "page.png")
            await tab.close()
            assert tab.errors == []

    asyncio.run(look())
