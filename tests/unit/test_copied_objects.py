"""Goal: signed objects of a job say nothing in the place of another job, where whoever has the store's credentials can copy them."""

from __future__ import annotations

import asyncio

import pytest
from test_jobbook import ALICE, FIRST, HOLDER, Shelf

from dataservice import keys
from dcnr.errors import Refused, Stale
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.admission import record_cancel
from orchestrator.changes import MAX_OUTCOME_BYTES
from orchestrator.documents import sealed
from orchestrator.pauses import record_pause
from trust.amendment import Changes, amend
from trust.envelope import seal
from trust.identity import NodeKey

OTHER = NodeKey.generate()
BOTH = amend(FIRST, Changes(add_orchestrators=[OTHER.node_id]), [ALICE], now_wall=1_700_000_001.0).policy()
REMOVED = amend(BOTH, Changes(remove_orchestrators=[HOLDER.node_id]), [ALICE], now_wall=1_700_000_002.0).policy()


def end(job_id: str, network_id: str = "", model: str = "", **kinds: object) -> bytes:
    outcome = model_pb2.Outcome(job_id=job_id, **{"state": model_pb2.JOB_STATE_COMPLETED, "manifest_digest": "9" * 64, **kinds})  # type: ignore[arg-type]
    return sealed(identity_pb2.DOMAIN_JOB_END, model_pb2.JobEnd(outcome=outcome, network_id=network_id, model=model), HOLDER).data


def cancel(job_id: str, model: str = "m", reason: str = "enough", created_unix_ms: int = 0) -> identity_pb2.Envelope:
    statement = model_pb2.JobCancel(
        network_id=FIRST.network_id, job_id=job_id, model=model, reason=reason, created_unix_ms=created_unix_ms
    )
    return seal(identity_pb2.DOMAIN_JOB_CANCEL, statement, ALICE)


@pytest.mark.parametrize(
    "copied",
    [
        end("another"), end("mine", FIRST.network_id, "of-another-model"), end("mine", "f" * 40, "m"),
        end("mine", state=model_pb2.JOB_STATE_RUNNING), end("mine", reason="x" * MAX_OUTCOME_BYTES),
    ],
    ids=["another job's", "another model's", "another network's", "no end", "larger than a head can hold"],
)  # fmt: skip
def test_what_is_the_end_of_something_else_ends_no_job(copied: bytes) -> None:
    shelf = Shelf()
    shelf.submit("mine")
    shelf.store.rewind(keys.job_end("m", "mine"), copied)
    shelf.refresh()
    assert (list(shelf.book.records), list(shelf.book.unread)) == ([], ["mine"]), "it has not ended, and does not begin either"
    shelf.restart()
    asyncio.run(shelf.book.refresh("mine"))
    assert (shelf.book.records["mine"].end, list(shelf.book.unread)) == (None, []), "the head knows better"


@pytest.mark.parametrize("said", [{}, {"network_id": FIRST.network_id, "model": "m"}], ids=["written before ends said so", "now"])
def test_its_own_end_ends_it(said: dict[str, str]) -> None:
    shelf = Shelf()
    shelf.submit("mine")
    shelf.store.rewind(keys.job_end("m", "mine"), end("mine", **said))
    shelf.refresh()
    ended = shelf.book.records["mine"].end
    assert ended is not None
    assert ended.state == model_pb2.JOB_STATE_COMPLETED


@pytest.mark.parametrize(("model", "reason"), [("m", "enough"), ("another", None)])
def test_only_its_own_cancellation_calls_a_job_off(model: str, reason: str | None) -> None:
    shelf = Shelf()
    shelf.submit("mine")
    shelf.store.rewind(keys.job_cancel("m", "mine"), cancel("mine", model).SerializeToString())
    shelf.refresh()
    assert shelf.book.records["mine"].cancel_reason == reason


