"""Goal: what is wrong with one job of the store stops no other one, and no job ends for what an orchestrator has only not heard of yet."""

from __future__ import annotations

import asyncio
import random

import pytest
from test_signed_jobs import graph_of

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.ports import Random
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator import jobbook
from orchestrator.changes import Activate
from orchestrator.documents import sealed
from orchestrator.ends import LONGEST_PAUSE_S, Ends
from orchestrator.history import History
from orchestrator.jobbook import MAX_PAUSE_LOOKS, MAX_UNREAD, UNSIGNED_LOOKS, JobBook
from orchestrator.jobs import next_change
from orchestrator.retention import kept_states
from orchestrator.view import ModelView, ViewLoader
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
ADDED = NodeKey.generate()
THIRD = amend(FIRST, Changes(add_orchestrators=[ADDED.node_id]), [ALICE], now_wall=NOW + 1).policy()
GRAPH = graph_of(0.1)


class Damaged:
    """Objects that the store answers with 503, or another fault, and how often it was asked for them."""

    def __init__(self) -> None:
        self.keys: set[str] = set()
        self.fault = Fault.UNAVAILABLE
        self.num_asked = 0

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        is_damaged = key in self.keys and operation is not Operation.LIST
        self.num_asked += is_damaged
        return self.fault if is_damaged else Fault.NONE


class Clock(SystemClock):
    """Whose seconds pass when told."""

    def __init__(self) -> None:
        self.now = 1.0

    def monotonic(self) -> float:
        return self.now


class Shelf:
    """A store with jobs, and the book of an orchestrator that knows a network document."""

    def __init__(self) -> None:
        self.damaged = Damaged()
        self.store = MemoryStore(SystemClock(), random.Random(0), faults=self.damaged)
        self.policy: NetworkPolicy = FIRST
        self.store.rewind(keys.graph(digest_of(GRAPH)), GRAPH)
        self.restart()

    def restart(self) -> None:
        """An orchestrator that has read nothing yet."""
        loader = ViewLoader(self.store, lambda: self.policy, default_registry(), SystemClock())
        self.book = JobBook("m", self.store, lambda: self.policy, loader)

    def submit(self, job_id: str, signer: NodeKey = ALICE, begins_with: str = "", created_unix_ms: int = 0) -> None:
        request = model_pb2.JobRequest(
            network_id=FIRST.network_id, model="m", job_id=job_id, graph_digest=digest_of(GRAPH), num_batches=9,
            initial_manifest_digest=begins_with, created_unix_ms=created_unix_ms,
        )  # fmt: skip
        data = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, signer).SerializeToString(deterministic=True)
        self.store.rewind(keys.job_request("m", job_id), data)

    def manifest(self, number: int, signer: NodeKey) -> str:
        """A manifest with one state, and its digest."""
        entry = model_pb2.ManifestEntry(vnode="a", working=[model_pb2.Checkpoint(vnode="a", digest="5" * 64)])
        message = model_pb2.Manifest(network_id=FIRST.network_id, model="m", number=number, holder=signer.node_id, entries=[entry])
        made = sealed(identity_pb2.DOMAIN_MANIFEST, message, signer)
        self.store.rewind(keys.manifest("m", made.digest), made.data)
        return made.digest

    def end(self, job_id: str, signer: NodeKey = HOLDER) -> None:
        outcome = model_pb2.Outcome(job_id=job_id, state=model_pb2.JOB_STATE_CANCELLED)
        made = sealed(identity_pb2.DOMAIN_JOB_END, model_pb2.JobEnd(outcome=outcome), signer)
        self.store.rewind(keys.job_end("m", job_id), made.data)

    def call_off(self, job_id: str, signer: NodeKey = ALICE) -> None:
        cancel = model_pb2.JobCancel(network_id=FIRST.network_id, model="m", job_id=job_id, reason="enough")
        data = seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, signer).SerializeToString(deterministic=True)
        self.store.rewind(keys.job_cancel("m", job_id), data)

    def pause(self, job_id: str, number: int, *, paused: bool, reason: str = "") -> None:
        said = model_pb2.JobPause(
            network_id=FIRST.network_id, model="m", job_id=job_id, number=number, paused=paused, reason=reason
        )
        data = seal(identity_pb2.DOMAIN_JOB_PAUSE, said, ALICE).SerializeToString(deterministic=True)
        self.store.rewind(keys.job_pause("m", job_id, number), data)

    def kept(self) -> frozenset[str]:
        """States that no sweep takes now."""
        view = ModelView("m", model_pb2.Head(), b"")
        return asyncio.run(kept_states(view, self.book._loader, self.book.records, (), self.book.unknown))

    def damage(self, *names: str) -> None:
        self.damaged.keys.update(names)

    def activated(self, active: str = "") -> str:
        """The job that would be activated now."""
        head = model_pb2.Head(active=model_pb2.ActiveJob(job_id=active) if active else None)
        change = next_change(head, self.book.records, None, 0)
        return change.job_id if isinstance(change, Activate) else ""

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


