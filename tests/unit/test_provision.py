"""Goal: a replica's state comes from whoever has the bytes that a manifest names, nearest first, and one that cannot be restored is not tried again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dataservice.objects import ObjectClient
from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, model_pb2
from pnode.cache import ObjectCache
from pnode.provision import Job, Provisioner
from pnode.snapshots import Shelf, StartingState
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

MAINTAINER, ORCHESTRATOR = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=1_700_000_000.0, orchestrator_ids=[ORCHESTRATOR.node_id])])
NEW, OLD = b"the newer state", b"the older state"
MAKER, SIBLING, LIAR = "1" * 40, "2" * 40, "3" * 40


def checkpoint(data: bytes, learned: int) -> model_pb2.Checkpoint:
    lineage = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=learned)])
    return model_pb2.Checkpoint(
        vnode="a",
        digest=digest_of(data),
        size_bytes=len(data),
        lineage=lineage,
        step=learned,
        job_id="j",
        pnode_id=MAKER,
        commit_digest="c" * 64,
    )


MANIFEST = seal(
    identity_pb2.DOMAIN_MANIFEST,
    model_pb2.Manifest(
        network_id=POLICY.network_id, model="m", number=3, holder=ORCHESTRATOR.node_id,
        entries=[model_pb2.ManifestEntry(vnode="a", working=[checkpoint(NEW, 9), checkpoint(OLD, 5)])],
    ),
    ORCHESTRATOR,
)  # fmt: skip


@dataclass
class World:
    """A store and donors, with what each holds; ``asked`` is in order."""

    directory: Path
    store: dict[str, bytes] = field(default_factory=dict)
    donors: dict[str, bytes] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        objects: Any = self
        self.cache = ObjectCache(objects, self.directory / "cache", 1 << 20)
        self.provisioner = Provisioner(
            policy=lambda: POLICY, registry=objects, fetch=self.cache.file, shelf=Shelf(self.directory), donated=self.donated
        )
        self.store[digest_of_envelope(MANIFEST)] = MANIFEST.SerializeToString(deterministic=True)

    async def read_file(self, ref: data_pb2.ObjectRef, destination: Path, *, max_bytes: int) -> None:
        """As `ObjectClient`."""
        if ref.kind == data_pb2.OBJECT_KIND_STATE:
            self.asked.append("store")
        if ref.digest not in self.store:
            raise NotFound("no such object")
        destination.write_bytes(self.store[ref.digest])

    async def donated(self, pnode_id: str, ref: data_pb2.ObjectRef, size_bytes: int) -> Path:
        async def give(destination: Path) -> None:
            self.asked.append(pnode_id[0])
            if pnode_id not in self.donors:
                raise Unavailable("not there")
            destination.write_bytes(self.donors[pnode_id])

        return await self.cache.given(ref, size_bytes, give)

    def state(self, *donors: str) -> tuple[StartingState, list[str]]:
        job = Job(model_pb2.JobRequest(model="m", job_id="j"), model_pb2.ModelGraph(), b"", {}, Path())
        return asyncio.run(self.provisioner.state(job, "a", digest_of_envelope(MANIFEST), donors))


def test_a_sibling_gives_before_the_store_is_asked(tmp_path: Path) -> None:
    world = World(tmp_path, {digest_of(NEW): NEW}, {SIBLING: NEW})
    found, remarks = world.state(LIAR, SIBLING)
    assert (found.path.read_bytes(), found.origin, found.commit_digest) == (NEW, f"donor {SIBLING[:8]}", "c" * 64)
    assert (world.asked, remarks) == (["3", "2"], [])


def test_who_made_the_checkpoint_is_asked_last_and_the_store_when_nobody_gives(tmp_path: Path) -> None:
    world = World(tmp_path, {digest_of(NEW): NEW})
    found, _ = world.state(SIBLING)
    assert (found.origin, world.asked) == ("store", ["2", "1", "store"])


def test_other_bytes_than_those_named_are_told_and_not_used(tmp_path: Path) -> None:
    world = World(tmp_path, {digest_of(NEW): NEW}, {LIAR: OLD})
    found, remarks = world.state(LIAR)
    assert (found.path.read_bytes(), found.origin) == (NEW, "store")
    assert any(LIAR[:8] in remark for remark in remarks)


def test_an_older_checkpoint_does_where_the_newest_is_lost(tmp_path: Path) -> None:
    world = World(tmp_path, {digest_of(OLD): OLD})
    found, remarks = world.state()
    assert (found.digest, len(found.lineage)) == (digest_of(OLD), 5)
    assert len(remarks) == 1


def test_a_state_that_could_not_be_restored_is_passed_over_from_then_on(tmp_path: Path) -> None:
    world = World(tmp_path, {digest_of(OLD): OLD, digest_of(NEW): NEW})
    assert world.provisioner.give_up(digest_of(NEW))
    assert not world.provisioner.give_up(digest_of(NEW)), "once is enough"
    assert world.state()[0].digest == digest_of(OLD)
    world.provisioner.give_up(digest_of(OLD))
    with pytest.raises(Unavailable):
        world.state()


def test_askers_of_one_object_do_not_spoil_each_others_way(tmp_path: Path) -> None:
    """One that fails while another waits for the same file leaves it its own source."""

    async def story() -> None:
        objects: Any = object.__new__(ObjectClient)
        cache = ObjectCache(objects, tmp_path, 1 << 20)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model="m", owner="a", digest=digest_of(NEW))
        begun = asyncio.Event()

        async def fail(destination: Path) -> None:
            begun.set()
            await asyncio.sleep(0)
            raise Corrupt("broken")

        async def give(destination: Path) -> None:
            destination.write_bytes(NEW)

        first = asyncio.ensure_future(cache.given(ref, len(NEW), fail))
        await begun.wait()
        second = asyncio.ensure_future(cache.given(ref, len(NEW), give))
        results = await asyncio.gather(first, second, return_exceptions=True)
        assert isinstance(results[0], Corrupt)
        assert isinstance(results[1], Path)

    asyncio.run(story())
