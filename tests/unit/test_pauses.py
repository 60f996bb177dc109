"""Goal: what maintainers said last counts, once; what they did not say, said before, or said of another job changes nothing."""

from __future__ import annotations

import asyncio
import random

import pytest

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults
from dcnr.errors import InvalidInput, NotFound, Refused, Stale
from dcnr.sdk import pausing
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator import pauses
from orchestrator.documents import sealed
from orchestrator.pauses import is_paused, newest_pause, number_in, record_pause
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain

CLOCK = SystemClock()
MAINTAINER, STRANGER = NodeKey.generate(), NodeKey.generate()
MODEL, JOB = "toy", "job-1"


class Books:
    """A store with one job, and a network whose one maintainer speaks about it."""

    def __init__(self) -> None:
        self.store = MemoryStore(CLOCK, random.Random(1))
        document = create_document(
            MAINTAINER,
            name="test",
            now_wall=CLOCK.wall(),
            orchestrator_ids=[STRANGER.node_id],
            locality=identity_pb2.LOCALITY_SINGLE_HOST,
        )
        self.policy: NetworkPolicy = verify_chain([document])
        asyncio.run(self.store.put(keys.job_request(MODEL, JOB), b"request"))

    def envelope(
        self, number: int, paused: bool, *, job: str = JOB, key: NodeKey = MAINTAINER, reason: str = ""
    ) -> identity_pb2.Envelope:
        wish = model_pb2.JobPause(
            network_id=self.policy.network_id, job_id=job, model=MODEL, number=number, paused=paused, reason=reason
        )
        return seal(identity_pb2.DOMAIN_JOB_PAUSE, wish, key)

    def say(self, envelope: identity_pb2.Envelope) -> tuple[model_pb2.JobPause, bool]:
        return asyncio.run(record_pause(envelope, policy=self.policy, store=self.store))

    def paused(self) -> bool:
        return is_paused(asyncio.run(newest_pause(self.store, self.policy, MODEL, JOB, range(1, 9))))


@pytest.fixture
def books() -> Books:
    return Books()


def test_the_newest_statement_counts(books: Books) -> None:
    assert not books.paused()
    assert books.say(books.envelope(1, True))[1]
    assert books.paused()
    assert books.say(books.envelope(2, False))[1]
    assert not books.paused()


def test_saying_it_again_and_an_old_statement_change_nothing(books: Books) -> None:
    first = books.envelope(1, True)
    books.say(first)
    assert books.say(first) == (model_pb2.JobPause.FromString(first.payload), False)
    assert not books.say(books.envelope(2, True))[1]
    assert books.store.peek(keys.job_pause(MODEL, JOB, 2)) is None, "a wish that is in force is not stored again"
    books.say(books.envelope(2, False))
    with pytest.raises(Stale) as old:
        books.say(first)
    assert (old.value.code, old.value.details["number"]) == ("pause_not_next", "3")
    assert not books.paused()


def test_a_look_that_lacks_statements_takes_no_wish_for_granted(books: Books) -> None:
    """A stale listing shows a job of which nobody said anything: that it goes on is no news to it, and would be lost."""
    books.say(books.envelope(1, True))
    books.store.faults = PlannedFaults([(Operation.LIST, "", Fault.STALE_READ)])
    with pytest.raises(Stale) as missed:
        books.say(books.envelope(2, False))
    assert missed.value.code == "pause_not_next"
    assert books.say(books.envelope(2, False))[1], "the next look shows everything"


def test_of_two_at_once_one_is_first_and_the_other_is_told_its_number(books: Books) -> None:
    books.say(books.envelope(1, True))
    with pytest.raises(Stale):
        books.say(books.envelope(3, False))
    theirs = books.envelope(2, False, reason="theirs").SerializeToString(deterministic=True)

    class Slow(MemoryStore):
        """Somebody writes the statement between our look and our write."""

        async def put(self, key: str, data: bytes, **conditions: object) -> str:
            await books.store.put(key, theirs)
            return await books.store.put(key, data, **conditions)  # type: ignore[arg-type]

    slow = Slow(CLOCK, random.Random(1))
    for name in ("get", "head", "list"):
        setattr(slow, name, getattr(books.store, name))
    said, is_new = asyncio.run(record_pause(books.envelope(2, False, reason="ours"), policy=books.policy, store=slow))
    assert (said.reason, is_new) == ("theirs", False)


