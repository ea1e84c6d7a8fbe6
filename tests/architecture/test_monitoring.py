"""Files for Prometheus and Grafana ask for figures that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import CounterMetricFamily

from msd.runtime.dask.watching.metrics import Collector

FILES = Path(__file__).parents[2] / "docs" / "monitoring"


def names() -> set[str]:
    """As Prometheus knows them: counters end in `_total`."""
    families = Collector(list).collect()
    return {one.name + ("_total" if isinstance(one, CounterMetricFamily) else "") for one in families}


def asked_for(text: str) -> set[str]:
    return set(re.findall(r"\bmsd_[a-z_]+", text))


def rules() -> list[dict]:
    (group,) = yaml.safe_load((FILES / "alerts.yaml").read_text())["groups"]
    return group["rules"]


@pytest.mark.parametrize("file", ["alerts.yaml", "grafana.json"])
def test_every_figure_that_is_asked_for_is_given(file):
    wanted = asked_for((FILES / file).read_text())
    assert wanted
    assert wanted <= names()


def test_the_page_on_watching_lists_every_figure():
    assert names() <= asked_for((FILES.parent / "how-to" / "watch-a-run.md").read_text())


def test_every_rule_says_what_happened_and_what_to_do():
    for rule in rules():
        assert {"summary", "advice"} == rule["annotations"].keys(), rule["alert"]
        assert rule["labels"]["severity"] in ("warning", "critical")
    assert len({rule["alert"] for rule in rules()}) == len(rules()) >= 7


def test_panels_do_not_overlap_and_choose_by_run():
    board = json.loads((FILES / "grafana.json").read_text())
    places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
    cells = [(x + i, y + j) for x, y, w, h in places for i in range(w) for j in range(h)]
    assert len(cells) == len(set(cells))
    assert all("$run" in target["expr"] for panel in board["panels"] for target in panel["targets"])
