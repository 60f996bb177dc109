"""The head's one writer: what it sends, what it concludes from each answer, when it decides and when it takes over."""

from __future__ import annotations

import pytest

from dcnr.errors import Stale, Unavailable
from dcnr.v1 import model_pb2
from orchestrator.changes import MAX_DECIDED, Activate, Decide, MoveJob, NameManifest, NamePlan, apply
from orchestrator.head import MAX_QUEUED, HeadCore
from orchestrator.head_events import (
    Dropped,
    Get,
    GetAbsent,
    GetAnswered,
    GetFailed,
    HeadInstruction,
    HeadSeen,
    HeadShown,
    HeadTimes,
    Landed,
    Put,
    PutAnswered,
    PutUnknown,
    StoreWentBack,
    TermGained,
    TermLost,
    Tick,
)

ME, OTHER = "a" * 40, "b" * 40


def core(me: str = ME) -> HeadCore:
    return HeadCore("n" * 40, "m", me, lambda head: head.SerializeToString(deterministic=True), model_pb2.Head.FromString)


def put_of(out: list[HeadInstruction]) -> Put:
    [put] = [item for item in out if isinstance(item, Put)]
    return put


def holder() -> HeadCore:
    """A core that created the head at time 0 and holds it with ETag e1."""
    writer = core()
    assert writer.step(Tick(0.0, 1)) == [Get()]
    put = put_of(writer.step(GetAbsent(0.0)))
    assert put.if_match is None
    assert TermGained(1) in writer.step(PutAnswered(0.1, "e1"))
    return writer


def head_of(put: Put) -> model_pb2.Head:
    return model_pb2.Head.FromString(put.data)


def foreign(epoch: int, sequence: int, holder_id: str = OTHER) -> bytes:
    return model_pb2.Head(network_id="n" * 40, model="m", epoch=epoch, holder=holder_id, sequence=sequence).SerializeToString()


def test_term_counts_from_sending_and_ends_at_eighty_percent() -> None:
    writer = holder()
    assert writer.is_holder(6.39)
    assert not writer.is_holder(6.4)
    with pytest.raises(Stale):
        writer.propose(MoveJob("j", model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING), 6.4)


def test_every_write_names_the_etag_of_the_bytes_it_was_made_from_and_raises_sequence() -> None:
    writer = holder()
    put = put_of(writer.step(Tick(2.0, 7)))
    assert (put.if_match, head_of(put).sequence, head_of(put).epoch) == ("e1", 2, 1)
    writer.step(PutAnswered(2.1, "e2"))
    assert put_of(writer.step(Tick(4.0, 8))).if_match == "e2"


def test_one_request_is_outstanding_at_most() -> None:
    writer = holder()
    assert len(writer.step(Tick(2.0, 1))) == 1
    for second in range(3, 60):
        assert writer.step(Tick(float(second), 1)) == []


def test_unknown_answer_is_settled_by_reading_back() -> None:
    writer = holder()
    ticket = writer.propose(Activate("j1", "", "m1"), 1.0)
    put = put_of(writer.step(Tick(1.0, 1)))
    assert writer.step(PutUnknown(5.0, "412")) == [Get()]
    out = writer.step(GetAnswered(5.1, put.data, "e2"))
    assert Landed((ticket,), head_of(put)) in out
    assert writer.is_holder(7.3)
    assert not writer.is_holder(7.4)


def test_old_etag_means_undecided_and_the_change_is_composed_anew_on_the_same_bytes() -> None:
    writer = holder()
    ticket = writer.propose(Activate("j1", "", "m1"), 1.0)
    first = put_of(writer.step(Tick(1.0, 1)))
    writer.step(PutUnknown(1.5, "timeout"))
    known = writer.known
    assert known is not None
    assert writer.step(GetAnswered(1.6, known.data, "e1")) == []
    other = writer.propose(MoveJob("j1", model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING), 1.7)
    second = put_of(writer.step(Tick(2.0, 1)))
    assert second.if_match == first.if_match == "e1"
    writer.step(PutUnknown(2.1, "412"))
    out = writer.step(GetAnswered(2.2, first.data, "e2"))  # it was the first that landed
    assert Landed((ticket,), head_of(first)) in out
    third = put_of(out)
    assert third.if_match == "e2"
    assert Landed((other,), head_of(third)) in writer.step(PutAnswered(2.3, "e3"))


