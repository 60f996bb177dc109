"""Goal: what a store has lost, or seems to have lost, is decided by nobody; what the head remembers of it is written again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from test_jobbook import FIRST, HOLDER, Clock, Shelf

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator.changes import Activate, Decide, apply
from orchestrator.costs import StageCost
from orchestrator.ends import Ends
from orchestrator.exits import ExitBook
from orchestrator.history import History
from orchestrator.jobbook import MISSING_LOOKS
from orchestrator.jobs import ends_as, ends_to_write, next_change
from orchestrator.progress import progress_of
from orchestrator.view import JobFacts, ModelView, same_documents


def test_an_end_that_a_store_lost_is_written_again_also_of_a_job_that_is_known_no_more() -> None:
    """The head remembers the outcome, and lets go of it only when the end is there; no more is remembered here than the head does."""
    shelf = Shelf()
    ends = Ends(shelf.store, HOLDER, Clock(), lambda: FIRST, shelf.book, History(None, HOLDER.node_id, Clock()))

    def write(epoch: int, *decided: str) -> int:
        outcomes = [model_pb2.Outcome(job_id=job_id, state=model_pb2.JOB_STATE_COMPLETED) for job_id in decided]
        asyncio.run(ends.write(ModelView("m", model_pb2.Head(epoch=epoch, decided=outcomes), b"")))
        return len(ends._seen)

    write(1, "lost")
    shelf.store.rewind(keys.job_end("m", "lost"), None)
    write(2, "lost")
    assert shelf.store.peek(keys.job_end("m", "lost")) is not None
    assert [write(2, *(f"j{number + after:02d}" for after in range(16))) for number in range(20)] == [16] * 20


def test_what_a_store_that_went_back_has_no_more_is_no_job_and_no_end() -> None:
    """Activated, a job without its request would hold the head for ever: nobody could even call it off."""
    shelf = Shelf()
    shelf.submit("kept", begins_with=shelf.manifest(1, HOLDER))
    shelf.submit("lost", begins_with=shelf.manifest(2, HOLDER))
    shelf.end("kept")
    shelf.refresh()
    assert shelf.activated() == "lost"
    shelf.store.rewind(keys.job_request("m", "lost"), None)
    shelf.store.rewind(keys.job_end("m", "kept"), None)
    shelf.refresh()
    assert sorted(shelf.book.records) == ["kept", "lost"], "a listing may be stale: nothing is forgotten for that"
    assert shelf.activated() == "", "nor is anything begun by what it does not show"
    asyncio.run(shelf.book.refresh(num_back=1))
    assert sorted(shelf.book.records) == ["kept"]
    assert shelf.activated() == "kept", "it goes on from where the store is"
    shelf.end("kept")
    asyncio.run(shelf.book.refresh(num_back=1))
    assert shelf.activated() == ""


def test_what_a_store_lost_is_forgotten_after_some_looks_by_whoever_read_no_older_head() -> None:
    """It had been asleep while the head was the older one: a job that ran once more was ended by it as it had ended before, with a result that was lost."""
    shelf = Shelf()
    shelf.submit("kept", begins_with=shelf.manifest(1, HOLDER))
    shelf.submit("lost", begins_with=shelf.manifest(2, HOLDER))
    shelf.end("kept")
    shelf.refresh()
    shelf.store.rewind(keys.job_request("m", "lost"), None)
    shelf.store.rewind(keys.job_end("m", "kept"), None)
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="kept", state=model_pb2.JOB_STATE_RUNNING))
    shelf.refresh(MISSING_LOOKS - 1)
    assert next_change(head, shelf.book.records, None, 0) is None, "it may have ended, or not"
    outcome = model_pb2.Outcome(job_id="kept", state=model_pb2.JOB_STATE_CANCELLED)
    decided = model_pb2.Head(decided=[outcome])
    assert not ends_to_write(decided, shelf.book.records), "who has decided it does not write it into the store that went back"
    shelf.refresh()
    assert list(ends_to_write(decided, shelf.book.records)) == [outcome]
    assert list(shelf.book.records) == ["kept"]
    assert shelf.book.records["kept"].end is None
    assert shelf.activated() == "kept"


def test_a_stale_listing_between_others_forgets_nothing() -> None:
    shelf = Shelf()
    shelf.submit("a", begins_with=shelf.manifest(1, HOLDER))
    shelf.end("a")
    shelf.refresh()
    end = shelf.store.peek(keys.job_end("m", "a"))
    for _ in range(2):
        shelf.store.rewind(keys.job_end("m", "a"), None)
        shelf.refresh(MISSING_LOOKS - 1)
        for _ in range(3):
            asyncio.run(shelf.book.look())
        assert shelf.book.records["a"].end is not None, "who merely asks says nothing of it"
        shelf.store.rewind(keys.job_end("m", "a"), end)
        shelf.refresh()
    assert shelf.book.records["a"].end is not None
    assert not shelf.book.records["a"].is_doubted


def test_an_active_job_of_which_the_store_has_no_request_fails_after_some_looks() -> None:
    """As where a head is newer than what was restored beside it: unread for ever, it would keep all other jobs waiting, and nobody could call it off."""
    shelf = Shelf()
    shelf.submit("waits", begins_with=shelf.manifest(1, HOLDER))
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="lost", state=model_pb2.JOB_STATE_RUNNING))
    for _ in range(MISSING_LOOKS - 1):
        asyncio.run(shelf.book.refresh("lost"))
        assert next_change(head, shelf.book.records, None, 0) is None, "a listing may be stale"
    asyncio.run(shelf.book.refresh("lost"))
    change = next_change(head, shelf.book.records, None, 0)
    assert isinstance(change, Decide)
    outcome = model_pb2.Outcome.FromString(change.outcome)
    assert (outcome.job_id, outcome.state, outcome.reason) == (
        "lost",
        model_pb2.JOB_STATE_FAILED,
        "the store has its request no more",
    )
    assert apply(change, head) == ""
    assert isinstance(next_change(head, shelf.book.records, None, 0), Activate)


def test_an_active_job_that_was_read_once_goes_on_without_its_request() -> None:
    shelf = Shelf()
    shelf.submit("active", begins_with=shelf.manifest(1, HOLDER))
    asyncio.run(shelf.book.refresh("active"))
    shelf.store.rewind(keys.job_request("m", "active"), None)
    for _ in range(2 * MISSING_LOOKS):
        asyncio.run(shelf.book.refresh("active"))
    assert not shelf.book.records["active"].problem


@pytest.mark.parametrize("num_back", [0, 1])
def test_a_cancellation_that_the_store_lost_is_stored_again_by_whoever_has_read_it(num_back: int) -> None:
    """Its maintainers were told that it is recorded: the job would run on, or once more, and nobody would call it off again."""
    shelf = Shelf()
    shelf.submit("off", begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off("off")
    shelf.refresh()
    said = shelf.store.peek(key := keys.job_cancel("m", "off"))
    shelf.end("off")
    shelf.refresh()
    for lost in (key, keys.job_end("m", "off")):
        shelf.store.rewind(lost, None)
    shelf.damage(key)
    asyncio.run(shelf.book.refresh(num_back=num_back))
    assert "off" in shelf.book.records, "a store that takes nothing keeps nobody from reading it"
    shelf.damaged.keys.clear()
    for _ in range(MISSING_LOOKS + 1):
        asyncio.run(shelf.book.refresh(num_back=num_back))
    assert shelf.store.peek(key) == said
    assert shelf.book.records["off"].cancel_reason == "enough"
    assert shelf.activated() == ""


def test_a_cancellation_is_stored_again_for_the_request_that_it_was_of() -> None:
    shelf = Shelf()
    for job_id in ("new", "old"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    for job_id in ("new", "old"):
        shelf.store.rewind(keys.job_cancel("m", job_id), None)
    shelf.submit("new")
    asyncio.run(shelf.book.refresh(num_back=1))
    assert shelf.store.peek(keys.job_cancel("m", "new")) is None, "another job of that name"
    assert shelf.store.peek(keys.job_cancel("m", "old")) is not None


def test_cancellations_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.job_words.MAX_KEPT", 2)
    shelf = Shelf()
    for job_id in ("a", "b", "c"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    for job_id in ("a", "b", "c"):
        shelf.store.rewind(keys.job_cancel("m", job_id), None)
    asyncio.run(shelf.book.refresh(num_back=1))
    assert [shelf.store.peek(keys.job_cancel("m", job_id)) is not None for job_id in ("a", "b", "c")] == [False, True, True]


def test_what_the_store_has_makes_no_room_for_itself_among_what_it_has_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """All jobs are read anew, the older ones first: of more than are kept what was said last would be gone before its turn."""
    monkeypatch.setattr("orchestrator.job_words.MAX_KEPT", 2)
    shelf = Shelf()
    for job_id in ("a", "b", "c"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    shelf.store.rewind(keys.job_cancel("m", "c"), None)
    asyncio.run(shelf.book.refresh(num_back=1))
    assert shelf.store.peek(keys.job_cancel("m", "c")) is not None


def test_what_can_never_be_said_again_takes_no_room_from_what_is_said_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.job_words.MAX_KEPT", 2)
    shelf = Shelf()
    for job_id in ("a", "b"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    shelf.store.rewind(keys.job_request("m", "a"), None)
    shelf.end("b")
    for job_id in ("a", "b"):
        shelf.store.rewind(keys.job_cancel("m", job_id), None)
    for job_id in ("c", "d"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    for job_id in ("c", "d"):
        shelf.store.rewind(keys.job_cancel("m", job_id), None)
    asyncio.run(shelf.book.refresh(num_back=1))
    assert [shelf.store.peek(keys.job_cancel("m", job_id)) is not None for job_id in "abcd"] == [False, False, True, True]


def test_a_store_that_takes_nothing_is_waited_for_once_in_a_look() -> None:
    shelf = Shelf()
    for job_id in ("a", "b", "c"):
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    for job_id in ("a", "b", "c"):
        shelf.store.rewind(key := keys.job_cancel("m", job_id), None)
        shelf.damage(key)
    shelf.refresh()
    assert shelf.damaged.num_asked == 2, "one that is written, and read since that failed"
    shelf.refresh()
    assert shelf.damaged.num_asked == 4
    assert not shelf.book.unread


def test_a_job_that_was_called_off_does_not_begin_while_that_is_stored_again() -> None:
    shelf = Shelf()
    shelf.submit("off", begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off("off")
    shelf.refresh()
    shelf.store.rewind(keys.job_cancel("m", "off"), None)
    asyncio.run(shelf.book.refresh(num_back=1))
    assert shelf.activated() == ""


@pytest.mark.parametrize("num_back", [0, 1])
def test_a_pause_and_its_end_that_the_store_lost_are_stored_again_by_whoever_has_read_them(num_back: int) -> None:
    """Who let the job go on was told that it is recorded: without that it would stand for ever."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    for number, paused in ((1, True), (2, False), (3, True)):
        shelf.pause("j", number, paused=paused)
        shelf.refresh()
    said = {key: shelf.store.peek(key) for number in (2, 3) if (key := keys.job_pause("m", "j", number))}
    for lost in said:
        shelf.store.rewind(lost, None)
    for _ in range(2):
        asyncio.run(shelf.book.refresh(num_back=num_back))
    assert {key: shelf.store.peek(key) for key in said} == said
    assert (pause := shelf.book.records["j"].pause) is not None
    assert (pause.number, pause.paused) == (3, True)
    shelf.end("j")
    shelf.refresh()
    for lost in said:
        shelf.store.rewind(lost, None)
    asyncio.run(shelf.book.refresh(num_back=num_back))
    assert not any(map(shelf.store.peek, said)), "of a job that has ended nothing counts any more"


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "met"])
def test_what_was_said_of_a_job_before_the_store_went_back_yields_to_what_was_said_since(seen: bool) -> None:
    """Goal: the last word is the maintainers' own; ``seen``: it was listed when it was looked for, else it came at the same moment."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    for number, paused in ((1, True), (2, False), (3, True)):
        shelf.pause("j", number, paused=paused)
        shelf.refresh()
    for number in (2, 3):
        shelf.store.rewind(keys.job_pause("m", "j", number), None)
    shelf.pause("j", 2, paused=False, reason="once more")
    if seen:
        asyncio.run(shelf.book.refresh(num_back=1))
    else:
        found, digest = ["request", "pause-0001"], shelf.book.records["j"].request_digest
        for _ in range(2):
            asyncio.run(shelf.book._words.repeat("j", digest, found))
            found.append("pause-0002")
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is None
    asyncio.run(shelf.book.refresh(num_back=1))
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is None
    assert (pause := shelf.book.records["j"].pause) is not None
    assert (pause.number, pause.reason) == (2, "once more")


def spoken() -> Shelf:
    """A job of which three things were said and read one after another; of that the store has lost what came after the first."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    for number, paused in ((1, True), (2, False), (3, True)):
        shelf.pause("j", number, paused=paused)
        shelf.refresh()
    for number in (2, 3):
        shelf.store.rewind(keys.job_pause("m", "j", number), None)
    return shelf


