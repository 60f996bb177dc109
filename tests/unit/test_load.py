"""Goal: a machine's load is what its worker takes of the processor and nothing else; what is not known, or cannot be, is shown as not known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from dcnr.cli.screens import pnode_screen
from dcnr.cli.watching import nodes_table
from dcnr.v1 import local_pb2, membership_pb2, orchestrator_pb2
from orchestrator.jobview import MAX_CORES, said_load
from pnode.load import STALE_S, WINDOW_S, WorkerLoad


def test_it_is_the_mean_of_the_last_seconds() -> None:
    load = WorkerLoad()
    for second in range(31):
        load.heard(100.0 + second, 7.0 + 1.5 * min(second, 20))
        load.heard(100.2 + second, 1e6)
    assert load.cores(130.0) == 0.0, "what was used before the window does not count"
    for second in range(1, 6):
        load.heard(130.0 + second, 37.0 + 2.0 * second)
    assert load.cores(135.0) == pytest.approx(2.0 * 5 / WINDOW_S)


def test_what_is_not_known_is_none() -> None:
    load = WorkerLoad()
    assert load.cores(0.0) is None
    load.heard(10.0, 4.0)
    assert load.cores(10.0) is None, "one word says how much, not how fast"
    load.heard(12.0, 5.0)
    assert load.cores(12.0) == 0.5
    assert load.cores(12.0 + STALE_S) == 0.5
    assert load.cores(12.1 + STALE_S) is None, "it has not been heard of"


def test_after_a_silence_the_mean_is_over_the_silence() -> None:
    load = WorkerLoad()
    for at_s, cpu_s in ((0.0, 0.0), (1.0, 2.0), (61.0, 32.0)):
        load.heard(at_s, cpu_s)
    assert load.cores(61.0) == 0.5


@pytest.mark.parametrize("cores", [-0.1, MAX_CORES * 2, math.nan, math.inf, -math.inf])
def test_what_can_be_no_load_is_none(cores: float) -> None:
    assert said_load(orchestrator_pb2.Beat(load=membership_pb2.Load(cores=cores))) is None


def test_a_beat_without_a_load_says_nothing_and_an_idle_machine_says_so() -> None:
    assert said_load(orchestrator_pb2.Beat()) is None
    idle = said_load(orchestrator_pb2.Beat(load=membership_pb2.Load()))
    assert idle is not None
    assert idle.cores == 0.0


def test_people_read_it_in_figures() -> None:
    lent = membership_pb2.Capability(cores=4.0)
    status = local_pb2.StatusResponse(network_id="f" * 64, capability=lent, load=membership_pb2.Load(cores=1.92))
    assert "uses       1.92 of 4 cores (48%), " in pnode_screen(status, Path("/home"))
    status.ClearField("load")
    assert "uses       0" in pnode_screen(status, Path("/home"))
    nodes = [
        orchestrator_pb2.NodeView(node_id="1" * 40, capability=lent, load=membership_pb2.Load(cores=1.92)),
        orchestrator_pb2.NodeView(node_id="2" * 40, capability=lent),
    ]
    _, first, second = nodes_table(orchestrator_pb2.WatchJobResponse(nodes=nodes)).splitlines()
    assert "1.92" in first
    assert second.split()[-3:] == ["4", "-", "-"]
