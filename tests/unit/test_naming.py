"""Goal: what is asked of the next manifest while one is being written is in the one after it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from audited_rig import JOB, Job

from dataservice.manifest_form import from_proto
from dataservice.memory import MemoryStore
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.documents import Stored
from orchestrator.drawing import Drawing
from orchestrator.history import History
from orchestrator.naming import FENCE_AGAIN_S, Naming
from orchestrator.view import JobFacts, ModelView, ViewLoader
from trust.envelope import parse_envelope
from trust.identity import NodeKey


class _Store(MemoryStore):
    """Calls ``meanwhile`` while an object is being written."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), random.Random(1))
        self.meanwhile: Callable[[], None] = lambda: None

    async def put(self, key: str, data: bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        self.meanwhile()
        return await super().put(key, data, if_match=if_match, if_none_match=if_none_match)


class _Held:
    """A model of the VNodes a and b whose manifests this orchestrator writes."""

    def __init__(self) -> None:
        self.job, self.store, self.now = Job(), _Store(), 1000.0
        self.head_is_written = True
        clock, key = SystemClock(), NodeKey.generate()
        loader = ViewLoader(self.store, pytest.fail, pytest.fail, clock)  # type: ignore[arg-type]
        history = History(None, key.node_id, clock)
        self.naming = Naming(
            key=key, store=self.store, clock=clock, loader=loader, history=history,
            drawing=Drawing(None, pytest.fail, clock, lambda _: False),
        )  # fmt: skip
        self.naming.begin(self.now)

    def fences(self) -> set[str] | None:
        """What the next manifest fences; None where there is none."""
        self.now += 1.0
        request = model_pb2.JobRequest(job_id=JOB, graph_digest="g" * 64)
        head = model_pb2.Head(epoch=1, manifest_digest=self.job.digest(-1), active=model_pb2.ActiveJob(job_id=JOB))
        facts = JobFacts(request, "r" * 64, model_pb2.ModelGraph(), b"", (), ())
        self.job.next_replica += 1
        plan = model_pb2.Plan(next_replica=self.job.next_replica)
        view = ModelView("m", head, b"", plan, manifest=self.job.manifests[-1], job=facts, chain=self.job.chain())
        made = asyncio.run(self.naming.next(view, {}, self.now, sweep_s=1e9, grant_lifetime_s=3600))
        return None if made is None else self._read(made)

    def _read(self, made: Stored) -> set[str]:
        manifest = model_pb2.Manifest.FromString(parse_envelope(made.data).payload)
        if self.head_is_written:
            self.job.manifests.append(manifest)
            self.naming.done()
        return {vnode for vnode, replica in from_proto(manifest).fences.items() if replica == self.job.next_replica}


def test_a_fence_is_raised_once_for_each_time_that_it_is_asked_for() -> None:
    held = _Held()
    assert held.fences() is None
    held.naming.poisoned("a", held.now)
    held.naming.poisoned("a", held.now)
    assert held.fences() == {"a"}
    assert held.fences() is None
    held.naming.poisoned("a", held.now)
    assert held.fences() is None, "the one before has had no time yet to be obeyed"
    held.now += FENCE_AGAIN_S
    held.naming.poisoned("a", held.now)
    assert held.fences() == {"a"}


def test_a_fence_that_is_asked_for_while_a_manifest_is_written_is_in_the_next() -> None:
    """Forgotten, the replica stands still until it is quarantined for it, though it has done nothing wrong."""
    held = _Held()
    held.naming.poisoned("a", held.now)
    held.store.meanwhile = lambda: held.naming.poisoned("b", held.now)
    assert held.fences() == {"a"}
    assert held.fences() == {"b"}
    assert held.fences() is None


def test_a_fence_waits_for_the_manifest_that_a_head_names() -> None:
    held = _Held()
    held.naming.poisoned("a", held.now)
    held.head_is_written = False
    assert held.fences() == {"a"}
    held.head_is_written = True
    assert held.fences() == {"a"}
    assert held.fences() is None