def test_who_read_no_older_head_yields_to_what_was_said_since_as_well() -> None:
    """It slept while the store went back, and remembers all that was said: what is stored under a number that it knows was not looked at."""
    shelf = spoken()
    shelf.pause("j", 2, paused=False, reason="once more")
    shelf.refresh()
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is None
    assert (pause := shelf.book.records["j"].pause) is not None
    assert (pause.number, pause.reason) == (2, "once more")


@pytest.mark.parametrize("num_back", [0, 1])
def test_what_came_later_waits_for_what_came_before(num_back: int) -> None:
    """Else maintainers who say something else meanwhile, under the number that could not be stored, are overruled by what they said before."""
    shelf = spoken()
    shelf.damage(keys.job_pause("m", "j", 2))
    asyncio.run(shelf.book.refresh(num_back=num_back))
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is None
    shelf.damaged.keys.clear()
    shelf.pause("j", 2, paused=False, reason="once more")
    asyncio.run(shelf.book.refresh(num_back=num_back))
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is None
    assert (pause := shelf.book.records["j"].pause) is not None
    assert (pause.number, pause.reason) == (2, "once more")


def test_what_nobody_signed_in_the_place_of_a_statement_is_no_word_of_maintainers() -> None:
    """Whoever has the store's credentials can put it there: what came after it is stored again all the same."""
    shelf = spoken()
    shelf.store.rewind(keys.job_pause("m", "j", 2), b"nothing")
    shelf.refresh()
    assert shelf.store.peek(keys.job_pause("m", "j", 3)) is not None
    assert (pause := shelf.book.records["j"].pause) is not None
    assert pause.number == 3


