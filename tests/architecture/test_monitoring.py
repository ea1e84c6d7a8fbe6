"""Files for Prometheus and Grafana ask for figures that there are."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client.core import CounterMetricFamily

import msd
from msd.runtime.dask.watching.happenings import Happening
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


def rows_of(page: str) -> list[str]:
    return re.findall(r"^\| `.*$", (FILES.parent / "reference" / page).read_text(), flags=re.MULTILINE)


def test_the_page_of_metrics_lists_every_figure_and_no_other():
    listed = {name for row in rows_of("metrics.md") for name in asked_for(row.split("|")[1])}
    assert listed == names()
    assert asked_for((FILES.parent / "reference" / "metrics.md").read_text()) == names()


def test_the_page_of_metrics_lists_what_a_client_tells():
    rows = [{"text": f"row {number}"} for number in range(40)]
    config = msd.Config(
        sources={"SOURCE": {"rows": rows, "transforms": [{"kind": "tokenize", "tokenizer": "bytes"}]}},
        batch={"sequence_length": 64, "global_batch_size": 1},
        mesh={"dp": 1},
        num_microbatches=1,
        runtime={"kind": "local"},
    )
    with msd.start(config) as engine, engine.client(rank=0) as client:
        next(client)
        told = set(client.metrics())
    assert set(re.findall(r"`(msd/[\w/]+)`", " ".join(rows_of("metrics.md")))) == told


def test_the_page_of_events_lists_every_event_with_its_fields():
    kinds = {kind.__struct_config__.tag: kind for kind in Happening.__subclasses__()}
    rows = rows_of("events.md")
    assert {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])} == kinds.keys()
    for row in rows:
        own = {
            field
            for name in re.findall(r"`(\w+)`", row.split("|")[1])
            for field in kinds[name].__struct_fields__
            if field not in Happening.__struct_fields__
        }
        assert {field for field in own if not re.search(rf"`{field}`", row.split("|")[2])} == set()


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
