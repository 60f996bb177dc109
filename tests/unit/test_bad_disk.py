"""Goal: a disk that refuses what it took before ends neither a task of the daemon nor the daemon: the trouble is told, and what it keeps goes later."""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bad_disk_rig import refusing, snapshot, until

from dataservice.addresses import AddressRule
from dataservice.datasets import LocalCache
from dataservice.objects import ObjectClient
from dcnr.errors import DcnrError, NotFound, Unavailable
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.tensor import encode
from dcnr.v1 import data_pb2, local_pb2
from pnode import verdicts as verdicts_module
from pnode.cache import ObjectCache, Shards
from pnode.daemon import Daemon
from pnode.home import Home
from pnode.pausing import Pausing
from pnode.pipe import LocalPipe
from pnode.probe import Machine
from pnode.reasons import Journal
from pnode.snapshots import Shelf
from pnode.spool import Frame, Spool
from pnode.supervisor import Supervisor, Worker, WorkerOptions
from pnode.verdicts import Verdicts, sweep
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import create_document, verify_chain
from vnode.registry import default_registry
from vnode.vocabulary import TRAIN_LANE

NODE, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain(
    [create_document(NODE, name="n", now_wall=SystemClock().wall(), orchestrator_ids=[HOLDER.node_id], audits="drawn")]
)


def cache_with(tmp_path: Path) -> tuple[LocalCache, Digest]:
    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        path.write_bytes(b"x")

    return LocalCache(tmp_path / "cache", 100, fetch), digest_of(b"x")


def test_a_file_whose_time_cannot_be_noted_is_given_all_the_same(tmp_path: Path) -> None:
    cache, digest = cache_with(tmp_path)
    first = asyncio.run(cache.path(digest))
    with refusing("utime") as met:
        assert asyncio.run(cache.path(digest)) == first
    assert met == ["utime"]


def test_a_cached_file_that_cannot_be_looked_at_waits(tmp_path: Path) -> None:
    cache, digest = cache_with(tmp_path)
    asyncio.run(cache.path(digest))
    with refusing("stat") as met, pytest.raises(Unavailable) as failed:
        asyncio.run(cache.path(digest))
    assert met
    assert failed.value.code == "disk_trouble"
    assert asyncio.run(cache.path(digest)).read_bytes() == b"x"


def test_shards_that_the_disk_refuses_are_told_to_the_worker_and_end_nothing(tmp_path: Path) -> None:
    data = b"shard"
    sent: list[local_pb2.ShardReady] = []

    async def read_file(ref: data_pb2.ObjectRef, destination: Path, *, max_bytes: int) -> None:
        destination.write_bytes(data)

    async def send(message: local_pb2.ToWorker) -> bool:
        sent.append(message.shard_ready)
        return True

    async def story() -> None:
        objects: Any = SimpleNamespace(read_file=read_file)
        journal = Journal(SystemClock(), NODE.node_id, lambda event: None)
        async with asyncio.TaskGroup() as group:
            shards = Shards(ObjectCache(objects, tmp_path / "cache", 100), send=send, journal=journal, group=group)
            wish = local_pb2.ShardsWanted(dataset="dots", digests=[digest_of(data)], size_bytes=[len(data)])
            shards.wanted(wish)
            await until(lambda: len(sent) == 1)
            with refusing("stat"):
                shards.wanted(wish)
                await until(lambda: len(sent) == 2)
            shards.wanted(wish)
            await until(lambda: len(sent) == 3)
        assert [bool(one.error) for one in sent] == [False, True, False]
        assert [event.kind for event in journal.since(0)] == ["shard_waits"]

    asyncio.run(story())


def test_a_worker_before_which_nothing_can_be_tidied_up_is_tried_again_and_says_why(tmp_path: Path) -> None:
    async def story() -> None:
        work = tmp_path / "work"
        (work / "a.1").mkdir(parents=True)
        for name in ("one", "two"):
            (work / "a.1" / name).write_bytes(b"left")
        shelf, ups = Shelf(tmp_path), list[Worker]()

        async def up(worker: Worker) -> None:
            ups.append(worker)
            await asyncio.to_thread(shelf.sweep, work)

        async def other(*arguments: object) -> None:
            return None

        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "log", {})
        mine = Supervisor(options, next_incarnation=lambda: 1, on_up=up, on_message=other, on_down=other)
        with refusing("unlink") as met:
            ours, theirs = socket.socketpair()
            pipe = await LocalPipe.over(ours, local_pb2.FromWorker)
            worker = await LocalPipe.over(theirs, local_pb2.ToWorker)
            await worker.send(local_pb2.FromWorker(hello=local_pb2.WorkerHello(data_port=1)))
            process: Any = SimpleNamespace(pid=1)
            why = await mine._serve(process, pipe)
            await pipe.close()
            await worker.close()
        assert ups
        assert "Read-only" in why
        assert met == ["unlink", "unlink"], "one that stays keeps no other"
        shelf.sweep(work)
        assert list(work.iterdir()) == []

    asyncio.run(story())


