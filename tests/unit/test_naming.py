"""Goal: each replica that has to go is fenced, whatever happens meanwhile, and once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from audited_rig import JOB, Job, drawn, judged, name_of, piece

from dataservice.manifest_form import from_proto
from dataservice.memory import MemoryStore
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Decision
from orchestrator.checkpoints import named
from orchestrator.drawing import Drawing
from orchestrator.history import History
from orchestrator.naming import FENCE_AGAIN_S, Naming
from orchestrator.releases import ReleaseBook
from orchestrator.view import JobFacts, ModelView, ViewLoader
from trust.envelope import parse_envelope
from trust.going_back import Cause
from trust.identity import NodeKey
from trust.ledger import Verdict


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
        self.head_is_written = self.is_audited = True
        clock, key = SystemClock(), NodeKey.generate()
        loader = ViewLoader(self.store, pytest.fail, pytest.fail, clock)  # type: ignore[arg-type]
        history = History(None, key.node_id, clock)
        self.naming = Naming(
            key=key, store=self.store, clock=clock, loader=loader, history=history,
            drawing=Drawing(None, pytest.fail, clock, lambda _: False),
            releases=ReleaseBook("m", self.store, pytest.fail),
        )  # fmt: skip
        self.naming.begin(self.now)
        self._placed = {"a": "a.0", "b": "b.0"}

    def anew(self, vnode: str) -> str:
        """From now on the plan places a new replica there; which one."""
        self._placed[vnode] = f"{vnode}.{self.job.next_replica}"
        self.job.next_replica += 1
        return self._placed[vnode]

    def fences(self) -> set[str] | None:
        """VNodes of which the next manifest moves the fence; None where there is none."""
        self.now += 1.0
        request = model_pb2.JobRequest(job_id=JOB, graph_digest="g" * 64)
        head = model_pb2.Head(epoch=1, manifest_digest=self.job.digest(-1), active=model_pb2.ActiveJob(job_id=JOB))
        facts = JobFacts(request, "r" * 64, model_pb2.ModelGraph(), b"", (), ())
        plan = model_pb2.Plan(next_replica=self.job.next_replica)
        for vnode, replica in self._placed.items():
            plan.assignments.add(vnode=vnode, replica=replica, role=model_pb2.ROLE_PRIMARY)
        before = self.job.manifests[-1]
        chain = self.job.chain() if self.is_audited else None
        view = ModelView("m", head, b"", plan, manifest=before, job=facts, beginning=self.job.manifests[0], chain=chain)
        made = asyncio.run(self.naming.next(view, {}, self.now, sweep_s=1e9, grant_lifetime_s=3600))
        if made is None:
            return None
        manifest = model_pb2.Manifest.FromString(parse_envelope(made.data).payload)
        if self.head_is_written:
            self.job.manifests.append(manifest)
            self.naming.done()
        return {vnode for vnode, _ in from_proto(manifest).fences.items() - from_proto(before).fences.items()}


def test_a_fence_is_raised_once_for_each_replica_that_has_to_go() -> None:
    held = _Held()
    assert held.fences() is None
    for _ in range(2):
        held.naming.poisoned("a", "a.0")
    assert held.fences() == {"a"}
    assert held.fences() is None
    held.naming.poisoned("a", "a.0")
    assert held.fences() is None, "the fence keeps it out"
    second = held.anew("a")
    held.now += FENCE_AGAIN_S
    held.naming.poisoned("a", second)
    assert held.fences() == {"a"}
    held.naming.poisoned("a", held.anew("a"))
    held.anew("a")
    held.now += FENCE_AGAIN_S
    assert held.fences() is None, "another has its place by now"


def test_a_replica_that_has_to_go_soon_after_the_one_before_goes_a_little_later() -> None:
    """Forgotten, it stands still until it is quarantined for it, though it has done nothing wrong: it may have told all that it had to tell."""
    held = _Held()
    held.naming.poisoned("a", "a.0")
    assert held.fences() == {"a"}
    held.naming.poisoned("a", held.anew("a"))
    assert held.fences() is None, "not after each beat"
    held.now += FENCE_AGAIN_S
    assert held.fences() == {"a"}


def test_a_fence_that_is_asked_for_while_a_manifest_is_written_is_in_the_next() -> None:
    """Forgotten, the replica stands still until it is quarantined for it, though it has done nothing wrong."""
    held = _Held()
    held.naming.poisoned("a", "a.0")
    held.store.meanwhile = lambda: held.naming.poisoned("b", "b.0")
    assert held.fences() == {"a"}
    assert held.fences() == {"b"}
    assert held.fences() is None


def test_a_fence_waits_for_the_manifest_that_a_head_names() -> None:
    held = _Held()
    held.naming.poisoned("a", "a.0")
    held.head_is_written = False
    assert held.fences() == {"a"}
    held.head_is_written = True
    assert held.fences() == {"a"}
    assert held.fences() is None


def test_a_state_that_is_refused_of_one_replica_may_be_named_of_the_next() -> None:
    """Replicas that learn alike come to one state. What is refused for another's sake waits for a snapshot that differs."""
    held = _Held()
    first = judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)])
    held.naming.recorded(first)
    held.naming.poisoned("a", "a.0")
    assert held.fences() == {"a"}
    assert held.naming.refusal(first.checkpoint), "the fence keeps it out"
    second = model_pb2.Checkpoint()
    second.CopyFrom(first.checkpoint)
    second.replica, second.commit_digest = held.anew("a"), name_of("another commit")
    assert not held.naming.refusal(second)


