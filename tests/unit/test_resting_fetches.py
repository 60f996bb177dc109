"""Goal: a machine whose owner pauses it fetches nothing more; one whose worker died goes on fetching what the next worker will ask for."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcnr.ids import digest_of
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, local_pb2
from pnode.cache import SHARDS_AT_ONCE
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.probe import Machine
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

KEY, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(3))
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux")
WITHIN_S = 30.0


class Store:
    """Gives nothing before the test lets it."""

    def __init__(self) -> None:
        self.come = asyncio.Event()
        self.num_begun = self.num_under_way = 0

    async def read_file(self, ref: data_pb2.ObjectRef, destination: Path, *, max_bytes: int) -> None:
        self.num_begun += 1
        self.num_under_way += 1
        try:
            await self.come.wait()
            destination.write_bytes(bytes([int(ref.owner)]))
        finally:
            self.num_under_way -= 1


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(WITHIN_S):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.002)


@pytest.mark.parametrize("is_paused", [True, False])
def test_shards_that_the_last_worker_wanted_are_fetched_on_unless_the_machine_rests(tmp_path: Path, is_paused: bool) -> None:
    """Gigabytes over the line that its owner wants for something else, for nobody."""

    async def story() -> None:
        clock = SystemClock()
        document = create_document(MAINTAINER, name="n", now_wall=clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])
        home = Home(tmp_path / "home")
        home.open()
        daemon = Daemon(
            PNodeSettings(), home, key=KEY, network=InForce(verify_chain([document])), machine=MACHINE, clock=clock, rng=random.Random(1),
            environment={}, bootstrap=[], registry=default_registry(), incarnation=1,
        )  # fmt: skip
        store: Any = Store()
        daemon._cache._objects = store
        try:
            async with asyncio.TaskGroup() as group:
                daemon._wire(group)
                for number in range(SHARDS_AT_ONCE + 2):
                    digests = [digest_of(bytes([number]))]
                    daemon._shards.wanted(local_pb2.ShardsWanted(dataset=str(number), digests=digests, size_bytes=[1]))
                await until(lambda: store.num_under_way == SHARDS_AT_ONCE)
                if is_paused:
                    await daemon._halts.pause(0.0)
                await daemon._worker_down("the worker ended")
                if is_paused:
                    await until(lambda: not store.num_under_way)
                    assert store.num_begun == SHARDS_AT_ONCE
                store.come.set()
                if not is_paused:
                    await until(lambda: len(list(home.cache.iterdir())) == SHARDS_AT_ONCE + 2)
                daemon._duties.stop()
                daemon._neighbours.stop()
                daemon._shards.stop()
        finally:
            home.close()

    asyncio.run(story())
