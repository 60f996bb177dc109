"""Goal: a PNode whose only address is of IPv6 tells it as others can dial it."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from dcnr.rpc.dialer import Dialer
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.probe import Machine
from pnode.supervisor import executed
from trust.addresses import split_address
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

LOOPBACK = "::1"
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux")
SILENT = executed("-c", "import sys; sys.stdin.buffer.read()")
"""A worker that waits for its end."""


def has_ipv6() -> bool:
    with socket.socket(socket.AF_INET6) as probe:
        try:
            probe.bind((LOOPBACK, 0))
        except OSError:
            return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
def test_a_pnode_on_ipv6_is_dialled_at_the_address_that_it_tells(tmp_path: Path) -> None:
    async def story() -> None:
        key, caller, clock = NodeKey.generate(), NodeKey.generate(), SystemClock()
        document = create_document(
            NodeKey.generate(), name="n", now_wall=clock.wall(), orchestrator_ids=[NodeKey.generate().node_id]
        )
        policy, home, is_ready = verify_chain([document]), Home(tmp_path / "home"), asyncio.Event()
        home.open()
        settings = replace(PNodeSettings(), listen_host=LOOPBACK, control_port=0, data_port=0, dht_port=0)
        daemon = Daemon(
            settings, home, key=key, network=InForce(policy), machine=MACHINE, clock=clock, rng=random.Random(1), environment={}, bootstrap=[],
            registry=default_registry(), incarnation=1, worker=SILENT, on_ready=lambda _: is_ready.set(),
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(daemon.run())
                await is_ready.wait()
                try:
                    told = daemon.status().control_address
                    assert split_address(told)[0] == LOOPBACK
                    connection = await Dialer(caller, policy.network_id, clock=clock, rng=secrets.token_bytes).connect(
                        key.node_id, [told]
                    )
                    await connection.close()
                finally:
                    daemon.request_stop(hand_over=False)
        finally:
            home.close()

    asyncio.run(asyncio.wait_for(story(), 60))