@pytest.mark.parametrize("taken", [b"no cancellation", cancel("mine", "another").SerializeToString(deterministic=True)])
def test_who_calls_a_job_off_hears_where_something_else_lies_in_the_place_of_that(taken: bytes) -> None:
    """An object is written once: it was answered as recorded, and the job went on for ever."""
    shelf = Shelf()
    shelf.submit("mine")
    shelf.store.rewind(keys.job_cancel("m", "mine"), taken)
    with pytest.raises(Refused) as caught:
        asyncio.run(record_cancel(cancel("mine"), policy=FIRST, store=shelf.store))
    assert (caught.value.code, keys.job_cancel("m", "mine") in caught.value.remedy) == ("cancel_taken", True)
    shelf.store.rewind(keys.job_cancel("m", "mine"), cancel("mine", reason="said before").SerializeToString(deterministic=True))
    assert asyncio.run(record_cancel(cancel("mine"), policy=FIRST, store=shelf.store))[1] is False


def test_a_cancellation_from_before_a_job_was_asked_for_calls_it_not_off_and_keeps_no_place_from_one_that_does() -> None:
    """It is of another job under that name, which the store has lost: it lies there still, or whoever has seen it shows it once more."""
    shelf = Shelf()
    shelf.submit("mine", created_unix_ms=1000)
    key, earlier, later = keys.job_cancel("m", "mine"), cancel("mine", created_unix_ms=999), cancel("mine", created_unix_ms=1001)
    shelf.store.rewind(key, earlier.SerializeToString(deterministic=True))
    shelf.refresh()
    assert shelf.book.records["mine"].cancel_reason is None
    with pytest.raises(Refused) as caught:
        asyncio.run(record_cancel(earlier, policy=FIRST, store=shelf.store))
    assert caught.value.code == "cancel_before_job"
    assert asyncio.run(record_cancel(later, policy=FIRST, store=shelf.store))[1] is True
    assert shelf.store.peek(key) == later.SerializeToString(deterministic=True)
    shelf.refresh()
    assert shelf.book.records["mine"].cancel_reason == "enough"


def test_an_end_of_an_open_job_that_a_removed_orchestrator_signed_is_told_once() -> None:
    """Nothing says whether it signed that before its removal: the operator has to hear of it."""
    shelf = Shelf()
    shelf.policy = REMOVED
    for job_id in ("seen-open", "ended-long-ago", "active"):
        shelf.submit(job_id)
    shelf.store.rewind(keys.job_end("m", "ended-long-ago"), end("ended-long-ago"))
    asyncio.run(shelf.book.refresh("active"))
    assert not shelf.book.take_ended_by_removed()
    for job_id in ("seen-open", "active"):
        shelf.store.rewind(keys.job_end("m", job_id), end(job_id))
    asyncio.run(shelf.book.refresh("active"))
    assert shelf.book.take_ended_by_removed() == {"seen-open": HOLDER.node_id, "active": HOLDER.node_id}
    asyncio.run(shelf.book.refresh("active"))
    assert not shelf.book.take_ended_by_removed()
    assert all(record.end is not None for record in shelf.book.records.values())


def test_a_fresh_orchestrator_tells_of_such_an_end_of_the_job_that_the_head_has_active() -> None:
    shelf = Shelf()
    shelf.policy = REMOVED
    shelf.submit("active")
    shelf.store.rewind(keys.job_end("m", "active"), end("active"))
    asyncio.run(shelf.book.refresh("active"))
    assert shelf.book.take_ended_by_removed() == {"active": HOLDER.node_id}


@pytest.mark.parametrize("lies_there", [b"no end", end("another")])
def test_a_running_job_is_paused_whatever_lies_in_the_place_of_its_end(lies_there: bytes) -> None:
    """The head knows that it has not ended; its maintainers heard that it had, and it went on."""
    shelf = Shelf()
    shelf.submit("mine")
    pause = model_pb2.JobPause(network_id=FIRST.network_id, model="m", job_id="mine", paused=True, number=1)
    envelope = seal(identity_pb2.DOMAIN_JOB_PAUSE, pause, ALICE)
    shelf.store.rewind(keys.job_end("m", "mine"), end("mine"))
    with pytest.raises(Stale):
        asyncio.run(record_pause(envelope, policy=FIRST, store=shelf.store))
    shelf.store.rewind(keys.job_end("m", "mine"), lies_there)
    assert asyncio.run(record_pause(envelope, policy=FIRST, store=shelf.store)) == (pause, True)