@pytest.mark.parametrize("name", ["request", "graph", "end"])
def test_one_damaged_object_of_an_ended_job_stops_no_other_job(name: str) -> None:
    """A fresh orchestrator never came to know the jobs that sort behind it, and decided nothing, for years."""
    shelf = Shelf()
    shelf.submit("a-year-ago")
    shelf.end("a-year-ago")
    shelf.submit("new")
    shelf.damage(
        {"request": keys.job_request, "end": keys.job_end}.get(name, lambda *_: keys.graph(digest_of(GRAPH)))("m", "a-year-ago")
    )
    if name == "graph":
        shelf.end("new")
    shelf.refresh()
    assert list(shelf.book.unread) == (["a-year-ago", "new"] if name == "graph" else ["a-year-ago"])
    assert shelf.activated() == ("" if name == "graph" else "new")
    if name != "end":
        ended = shelf.book.records["a-year-ago"]
        assert ended.end is not None, "nothing else is needed to know that"
        with pytest.raises(Unavailable, match="a-year-ago"):
            asyncio.run(kept_states(ModelView("m", model_pb2.Head(), b""), pytest.fail, shelf.book.records, ()))  # type: ignore[arg-type]
    shelf.damaged.keys.clear()
    shelf.refresh(MAX_PAUSE_LOOKS)
    assert not shelf.book.unread
    ended = shelf.book.records["a-year-ago"]
    assert (ended.unread, ended.request is not None, ended.end is not None) == ("", True, True)


def test_a_job_whose_end_cannot_be_read_never_begins_again() -> None:
    shelf = Shelf()
    shelf.submit("ended")
    shelf.refresh()
    assert shelf.activated() == "ended"
    shelf.end("ended")
    shelf.damage(keys.job_end("m", "ended"))
    shelf.refresh()
    assert (shelf.activated(), list(shelf.book.unread)) == ("", ["ended"])


def test_a_job_of_which_the_end_is_listed_never_begins_again_whatever_stale_read_or_network_document_hides_how_it_ended() -> None:
    """Of most jobs the head says it no more: a fresh orchestrator goes by their ends alone, and a single 404 had one begin anew, from its first state."""
    shelf = Shelf()
    shelf.submit("ended")
    shelf.end("ended")
    shelf.damaged.fault = Fault.STALE_READ
    shelf.damage(keys.job_end("m", "ended"))
    shelf.refresh()
    assert (shelf.activated(), list(shelf.book.unread)) == ("", ["ended"])
    shelf.damaged.keys.clear()
    shelf.end("ended", ADDED)
    shelf.restart()
    shelf.refresh(20)
    assert (shelf.activated(), list(shelf.book.unread)) == ("", ["ended"])
    shelf.policy = THIRD
    shelf.refresh()
    assert shelf.book.records["ended"].end is not None, "whoever wrote it was added to the orchestrators"
    assert not shelf.book.unread


def test_what_lies_in_the_place_of_the_active_jobs_end_stops_it_not() -> None:
    """It has not ended by the head, and whoever has the keys of the store can put anything there."""
    shelf = Shelf()
    shelf.submit("active")
    shelf.store.rewind(keys.job_end("m", "active"), b"no end")
    asyncio.run(shelf.book.refresh("active"))
    asyncio.run(shelf.book.look())
    assert (shelf.book.records["active"].end, list(shelf.book.unread)) == (None, [])