def test_a_maintainer_whose_view_is_older_signs_the_number_that_is_next(books: Books) -> None:
    """What the SDK does, with the orchestrator's own rules for an answer."""
    for number, wish in ((1, True), (2, False)):
        books.say(books.envelope(number, wish))

    class Direct:
        async def call(
            self, stub: object, method: str, request: orchestrator_pb2.PauseJobRequest
        ) -> orchestrator_pb2.PauseJobResponse:
            assert method == "PauseJob"
            found, _ = await record_pause(request.pause, policy=books.policy, store=books.store)
            return orchestrator_pb2.PauseJobResponse(recorded=True, paused=found.paused)

    old = orchestrator_pb2.JobView(job_id=JOB, model=MODEL, pause=model_pb2.JobPause(number=1))
    told = pausing.say(Direct(), books.policy, old, [MAINTAINER], paused=True, reason="", now_wall=0.0)  # type: ignore[arg-type]
    assert asyncio.run(told).paused
    assert books.paused()
    with pytest.raises(Refused):
        asyncio.run(pausing.say(Direct(), books.policy, old, [STRANGER], paused=False, reason="", now_wall=0.0))  # type: ignore[arg-type]
    assert books.paused()


@pytest.mark.parametrize(
    ("told", "signed"), [([9], [5]), ([5], [5]), ([4], [5]), ([""], [5]), (["six"], [5]), ([6, 7, 8, 9], [5, 6]), ([6, 6], [5, 6])]
)
def test_an_orchestrator_that_names_numbers_collects_no_signatures_for_later_ones(
    books: Books, told: list[object], signed: list[int]
) -> None:
    """What the SDK signs where each answer says that another number is next."""
    seen: list[int] = []

    class Liar:
        async def call(self, stub: object, method: str, request: orchestrator_pb2.PauseJobRequest) -> None:
            seen.append(books.policy.open_pause(request.pause).number)
            raise Stale("not the next", code="pause_not_next", number=told[len(seen) - 1])

    view = orchestrator_pb2.JobView(job_id=JOB, model=MODEL, pause=model_pb2.JobPause(number=4))
    with pytest.raises(Stale):
        asyncio.run(pausing.say(Liar(), books.policy, view, [MAINTAINER], paused=True, reason="", now_wall=0.0))  # type: ignore[arg-type]
    assert seen == signed


def test_strangers_other_jobs_and_ended_ones_are_refused(books: Books) -> None:
    with pytest.raises(Refused) as unsigned:
        books.say(books.envelope(1, True, key=STRANGER))
    assert unsigned.value.code == "unsigned_job"
    with pytest.raises(NotFound):
        books.say(books.envelope(1, True, job="job-2"))
    outcome = model_pb2.Outcome(job_id=JOB, state=model_pb2.JOB_STATE_COMPLETED)
    end = sealed(identity_pb2.DOMAIN_JOB_END, model_pb2.JobEnd(outcome=outcome), STRANGER)
    asyncio.run(books.store.put(keys.job_end(MODEL, JOB), end.data))
    with pytest.raises(Stale) as ended:
        books.say(books.envelope(1, True))
    assert ended.value.code == "job_ended"


def test_a_reason_has_a_length(books: Books) -> None:
    with pytest.raises(InvalidInput) as long:
        books.say(books.envelope(1, True, reason="x" * (pauses.MAX_REASON + 1)))
    assert long.value.code == "reason_too_long"
    assert books.say(books.envelope(1, True, reason="x" * pauses.MAX_REASON))[1]


def test_what_lies_under_another_number_or_bears_no_signature_does_not_count(books: Books) -> None:
    books.say(books.envelope(1, True))
    for number, data in ((2, books.envelope(3, False)), (3, books.envelope(3, False, key=STRANGER)), (4, None)):
        content = data.SerializeToString() if data is not None else b"no envelope"
        asyncio.run(books.store.put(keys.job_pause(MODEL, JOB, number), content))
    assert books.paused()


def test_statements_about_one_job_are_bounded(books: Books, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "MAX_PAUSES", 1)
    books.say(books.envelope(1, True))
    with pytest.raises(Refused) as full:
        books.say(books.envelope(2, False))
    assert full.value.code == "too_many_pauses"


@pytest.mark.parametrize(
    ("kind", "number"),
    [("pause-0001", 1), ("pause-0064", 64), ("pause-0065", None), ("pause-0000", None), ("pause-", None), ("pause-1x", None),
     ("pause-00001", None), ("pause-1", None), ("0001", None), ("request", None), ("a/pause-0001", None), ("pause-\u0661", None)],
)  # fmt: skip
def test_only_numbers_of_statements_are_read_from_keys(kind: str, number: int | None) -> None:
    assert number_in(kind) == number
