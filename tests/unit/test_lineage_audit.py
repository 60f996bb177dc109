"""Goal: the audit of lineages says yes only where signed commits lead from checkpoint 0 to the stored state with each batch exactly once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer
from safetensors.numpy import save

from dcnr.audit_lineage import LineageAudit, VNodeLineage
from dcnr.cli.ledger import tell_statements
from dcnr.errors import Corrupt, NotFound, Refused
from dcnr.ids import digest_of
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, model_pb2
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

NOW = 1_700_000_000.0
MAINTAINER, ORCHESTRATOR, PNODE, WORKER, STRANGER, HELPER, HELPING = (NodeKey.generate() for _ in range(7))
GRAPH, MODEL, JOB, N = "a" * 64, "tiny", "tiny-1", 10
Credits = dict[tuple[str, str], list[int]]
MIDDLE = "middle"
"""The state on the way before the last one."""
POLICY = verify_chain([create_document(MAINTAINER, name="n", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id])])


def spans(*pairs: tuple[int, int]) -> common_pb2.IntervalSet:
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=end) for first, end in pairs])


def state(rows: list[list[int]], parent: str, vnode: str = "a") -> bytes:
    """A file with the lineage and metadata of a state; the weights do not matter here. The same one each time."""
    return _saved(tuple((first, end) for first, end in rows), parent, vnode)


@functools.cache
def _saved(rows: tuple[tuple[int, int], ...], parent: str, vnode: str) -> bytes:
    metadata = {"vnode": vnode, "graph": GRAPH, "parent": parent}
    return save({"lineage": np.array(rows, dtype=np.int64).reshape(-1, 2)}, metadata)


def delta(
    batches: list[int], *, worker: NodeKey = HELPING, job: str = JOB, anchor: str = "c" * 64, measured: str = ""
) -> identity_pb2.Envelope:
    """What replica a.1 on another PNode learned above that anchor."""
    delegation = make_delegation(HELPER, POLICY.network_id, HELPING.public_der, 7, ["127.0.0.1:2"], NOW)
    message = model_pb2.Delta(
        network_id=POLICY.network_id, model=MODEL, job_id=job, vnode="a", replica="a.1", incarnation=7, sequence=1, anchor_digest=anchor,
        batches=batches, losses=[1.0] * len(batches), codec="raw", digest="d" * 64, size_bytes=9, delegation=delegation,
        measured_digest=measured,
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, message, worker)


@dataclass
class World:
    """A store with one trained VNode; every knob is one lie."""

    objects: dict[tuple[int, str, str], bytes] = field(default_factory=dict)
    plan: str = ""
    """Digest of the newest."""

    def plans(self, *plans: model_pb2.Plan, signer: NodeKey = ORCHESTRATOR) -> None:
        """One after the other, as their holder names them."""
        for plan in plans:
            plan.network_id, plan.model, plan.holder, plan.parent_digest = POLICY.network_id, MODEL, ORCHESTRATOR.node_id, self.plan
            plan.job_id = plan.job_id or JOB
            self.plan = self._envelope(data_pb2.OBJECT_KIND_PLAN, seal(identity_pb2.DOMAIN_PLAN, plan, signer))

    def put(self, kind: int, data: bytes, owner: str = "", digest: str | None = None) -> str:
        name = digest_of(data) if digest is None else digest
        self.objects[kind, owner, name] = data
        return name

    async def read(self, ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        data = self.objects.get((ref.kind, ref.owner, ref.digest))
        if data is None:
            raise NotFound("no such object")
        assert len(data) <= max_bytes
        path.write_bytes(data)

    def train(
        self, pieces: list[list[int]], *, rows: list[list[int]] | None = None, named: common_pb2.IntervalSet | None = None,
        worker: NodeKey | None = None, credited: str = PNODE.node_id, base_parent: str | None = None, signer: NodeKey = ORCHESTRATOR,
        asker: NodeKey = MAINTAINER, skip: int | None = None, deltas: dict[int, list[model_pb2.Merged]] | None = None,
        anchored: tuple[int, ...] = (), given: dict[tuple[str, str], list[int]] | None = None,
        earlier: Sequence[tuple[str, Credits]] = (), by: tuple[str, NodeKey, NodeKey] = ("a.0", PNODE, WORKER),
        first_parent: str = "", beside: str = "", audits: str = "none",
    ) -> str:  # fmt: skip
        """The digest of the final manifest after commits of these batches. ``by``: replica, PNode and worker of all but the last. ``beside``: a state that each
        commit of an anchor names too.
        ``earlier``: what manifests before it named, the oldest first: `MIDDLE`, or the digest of a state that none of these commits made; it held just
        what was credited with it.
        """
        if not self.plan:
            self.plans(planned())
        data = first = state([], first_parent)
        first_digest = self.put(data_pb2.OBJECT_KIND_STATE, first, "a")
        base = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, graph_digest=GRAPH, audits="none",
            entries=[model_pb2.ManifestEntry(vnode="a", working=[model_pb2.Checkpoint(vnode="a", digest=first_digest)])],
        )  # fmt: skip
        base_digest = self._envelope(data_pb2.OBJECT_KIND_MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, base, MAINTAINER))
        request = model_pb2.JobRequest(
            network_id=POLICY.network_id, job_id=JOB, model=MODEL, graph_digest=GRAPH, initial_manifest_digest=base_digest, num_batches=N
        )  # fmt: skip
        self.put(
            data_pb2.OBJECT_KIND_JOB_REQUEST, seal(identity_pb2.DOMAIN_JOB_REQUEST, request, asker).SerializeToString(), JOB, ""
        )
        parent, commit_digest = base_parent or first_digest, ""
        for index, piece in enumerate(pieces):
            lineage = [[0, N]] if index == len(pieces) - 1 and rows is None else rows or [[0, index + 1]]
            data = state(lineage, parent)
            replica, node, key = by if index < len(pieces) - 1 else ("a.0", PNODE, WORKER)
            delegation = make_delegation(node, POLICY.network_id, key.public_der, 1, ["127.0.0.1:1"], NOW)
            commit = model_pb2.Commit(
                network_id=POLICY.network_id, model=MODEL, job_id=JOB, vnode="a", replica=replica, incarnation=1, parent_digest=parent,
                state_digest=beside if index in anchored else digest_of(data), batches=piece, losses=[1.0] * len(piece),
                anchor_digest=digest_of(data) if index in anchored else "", parent_commit=commit_digest, delegation=delegation,
                merges=(deltas or {}).get(index, ()),
            )  # fmt: skip
            if index != skip:
                commit_digest = self._envelope(
                    data_pb2.OBJECT_KIND_COMMIT, seal(identity_pb2.DOMAIN_COMMIT, commit, worker or key), "a"
                )
            middle, parent = parent, digest_of(data)
        self.put(data_pb2.OBJECT_KIND_STATE, data, "a")
        checkpoint = model_pb2.Checkpoint(
            vnode="a",
            digest=parent,
            lineage=named or spans(*[(0, N)] * bool(pieces)),
            replica="a.0",
            pnode_id=credited,
            commit_digest=commit_digest,
            job_id=JOB,
        )
        manifest = model_pb2.Manifest(
            network_id=POLICY.network_id, model=MODEL, number=1, job_id=JOB, holder=signer.node_id, graph_digest=GRAPH, audits=audits,
            entries=[model_pb2.ManifestEntry(vnode="a", working=[checkpoint])],
        )  # fmt: skip
        if given is None:
            given = {("a.0", PNODE.node_id): [batch for piece in pieces for batch in piece if batch < N]}
        credit(manifest, given)
        for state_digest, batches_of in earlier:
            before = model_pb2.Manifest()
            before.CopyFrom(manifest)
            before.entries[0].working[0].digest = middle if state_digest == MIDDLE else state_digest
            before.entries[0].working[0].lineage.CopyFrom(
                spans(*((one, one + 1) for batches in batches_of.values() for one in batches))
            )
            del before.contributions[:]
            credit(before, batches_of)
            envelope = seal(identity_pb2.DOMAIN_MANIFEST, before, signer)
            manifest.parent_digest = self._envelope(data_pb2.OBJECT_KIND_MANIFEST, envelope)
            manifest.number += 1
        return self._envelope(data_pb2.OBJECT_KIND_MANIFEST, seal(identity_pb2.DOMAIN_MANIFEST, manifest, signer))

    def _envelope(self, kind: int, envelope: identity_pb2.Envelope, owner: str = "") -> str:
        return self.put(kind, envelope.SerializeToString(deterministic=True), owner, digest_of_envelope(envelope))


def credit(manifest: model_pb2.Manifest, given: dict[tuple[str, str], list[int]]) -> None:
    for (replica, pnode_id), batches in given.items():
        numbers = spans(*((batch, batch + 1) for batch in sorted(set(batches))))
        manifest.contributions.add(vnode="a", replica=replica, pnode_id=pnode_id, batches=numbers)


def seat(
    replica: str, pnode: NodeKey, role: model_pb2.Role.ValueType, *, weight: float = 1.0, vnode: str = "a"
) -> model_pb2.Assignment:
    return model_pb2.Assignment(replica=replica, vnode=vnode, pnode_id=pnode.node_id, role=role, weight=weight)


def planned(*more: model_pb2.Assignment, job_id: str = JOB) -> model_pb2.Plan:
    """The primary, and a contributor on another PNode."""
    seats = [seat("a.0", PNODE, model_pb2.ROLE_PRIMARY), seat("a.1", HELPER, model_pb2.ROLE_CONTRIBUTOR), *more]
    return model_pb2.Plan(job_id=job_id, assignments=seats)


def audit(world: World, digest: str, directory: Path) -> VNodeLineage:
    results = asyncio.run(LineageAudit(world.read, POLICY, MODEL, directory).run(digest, world.plan))
    assert list(directory.iterdir()) == [], "temporary files are removed"
    assert len(results) == 1
    return results[0]


def test_a_whole_lineage(tmp_path: Path) -> None:
    world = World()
    result = audit(world, world.train([[3, 1, 2], [], [0, 4, 9, 8], [5, 6, 7]]), tmp_path)
    assert result.exact, result.reason
    assert (result.num_batches, result.num_commits, result.pnodes) == (N, 4, (PNODE.node_id,))


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda world: world.train([[0, 1, 2, 3], [4, 5, 6, 7, 8]]), "9 batches"),
        (lambda world: world.train([[0, 1, 2, 3], [3, 4, 5, 6, 7, 8, 9]]), "twice"),
        (lambda world: world.train([[0, 1, 2, 3], [3, 4, 5, 6, 7, 8]]), "twice"),
        (lambda world: world.train([list(range(9)), [10]]), "not those that the state file holds"),
        (lambda world: world.train([list(range(N))], rows=[[0, 9]]), "state file holds"),
        (lambda world: world.train([list(range(N))], named=spans((0, 4), (5, N))), "manifest says"),
    ],
)  # fmt: skip
def test_wrong_lineages_are_told(build: Callable[[World], str], reason: str, tmp_path: Path) -> None:
    world = World()
    result = audit(world, build(world), tmp_path)
    assert (result.exact, result.agrees) == (False, False)
    assert reason in result.reason


HALF = ([0, 1, 2], [3, 4])


@pytest.mark.parametrize(
    ("pieces", "lies", "problem"),
    [
        (HALF, {}, ""),
        (HALF, {"rows": [[0, N]]}, "state file holds"),
        (HALF, {"named": spans((0, N))}, "manifest says"),
        (([0, 1, 2], [2, 3]), {}, "twice"),
        (([0, 1, 2], [3, 5]), {}, "not those that the state file holds"),
        (([0, 1, 2], [3, N]), {"rows": [[0, 4], [N, N + 1]], "named": spans((0, 4), (N, N + 1))}, "that the job does not have"),
        (HALF, {"given": {("a.0", PNODE.node_id): [0, 1, 2]}}, "no manifest credits"),
    ],
)  # fmt: skip
def test_an_unfinished_job_may_lack_batches_and_nothing_else(
    pieces: tuple[list[int], ...], lies: dict[str, Any], problem: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Goal: nobody's word that a job goes on hides that states, manifests and commits disagree; where only batches are missing, the word decides."""
    world = World()
    result = audit(world, world.train(list(pieces), **{"rows": [[0, 5]], "named": spans((0, 5)), **lies}), tmp_path)
    assert (result.exact, result.agrees) == (False, not problem)
    for is_done in (False, True):
        wanted = problem or ("5 batches of 10 are not learned" if is_done else "")
        with pytest.raises(typer.Exit) if wanted else contextlib.nullcontext():
            tell_statements([result], is_done=is_done, as_json=True)
        told = json.loads(capsys.readouterr().out)
        assert (told["completed"], wanted in told["problem"], bool(told["problem"])) == (is_done, True, bool(wanted))


