"""A run that is steered from elsewhere: what it draws changes at a step, is journalled, or refused when too late."""

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
from processes import wait_until

import msd
from msd.cli.main import run as command
from msd.testing import scenarios

pytestmark = pytest.mark.cluster

TOKENS = {"kind": "tokens", "field": "ids"}


def config(**changes: Any) -> msd.Config:
    sources = {
        name: {"rows": scenarios.token_rows(seed, 400, 20), "transforms": [TOKENS]}
        for seed, name in enumerate(("books", "web"), 1)
    }
    return scenarios.text(**{"sources": sources, "mixture": {"weights": {"books": 1, "web": 1}}, **changes})


@pytest.fixture
def engine(monkeypatch, tmp_path) -> Iterator[Any]:
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    with msd.start(config(runtime={"kind": "dask", "workers": 1})) as engine:
        yield engine


def taken(clients: list[Any], steps: int) -> dict[tuple[int, int], Any]:
    return {(batch.step, batch.rank): batch for _ in range(steps) for batch in (next(client) for client in clients)}


def contents(batches: dict[tuple[int, int], Any]) -> dict[tuple[int, int], Any]:
    """Return what is trained on: positions say when an edit was made, too."""
    return {
        key: (batch.sample_ids, [microbatch.input_ids.tobytes() for microbatch in batch.microbatches])
        for key, batch in batches.items()
    }


def sources_of(batches: dict[tuple[int, int], Any], step: int) -> set[str]:
    return {source for (at, _), batch in batches.items() if at == step for source, *_ in batch.sample_ids}


def test_weights_that_are_set_elsewhere_act_from_their_step_on_and_give_the_batches_of_a_local_run(engine):
    control = msd.control(engine.address)
    assert control.mix({"web": 1.0}, at_step=12, who="somebody") == 12
    batches = taken([engine.client(rank) for rank in range(2)], 18)
    assert sources_of(batches, 5) == {"books", "web"}
    assert sources_of(batches, 16) == {"web"}
    (edit,) = control.edits()
    assert (edit["edit"], edit["weights"], edit["who"], edit["at_step"]) == (
        "set_weights",
        {"web": 1.0},
        "somebody",
        12,
    )
    assert edit["when"]
    stats = control.stats()
    assert stats["sources"]["web"]["target_share"] == 1.0
    assert stats["sources"]["books"]["target_share"] == 0.0
    with msd.start(config(), runtime="local") as local:
        local.mix({"web": 1.0}, at_step=12)
        expected = taken([local.client(rank) for rank in range(2)], 18)
        assert [one["weights"] for one in local.edits()] == [{"web": 1.0}]
    assert contents(batches) == contents(expected)


def test_a_source_is_suspended_and_resumed_from_elsewhere(engine):
    control = msd.control(engine)
    assert control.suspend("books", at_step=8, reason="looked at") == 8
    assert control.resume_source("books", at_step=14) == 14
    batches = taken([engine.client(rank) for rank in range(2)], 22)
    assert sources_of(batches, 11) == {"web"}
    assert "books" in sources_of(batches, 20)
    assert [edit["edit"] for edit in control.edits()] == ["suspend", "resume"]


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (lambda control: control.mix({"web": 1}, at_step=0), "comes too late: the first step that it can reach is"),
        (lambda control: control.mix({"wbe": 1.0}), "wbe"),
        (lambda control: control.mix({}), "mix takes weights by source"),
        (lambda control: control.mix({"web": -1}), "must be a number of 0 or more"),
        (lambda control: control.mix({"web": 0}), "every weight is 0"),
        (lambda control: control.mix({"web": 1}, ramp=-1), "ramp must be 0 steps or more"),
        (lambda control: control.suspend("wbe"), "wbe"),
    ],
)
def test_what_cannot_be_is_refused_with_the_words_of_the_engine(engine, ask, said):
    taken([engine.client(rank) for rank in range(2)], 2)
    control = msd.control(engine)
    with pytest.raises(msd.ConfigError, match=f"(?s).*{said}"):
        ask(control)
    assert control.edits() == []


def test_who_has_no_token_steers_nothing_and_nobody_is_waited_for_without_end(engine):
    where, _, _ = engine.address.partition("?")
    with pytest.raises(msd.EngineError, match="token"):
        msd.control(f"{where}?token=wrong").stats()
    with pytest.raises(msd.DeadlineError, match="no run answered at"):
        msd.control("msd://127.0.0.1:1?token=x", deadline_s=0.5).stats()
    with pytest.raises(msd.ConfigError, match="a local engine has methods of its own"):
        msd.control("local://3")


