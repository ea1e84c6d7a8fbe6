"""A host vanishes and no connection is closed: what is sent to it is taken by the network, and no answer comes."""

import socket
from pathlib import Path

import pytest
from fault_data import SILENCE_S, undisturbed, write_config
from fault_run import faulty, standing_cluster

from msd.testing.proxy import SwallowingProxy

pytestmark = [pytest.mark.cluster, pytest.mark.faults, pytest.mark.timeout(120)]

STEPS = 100


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_config(tmp_path_factory.mktemp("silent"))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


def test_a_host_that_the_network_swallows_changes_no_byte_and_may_come_back(config, tmp_path):
    with faulty(tmp_path, config) as run:
        address = standing_cluster(run, ["msd-control", "msd-loader-0"])
        scheduler_port, port = int(address.rpartition(":")[2]), free_port()
        # Both ways: what it says to the scheduler goes through a proxy too.
        with SwallowingProxy("127.0.0.1", port) as inward, SwallowingProxy("127.0.0.1", scheduler_port) as outward:
            contact = f"tcp://127.0.0.1:{inward.address[1]}"
            behind = f"tcp://127.0.0.1:{outward.address[1]}"
            place = ("--listen-address", f"tcp://127.0.0.1:{port}", "--contact-address", contact)
            run.worker("msd-loader-1", behind, *place)
            run.serve.command += ("--scheduler", address)
            run.begin(2, STEPS, pace_s=0.03)
            run.reach(20)
            for proxy in (inward, outward):
                proxy.swallow()
            run.reach(60)
            for proxy in (inward, outward):
                proxy.forward()
            outcome = run.go_through([])
    outcome.check(undisturbed(config, STEPS))
    # At a load that is not stated, so only that it is the heartbeats' patience and not the transport's.
    assert max(outcome.waits_s) < SILENCE_S + 15