def test_checkpoint_0_agrees_though_no_commit_made_it(tmp_path: Path) -> None:
    """Goal: also that of a job that goes on from an earlier one, whose states name what they descend from."""
    world = World()
    result = audit(world, world.train([], first_parent="b" * 64), tmp_path)
    assert (result.exact, result.agrees, result.reason) == (False, True, "10 batches of 10 are not learned")


@pytest.mark.parametrize(
    "build",
    [
        lambda world: world.train([list(range(N))], worker=STRANGER),
        lambda world: world.train([list(range(N))], credited=STRANGER.node_id),
        lambda world: world.train([list(range(N))], base_parent="b" * 64),
        lambda world: world.train([list(range(N))], signer=STRANGER),
        lambda world: world.train([list(range(N))], asker=STRANGER),
        lambda world: world.train([[0, 1], [2, 3], list(range(4, N))], skip=1),
        lambda world: world.train([[0, 1], list(range(2, N))], anchored=(0,), beside="e" * 64),
    ],
)
def test_broken_chains_and_wrong_signers_are_refused(build: Callable[[World], str], tmp_path: Path) -> None:
    world = World()
    with pytest.raises((Corrupt, Refused)):
        audit(world, build(world), tmp_path)


OWN, HELPED = [0, 1, 2, 3, 4, 5], [6, 7, 8, 9]
GIVEN = {("a.0", PNODE.node_id): OWN, ("a.1", HELPER.node_id): HELPED}


