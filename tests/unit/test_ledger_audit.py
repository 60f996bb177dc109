"""Goal: the audit of a ledger holds only where chain, receipts, evidence and states fit each other, and names the first entry that does not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dcnr.audit_ledger import LedgerAudit, LedgerReader
from dcnr.errors import NotFound, Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, model_pb2
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.folding import AUDITS_DRAWN
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

NOW = 1_700_000_000.0
MAINTAINER, HOLDER, PNODE, WORKER, OTHER = (NodeKey.generate() for _ in range(5))
MODEL, JOB, GRAPH = "tiny", "tiny-1", "a" * 64
FIRST = digest_of(b"first state")
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=NOW, orchestrator_ids=[HOLDER.node_id], audits=AUDITS_DRAWN)])


@dataclass
class World:
    """A store with one VNode whose three intervals of four batches are named, spared or passed; ``change`` sees each manifest before it is signed."""

    change: Callable[[model_pb2.Manifest], None] = lambda manifest: None
    objects: dict[tuple[int, str, str], bytes] = field(default_factory=dict)
    commits: list[str] = field(default_factory=list)
    first_commit: int = 0
    """Of the job that goes on."""
    states: list[str] = field(default_factory=list)
    newest: str = ""
    plan: str = ""
    led_by: NodeKey = PNODE
    """The PNode of the primary in the one plan of the job."""
    deltas: list[identity_pb2.Envelope] = field(default_factory=list)
    """Of a contributor, each an interval of its own: the first commit takes them in."""
    credited: model_pb2.Contribution | None = None
    """What is told of each of them, where that is not what it states."""
    job: str = JOB
    overlap: int = 0
    """Batches that each interval but the first learns once more."""
    is_anchored: bool = False
    """Whether an anchor lies halfway in the first interval."""
    merges_last: bool = False
    """Then the commit behind that anchor takes the deltas in."""

    async def read(self, ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        data = self.objects.get((ref.kind, ref.owner, ref.digest))
        if data is None:
            raise NotFound("no such object")
        path.write_bytes(data)

    def put(self, kind: int, data: bytes, owner: str, name: str) -> str:
        self.objects[kind, owner, name] = data
        return name

    def envelope(self, kind: int, envelope: identity_pb2.Envelope, owner: str = "") -> str:
        return self.put(kind, envelope.SerializeToString(deterministic=True), owner, digest_of_envelope(envelope))

    def manifest(
        self, before: model_pb2.Manifest, parent: str, *changes: model_pb2.Contribution, state: str = ""
    ) -> model_pb2.Manifest:
        made = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, number=before.number + 1, parent_digest=parent, job_id=self.job, holder=HOLDER.node_id,
            graph_digest=GRAPH, audits=AUDITS_DRAWN, entries=before.entries, contributions=changes,
        )  # fmt: skip
        if state:
            made.entries[0].working.insert(0, model_pb2.Checkpoint(vnode="a", digest=state))
        self.change(made)
        return made

    def train(self) -> World:
        self.states.append(self.put(data_pb2.OBJECT_KIND_STATE, b"first state", "a", FIRST))
        base = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, graph_digest=GRAPH, audits="none",
            entries=[model_pb2.ManifestEntry(vnode="a", working=[model_pb2.Checkpoint(vnode="a", digest=self.states[0])])],
        )  # fmt: skip
        parent = self.envelope(data_pb2.OBJECT_KIND_MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, base, MAINTAINER))
        return self.learn(base, parent)

    def train_on(self, job: str) -> World:
        """Another job goes on from where that one ended."""
        self.job, self.first_commit = job, len(self.commits)
        data = self.objects[data_pb2.OBJECT_KIND_MANIFEST, "", self.newest]
        before = model_pb2.Manifest.FromString(identity_pb2.Envelope.FromString(data).payload)
        return self.learn(before, self.newest)

    def learn(self, before: model_pb2.Manifest, parent: str) -> World:
        request = model_pb2.JobRequest(
            network_id=POLICY.network_id, job_id=self.job, model=MODEL, graph_digest=GRAPH, initial_manifest_digest=parent, num_batches=12
        )  # fmt: skip
        signed = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER).SerializeToString()
        self.put(data_pb2.OBJECT_KIND_JOB_REQUEST, signed, self.job, "")
        plan = model_pb2.Plan(
            network_id=POLICY.network_id, model=MODEL, holder=HOLDER.node_id, job_id=self.job, parent_digest=self.plan
        )
        plan.assignments.add(replica="a.0", vnode="a", pnode_id=self.led_by.node_id, role=model_pb2.ROLE_PRIMARY, weight=1.0)
        plan.assignments.add(replica="a.1", vnode="a", pnode_id=OTHER.node_id, role=model_pb2.ROLE_CONTRIBUTOR, weight=1.0)
        self.plan = self.envelope(data_pb2.OBJECT_KIND_PLAN, seal(identity_pb2.DOMAIN_PLAN, plan, HOLDER))
        told: list[model_pb2.Contribution] = []
        for index, verdict in enumerate(("open", "spared", "open")):
            one = self.interval(index, verdict)
            told.append(one)
            merged = [] if index else [self.contributed(delta) for delta in self.deltas]
            made = self.manifest(before, parent, *merged, one, state=self.states[-1])
            before, parent = made, self.envelope(data_pb2.OBJECT_KIND_MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, made, HOLDER))
        passed = model_pb2.Contribution()
        passed.CopyFrom(told[0])
        passed.verdict, passed.decided_unix_ms = "passed", int(NOW * 1000) + 9000
        made = self.manifest(before, parent, passed)
        self.newest = self.envelope(data_pb2.OBJECT_KIND_MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, made, HOLDER))
        return self

    def interval(self, index: int, verdict: str) -> model_pb2.Contribution:
        data = f"state {index} of {self.job}".encode()
        first = 4 * index - (self.overlap if index else 0)
        batches = range(first, 4 * index + 4)
        if self.is_anchored and not index:
            self.commit(self.states[-1], [0, 1], merges=[] if self.merges_last else self.deltas, anchor_digest="f" * 64)
            self.commit("f" * 64, [2, 3], merges=self.deltas if self.merges_last else [], state_digest=digest_of(data))
        else:
            self.commit(self.states[-1], batches, merges=[] if index else self.deltas, state_digest=digest_of(data))
        self.states.append(self.put(data_pb2.OBJECT_KIND_STATE, data, "a", digest_of(data)))
        return model_pb2.Contribution(
            vnode="a", replica="a.0", pnode_id=PNODE.node_id, interval=self.commits[-1], verdict=verdict,
            decided_unix_ms=int(NOW * 1000) + index, batches=common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=4 * index + 4)]),
        )  # fmt: skip

    def commit(self, parent: str, batches: Sequence[int], *, merges: Sequence[identity_pb2.Envelope] = (), **ends: str) -> None:
        commit = model_pb2.Commit(
            network_id=POLICY.network_id, model=MODEL, job_id=self.job, vnode="a", replica="a.0", incarnation=1, parent_digest=parent,
            batches=batches, losses=[1.0] * len(batches), sequence=len(self.commits) + 1,
            parent_commit=self.commits[-1] if self.commits[self.first_commit :] else "",
            merges=[model_pb2.Merged(after=0, delta=delta, replicas=2) for delta in merges],
            delegation=make_delegation(PNODE, POLICY.network_id, WORKER.public_der, 1, ["127.0.0.1:1"], NOW), **ends,  # type: ignore[arg-type]
        )  # fmt: skip
        self.commits.append(self.envelope(data_pb2.OBJECT_KIND_COMMIT, seal(identity_pb2.DOMAIN_COMMIT, commit, WORKER), "a"))

    def contributed(self, delta: identity_pb2.Envelope) -> model_pb2.Contribution:
        told = model_pb2.Contribution()
        told.CopyFrom(self.credited or credit("a.1", OTHER, 90, 92))
        told.interval, told.verdict, told.decided_unix_ms = digest_of_envelope(delta), "spared", int(NOW * 1000)
        return told


def credit(replica: str, node: NodeKey, first: int, end: int) -> model_pb2.Contribution:
    batches = common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=end)])
    return model_pb2.Contribution(vnode="a", replica=replica, pnode_id=node.node_id, batches=batches)


def delta(anchor: str = FIRST, measured: str = "") -> identity_pb2.Envelope:
    message = model_pb2.Delta(
        network_id=POLICY.network_id, model=MODEL, job_id=JOB, vnode="a", replica="a.1", incarnation=1, sequence=1, anchor_digest=anchor,
        measured_digest=measured, batches=[90, 91], losses=[1.0, 1.0], codec="raw", digest="d" * 64, size_bytes=9,
        delegation=make_delegation(OTHER, POLICY.network_id, WORKER.public_der, 1, ["127.0.0.1:2"], NOW),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, message, WORKER)


def audit(world: World, directory: Path) -> LedgerAudit:
    found = asyncio.run(LedgerReader(world.read, POLICY, MODEL, directory).run(world.newest, world.plan))
    assert list(directory.iterdir()) == [], "temporary files are removed"
    return found


def test_a_whole_ledger_holds_and_is_told(tmp_path: Path) -> None:
    found = audit(World().train(), tmp_path)
    assert (found.holds, found.trouble) == (True, "")
    assert (found.ledger.num_manifests, found.num_receipts, found.num_gone) == (4, 3, 0)
    assert {name: count for name, count in found.counts().items() if count} == {"passed": 1, "spared": 1, "open": 1}
    assert found.cleared() == {"a": (8, 12)}


def _drop(world: World, kind: int, owner: str, name: str) -> None:
    del world.objects[kind, owner, name]


def test_a_lost_receipt_is_named(tmp_path: Path) -> None:
    world = World().train()
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[1])
    assert audit(world, tmp_path).trouble == f"interval {world.commits[1][:12]} of a: its statement is not in the store"


def test_a_delta_in_the_place_of_a_commit_takes_no_receipt_away(tmp_path: Path) -> None:
    """Any host of the VNode may put it there."""
    made = delta()
    world = World(deltas=[made]).train()
    found = audit(world, tmp_path)
    assert (found.trouble, found.num_receipts, found.num_gone) == ("", 4, 0)
    world.envelope(data_pb2.OBJECT_KIND_COMMIT, made, "a")
    found = audit(world, tmp_path)
    assert (found.trouble, found.num_receipts, found.num_gone) == ("", 4, 0)
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[0])
    assert "its statement is not in the store" in audit(world, tmp_path).trouble, "it is a receipt as part of a commit only"


def test_a_lost_or_changed_state_is_named(tmp_path: Path) -> None:
    world = World().train()
    world.objects[data_pb2.OBJECT_KIND_STATE, "a", world.states[-1]] = b"another state"
    assert "does not have its digest" in audit(world, tmp_path).trouble
    _drop(world, data_pb2.OBJECT_KIND_STATE, "a", world.states[-1])
    assert not audit(world, tmp_path).holds


@pytest.mark.parametrize("field_name", ["pnode_id", "replica"])
def test_credit_for_somebody_else_is_named(field_name: str, tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        for one in manifest.contributions:
            setattr(one, field_name, OTHER.node_id if field_name == "pnode_id" else "a.7")

    assert "credits" in audit(World(change).train(), tmp_path).trouble


def test_a_statement_of_a_pnode_that_no_plan_had_lead_is_named(tmp_path: Path) -> None:
    found = audit(World(led_by=OTHER).train(), tmp_path)
    assert found.trouble == f"a commit of a.0 is signed by {PNODE.node_id[:8]}, and no plan of the job had it as a primary there"


def test_credit_for_fewer_batches_than_were_signed_is_named(tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        for one in manifest.contributions:
            one.batches.intervals[0].end -= 1

    assert "credits other batches" in audit(World(change).train(), tmp_path).trouble


@pytest.mark.parametrize(
    ("given", "trouble"),
    [
        (credit("a.1", PNODE, 90, 92), "for what a.1 signed"),
        (credit("a.7", OTHER, 90, 92), "credits a.7 for what a.1 signed"),
        (credit("a.1", OTHER, 60, 105), "credits other batches"),
        (credit("a.1", OTHER, 90, 91), "credits other batches"),
    ],
    ids=["a stranger", "another replica", "more batches", "fewer"],
)
def test_credit_of_a_delta_is_for_who_signed_it_and_for_its_batches(
    given: model_pb2.Contribution, trouble: str, tmp_path: Path
) -> None:
    assert trouble in audit(World(deltas=[delta()], credited=given).train(), tmp_path).trouble


def test_credit_for_more_batches_than_were_signed_is_named(tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        for one in manifest.contributions:
            if one.batches.intervals[0].first == 8:
                one.batches.intervals[0].end = 72

    assert "credits other batches" in audit(World(change).train(), tmp_path).trouble


def test_an_interval_is_credited_with_the_batches_of_all_its_commits_and_their_deltas_are_receipts(tmp_path: Path) -> None:
    found = audit(World(deltas=[delta()], is_anchored=True).train(), tmp_path)
    assert (found.trouble, found.num_receipts, found.num_gone) == ("", 4, 0)
    world = World(deltas=[delta()], is_anchored=True).train()
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[0])
    assert "its statement is not in the store" in audit(world, tmp_path).trouble, "the delta's, which lay in it"
    alone = World(is_anchored=True).train()
    _drop(alone, data_pb2.OBJECT_KIND_COMMIT, "a", alone.commits[0])
    assert "a statement before its last is not in the store" in audit(alone, tmp_path).trouble


@pytest.mark.parametrize(("anchor", "holds"), [(FIRST, True), ("f" * 64, False), ("c" * 64, False)])
@pytest.mark.parametrize("is_measured", [False, True], ids=["begins", "was measured"])
def test_a_delta_that_counts_begins_with_and_was_measured_against_what_commits_before_it_lead_to(
    anchor: str, holds: bool, is_measured: bool, tmp_path: Path
) -> None:
    brought = delta(FIRST, anchor) if is_measured else delta(anchor)
    found = audit(World(deltas=[brought], is_anchored=True).train(), tmp_path)
    assert found.holds is holds
    assert holds or "to which no commit leads" in found.trouble


@pytest.mark.parametrize(
    ("begins", "measured", "holds"), [(FIRST, "f" * 64, True), ("f" * 64, "f" * 64, True), ("f" * 64, FIRST, False)]
)
def test_a_delta_that_counts_was_not_measured_against_what_lies_behind_its_own_beginning(
    begins: str, measured: str, holds: bool, tmp_path: Path
) -> None:
    found = audit(World(deltas=[delta(begins, measured)], is_anchored=True, merges_last=True).train(), tmp_path)
    assert found.holds is holds
    assert holds or "to which no commit leads, or not in that order" in found.trouble


def test_what_is_called_cleared_must_be(tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        if manifest.number == 4:
            manifest.entries[0].cleared.CopyFrom(manifest.entries[0].working[0])

    assert "is called cleared and is not" in audit(World(change).train(), tmp_path).trouble


def test_a_failure_needs_evidence_against_its_own_accused(tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        for one in manifest.contributions:
            if one.verdict == "passed":
                one.verdict, one.evidence = "failed", "e" * 64
                manifest.retracted.extend(item.digest for item in manifest.entries[0].working[:-1])
                del manifest.entries[0].working[:-1]

    found = audit(World(change).train(), tmp_path)
    assert not found.holds, "the evidence is not there"
    assert found.faults == {}


@pytest.mark.parametrize(("of", "trouble"), [(0, ""), (2, "its evidence is about another one")])
def test_evidence_is_about_the_interval_that_failed_by_it(of: int, trouble: str, tmp_path: Path) -> None:
    """A record of one fault of a PNode does not convict it of others."""

    def change(manifest: model_pb2.Manifest) -> None:
        for one in manifest.contributions:
            if one.verdict == "passed":
                commit = identity_pb2.Envelope.FromString(world.objects[data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[of]])
                record = model_pb2.FaultRecord(
                    kind=model_pb2.FAULT_KIND_COMPUTATION, network_id=POLICY.network_id, model=MODEL, job_id=JOB, vnode="a", statements=[commit]
                )  # fmt: skip
                data = record.SerializeToString(deterministic=True)
                one.verdict, one.evidence = "failed", world.put(data_pb2.OBJECT_KIND_EVIDENCE, data, "a", digest_of(data))
                manifest.retracted.extend(item.digest for item in manifest.entries[0].working[:-1])
                del manifest.entries[0].working[:-1]

    world = World(change)
    found = audit(world.train(), tmp_path)
    assert found.trouble == (f"interval {world.commits[0][:12]}: {trouble}" if trouble else "")


def test_receipts_of_every_job_are_read_and_what_the_chain_tells_first_is_named(tmp_path: Path) -> None:
    """Only the newest job was looked at: whatever an earlier one had credited, the model that came of it was called right."""
    world = World().train().train_on("tiny-2")
    found = audit(world, tmp_path)
    assert (found.trouble, len(found.ledgers), found.num_receipts) == ("", 2, 6)
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[5])
    assert audit(world, tmp_path).trouble == f"interval {world.commits[5][:12]} of a: its statement is not in the store"
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[1])
    assert audit(world, tmp_path).trouble == f"tiny-1: interval {world.commits[1][:12]} of a: its statement is not in the store"


def test_what_an_earlier_job_called_cleared_must_have_been(tmp_path: Path) -> None:
    def change(manifest: model_pb2.Manifest) -> None:
        if (manifest.job_id, manifest.number) == (JOB, 4):
            manifest.entries[0].cleared.CopyFrom(manifest.entries[0].working[0])

    assert "is called cleared and is not" in audit(World(change).train().train_on("tiny-2"), tmp_path).trouble


def test_a_wrong_verdict_is_named_before_a_receipt_that_the_chain_tells_of_later(tmp_path: Path) -> None:
    """The third interval is named after the first one has failed, by evidence that is not there."""

    def change(manifest: model_pb2.Manifest) -> None:
        if manifest.number == 2:
            one = model_pb2.Contribution()
            one.CopyFrom(manifest.contributions[0])
            one.interval, one.verdict, one.evidence = world.commits[0], "failed", "e" * 64
            one.batches.intervals[0].first, one.batches.intervals[0].end = 0, 4
            manifest.contributions[0].CopyFrom(one)
            manifest.retracted.extend(item.digest for item in manifest.entries[0].working[:-1])
            del manifest.entries[0].working[:-1]
        if manifest.number == 4:
            del manifest.contributions[:]

    world = World(change)
    world.train()
    _drop(world, data_pb2.OBJECT_KIND_COMMIT, "a", world.commits[2])
    found = audit(world, tmp_path).trouble
    assert "no such object" in found


def test_every_state_that_the_newest_manifest_names_is_read(tmp_path: Path) -> None:
    world = World().train()
    assert audit(world, tmp_path).num_states == 4
    _drop(world, data_pb2.OBJECT_KIND_STATE, "a", world.states[1])
    assert not audit(world, tmp_path).holds


def test_a_cut_or_edited_chain_is_named(tmp_path: Path) -> None:
    def renumber(manifest: model_pb2.Manifest) -> None:
        manifest.number += manifest.number == 3

    assert "manifest 4 follows number 2" in audit(World(renumber).train(), tmp_path).trouble

    def unaudited(manifest: model_pb2.Manifest) -> None:
        if manifest.number == 2:
            manifest.audits = "none"

    assert "does not lead to the manifest" in audit(World(unaudited).train(), tmp_path).trouble

    def twice(manifest: model_pb2.Manifest) -> None:
        if manifest.number == 3:
            manifest.contributions[0].batches.intervals[0].first = 2

    assert "credits other batches" in audit(World(twice).train(), tmp_path).trouble, (
        "the entry itself; that a batch counts twice follows"
    )
    assert "counts a batch twice" in audit(World(overlap=1).train(), tmp_path).trouble


def test_without_audits_there_is_no_ledger(tmp_path: Path) -> None:
    def unaudited(manifest: model_pb2.Manifest) -> None:
        manifest.audits = "none"

    with pytest.raises(NotFound, match="without audits"):
        audit(World(unaudited).train(), tmp_path)


def test_a_store_that_does_not_answer_accuses_nobody(tmp_path: Path) -> None:
    world = World().train()
    read = world.read

    async def away(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        if ref.kind == data_pb2.OBJECT_KIND_COMMIT:
            raise Unavailable("the store did not answer")
        await read(ref, path, max_bytes)

    with pytest.raises(Unavailable):
        asyncio.run(LedgerReader(away, POLICY, MODEL, tmp_path).run(world.newest, world.plan))