def test_the_command_line_shows_sets_and_tells_the_history(engine, capsys, tmp_path):
    where = tmp_path / "address.json"
    where.write_text(f'{{"address": "{engine.address}"}}')
    for arguments, said in (
        (["mix", "set", str(where), "web=3", "books=1", "--at-step", "30", "--who", "me"], "from step 30 on"),
        (["mix", "suspend", engine.address, "books", "--at-step", "40", "--reason", "dear"], "suspended from step 40"),
        (["mix", "resume", engine.address, "books", "--at-step", "50"], "drawn from again from step 50"),
        (["mix", "show", engine.address], "50.0 %"),
        (["mix", "history", str(where)], "weights web 3, books 1"),
        (["top", engine.address, "--once"], "samples/s"),
    ):
        assert command(arguments) == 0, arguments
        assert said in capsys.readouterr().out
    assert command(["mix", "set", str(where), "web"]) == 2
    assert "'web' is no SOURCE=WEIGHT" in capsys.readouterr().err


def test_a_run_may_be_looked_at_while_it_goes(engine, capsys):
    clients = [engine.client(rank) for rank in range(2)]
    taken(clients, 10)
    time.sleep(1.2)
    assert command(["top", engine.address, "--json"]) == 0
    assert '"limited_by"' in capsys.readouterr().out
    entries = msd.control(engine).which(3)
    assert entries == engine.which(3)


def towards_loss(shares: dict[str, float], losses: dict[str, float], step: int) -> dict[str, float]:
    return {name: losses.get(name, 1.0) for name in shares}


def with_feedback(**changes: Any) -> msd.Config:
    return config(mixture={"feedback": {"function": towards_loss, "every": 2}}, **changes)


def test_what_a_rank_reports_moves_the_weights_outlives_the_planner_and_is_the_same_on_a_local_run(
    monkeypatch, tmp_path
):
    monkeypatch.setenv("MSD_CACHE", str(tmp_path / "cache"))
    runtime = {"kind": "dask", "workers": 2, "silence_s": 1.5, "compact": False}
    with msd.start(with_feedback(runtime=runtime)) as engine:
        clients = [engine.client(rank) for rank in range(2)]
        batches = taken(clients, 3)
        clients[0].report({"books": 1.0, "web": 9.0})
        wait_until(lambda: engine.stats()["sources"]["web"]["loss"] == 9.0, 30, "what was reported to count")
        assert msd.control(engine.address).report({"books": 4.0}, at_step=14) == 14
        batches |= taken(clients, 4)
        os.kill(engine._cluster._workers["msd-planner"].pid, signal.SIGKILL)
        batches |= taken(clients, 13)
        stats = engine.stats()
        assert stats["term"] == 2
        assert (stats["sources"]["books"]["loss"], stats["sources"]["books"]["target_share"]) == (4.0, 4 / 13)
        assert engine.edits() == []
        state = clients[0].state_dict()
        wait_until(lambda: refusal_of(clients[0]), 30, "a report of no source to be refused")
        batches |= taken(clients, 2)
    first = next(
        step for step in range(20) if "web" in sources_of(batches, step) and shares(batches, step)["web"] > 0.8
    )
    assert first < 14
    with msd.start(with_feedback(), runtime="local") as local:
        # The step at which a report counts follows from when it came; a run that is told so gives the same.
        local.report({"books": 1.0, "web": 9.0}, at_step=first)
        local.report({"books": 4.0}, at_step=14)
        clients = [local.client(rank) for rank in range(2)]
        assert contents(taken(clients, 20)) == {key: value for key, value in contents(batches).items() if key[0] < 20}
        clients[0].load_state_dict(state)
        clients[1].load_state_dict(state)
        assert contents(taken(clients, 2)) == {key: value for key, value in contents(batches).items() if key[0] >= 20}


def refusal_of(client: Any) -> bool:
    """Report of a source that does not exist; the first such report is refused by the next one."""
    try:
        client.report({"photos": 1.0})
    except msd.ConfigError as error:
        return "there is no source 'photos'" in str(error)
    return False


def shares(batches: dict[tuple[int, int], Any], step: int) -> dict[str, float]:
    """Return the part of a step's samples that each source has."""
    sources = [source for (at, _), batch in batches.items() if at == step for source, *_ in batch.sample_ids]
    return {source: sources.count(source) / len(sources) for source in set(sources)}