def helped(world: World, **lies: Any) -> str:
    """The primary learned `OWN` in two commits, and took in `HELPED` by two deltas, at whose end contributors took an anchor."""
    merges = [model_pb2.Merged(after=2, delta=delta([6, 7])), model_pb2.Merged(after=3, delta=delta([9, 8]))]
    return world.train([OWN[:3], OWN[3:]], **{"deltas": {0: merges}, "anchored": (0,), "given": GIVEN, **lies})


def test_deltas_count_for_who_made_them(tmp_path: Path) -> None:
    world = World()
    result = audit(world, helped(world), tmp_path)
    assert result.exact, result.reason
    assert result.learned == (("a.0", PNODE.node_id, 6), ("a.1", HELPER.node_id, 4))
    assert result.pnodes == (PNODE.node_id, HELPER.node_id)


def test_where_audits_are_drawn_a_delta_begins_with_and_was_measured_against_what_commits_lead_to(tmp_path: Path) -> None:
    """A replay begins with whatever it names: a state of the contributor's own making would pass, and be nothing that the model ever was."""
    zero, other = digest_of(state([], "")), "c" * 64
    for anchor, measured, audits, holds in (
        (zero, "", "drawn", True), (other, "", "drawn", False), (other, "", "none", True), (zero, zero, "drawn", True), (zero, other, "drawn", False),
    ):  # fmt: skip
        world = World()
        brought = delta(HELPED, anchor=anchor, measured=measured)
        made = helped(world, audits=audits, deltas={0: [model_pb2.Merged(after=2, delta=brought)]})
        if holds:
            assert audit(world, made, tmp_path).exact
        else:
            with pytest.raises(Corrupt, match="to which no commit leads"):
                audit(world, made, tmp_path)