@pytest.mark.parametrize("number", [0, 7])
def test_a_job_that_begins_with_what_others_signed_waits_for_the_network_document(number: int) -> None:
    """By an older document it was decided to have failed for good, and what it begins with was left to go from the store."""
    shelf, signer = Shelf(), BOB if number == 0 else ADDED
    shelf.submit("new", begins_with=shelf.manifest(number, signer))
    shelf.refresh(20)
    assert shelf.activated() == ""
    assert not shelf.book.records
    shelf.policy = SECOND if number == 0 else THIRD
    shelf.refresh()
    assert (shelf.activated(), shelf.kept()) == ("new", {"5" * 64})
    shelf.restart()
    shelf.policy = FIRST
    shelf.refresh(UNSIGNED_LOOKS)
    assert "cannot run" in shelf.book.records["new"].problem


def test_with_which_states_a_queued_job_begins_is_known() -> None:
    """Where one of them is taken back meanwhile it is never begun (`orchestrator.jobs`)."""
    shelf = Shelf()
    shelf.submit("next", ALICE, begins_with=shelf.manifest(0, ALICE))
    shelf.refresh()
    assert shelf.book.records["next"].begins_with == {"5" * 64}


def test_while_nothing_is_known_of_a_job_that_waits_no_state_goes() -> None:
    """What it begins with was condemned, and deleted five minutes later: it was accepted, and could never run."""
    shelf = Shelf()
    shelf.submit("active")
    shelf.submit("waits", begins_with=shelf.manifest(0, ALICE))
    shelf.damage(keys.job_request("m", "waits"))
    shelf.refresh()
    assert (list(shelf.book.records), shelf.book.unknown) == (["active"], {"waits"})
    with pytest.raises(Unavailable, match="waits"):
        shelf.kept()
    shelf.damaged.keys.clear()
    shelf.refresh(2)
    assert shelf.kept() == {"5" * 64}


def test_what_cannot_be_read_is_asked_for_ever_more_rarely_but_for_the_job_that_runs() -> None:
    shelf = Shelf()
    shelf.submit("new")
    shelf.damage(keys.job_request("m", "new"))
    shelf.refresh(200)
    assert shelf.damaged.num_asked < 12
    before = shelf.damaged.num_asked
    asyncio.run(shelf.book.refresh("new"))
    asyncio.run(shelf.book.refresh("new"))
    assert shelf.damaged.num_asked == before + 2


def test_a_store_that_gives_nothing_is_away() -> None:
    shelf = Shelf()
    for number in range(2 * MAX_UNREAD):
        shelf.submit(f"j{number:02d}")
        shelf.damage(keys.job_request("m", f"j{number:02d}"))
    with pytest.raises(Unavailable):
        shelf.refresh()
    assert len(shelf.book.unread) == MAX_UNREAD + 1


def test_an_end_that_can_neither_be_written_nor_read_holds_up_no_other() -> None:
    shelf, clock = Shelf(), Clock()
    for job_id in ("a", "b"):
        shelf.submit(job_id)
    shelf.refresh()
    shelf.damage(keys.job_end("m", "a"))
    decided = [model_pb2.Outcome(job_id=job_id, state=model_pb2.JOB_STATE_CANCELLED) for job_id in ("a", "b")]
    view = ModelView("m", model_pb2.Head(decided=decided), b"")
    ends = Ends(shelf.store, HOLDER, clock, lambda: FIRST, shelf.book, History(None, HOLDER.node_id, clock))
    for _ in range(2):
        asyncio.run(ends.write(view))
    assert [record.end is not None for record in shelf.book.records.values()] == [False, True]
    assert "end of job a" in ends.trouble
    for _ in range(1000):
        clock.now += 0.2
        asyncio.run(ends.write(view))
    assert shelf.damaged.num_asked < 40
    shelf.damaged.keys.clear()
    clock.now += LONGEST_PAUSE_S
    asyncio.run(ends.write(view))
    asyncio.run(ends.write(view))
    assert (shelf.book.records["a"].end, ends.trouble) == (decided[0], "")