def test_what_adds_nothing_to_what_is_about_to_be_named_is_not_refused() -> None:
    """It was, for as long as the head was not written: its replica made another one for that, which added nothing either and was refused in its turn."""
    held = _Held()
    held.is_audited = False
    twins = [judged(name, "a0", piece("a-1", 0, 1), held=[(0, 1)]) for name in ("a1", "a2")]
    for one in twins:
        held.naming.recorded(one)
    held.head_is_written = False
    held.fences()
    assert [held.naming.refusal(one.checkpoint) for one in twins] == ["", ""]
    held.head_is_written = True
    held.fences()
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id=JOB))
    view = ModelView("m", head, b"", manifest=held.job.manifests[-1])
    assert [named(view, one.checkpoint) for one in twins] == [True, True]
    assert held.fences() is None


@pytest.mark.parametrize(("verdict", "is_fault"), [(Verdict.FAILED, True), (Verdict.UNVERIFIABLE, False)])
def test_only_what_somebody_is_quarantined_for_begins_the_time_for_settling_anew(verdict: Verdict, *, is_fault: bool) -> None:
    """Else whoever shows no evidence, for which nobody is blamed, could have a job settle for ever."""
    held = _Held()
    held.job.named(judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)]), draw=drawn("a-1"))
    cause = Cause.FAULT if is_fault else Cause.UNVERIFIABLE
    held.naming.verdicts = lambda _: (Decision(name_of("a-1"), verdict, "why", cause, name_of("evidence")),)
    assert held.fences() is not None
    assert (held.naming.went_back, held.naming.found_fault) == (True, is_fault)
    held.naming.verdicts = lambda _: ()
    held.naming.poisoned("b", "b.0")
    assert held.fences() == {"b"}
    assert (held.naming.went_back, held.naming.found_fault) == (True, False), "a fence takes nothing back"