@pytest.mark.parametrize("is_in_order", [True, False])
def test_where_audits_are_drawn_no_delta_was_measured_against_what_lies_behind_its_own_beginning(
    is_in_order: bool, tmp_path: Path
) -> None:
    """Goal: else it hands in again what others learned in between, and whoever replays its steps finds all of it true."""
    zero = digest_of(state([], ""))
    ends = zero, digest_of(state([[0, 1]], zero))
    begins, measured = ends if is_in_order else ends[::-1]
    world = World()
    brought = delta(HELPED, anchor=begins, measured=measured)
    made = helped(world, audits="drawn", deltas={1: [model_pb2.Merged(after=0, delta=brought)]})
    if is_in_order:
        assert audit(world, made, tmp_path).exact
    else:
        with pytest.raises(Corrupt, match="or not in that order"):
            audit(world, made, tmp_path)


def test_a_delta_that_overlaps_counts_twice(tmp_path: Path) -> None:
    world = World()
    result = audit(world, helped(world, deltas={0: [model_pb2.Merged(after=1, delta=delta([2, 6, 7, 8]))]}), tmp_path)
    assert (result.exact, result.reason) == (False, "the commits name a batch twice")


@pytest.mark.parametrize("given", [{("a.0", PNODE.node_id): list(range(N))}, {**GIVEN, ("a.1", HELPER.node_id): HELPED[1:]}, {}])
def test_who_learned_must_be_credited(given: dict[tuple[str, str], list[int]], tmp_path: Path) -> None:
    world = World()
    result = audit(world, helped(world, given=given), tmp_path)
    assert not result.exact
    assert "no manifest credits" in result.reason


