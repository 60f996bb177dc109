"""Goal: what is wrong with one job of the store stops no other one, and no job ends for what an orchestrator has only not heard of yet."""

from __future__ import annotations

import asyncio
import random

import pytest
from test_signed_jobs import graph_of

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.ids import digest_of
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import jobbook
from orchestrator.jobbook import UNSIGNED_LOOKS, JobBook
from orchestrator.view import ViewLoader
from trust.amendment import Changes, amend
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
from vnode.registry import default_registry

ALICE, BOB, HOLDER = (NodeKey.generate() for _ in range(3))
NOW = 1_700_000_000.0
FIRST = verify_chain([create_document(ALICE, name="n", now_wall=NOW, orchestrator_ids=[HOLDER.node_id])])
SECOND = amend(
    FIRST, Changes(add_maintainers=[BOB.public_der], remove_maintainers=[ALICE.node_id]), [ALICE, BOB], now_wall=NOW + 1
).policy()
GRAPH = graph_of(0.1)


class Shelf:
    """A store with jobs, and the book of an orchestrator that knows a network document."""

    def __init__(self, store: MemoryStore | None = None) -> None:
        self.store = store or MemoryStore(SystemClock(), random.Random(0))
        self.policy: NetworkPolicy = FIRST
        self.store.rewind(keys.graph(digest_of(GRAPH)), GRAPH)
        loader = ViewLoader(self.store, lambda: self.policy, default_registry(), SystemClock())
        self.book = JobBook("m", self.store, lambda: self.policy, loader)

    def submit(self, job_id: str, signer: NodeKey = ALICE) -> None:
        request = model_pb2.JobRequest(
            network_id=FIRST.network_id, model="m", job_id=job_id, graph_digest=digest_of(GRAPH), num_batches=9
        )
        data = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, signer).SerializeToString(deterministic=True)
        self.store.rewind(keys.job_request("m", job_id), data)

    def refresh(self, times: int = 1) -> None:
        for _ in range(times):
            asyncio.run(self.book.refresh())


def test_a_request_that_newer_keys_have_signed_waits_for_the_network_document() -> None:
    """Another orchestrator accepted it by a document of which this one had not heard: it was decided to have failed within a second."""
    shelf = Shelf()
    shelf.submit("new", BOB)
    shelf.submit("old", ALICE)
    shelf.refresh(20)
    assert sorted(shelf.book.records) == ["old"]
    shelf.policy = SECOND
    shelf.refresh()
    assert [(record.job_id, record.problem) for record in shelf.book.records.values()] == [("old", ""), ("new", "")]


def test_a_request_that_nobody_has_signed_ends_after_minutes_and_is_read_again_by_a_newer_document(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(jobbook, "LOOK_S", 0.0)
    shelf = Shelf()
    shelf.submit("new", BOB)
    for _ in range(5):
        asyncio.run(shelf.book.look())
    shelf.refresh(UNSIGNED_LOOKS - 1)
    assert not shelf.book.records, "whoever asks makes no job fail"
    shelf.refresh()
    assert "not valid" in shelf.book.records["new"].problem
    shelf.policy = SECOND
    shelf.refresh()
    assert not shelf.book.records["new"].problem