def test_another_holders_head_ends_the_term_and_drops_what_waited() -> None:
    writer = holder()
    ticket = writer.propose(Activate("j1", "", "m1"), 1.0)
    writer.step(Tick(1.0, 1))
    writer.step(PutUnknown(1.5, "412"))
    out = writer.step(GetAnswered(1.6, foreign(2, 5), "x"))
    assert any(isinstance(item, TermLost) for item in out)
    assert any(isinstance(item, Dropped) and item.ticket == ticket for item in out)
    assert not writer.is_holder(1.7)


def take(writer: HeadCore, data: bytes, etag: str, start: float, step_s: float = 2.0) -> tuple[float, Put]:
    now = start
    out = writer.step(Tick(now, 1))
    while now < start + 60:
        if Get() in out:
            out = writer.step(GetAnswered(now, data, etag))
            if any(isinstance(item, Put) for item in out):
                return now, put_of(out)
        else:
            now += step_s
            out = writer.step(Tick(now, 1))
    raise AssertionError("never took over")


def test_taker_waits_and_changes_only_epoch_holder_and_sequence() -> None:
    head = model_pb2.Head(network_id="n" * 40, model="m", epoch=4, holder=OTHER, sequence=9, manifest_digest="d", plan_digest="p")
    head.active.job_id, head.active.running_s, head.active.state = "j", 12.5, model_pb2.JOB_STATE_RUNNING
    when, put = take(core(), head.SerializeToString(deterministic=True), "x", 100.0)
    assert when - 100.0 >= 9.6
    assert put.if_match == "x"
    head.epoch, head.holder, head.sequence = 5, ME, 10
    assert head_of(put) == head


def test_a_moving_etag_or_a_gap_starts_the_wait_again() -> None:
    writer = core()
    for index in range(20):
        now = 2.0 * index
        writer.step(Tick(now, 1))
        out = writer.step(GetAnswered(now, foreign(1, index + 1), f"e{index}"))
        assert not [item for item in out if isinstance(item, Put)]
    out = writer.step(Tick(100.0, 1))
    assert out == [Get()]
    assert writer.step(GetAnswered(100.0, foreign(1, 20), "e19")) == []  # unchanged for 62 s, but nobody looked


def test_a_head_that_nobody_writes_is_known_as_such_as_far_as_it_can_be_read() -> None:
    watcher = HeadCore("n" * 40, "m", ME, lambda head: b"", model_pb2.Head.FromString, may_hold=lambda: False)
    assert not watcher.is_orphaned(0.0), "it was not read yet"
    watcher.step(Tick(0.0, 1))
    watcher.step(GetAbsent(0.0))
    assert watcher.is_orphaned(0.0), "there never was one"
    for index in range(1, 20):
        now = 2.0 * index
        assert Get() in watcher.step(Tick(now, 1))
        watcher.step(GetAnswered(now, foreign(1, min(index, 10)), f"e{min(index, 10)}"))
        assert watcher.is_orphaned(now) == (now >= 20.0 + 9.6), "its last write was seen at 20 s"
    assert not watcher.is_orphaned(100.0), "nobody looked"


def test_after_a_restart_the_named_holder_is_an_ordinary_taker() -> None:
    writer = core()
    writer.step(Tick(0.0, 1))
    writer.step(GetAnswered(0.0, foreign(3, 3, ME), "x"))
    assert not writer.is_holder(0.1)
    fresh = core()
    when, put = take(fresh, foreign(3, 3, ME), "x", 0.0)
    assert when >= 9.6
    assert head_of(put).epoch == 4