@pytest.mark.parametrize("is_audited", [True, False])
def test_who_is_of_no_use_is_fenced_where_nobody_can_follow_its_state_back_and_only_there(*, is_audited: bool) -> None:
    """A machine that is merely slow brings nothing for as long, and would lose what it learned with every fence."""
    held = _Held()
    held.is_audited = is_audited
    held.naming.useless("a", "a.0")
    assert held.fences() is None
    held.naming.leads_nowhere("a.0")
    assert held.fences() is None, "it may still bring what is missing"
    held.naming.leads_back("a.0")
    held.naming.useless("a", "a.0")
    assert held.fences() is None, "it has"
    held.naming.leads_nowhere("a.0")
    held.naming.useless("a", "a.0")
    assert held.fences() == {"a"}
    held.now += FENCE_AGAIN_S
    held.naming.leads_nowhere(second := held.anew("a"))
    held.naming.useless("a", held.anew("a"))
    assert held.fences() is None, f"{second} has left"


def test_a_fence_outlives_the_manifest_that_raised_it_without_audits_too() -> None:
    held = _Held()
    held.is_audited = False
    held.naming.poisoned("a", "a.0")
    held.naming.recorded(judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)]))
    assert held.fences() == {"a"}
    assert held.naming.went_back, "it is replaced at once"
    assert held.job.newest.entries["a"].working[0].digest == name_of("a0"), "nothing of it is named with its fence"
    held.naming.recorded(judged("b1", "b0", piece("b-1", 0, 1), held=[(0, 1)]))
    assert held.fences() == set()
    assert (held.job.newest.fences, held.naming.went_back) == ({"a": 7}, False)
    assert held.job.newest.entries["b"].working[0].digest == name_of("b1")


@pytest.mark.parametrize("is_audited", [True, False])
def test_what_was_judged_before_a_fence_was_raised_is_not_named_after_it(*, is_audited: bool) -> None:
    """A judgement takes seconds, and the plan still has its maker for a moment: what had been taken back a moment ago was named."""
    held = _Held()
    held.is_audited = is_audited
    held.naming.poisoned("a", "a.0")
    assert held.fences() == {"a"}
    late = judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)])
    held.naming.recorded(late)
    assert held.fences() is None
    assert held.naming.refusal(late.checkpoint).startswith("fenced")
    heir = judged("a2", "a0", piece("a-2", 0, 1, replica="a.0"), held=[(0, 1)], replica=held.anew("a"))
    held.naming.recorded(heir)
    assert held.fences() == (None if is_audited else set()), "where nothing is judged, it is its own maker's that counts"


def test_a_life_that_began_anew_with_less_takes_nothing_back_and_is_named_once_it_holds_more() -> None:
    """What an earlier life brought is whole in the store: whoever comes after goes on from there."""
    entry = model_pb2.ManifestEntry(vnode="a")
    entry.working.add(vnode="a", digest="d" * 64, job_id=JOB, replica="a.0", incarnation=1, step=150)
    view = ModelView("m", model_pb2.Head(), b"", manifest=model_pb2.Manifest(entries=[entry]))

    def brought(incarnation: int, step: int, replica: str = "a.0") -> bool:
        return named(
            view, model_pb2.Checkpoint(vnode="a", digest="e" * 64, job_id=JOB, replica=replica, incarnation=incarnation, step=step)
        )

    assert [brought(2, step) for step in (120, 150, 151)] == [True, True, False]
    assert not brought(2, 120, replica="a.1"), "another replica says for itself what it holds"


def test_a_term_begins_with_nothing_that_was_judged_in_another() -> None:
    """The store may have gone back in between: a manifest named a state that it had lost, and what added nothing then may add something now."""
    held = _Held()
    held.is_audited = False
    one = judged("a1", "a0", piece("a-1", 0, 1), held=[(0, 1)])
    held.naming.recorded(one)
    held.naming.begin(held.now)
    assert held.fences() is None
    held.naming.recorded(one)
    held.naming.poisoned("a", "a.0")
    assert held.fences() == {"a"}
    assert held.naming.refusal(one.checkpoint)
    held.naming.begin(held.now)
    assert not held.naming.refusal(one.checkpoint), "its PNode brings it again, and it is judged again"
