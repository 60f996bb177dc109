"""Goal: commits are kept, and evidence is written, of those alone on whom the plan has the replica, and of each of these a bounded part."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from types import SimpleNamespace

from dataservice.memory import MemoryStore
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.auditing import Auditing
from orchestrator.equivocations import MAX_PROOFS
from orchestrator.own_eyes import OwnEyes
from orchestrator.signal import Signal
from orchestrator.standings import Standings
from orchestrator.view import ModelView
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.identity import NodeKey
from trust.standing import State

CLOCK, NETWORK, MODEL = SystemClock(), "5" * 40, "m"
HOST = NodeKey.generate()


def statement(
    node: NodeKey, state: int, *, job: str = "j", vnode: str = "a", replica: str = "a.0", number: int = 7
) -> identity_pb2.Envelope:
    """A commit of a worker of that PNode."""
    worker = NodeKey.generate()
    message = model_pb2.Commit(
        network_id=NETWORK, model=MODEL, job_id=job, vnode=vnode, replica=replica, incarnation=3, parent_digest="1" * 64,
        state_digest=f"{state:064x}", batches=[1], losses=[0.5], sequence=number,
        delegation=make_delegation(node, NETWORK, worker.public_der, 3, ["127.0.0.1:1"], CLOCK.wall()),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, message, worker)


def behind(node: NodeKey, *, job: str = "j", vnode: str = "a", replica: str = "a.0") -> model_pb2.Checkpoint:
    return model_pb2.Checkpoint(job_id=job, vnode=vnode, replica=replica, pnode_id=node.node_id)


class Rig:
    """One holder's audits of a model whose plan has a.0 on one PNode; whoever calls brings what it likes."""

    def __init__(self, root: Path) -> None:
        self.store, self.standings, self.said = MemoryStore(CLOCK, random.Random(1)), Standings(), list[str]()
        history = SimpleNamespace(say=lambda kind, *words, **facts: self.said.append(kind))
        shared = SimpleNamespace(
            own_eyes=OwnEyes(self.store, NETWORK, root, None), store=self.store, standings=self.standings, clock=CLOCK, history=history,
            policy=SimpleNamespace(network_id=NETWORK, audits_drawn=True, single_host=False),
        )  # fmt: skip
        job, placed = SimpleNamespace(request=model_pb2.JobRequest(job_id="j")), model_pb2.Assignment(vnode="a", replica="a.0")
        self.view = ModelView(MODEL, model_pb2.Head(), b"", job=job, hosted={HOST.node_id: (placed,)})  # type: ignore[arg-type]
        self.auditing = Auditing(
            MODEL, shared, view=lambda: self.view, job=self._none, plan=self._none, is_holder=lambda: True, wake=Signal()  # type: ignore[arg-type]
        )  # fmt: skip

    async def _none(self, name: str) -> None:
        raise AssertionError(name)

    def bring(self, checkpoint: model_pb2.Checkpoint, *commits: identity_pb2.Envelope) -> None:
        for one in commits:
            asyncio.run(self.auditing.committed(checkpoint, one))

    def evidence(self) -> list[str]:
        known = self.store.keys()
        return [key for key in known if "/evidence/" in key]


def test_who_hosts_nothing_has_no_evidence_written_and_bans_nobody(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    for number in range(8):
        key = NodeKey.generate()
        places = ({}, {"job": f"j{number}"}, {"vnode": f"v{number}"}, {"replica": f"a.{number}"})
        for place in places:
            rig.bring(behind(key, **place), statement(key, 2, **place), statement(key, 3, **place))
    assert rig.evidence() == []
    assert rig.standings.known() == frozenset()
    assert rig.said == []


def test_who_hosts_something_brings_its_own_words_about_it_and_no_others(tmp_path: Path) -> None:
    rig, other = Rig(tmp_path), NodeKey.generate()
    rig.bring(behind(HOST), statement(other, 2), statement(other, 3))
    for place in ({"job": "k"}, {"vnode": "b"}, {"replica": "a.1"}):
        rig.bring(behind(HOST, **place), statement(HOST, 2, **place), statement(HOST, 3, **place))
        rig.bring(behind(HOST), statement(HOST, 2, **place), statement(HOST, 3, **place))
    assert rig.evidence() == []
    assert rig.standings.known() == frozenset()


def test_a_host_that_signs_two_stories_is_found_and_writes_a_bounded_part_about_itself(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, second = statement(HOST, 2), statement(HOST, 3)
    rig.bring(behind(HOST), first, second)
    assert rig.standings.of(HOST.node_id, CLOCK.wall()).state is State.BANNED
    assert (len(rig.evidence()), rig.said) == (1, ["equivocation_found"])
    rig.bring(behind(HOST), second)
    assert len(rig.evidence()) == 1, "the same words are the same evidence"
    for number in range(8, 24):
        rig.bring(behind(HOST), statement(HOST, 2, number=number), statement(HOST, 3, number=number))
    assert len(rig.evidence()) == MAX_PROOFS
    assert rig.said == ["equivocation_found"]


def test_a_replica_that_the_plan_has_moved_is_no_longer_its_former_hosts(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.bring(behind(HOST), statement(HOST, 2))
    rig.view = ModelView(MODEL, model_pb2.Head(), b"", job=rig.view.job)
    rig.bring(behind(HOST), statement(HOST, 3))
    assert rig.evidence() == []