FIRST: Credits = {("a.1", HELPER.node_id): [0, 1, 2, 3]}


@pytest.mark.parametrize(
    ("earlier", "is_right"),
    [
        ([("e" * 64, FIRST)], True),
        ([("e" * 64, FIRST), (MIDDLE, FIRST)], True),
        ([], False),
        ([("e" * 64, {("a.1", HELPER.node_id): [1, 2, 3]})], False),
        ([(MIDDLE, FIRST), ("e" * 64, FIRST)], False),
    ],
)
def test_who_learned_again_what_a_state_left_aside_held_has_no_credit_for_it(
    earlier: list[tuple[str, Credits]], is_right: bool, tmp_path: Path
) -> None:
    """Goal: a batch is credited once, to who brought it into a named state first; what came in on the way itself is credited to who learned it."""
    world = World()
    given: Credits = {("a.0", PNODE.node_id): list(range(4, N))}
    result = audit(world, world.train([list(range(4)), list(range(4, N))], given=given, earlier=earlier), tmp_path)
    assert (result.exact, result.reason) == (is_right, "" if is_right else "no manifest credits a.0 with what it learned")


@pytest.mark.parametrize(
    "merged",
    [
        model_pb2.Merged(after=1, delta=delta(HELPED, worker=STRANGER)),
        model_pb2.Merged(after=1, delta=delta(HELPED, job="other")),
        model_pb2.Merged(after=4, delta=delta(HELPED)),
        model_pb2.Merged(after=1, delta=seal(identity_pb2.DOMAIN_COMMIT, delta(HELPED).payload, HELPING)),
    ],
)
def test_deltas_that_do_not_hold_are_refused(merged: model_pb2.Merged, tmp_path: Path) -> None:
    world = World()
    with pytest.raises((Corrupt, Refused)):
        audit(world, helped(world, deltas={0: [merged]}), tmp_path)


STANDBY = seat("a.9", STRANGER, model_pb2.ROLE_STANDBY, weight=0.0)
LONE = model_pb2.Plan(assignments=[seat("a.0", PNODE, model_pb2.ROLE_PRIMARY)])
ELSEWHERE = model_pb2.Plan(
    assignments=[seat("a.0", PNODE, model_pb2.ROLE_PRIMARY), seat("a.1", STRANGER, model_pb2.ROLE_CONTRIBUTOR)]
)
ASIDE = model_pb2.Plan(assignments=[seat("a.0", PNODE, model_pb2.ROLE_PRIMARY), seat("a.1", HELPER, model_pb2.ROLE_STANDBY)])
THREE = seat("a.2", STRANGER, model_pb2.ROLE_CONTRIBUTOR)
OTHERS = seat("b.5", STRANGER, model_pb2.ROLE_CONTRIBUTOR, vnode="b")


