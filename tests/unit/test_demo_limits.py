"""Goal: no wait of the demo but the one for the whole makes it fail: a slow machine is not wrong. What has ended is told at once."""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

import pytest
from rich.console import Console

from dcnr.children import Child, executed
from dcnr.demo import examples, gathering
from dcnr.demo.facts import WHOLE_LIMIT_S
from dcnr.demo.run import PNODES, Options, _Demo, _network, ways_in
from dcnr.demo.screen import Screen
from dcnr.demo.script import Ended
from dcnr.errors import NotRunning, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.sdk.client import AsyncClient
from dcnr.testing import LocalNetwork, Process
from dcnr.v1 import orchestrator_pb2

ONE = examples.Example("none", "none", Path("nowhere"), "CC0", "nowhere", 1.0, as_bytes=False)
FOR_EVER, FAILS = "import sys; sys.stdin.read()", "raise SystemExit('no such port')"
SLOWEST_S = WHOLE_LIMIT_S - 1
P1 = NodeId("1" * 40)


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory)


def local(directory: Path, *programs: str, start_limit_s: float) -> LocalNetwork:
    """A network whose orchestrators run these programs instead, on a store of others that nobody asks."""
    store_file = directory / "store.json"
    store_file.touch(mode=0o600)
    store_file.write_text(
        json.dumps({"endpoint": "http://127.0.0.1:1", "bucket": "none", "access_key": "key", "secret_key": "secret"})
    )
    left = list(programs)

    def starting(command: Sequence[str], environment: Mapping[str, str], log: int) -> Child:
        return executed([command[0], "-c", left.pop(0)], environment, log)

    return LocalNetwork(
        directory / "n", num_orchestrators=len(programs), pnodes=(), starting=starting, store_file=store_file,
        start_limit_s=start_limit_s,
    )  # fmt: skip


class Clock:
    """Goes when it is told to."""

    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s


class Nodes:
    """Asked for the first time they are not there, and then it is late."""

    def __init__(self, clock: Clock, *node_ids: str) -> None:
        self.clock, self.node_ids = clock, node_ids

    async def nodes(self) -> list[orchestrator_pb2.NodeView]:
        if self.clock.now_s == 0.0:
            self.clock.now_s = SLOWEST_S
            raise Unavailable("not yet", code="unavailable")
        found = [orchestrator_pb2.NodeView(node_id=node_id, attached=True) for node_id in self.node_ids]
        for node in found:
            node.capability.gflops = 1.0
        return found


def test_every_program_of_the_demo_may_take_as_long_as_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = dict[str, float]()

    async def run(command: Sequence[str], *, within_s: float) -> Ended:
        limits[Path(command[1]).name] = within_s
        return Ended(0, '{"exits": [], "seconds": 1.0}', "")

    monkeypatch.setattr(examples, "run_script", run)
    monkeypatch.setattr(gathering, "run_script", run)
    asyncio.run(examples.prepare_data(ONE, tmp_path, lambda text: None))
    asyncio.run(gathering._script([sys.executable, "use_export.py"]))
    assert limits == {"prepare.py": WHOLE_LIMIT_S, "use_export.py": WHOLE_LIMIT_S}


def test_processes_of_the_demo_may_take_as_long_to_begin_as_the_whole(tmp_path: Path) -> None:
    network = _network(tmp_path, PNODES, 3, Screen(Console(quiet=True)), {}, None)
    assert network.start_limit_s == WHOLE_LIMIT_S


def test_a_network_waits_for_as_long_as_it_is_told(short: Path) -> None:
    with pytest.raises(TimedOut, match=r"o1 does not listen after 0\.3 s"), local(short, FOR_EVER, start_limit_s=0.3):
        pass


def test_an_orchestrator_that_ended_is_told_while_another_is_still_waited_for(short: Path) -> None:
    with (
        pytest.raises(Unavailable, match="o2 ended with 1:\nno such port") as told,
        local(short, FOR_EVER, FAILS, start_limit_s=30.0),
    ):
        pass
    assert told.value.code == "start_failed"


def attached(directory: Path, process: Process, clock: Clock) -> None:
    """Waits for that PNode, which is there late. Raises as `_Demo._attached`."""
    network = local(directory, start_limit_s=1.0)
    network.pnodes.append(process)
    demo = _Demo(Options(), ONE, directory, network, Screen(Console(quiet=True)), clock)
    asyncio.run(demo._attached(cast(AsyncClient, Nodes(clock, process.node_id))))


def test_pnodes_that_attach_late_are_waited_for(short: Path) -> None:
    clock = Clock()
    attached(short, Process("p1", [], short / "p1.log", short, P1), clock)
    assert clock.now_s == SLOWEST_S


def test_a_pnode_that_ended_is_not_waited_for(short: Path) -> None:
    process = Process("p1", [sys.executable, "-c", FAILS], short / "p1.log", short, P1)
    process.start()
    assert process.popen is not None
    assert process.popen.stdin is not None
    process.popen.wait(60)
    with pytest.raises(NotRunning, match="p1 ended with 1:\nno such port") as told:
        attached(short, process, Clock())
    process.popen.stdin.close()
    assert told.value.code == "process_ended"


def test_who_keeps_the_network_is_sent_to_those_that_run(short: Path) -> None:
    """Goal: the first orchestrator and the first PNode were killed on the way, and the commands that are named still work."""
    network = local(short, FAILS, FOR_EVER, FOR_EVER, start_limit_s=5.0)
    with pytest.raises(Unavailable):
        network.start()
    network.pnodes += network.orchestrators
    try:
        listing, status = ways_in(network)
        assert listing.endswith(f"network.json --bootstrap {network.bootstrap[1]} --bootstrap {network.bootstrap[2]}")
        assert status == f"pnode status --home {network.orchestrators[1].home}"
    finally:
        network.stop(hand_over=False)
