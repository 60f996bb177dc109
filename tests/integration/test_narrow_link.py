"""Goal: on a line that bulk fills in both directions no beat of a PNode is missed, and what an orchestrator wishes is done there.

The line is that of a machine of its own (`benchmarks.namespaces`), with a bounded rate; that needs root. Loopback, on which all other tests run, has no
such bound. Frames and checkpoints of megabytes go over it, and a stream each way takes what they leave, as others of a household do.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest
from network_rig import MODEL, Rig, running_network

from benchmarks.namespaces import Machines, lacking
from dcnr.testing import LocalPNode
from dcnr.v1 import orchestrator_pb2

WIDTH, BATCH_SIZE, SAMPLES = 1024, 64, 1280
RATE_MBIT = 10.0
FILLED_S = 8.0
FILLED = 0.8
"""Of the rate, in each direction: a line that carries so much has a queue."""
NUM_MACHINES = 3
OUT_OF_THE_WAY = "lan"
STREAMS = """
import socket, sys, threading
with socket.create_connection((sys.argv[1], int(sys.argv[2]))) as line:
    threading.Thread(target=lambda: [None for _ in iter(lambda: line.recv(65536), b"")], daemon=True).start()
    while True:
        line.sendall(bytes(65536))
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[Machines]:
    why = lacking(OUT_OF_THE_WAY)
    if why:
        pytest.skip(f"a line with a bounded rate needs {why}")
    with Machines(NUM_MACHINES, profile=OUT_OF_THE_WAY) as own:
        yield own


@pytest.fixture(scope="module")
def rig(machines: Machines) -> Iterator[Rig]:
    """Executed: what a nursery forks lives in its own namespace."""
    pnodes = [
        LocalPNode(f"p{number + 1}", 1.0, 1024, host=machines.address(number), prefix=machines.prefix(number))
        for number in range(NUM_MACHINES)
    ]
    with running_network(
        pnodes, num_orchestrators=1, width=WIDTH, batch_size=BATCH_SIZE, samples=SAMPLES, host=machines.host, forked=False
    ) as running:
        yield running


@contextlib.contextmanager
def streams(machines: Machines, index: int) -> Iterator[None]:
    """Bytes from that machine and to it, as many as its line carries."""

    def send(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                line.sendall(bytes(65536))

    def receive(line: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while line.recv(65536):
                pass

    with socket.create_server((machines.host, 0)) as server:
        command = [*machines.prefix(index), sys.executable, "-c", STREAMS, machines.host, str(server.getsockname()[1])]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as other:
            try:
                line, _ = server.accept()
                threads = [threading.Thread(target=work, args=(line,)) for work in (send, receive)]
                for thread in threads:
                    thread.start()
                try:
                    yield
                finally:
                    line.shutdown(socket.SHUT_RDWR)
                    for thread in threads:
                        thread.join()
                    line.close()
            finally:
                other.kill()


def carried(machines: Machines, index: int) -> tuple[int, int]:
    """Bytes that came from that machine, and that went to it."""
    told = machines.links.carried()[index]
    return told.sent_bytes, told.come_bytes


def test_beats_arrive_and_wishes_are_obeyed_over_a_line_that_bulk_fills(machines: Machines, rig: Rig) -> None:
    job_id = rig.submit("narrow", passes=400, checkpoint_s=1.0)
    busy = rig.learning(job_id, 5, 120)["b"][0]
    index = rig.network.pnodes.index(busy)
    machines.links.narrow(index, RATE_MBIT)
    states: set[int] = set()
    last: list[float] = []
    began_s, before = time.monotonic(), carried(machines, index)

    def filled() -> bool:
        states.update(item.state for item in rig.ask(lambda client: client.nodes()) if item.node_id == busy.node_id)
        over_s = time.monotonic() - began_s
        shares = [(now - then) * 8 / (RATE_MBIT * 1e6 * over_s) for now, then in zip(carried(machines, index), before, strict=True)]
        last[:] = shares
        return over_s > FILLED_S and min(shares) >= FILLED

    with streams(machines, index):
        rig.until(filled, f"bulk takes {FILLED:.0%} of the line in both directions", 60)
        assert max(last) < 1.1, "the line has a bound"
        assert states == {orchestrator_pb2.NODE_STATE_ACTIVE}, "no two beats were missing"
        rig.ask(lambda client: client.cancel(job_id, [rig.key], model=MODEL))
        rig.until(lambda: not rig.told(busy).replicas, "what the plan says now is done at the end of that line", 30)