@pytest.mark.parametrize(
    ("plans", "replicas", "code"),
    [
        ([planned()], 2, ""),
        ([planned()], 0, ""),
        ([planned(), LONE], 2, ""),
        ([planned(THREE), planned()], 3, ""),
        ([planned(STANDBY, OTHERS)], 2, ""),
        ([planned()], 3, "unplanned_merge"),
        ([planned(STANDBY, OTHERS)], 3, "unplanned_merge"),
        ([planned(THREE)], 2, "unplanned_merge"),
        ([LONE], 0, "unplanned_merge"),
        ([ELSEWHERE], 0, "unplanned_merge"),
        ([ASIDE], 0, "unplanned_merge"),
        ([planned(job_id="another")], 0, "unplanned_replica"),
        ([planned(), planned(job_id="another"), LONE], 0, "unplanned_merge"),
    ],
)
def test_a_merge_has_to_be_one_that_a_plan_of_the_job_had(
    plans: list[model_pb2.Plan], replicas: int, code: str, tmp_path: Path
) -> None:
    world = World()
    world.plans(*(model_pb2.Plan.FromString(plan.SerializeToString()) for plan in plans))
    merges = [model_pb2.Merged(after=2, delta=delta(HELPED), replicas=replicas)]
    digest = helped(world, deltas={0: merges})
    if not code:
        assert audit(world, digest, tmp_path).exact
        return
    with pytest.raises(Corrupt) as caught:
        audit(world, digest, tmp_path)
    assert caught.value.code == code


LED = model_pb2.Plan(assignments=[seat("a.1", HELPER, model_pb2.ROLE_PRIMARY)])


@pytest.mark.parametrize(
    ("by", "plans", "fits"),
    [
        (("a.1", HELPER, HELPING), [LED, planned()], True),
        (("a.1", HELPER, HELPING), [planned()], False),
        (("a.0", STRANGER, HELPING), [LED, planned()], False),
        (("a.0", HELPER, HELPING), [LED, planned()], False),
    ],
    ids=["led before", "contributed only", "throwaway key", "another PNode"],
)
def test_a_commit_has_to_be_of_a_primary_that_a_plan_of_the_job_had(
    by: tuple[str, NodeKey, NodeKey], plans: list[model_pb2.Plan], fits: bool, tmp_path: Path
) -> None:
    """Goal: a primary cannot have its work signed by keys that no plan gave the VNode."""
    world = World()
    world.plans(*(model_pb2.Plan.FromString(plan.SerializeToString()) for plan in plans))
    given = {(by[0], by[1].node_id): [0, 1, 2, 3], ("a.0", PNODE.node_id): list(range(4, N))}
    digest = world.train([list(range(4)), list(range(4, N))], by=by, given=given)
    if fits:
        result = audit(world, digest, tmp_path)
        assert (result.exact, result.pnodes) == (True, (HELPER.node_id, PNODE.node_id)), result.reason
        return
    with pytest.raises(Corrupt) as caught:
        audit(world, digest, tmp_path)
    assert caught.value.code == "unplanned_replica"


def test_a_plan_that_no_orchestrator_signed_is_none(tmp_path: Path) -> None:
    world = World()
    world.plans(planned(), signer=STRANGER)
    with pytest.raises(Corrupt):
        audit(world, helped(world), tmp_path)


def test_only_a_state_can_be_a_checkpoint(tmp_path: Path) -> None:
    """An anchor has no optimiser: nobody can restore it."""
    world = World()
    with pytest.raises(Corrupt):
        audit(world, world.train([list(range(N))], anchored=(0,)), tmp_path)


def test_tampered_objects_are_refused(tmp_path: Path) -> None:
    world = World()
    digest = world.train([[0, 1, 2], list(range(3, N))])
    for (kind, owner, name), data in list(world.objects.items()):
        if kind in (data_pb2.OBJECT_KIND_MANIFEST, data_pb2.OBJECT_KIND_COMMIT):
            world.objects[kind, owner, name] = data[:-1] + bytes([data[-1] ^ 1])
            with pytest.raises((Corrupt, Refused)):
                audit(world, digest, tmp_path)
            world.objects[kind, owner, name] = data
    assert audit(world, digest, tmp_path).exact
