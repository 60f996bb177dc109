"""Goal: what an orchestrator signed while it was listed stays readable after it was removed; nobody obeys it, and it does not get a term back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dcnr.errors import Corrupt, Stale
from dcnr.ids import digest_of
from dcnr.stored import StoredDocuments
from dcnr.v1 import data_pb2, identity_pb2, model_pb2
from orchestrator.changes import Activate
from orchestrator.documents import open_desired, open_end, open_head, open_manifest, open_plan, open_stored_head, sealed
from orchestrator.head import HeadCore
from orchestrator.head_events import Get, GetAbsent, GetAnswered, Landed, Put, PutAnswered, TermGained, TermLost, Tick
from trust.identity import NodeKey
from trust.network import create_document, draft_successor, sign_document, verify_chain

MAINTAINER, REMOVED, STAYS, NEVER = (NodeKey.generate() for _ in range(4))
_FIRST = verify_chain([create_document(MAINTAINER, name="n", now_wall=1.0, orchestrator_ids=[REMOVED.node_id, STAYS.node_id])])


def removed_by_the_next_version() -> identity_pb2.Envelope:
    draft = draft_successor(_FIRST)
    draft.orchestrator_ids[:] = [STAYS.node_id]
    return sign_document(draft, MAINTAINER)


POLICY = verify_chain([*_FIRST.history, removed_by_the_next_version()])
NETWORK = POLICY.network_id


def head(key: NodeKey, holder: NodeKey | None = None) -> bytes:
    message = model_pb2.Head(network_id=NETWORK, model="m", epoch=3, holder=(holder or key).node_id)
    return sealed(identity_pb2.DOMAIN_HEAD, message, key).data


def plan(key: NodeKey) -> bytes:
    return sealed(identity_pb2.DOMAIN_PLAN, model_pb2.Plan(network_id=NETWORK, model="m", holder=key.node_id), key).data


def manifest(key: NodeKey) -> bytes:
    message = model_pb2.Manifest(network_id=NETWORK, model="m", number=4, holder=key.node_id)
    return sealed(identity_pb2.DOMAIN_MANIFEST, message, key).data


def end(key: NodeKey) -> bytes:
    message = model_pb2.JobEnd(outcome=model_pb2.Outcome(job_id="j", state=model_pb2.JOB_STATE_COMPLETED))
    return sealed(identity_pb2.DOMAIN_JOB_END, message, key).data


def desired(key: NodeKey) -> bytes:
    message = model_pb2.DesiredState(network_id=NETWORK, model="m", holder=key.node_id)
    return sealed(identity_pb2.DOMAIN_DESIRED_STATE, message, key).data


def stored_plan(data: bytes, directory: Path) -> model_pb2.Plan:
    async def read(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        assert (ref.kind, len(data) <= max_bytes) == (data_pb2.OBJECT_KIND_PLAN, True)
        path.write_bytes(data)

    return asyncio.run(StoredDocuments(read, POLICY, "m", directory).plan(digest_of(data)))


def test_the_chain_knows_whom_any_version_listed() -> None:
    assert [POLICY.has_listed(key.node_id) for key in (REMOVED, STAYS, NEVER)] == [True, True, False]
    assert [POLICY.is_orchestrator(key.node_id) for key in (REMOVED, STAYS, NEVER)] == [False, True, False]


@pytest.mark.parametrize("key", [REMOVED, STAYS])
def test_what_was_signed_while_listed_stays_readable(key: NodeKey, tmp_path: Path) -> None:
    assert open_manifest(manifest(key), POLICY, "m").number == 4
    assert open_plan(plan(key), POLICY, "m").holder == key.node_id
    assert stored_plan(plan(key), tmp_path).holder == key.node_id
    outcome, signer = open_end(end(key), POLICY, "m", "j")
    assert (outcome.state, signer) == (model_pb2.JOB_STATE_COMPLETED, key.node_id)
    assert open_stored_head(head(key), POLICY, "m", None).epoch == 3


def test_one_that_no_version_listed_is_refused(tmp_path: Path) -> None:
    for refused in (
        lambda: open_manifest(manifest(NEVER), POLICY, "m"), lambda: open_plan(plan(NEVER), POLICY, "m"), lambda: open_end(end(NEVER), POLICY, "m", "j"),
        lambda: stored_plan(plan(NEVER), tmp_path), lambda: open_stored_head(head(NEVER), POLICY, "m", None),
        lambda: open_stored_head(head(NEVER, REMOVED), POLICY, "m", None), lambda: open_stored_head(head(REMOVED, STAYS), POLICY, "m", None),
    ):  # fmt: skip
        with pytest.raises(Corrupt) as caught:
            refused()
        assert caught.value.code == "wrong_signer"


def test_a_removed_one_is_not_obeyed() -> None:
    assert open_head(head(STAYS), POLICY, "m").epoch == 3
    assert open_desired(desired(STAYS), POLICY, "m").holder == STAYS.node_id
    for refused in (lambda: open_head(head(REMOVED), POLICY, "m"), lambda: open_desired(desired(REMOVED), POLICY, "m")):
        with pytest.raises(Corrupt) as caught:
            refused()
        assert caught.value.code == "wrong_signer"


def test_its_head_is_read_until_a_listed_one_took_over_and_not_after() -> None:
    its, successors = (model_pb2.Head(holder=key.node_id) for key in (REMOVED, STAYS))
    assert open_stored_head(head(REMOVED), POLICY, "m", its).holder == REMOVED.node_id
    assert open_stored_head(head(STAYS), POLICY, "m", successors).holder == STAYS.node_id
    with pytest.raises(Corrupt) as caught:
        open_stored_head(head(REMOVED), POLICY, "m", successors)
    assert caught.value.code == "wrong_signer"


@pytest.mark.parametrize(("holder_before", "landed"), [(REMOVED, True), (STAYS, False)])
def test_a_holder_that_is_taken_out_decides_nothing_more_from_that_moment_on(holder_before: NodeKey, landed: bool) -> None:
    """Not even what was on its way to the store when it heard of it: its own last write is read, one over a listed holder's head is not."""
    listed = [_FIRST]
    core = HeadCore(
        NETWORK, "m", REMOVED.node_id, lambda head: sealed(identity_pb2.DOMAIN_HEAD, head, REMOVED).data,
        lambda data: open_stored_head(data, listed[-1], "m", model_pb2.Head(holder=holder_before.node_id)),
        may_hold=lambda: listed[-1].is_orchestrator(REMOVED.node_id),
    )  # fmt: skip
    core.step(Tick(1.0, 1000))
    core.step(GetAbsent(1.1))
    assert TermGained(1) in core.step(PutAnswered(1.2, "one"))
    core.propose(Activate("j", "r" * 64, "m" * 64), 1.3)
    [write] = core.step(Tick(1.4, 1400))
    assert isinstance(write, Put)
    listed.append(POLICY)
    assert not core.is_holder(1.5)
    with pytest.raises(Stale):
        core.propose(Activate("k", "r" * 64, "m" * 64), 1.5)
    news = core.step(PutAnswered(1.6, "two"))
    lost = "this orchestrator may hold it no longer: it is not listed, or lacks a component"
    assert TermLost(1, lost) in news
    assert any(isinstance(item, Landed) for item in news) == landed
    assert not [item for item in news if isinstance(item, Put)]
    for second in range(2, 40):
        for item in core.step(Tick(float(second), 1000 * second)):
            assert isinstance(item, Get), "it only reads"
            core.step(GetAnswered(second + 0.1, write.data, "two"))
    assert not core.is_holder(40.0)


@pytest.mark.parametrize(("may_hold", "writes"), [(True, [Put]), (False, [])])
def test_one_that_is_not_listed_takes_no_head(may_hold: bool, writes: list[type]) -> None:
    """Not even where there is none."""
    core = HeadCore(
        NETWORK, "m", REMOVED.node_id, lambda head: sealed(identity_pb2.DOMAIN_HEAD, head, REMOVED).data,
        lambda data: open_stored_head(data, POLICY, "m", None), may_hold=lambda: may_hold,
    )  # fmt: skip
    assert core.step(Tick(1.0, 1000)) == [Get()]
    assert [type(item) for item in core.step(GetAbsent(1.1))] == writes
