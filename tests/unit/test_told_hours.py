"""Goal: what a machine's diary holds stays on the machine: nothing that its daemon says to orchestrators or strangers has any of its figures."""

from __future__ import annotations

import asyncio
import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2, orchestrator_pb2
from pnode.daemon import Daemon
from pnode.diary import FORMAT, HOUR_S, read_week
from pnode.home import Home
from pnode.probe import Machine
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry

KEY, MAINTAINER, ORCHESTRATOR = (NodeKey.generate() for _ in range(3))
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux")
SECONDS = {"working": 2345.7, "paused": 1193.3}
LEARNED, QUESTIONS = 987_654_321, 876_543_211
"""In an hour of yesterday."""
SINCE = (765_432_109, 654_321_097)
"""Batches and questions since the daemon began."""


def forms(figure: float) -> Iterator[bytes]:
    """How a message may hold it."""
    yield struct.pack("<d", figure)
    yield struct.pack("<f", figure)
    yield f"{figure:g}".encode()
    yield f"{figure}".encode()
    if figure == int(figure):
        yield membership_pb2.Capability(memory_bytes=int(figure)).SerializeToString()[1:]


def told(message: bytes, figures: list[float]) -> list[float]:
    """Which of the figures are in a message."""
    return [figure for figure in figures if any(form in message for form in forms(figure))]


def test_greetings_beats_and_adverts_hold_no_figure_of_the_diary(tmp_path: Path) -> None:
    async def story() -> None:
        clock = SystemClock()
        policy = verify_chain(
            [create_document(MAINTAINER, name="n", now_wall=clock.wall(), orchestrator_ids=[ORCHESTRATOR.node_id])]
        )
        home = Home(tmp_path / "home")
        home.open()
        yesterday = {"hour": int(clock.wall()) // HOUR_S - 24, "seconds": SECONDS, "learned": LEARNED, "questions": QUESTIONS}
        table = {"format": FORMAT, "begun_s": 1.0, "as_of_s": clock.wall(), "hours": [yesterday]}
        home.diary.write_text(json.dumps(table))
        daemon = Daemon(
            PNodeSettings(), home, key=KEY, network=InForce(policy), machine=MACHINE, clock=clock, rng=random.Random(1), environment={}, bootstrap=[],
            registry=default_registry(), incarnation=1,
        )  # fmt: skip
        async with asyncio.TaskGroup() as group:
            daemon._wire(group)
            await daemon._membership.start("127.0.0.1:7700", dht_host="127.0.0.1", dht_port=0)
            diary = daemon._telling.diary(home.diary)
            daemon._now.num_learned, daemon._now.num_questions = SINCE
            diary.look()
            diary.save()
            week = read_week(home.diary, clock.wall())
            assert week is not None
            assert week.seconds.items() >= SECONDS.items()
            assert (week.num_learned, week.num_questions) == (LEARNED + SINCE[0], QUESTIONS + SINCE[1])
            figures = [*SECONDS.values(), LEARNED, QUESTIONS, *SINCE, week.num_learned, week.num_questions]
            said = [daemon._telling.hello(), daemon._telling.beat(1), daemon._membership.own_advert]
            assert [told(one.SerializeToString(), figures) for one in said] == [[], [], []]
            assert told(orchestrator_pb2.Beat(sequence=SINCE[0]).SerializeToString(), figures) == [SINCE[0]]
            assert told(membership_pb2.Load(cores=1193.3).SerializeToString(), figures) == [1193.3]
            await daemon._membership.stop()
            daemon._duties.stop()
            daemon._neighbours.stop()
            daemon._shards.stop()
        home.close()

    asyncio.run(asyncio.wait_for(story(), 60))
