"""Goal: the newest state that is still whole is taken, however many newer ones are lost, and durable work is never thrown away for a short trouble."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dcnr import limits
from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, model_pb2
from pnode.provision import Job, Provisioner
from pnode.snapshots import StartingState
from pnode.trail import MAX_MANIFESTS
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain

MAINTAINER, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY: NetworkPolicy = verify_chain(
    [create_document(MAINTAINER, name="test", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id])]
)
MODEL, JOB, VNODE = "m", "job", "a"


def state(step: int, job: str = JOB) -> model_pb2.Checkpoint:
    lineage = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=0, end=step)] if step else [])
    return model_pb2.Checkpoint(
        vnode=VNODE, digest=digest_of(f"{job}{step}".encode()), lineage=lineage, step=step, job_id=job, commit_digest="c" * 64
    )


def pieces(count: int) -> common_pb2.IntervalSet:
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=2 * n, end=2 * n + 1) for n in range(count)])


class Store:
    """Manifests and states by digest; ``trouble`` says what a fetch of a digest raises."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.trouble: dict[str, Exception] = {}
        self.fetched: list[str] = []
        zero = state(0, job="")
        self.first = self.manifest(0, "", [zero], MAINTAINER)
        self.newest = self.first

    def manifest(
        self, number: int, parent: str, working: list[model_pb2.Checkpoint], key: NodeKey = HOLDER, retracted: tuple[str, ...] = (), first_replica: int = 0,
    ) -> str:  # fmt: skip
        message = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, number=number, parent_digest=parent, holder=key.node_id if number else "",
            job_id=JOB if number else "", entries=[model_pb2.ManifestEntry(vnode=VNODE, working=working)], retracted=retracted,
            fences=[model_pb2.Fence(vnode=VNODE, first_replica=first_replica)] if first_replica else [],
        )  # fmt: skip
        envelope = seal(identity_pb2.DOMAIN_MANIFEST, message, key)
        digest = digest_of_envelope(envelope)
        (self.directory / digest).write_bytes(envelope.SerializeToString(deterministic=True))
        return digest

    def add(self, *steps: int, with_first: bool = False, retracted: tuple[str, ...] = (), first_replica: int = 0) -> None:
        """One more manifest that names these, newest first."""
        working = [state(step) for step in steps] + ([state(0, job="")] if with_first else [])
        number = len(list(self.directory.iterdir()))
        self.newest = self.manifest(number, self.newest, working, retracted=retracted, first_replica=first_replica)

    async def fetch(self, ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        self.fetched.append(ref.digest)
        if ref.digest in self.trouble:
            raise self.trouble[ref.digest]
        return self.directory / ref.digest

    def restore(self, *, local: list[StartingState] | None = None) -> tuple[StartingState, list[str]]:
        async def candidates(model: str, job_id: str, vnode: str) -> list[StartingState]:
            return list(local or [])

        return asyncio.run(self.provisioner(candidates).state(self.job(), VNODE, self.newest))

    def work(self, **changes: Any) -> str:
        return asyncio.run(self.provisioner().work(self.job(**changes)))

    def provisioner(self, candidates: Any = None) -> Provisioner:
        shelf: Any = SimpleNamespace(candidates=candidates)
        registry: Any = None
        return Provisioner(policy=lambda: POLICY, registry=registry, fetch=self.fetch, shelf=shelf)

    def job(self, **changes: Any) -> Job:
        asked = {"model": MODEL, "job_id": JOB, "initial_manifest_digest": self.first, "dataset_digest": "d" * 64, **changes}
        return Job(model_pb2.JobRequest(**asked), model_pb2.ModelGraph(), b"", {}, Path())

    def lose(self, *states: model_pb2.Checkpoint, error: Exception | None = None) -> None:
        for item in states:
            self.trouble[item.digest] = error or NotFound("gone")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def test_the_newest_named_state_is_taken_and_nothing_older_is_read(store: Store) -> None:
    store.add(3, with_first=True)
    store.add(5, 3, with_first=True)
    found, remarks = store.restore()
    assert (len(found.lineage), found.is_of_earlier_job, found.commit_digest, remarks) == (5, False, "c" * 64, [])
    assert store.fetched == [store.newest, state(5).digest]


@pytest.mark.parametrize("error", [NotFound("gone"), Corrupt("other bytes")])
def test_older_manifests_are_walked_back_to_a_state_that_is_whole(store: Store, error: Exception) -> None:
    for steps in ((3,), (5, 3), (7, 5, 3), (9, 7, 5), (11, 9, 7)):
        store.add(*steps, with_first=len(steps) < 3)
    store.lose(*(state(step) for step in (11, 9, 7, 5)), error=error)
    found, remarks = store.restore()
    assert len(found.lineage) == 3
    assert len(remarks) == 4, "each that was passed over is told"


def test_where_every_later_state_is_lost_the_job_begins_again_at_its_beginning(store: Store) -> None:
    for steps in ((3,), (5, 3), (7, 5, 3), (9, 7, 5)):
        store.add(*steps, with_first=len(steps) < 3)
    store.lose(*(state(step) for step in (9, 7, 5, 3)))
    found, _ = store.restore()
    assert (found.lineage, found.is_of_earlier_job, found.commit_digest) == (IntervalSet.empty(), True, "")
    assert found.digest == state(0, job="").digest


def test_a_long_chain_is_walked_for_a_bounded_way_and_then_from_the_beginning(store: Store) -> None:
    for step in range(1, MAX_MANIFESTS + 20):
        store.add(step, step + 1000, step + 2000)
        store.lose(state(step), state(step + 1000), state(step + 2000))
    found, _ = store.restore()
    assert found.is_of_earlier_job


def test_a_snapshot_on_this_disk_that_is_further_is_taken_without_the_store(store: Store) -> None:
    store.add(5, with_first=True)
    local = StartingState(Path("x"), digest_of(b"mine"), "d" * 64, IntervalSet.span(0, 8), "local")
    assert store.restore(local=[local])[0] == local
    store.trouble[store.newest] = Unavailable("the store is away")
    assert store.restore(local=[local])[0] == local


def test_what_another_job_learned_under_the_same_name_is_no_beginning(store: Store) -> None:
    """Its request was lost with a store that went back, and the name was given to another data set; one that asks for the same once more goes on from there."""
    store.add(5, with_first=True)
    own = store.work()
    here = [
        StartingState(Path("x"), digest_of(work.encode()), "d" * 64, IntervalSet.span(0, held), "local", work_digest=work)
        for work, held in (("another", 9), (own, 8), ("", 7))
    ]
    assert store.restore(local=here)[0] == here[1]
    assert store.restore(local=[here[0], here[2]])[0] == here[2], "of before it was noted"
    assert store.restore(local=here[:1])[0].digest == state(5).digest
    elsewhere = store.manifest(0, "", [state(1, job="")], MAINTAINER)
    changes = ({"dataset_digest": "e" * 64}, {"graph_digest": "e" * 64}, {"initial_manifest_digest": elsewhere}, {"num_batches": 7})
    assert len({own, *(store.work(**change) for change in changes)}) == 5
    assert store.work(created_unix_ms=1, lead_batches=9) == own
    store.trouble[store.first] = Unavailable("the store is away")
    assert store.restore(local=here)[0] == here[0], "what its beginning is nobody can say: the holder judges it"


def test_who_asks_for_the_same_once_more_has_signed_its_beginning_anew(store: Store) -> None:
    """Each signature is another one, and so is the digest of manifest 0 that the request names."""
    anew = store.manifest(0, "", [state(0, job="")], MAINTAINER)
    assert anew != store.first
    assert store.work(initial_manifest_digest=anew) == store.work()


def test_what_was_taken_back_is_no_beginning_neither_from_this_disk_nor_from_an_older_manifest(store: Store) -> None:
    """The newest manifest took back what replicas before number 7 hold, but for the state that it names; another one was lost."""
    store.add(5, 3, with_first=True)
    store.add(3, with_first=True, retracted=(state(5).digest,), first_replica=7)
    mine = [
        StartingState(Path("x"), digest_of(replica.encode()), "d" * 64, IntervalSet.span(0, held), "local", replica=replica)
        for replica, held in (("a.2", 8), ("a.7", 6))
    ]
    kept = StartingState(Path("x"), state(3).digest, "d" * 64, IntervalSet.span(0, 3), "local", replica="a.2")
    assert store.restore(local=mine)[0] == mine[1]
    assert store.restore(local=[mine[0], kept])[0] == kept
    store.lose(state(3))
    assert store.restore(local=mine[:1])[0].is_of_earlier_job, "the older manifest still names what was taken back"


@pytest.mark.parametrize("error", [Unavailable("the store is away"), NotFound("gone"), Corrupt("other bytes")])
def test_without_its_newest_manifest_a_replica_waits_and_says_why(store: Store, error: Exception) -> None:
    """Checkpoint 0 is there, but what came after it must not be thrown away because one object cannot be read."""
    store.add(5, with_first=True)
    store.trouble[store.newest] = error
    with pytest.raises(Unavailable) as caught:
        store.restore()
    assert caught.value.code == "no_state"
    assert store.newest[:12] in caught.value.message


def test_a_checkpoint_that_cannot_be_read_is_passed_over(store: Store) -> None:
    unreadable = state(9)
    unreadable.lineage.CopyFrom(pieces(limits.MAX_INTERVALS + 1))
    store.newest = store.manifest(5, store.newest, [unreadable, state(5)])
    found, remarks = store.restore()
    assert (len(found.lineage), [unreadable.digest[:12] in remark for remark in remarks]) == (5, [True])


def test_a_store_that_is_away_on_the_way_back_is_waited_for(store: Store) -> None:
    for steps in ((3,), (5, 3), (7, 5, 3)):
        store.add(*steps)
    store.lose(state(7), state(5), state(3))
    middle = model_pb2.Manifest.FromString(
        identity_pb2.Envelope.FromString((store.directory / store.newest).read_bytes()).payload
    ).parent_digest
    store.trouble[middle] = Unavailable("the store is away")
    with pytest.raises(Unavailable):
        store.restore()


def test_of_an_earlier_job_only_the_state_that_it_ended_in_is_taken(store: Store) -> None:
    """An older state of the earlier job would take back what the maintainers signed for."""
    ended = [state(40, job="before"), state(30, job="before")]
    store.first = store.newest = store.manifest(9, "", ended)
    found, _ = store.restore()
    assert (found.digest, found.is_of_earlier_job, len(found.lineage)) == (ended[0].digest, True, 0)
    store.lose(ended[0])
    with pytest.raises(Unavailable) as caught:
        store.restore()
    assert ended[0].digest[:12] in caught.value.message