def test_a_lapsed_holder_renews_before_it_decides_again() -> None:
    writer = holder()
    ticket = writer.propose(Activate("j1", "", "m1"), 1.0)
    put_of(writer.step(Tick(1.0, 1)))
    writer.step(PutUnknown(9.0, "timeout"))
    known = writer.known
    assert known is not None
    out = writer.step(GetAnswered(9.5, known.data, "e1"))
    put = put_of(out)
    assert not head_of(put).active.job_id  # a renewal, no decision
    out = writer.step(PutAnswered(9.6, "e2"))
    decided = put_of(out)
    assert head_of(decided).active.job_id == "j1"
    assert Landed((ticket,), head_of(decided)) in writer.step(PutAnswered(9.7, "e3"))


def test_with_the_store_away_nothing_is_decided() -> None:
    writer = holder()
    put_of(writer.step(Tick(2.0, 1)))
    assert writer.step(PutUnknown(2.5, "timeout")) == [Get()]
    now = 2.5
    while now < 30:
        now += 0.5
        out = writer.step(GetFailed(now, "refused"))
        assert out == []
        out = writer.step(Tick(now + 0.3, 1))
        assert out in ([Get()], [])
        if not out:
            out = writer.step(Tick(now + 0.5, 1))
    assert not writer.is_holder(now)
    assert not writer.store_ok
    assert writer.reason


def read_on(writer: HeadCore, now: float, data: bytes, etag: str) -> list[HeadInstruction]:
    """What a look two seconds after the one before comes to."""
    assert Get() in writer.step(Tick(now, 1))
    return writer.step(GetAnswered(now, data, etag))


def follower_of(epoch: int, sequence: int) -> HeadCore:
    """A core that saw that head last, at 0 s, and holds nothing."""
    writer = core()
    writer.step(Tick(0.0, 1))
    writer.step(GetAnswered(0.0, foreign(epoch, sequence), "new"))
    return writer


def test_a_store_that_went_back_is_told_and_followed_also_where_somebody_writes_on_from_there() -> None:
    """Who never saw the newer head takes the older one over, and renews it: waiting for it to stand still, others would never follow again."""
    writer, told, now = follower_of(10, 500), list[StoreWentBack](), 0.0
    while writer.known is not None and writer.known.head.epoch == 10:
        now += 2.0
        assert now < 60.0
        told += [item for item in read_on(writer, now, foreign(8, 300 + int(now)), f"e{now}") if isinstance(item, StoreWentBack)]
        assert not writer.is_holder(now)
    assert (told[0].seen, told[0].read) == ((10, 500), (8, 302))
    assert told[0].reason == "epoch 8, sequence 302 was read after epoch 10, sequence 500 had been seen"
    assert now - 2.0 >= 9.6, "what passes was a stale read"
    seen = read_on(writer, now + 2.0, foreign(8, 302 + int(now)), "next")
    assert [type(item) for item in seen] == [HeadSeen], "from there on the head is followed as any other"
    assert any(isinstance(item, StoreWentBack) for item in read_on(writer, now + 4.0, foreign(8, 301), "stale"))
    when, put = take(writer, foreign(8, 302 + int(now)), "next", now + 6.0)
    assert when - now >= 9.6
    assert (head_of(put).epoch, head_of(put).sequence) == (11, 501), "higher than whatever a PNode can have obeyed"


@pytest.mark.parametrize(("shown", "taken"), [((9, 500), (10, 501)), ((1, 500), (2, 501)), ((9, 1), (10, 2))])
def test_a_holder_whom_pnodes_cannot_obey_begins_a_term_that_they_can(shown: tuple[int, int], taken: tuple[int, int]) -> None:
    writer = holder()
    out = writer.step(HeadShown(1.0, *shown, OTHER))
    assert [item for item in out if isinstance(item, TermLost)] == [
        TermLost(1, f"PNodes know epoch {shown[0]}, sequence {shown[1]}, and obey nothing older")
    ]
    assert not writer.is_holder(1.0)
    assert writer.known is not None
    _, put = take(writer, writer.known.data, "e1", 2.0)
    assert (head_of(put).epoch, head_of(put).sequence) == taken
    now = 60.0
    writer.step(PutAnswered(now, "e2"))
    assert not [item for item in writer.step(HeadShown(now, *shown, OTHER)) if isinstance(item, TermLost)]