def test_a_manifest_that_cannot_be_read_from_the_disk_is_told_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdicts_module, "LOOK_S", 0.001)
    told: list[str] = []
    digest, fetched = digest_of(b"manifest"), list[str]()

    async def fetch(ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        fetched.append(ref.digest)
        return tmp_path / "manifest"

    async def send(message: local_pb2.ToWorker) -> bool:
        return True

    async def story() -> None:
        mine = Verdicts(
            node_id=NODE.node_id, policy=lambda: POLICY, evidence=tmp_path / "evidence", fetch=fetch, newest=lambda: [("m", digest)],
            hosted=dict, send=send, tell=lambda kind, *words: told.append(f"{kind}: {words[-1]}"), now_wall=lambda: 0.0, left=lambda size: None,
            max_left_bytes=0,
        )  # fmt: skip
        running = asyncio.create_task(mine.run())  # the file is not there: another fetch has driven it out meanwhile
        await until(lambda: len(fetched) > 3 or running.done())
        assert not running.done(), running
        assert told[0].startswith("verdicts_unread: manifest cannot be read")
        running.cancel()

    asyncio.run(story())


def test_evidence_that_cannot_be_swept_at_the_start_stays_until_the_next(tmp_path: Path) -> None:
    (tmp_path / "a.bundle").write_bytes(b"left")
    (tmp_path / "a.1" / "1").mkdir(parents=True)
    for calls in (("unlink",), ("stat",)):
        with refusing(*calls) as met:
            sweep(tmp_path, 0.0)
        assert met
    sweep(tmp_path, 1e12)
    assert [path.name for path in tmp_path.iterdir()] == ["a.1"]
    assert list((tmp_path / "a.1").iterdir()) == []


def test_a_pause_whose_time_is_up_is_over_though_its_note_stays(tmp_path: Path) -> None:
    clock = SimpleNamespace(wall=lambda: 2000.0)
    note = tmp_path / "paused.json"
    note.write_text(json.dumps({"until": 1000.0}))
    pausing = Pausing(note, clock)  # type: ignore[arg-type]
    with refusing("unlink") as met:
        assert not pausing.is_paused
        pausing.tidy()
    assert met
    assert not pausing.is_paused
    pausing.begin(0.0)
    pausing.keep()
    pausing.end()
    with refusing("unlink"), pytest.raises(Unavailable) as failed:
        pausing.keep()
    assert failed.value.code == "disk_trouble"
    assert pausing.is_paused, "the next start would pause again: who ended it hears that it did not"


def test_a_pause_of_which_the_disk_takes_no_note_holds_all_the_same(tmp_path: Path) -> None:
    """It may be what fills the disk that its owner wants to halt."""
    note = tmp_path / "paused.json"
    pausing = Pausing(note, SimpleNamespace(wall=lambda: 1000.0))  # type: ignore[arg-type]
    pausing.begin(60.0)
    with refusing("replace"), pytest.raises(Unavailable, match="pauses now") as told:
        pausing.keep()
    assert told.value.code == "disk_trouble"
    assert pausing.is_paused
    assert not note.exists()


def test_a_spool_whose_files_the_disk_keeps_lets_go_of_all_of_them(tmp_path: Path) -> None:
    """The replica goes on from memory, and ends in order: it holds no file that nobody can close any more."""
    frame = Frame(encode(np.zeros(256, np.float32), "raw"), 1)
    spool = Spool(tmp_path / "spool", max_bytes=16 * 1024, segment_bytes=1024)
    before = len(os.listdir("/proc/self/fd"))
    for batch in range(12):
        spool.put(TRAIN_LANE, batch, frame)
    assert len(os.listdir("/proc/self/fd")) > before
    with refusing("unlink") as met:
        spool.drop(TRAIN_LANE, IntervalSet.of((0, 11)))
        spool.close()
        assert met
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_small_object_whose_draft_the_disk_keeps_fails_with_a_typed_error(tmp_path: Path) -> None:
    async def nobody(*arguments: object, **options: object) -> None:
        raise NotFound("nobody answers here", code="nobody")

    orchestrators: Any = SimpleNamespace(call=nobody)
    objects = ObjectClient(orchestrators, AddressRule)
    ref = data_pb2.ObjectRef(digest=digest_of(b"x"))
    with refusing("unlink"), pytest.raises(DcnrError):
        asyncio.run(objects.write_bytes(ref, b"x", directory=tmp_path))
    with refusing("unlink", "write_bytes"), pytest.raises(Unavailable) as failed:
        asyncio.run(objects.write_bytes(ref, b"x", directory=tmp_path))
    assert failed.value.code == "disk_trouble"


def test_a_model_that_is_forgotten_while_the_disk_refuses_ends_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.open()
    try:
        for path in (home.desired_path("m"), home.head_path("m")):
            path.write_bytes(b"1")
        with refusing("unlink") as met:
            home.forget("m")
        assert len(met) == 2
        home.forget("m")
        assert not home.desired_path("m").exists()
        assert not home.head_path("m").exists()
    finally:
        home.close()


def test_the_daemons_own_parts_live_on_and_its_owner_is_told_why(tmp_path: Path) -> None:
    """The real daemon's uploads, wired as it wires them: a snapshot that cannot be removed shows in `pnode why`."""

    async def story() -> None:
        home = Home(tmp_path / "home")
        home.open()
        daemon = Daemon(
            PNodeSettings(), home, key=NODE, network=InForce(POLICY), machine=Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux"),
            clock=SystemClock(), rng=random.Random(1), environment={}, bootstrap=[], registry=default_registry(), incarnation=1,
        )  # fmt: skip
        try:
            async with asyncio.TaskGroup() as group:
                daemon._wire(group)
                work = group.create_task(daemon._uploads.run())
                await daemon._shelf.add(snapshot(home.work, 1))
                [held] = daemon._shelf.pending()
                with refusing("unlink"):
                    daemon._shelf.discard(held)
                    daemon._uploads._wake.set()
                    await until(lambda: "Read-only" in daemon._uploads.trouble or work.done())
                    assert not work.done(), work
                    assert ["Read-only" in line.reason for line in daemon._telling.why() if line.code == "upload_waits"] == [True]
                assert any(event.kind == "upload_waits" for event in daemon.journal.since(0))
                work.cancel()
                daemon._duties.stop()
                daemon._neighbours.stop()
                daemon._shards.stop()
        finally:
            home.close()

    asyncio.run(story())