def replaced(name: str = "j") -> Shelf:
    """A job that was called off; then the store has lost all of that, and the same is asked for anew, by a request that was signed once more."""
    shelf = Shelf()
    shelf.submit(name, begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off(name)
    shelf.refresh()
    shelf.store.rewind(keys.job_cancel("m", name), None)
    shelf.submit(name, begins_with=shelf.manifest(1, HOLDER))
    return shelf


def stored(shelf: Shelf, name: str = "j") -> str:
    """The digest of the request that the store has."""
    data = shelf.store.peek(keys.job_request("m", name))
    assert data is not None
    return digest_of(data)


@pytest.mark.parametrize("active", ["", "j"])
def test_a_job_that_was_asked_for_anew_is_another_one_also_to_whoever_slept_while_the_store_went_back(active: str) -> None:
    """It called the new one off, with what maintainers had said of the former, and would have begun that."""
    shelf = replaced()
    asyncio.run(shelf.book.refresh(active))
    assert shelf.store.peek(keys.job_cancel("m", "j")) is None
    assert (record := shelf.book.records["j"]).cancel_reason is None
    assert record.request_digest == stored(shelf)
    assert shelf.activated(active) == ("" if active else "j")


def test_a_job_that_was_asked_for_anew_runs_by_its_own_request() -> None:
    """Its plan named the request that the store had lost, which no PNode could read, and it waited for ever."""
    shelf = replaced()
    asyncio.run(shelf.book.refresh(num_back=1))
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", request_digest=shelf.book.records["j"].request_digest))
    view = asyncio.run(shelf.book._loader.load("m", head, b""))
    assert view.job is not None
    assert view.job.request_digest == head.active.request_digest == stored(shelf)
    before = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", request_digest="0" * 64))
    assert not same_documents(before, head), "a view of the former is none of this one"


@pytest.mark.parametrize("restarted", [False, True])
def test_an_active_job_whose_name_was_given_anew_is_not_taken_for_the_new_one(restarted: bool) -> None:
    """Whoever remembers its request goes on by that. To whoever has just begun it was the new one, with another data set and number of batches: by that it was
    planned, judged and completed.
    """
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", request_digest=stored(shelf)))
    asyncio.run(shelf.book.refresh("j"))
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    assert stored(shelf) != head.active.request_digest
    if restarted:
        shelf.restart()
    asyncio.run(shelf.book.refresh("j"))
    view = asyncio.run(shelf.book._loader.load("m", head, b""))
    assert (view.job.request_digest if view.job is not None else "") == ("" if restarted else head.active.request_digest)
    change = next_change(head, shelf.book.records, progress_of(view, lambda _: None, ExitBook(), 0.0, 0), 0)
    assert ends_as(change) == (model_pb2.JOB_STATE_FAILED if restarted else model_pb2.JOB_STATE_UNSPECIFIED)


def test_what_cannot_be_read_of_a_job_that_was_asked_for_anew_is_waited_for() -> None:
    shelf = replaced()
    shelf.damage(keys.job_request("m", "j"))
    shelf.refresh()
    assert (list(shelf.book.records), list(shelf.book.unread), shelf.book.unknown) == ([], ["j"], {"j"})
    shelf.damaged.keys.clear()
    shelf.refresh(2)
    assert shelf.activated() == "j"
    assert shelf.store.peek(keys.job_cancel("m", "j")) is None


def test_what_nobody_signed_in_the_place_of_a_request_changes_no_job_that_is_known() -> None:
    """Whoever has the store's credentials can put it there."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off("j")
    shelf.refresh()
    known = shelf.book.records["j"]
    shelf.store.rewind(keys.job_request("m", "j"), b"nothing")
    shelf.refresh(2)
    assert shelf.book.records["j"] == known


def test_an_object_that_the_store_never_takes_holds_no_other_one_up() -> None:
    """What was said of the job before it in the alphabet is refused in each look: of the jobs behind it nothing was ever stored again."""
    shelf = Shelf()
    lost = [keys.job_cancel("m", job_id) for job_id in "abcd"]
    for job_id in "abcd":
        shelf.submit(job_id)
        shelf.call_off(job_id)
    shelf.refresh()
    for key in lost:
        shelf.store.rewind(key, None)
    shelf.damage(*lost[:2])
    shelf.refresh(3)
    assert [shelf.store.peek(key) is not None for key in lost] == [False, False, True, True]
    shelf.damaged.keys.discard(lost[1])
    shelf.refresh(2)
    assert [shelf.store.peek(key) is not None for key in lost] == [False, True, True, True], "they take turns"


def test_that_a_job_was_called_off_is_said_at_once_by_whoever_doubts_its_end() -> None:
    """Who has just taken over knows neither, and begins it: for twenty looks nobody called it off again."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off("j")
    shelf.refresh()
    shelf.end("j")
    shelf.refresh()
    for lost in (key := keys.job_cancel("m", "j"), keys.job_end("m", "j")):
        shelf.store.rewind(lost, None)
    shelf.refresh()
    assert shelf.book.records["j"].is_doubted
    assert shelf.store.peek(key) is not None
    shelf.store.rewind(key, None)
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    shelf.refresh(MISSING_LOOKS - 2)
    assert shelf.book.records["j"].is_doubted
    assert shelf.store.peek(key) is None, "that is another job"


def test_a_job_that_was_asked_for_anew_does_not_end_with_the_results_of_the_one_that_was_lost() -> None:
    """It was completed before anybody had evaluated what it learned, and its end told what the former had come to."""
    exits, cost = ExitBook(), StageCost("a", (), (), True, 1, 1.0, 1, 1, 1)
    head = model_pb2.Head(active=model_pb2.ActiveJob(job_id="j", state=model_pb2.JOB_STATE_SETTLING))

    def results(request_digest: str) -> list[int]:
        facts = JobFacts(model_pb2.JobRequest(job_id="j", num_batches=9), request_digest, model_pb2.ModelGraph(), b"", (), (cost,))
        progress = progress_of(ModelView("m", head, b"", job=facts), lambda _: None, exits, 0.0, 0)
        assert progress is not None
        return [one.correct for one in progress.exits]

    exits.heard("1" * 64, [model_pb2.ExitResult(vnode="a", split="test", step=9, complete=True, count=4, correct=3)])
    assert (results("1" * 64), results("2" * 64)) == ([3], [])
    exits.heard("2" * 64, [model_pb2.ExitResult(vnode="a", split="test", step=9, complete=True, count=4, correct=1)])
    assert results("2" * 64) == [1]


def test_the_request_of_a_job_is_the_one_that_was_read_last_also_where_that_is_an_earlier_one() -> None:
    """The store went back once more, to where it had the former: whoever serves what that learned named the other, which no PNode could read."""
    shelf, digests = Shelf(), list[str]()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    former = shelf.store.peek(key := keys.job_request("m", "j"))
    for data in (former, None, former):
        shelf.store.rewind(key, data)
        if data is None:
            shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
        asyncio.run(shelf.book.refresh(num_back=len(digests)))
        digests.append(asyncio.run(shelf.book._loader.job("m", "j")).request_digest)
        assert digests[-1] == stored(shelf)
    assert digests[0] == digests[2] != digests[1]


@pytest.mark.parametrize("is_away", [False, True])
def test_so_it_is_where_the_same_request_was_put_back_under_another_tag(is_away: bool) -> None:
    """Stores that encrypt give each object that is written a tag of its own, and a copy that is played back writes all of them."""
    shelf = Shelf()
    shelf.submit("j", begins_with=shelf.manifest(1, HOLDER))
    shelf.call_off("j")
    shelf.refresh()
    shelf.end("j")
    shelf.refresh()
    for lost in (key := keys.job_cancel("m", "j"), keys.job_end("m", "j")):
        shelf.store.rewind(lost, None)
    request = keys.job_request("m", "j")
    shelf.store._objects[request] = replace(shelf.store._objects[request], etag='"another"')
    shelf.damage(*([request] if is_away else []))
    shelf.refresh()
    assert shelf.book.records["j"].is_doubted
    assert (shelf.store.peek(key) is None) is is_away
    shelf.damaged.keys.clear()
    shelf.refresh()
    assert shelf.store.peek(key) is not None