def test_whoever_takes_over_is_above_what_has_just_been_shown_and_who_holds_waits_whether_it_stays_so() -> None:
    """A lone orchestrator that has just begun finds the head of before its last term in a store that went back: it began that term once more, with the numbers
    of its replicas.
    """
    writer = holder()
    assert not [item for item in writer.step(HeadShown(1.0, 2, 500, OTHER, has_stayed=False)) if isinstance(item, TermLost)]
    assert [item.epoch for item in writer.step(HeadShown(2.0, 2, 500, OTHER)) if isinstance(item, TermLost)] == [1]
    assert writer.known is not None
    _, put = take(writer, writer.known.data, "e1", 3.0)
    assert (head_of(put).epoch, head_of(put).sequence) == (3, 501)


def test_a_holder_that_never_wrote_what_pnodes_know_of_its_own_term_begins_the_next_at_once() -> None:
    """A moment later its own sequences may have come as far, and nothing would say any more that it began the same term twice."""

    def lost(writer: HeadCore, now: float, sequence: int) -> list[int]:
        out = writer.step(HeadShown(now, 1, sequence, ME, has_stayed=False))
        return [item.epoch for item in out if isinstance(item, TermLost)]

    writer = holder()
    assert writer.known is not None
    assert lost(writer, 1.0, writer.known.head.sequence) == []
    assert lost(writer, 1.0, 500) == [1]
    writer = holder()
    writer.step(Tick(3.0, 1))
    assert lost(writer, 3.1, 2) == [], "its own next write is on its way, and others may have read it"


@pytest.mark.parametrize("sequence", [1, 9])
def test_a_holder_of_a_number_that_pnodes_know_of_another_begins_a_term_above_it(sequence: int) -> None:
    """It never saw the term that the store has lost, so it could not know that the number is taken."""
    writer = holder()
    assert not [item for item in writer.step(HeadShown(1.0, 1, 1, ME)) if isinstance(item, TermLost)], "its own"
    assert [item.epoch for item in writer.step(HeadShown(1.0, 1, sequence, OTHER)) if isinstance(item, TermLost)] == [1]
    assert writer.known is not None
    _, put = take(writer, writer.known.data, "e1", 2.0)
    assert head_of(put).epoch == 2


def test_a_holder_that_reads_an_older_head_decides_nothing_until_it_reads_its_own_again() -> None:
    """The store may have gone back to another one's term: what this one deletes by its own would be missed there."""
    for older in (foreign(1, 0), b""):
        writer = holder()
        writer.step(Tick(2.0, 1))
        assert writer.step(PutUnknown(2.5, "412")) == [Get()]
        writer.step(GetAnswered(2.6, older, "copy") if older else GetAbsent(2.6))
        assert not writer.is_holder(2.6)
        assert writer.reason
        with pytest.raises(Stale, match="older head" if older else "disappeared"):
            writer.propose(Activate("j1", "", "m1"), 2.6)
        known = writer.known
        assert known is not None
        read_on(writer, 4.6, known.data, "e1")
        assert writer.is_holder(4.6), "what passes was a stale read"
        assert not writer.reason


@pytest.mark.parametrize("shown", [(1002, 2), (2, 1 << 33), ((1 << 64) - 1, (1 << 64) - 1)])
def test_what_no_backup_can_explain_moves_nobody(shown: tuple[int, int]) -> None:
    writer = holder()
    assert not [item for item in writer.step(HeadShown(1.0, *shown, OTHER)) if isinstance(item, TermLost)]
    assert writer.is_holder(1.0)


def test_late_reads_among_newer_ones_are_no_store_that_went_back() -> None:
    writer = follower_of(10, 500)
    for number in range(1, 20):
        late = read_on(writer, 4.0 * number - 2.0, foreign(9, 300 + number), f"late{number}")
        assert [type(item) for item in late if isinstance(item, StoreWentBack | HeadSeen)] == [StoreWentBack]
        read_on(writer, 4.0 * number, foreign(10, 500 + number // 2), f"new{number // 2}" if number > 1 else "new")
        assert writer.reason == f"{OTHER} holds the head", "not what was read late"
    assert writer.known is not None
    assert writer.known.head.epoch == 10


def test_time_used_is_carried_in_the_head() -> None:
    writer = holder()
    writer.propose(Activate("j1", "", "m1"), 0.5)
    writer.step(Tick(0.5, 1))
    writer.step(PutAnswered(0.6, "e2"))
    writer.propose(MoveJob("j1", model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING), 1.0)
    writer.step(Tick(1.0, 1))
    writer.step(PutAnswered(1.1, "e3"))
    put = put_of(writer.step(Tick(3.0, 1)))
    assert head_of(put).active.running_s == pytest.approx(2.0)
    writer.step(PutAnswered(3.1, "e4"))
    assert head_of(put_of(writer.step(Tick(5.0, 1)))).active.running_s == pytest.approx(4.0)


def test_a_settling_job_does_not_pay_for_a_store_that_was_away() -> None:
    """Its holder lived, and won the head again when the store came back: what could not be uploaded meanwhile still has its time."""
    writer = holder()
    for number, change in enumerate(
        (
            Activate("j1", "", "m1"),
            MoveJob("j1", model_pb2.JOB_STATE_PLACING, model_pb2.JOB_STATE_RUNNING),
            MoveJob("j1", model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING),
        )
    ):
        writer.propose(change, 0.5 + number)
        writer.step(Tick(0.5 + number, 1))
        writer.step(PutAnswered(0.6 + number, f"e{number + 2}"))
    put = put_of(writer.step(Tick(702.5, 1)))
    assert 0.0 < head_of(put).active.settling_s <= HeadTimes().stop_s


def test_plan_is_named_with_the_sequence_its_desired_states_carry() -> None:
    head = model_pb2.Head(sequence=10)
    head.active.job_id = "j"
    assert apply(NamePlan("j", "", "p1", 10), head)
    assert not apply(NamePlan("j", "", "p1", 40), head)
    assert (head.plan_digest, head.plan_sequence) == ("p1", 40)
    writer = holder()
    writer.propose(Activate("j", "", "m1"), 1.0)
    writer.propose(NamePlan("j", "", "p1", 40), 1.0)
    put = put_of(writer.step(Tick(1.0, 1)))
    assert head_of(put).sequence == head_of(put).plan_sequence == 40


def test_an_outcome_leaves_only_when_its_end_exists_and_a_job_ends_once() -> None:
    head = model_pb2.Head()
    for index in range(MAX_DECIDED):
        outcome = model_pb2.Outcome(job_id=f"j{index}", state=model_pb2.JOB_STATE_COMPLETED)
        assert not apply(Decide(outcome.SerializeToString()), head)
        assert apply(Decide(outcome.SerializeToString()), head)
        assert apply(Activate(f"j{index}", "", ""), head)
    late = model_pb2.Outcome(job_id="late", state=model_pb2.JOB_STATE_CANCELLED).SerializeToString()
    assert apply(Decide(late), head)
    assert not apply(Decide(late, frozenset({"j3"})), head)
    assert [item.job_id for item in head.decided] == [f"j{index}" for index in range(MAX_DECIDED) if index != 3] + ["late"]


def test_a_manifest_follows_only_its_own_parent() -> None:
    head = model_pb2.Head(manifest_digest="m0")
    head.active.job_id = "j"
    assert not apply(NameManifest("j", "m0", "m1"), head)
    assert apply(NameManifest("j", "m0", "m2"), head)
    assert head.manifest_digest == "m1"


def test_the_queue_is_bounded() -> None:
    writer = holder()
    for _ in range(MAX_QUEUED):
        writer.propose(Activate("j", "", ""), 1.0)
    with pytest.raises(Unavailable):
        writer.propose(Activate("j", "", ""), 1.0)
