"""Goal: a volunteer's note says what the machine did and what of it is credited, adds nothing, and says of what nobody knows that it is not known."""

from __future__ import annotations

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from audited_rig import NODES, NOW_MS, Job, drawn, judged, name_of, piece
from schemas_rig import check_output

from dcnr.cli.note import note_data, note_text
from dcnr.ledger_check import JobLedger, read_ledgers
from dcnr.v1 import local_pb2, model_pb2
from orchestrator.audit_events import Decision
from pnode.diary import HOUR_S, HOURS, LOOK_S, STOOD_S, Diary, Seen, Week, read_week, week_begins_s
from pnode.reasons import WorkerFacts
from pnode.telling import Condition
from trust.ledger import Verdict

NOW_S = NOW_MS / 1000
"""The beginning of an hour."""


class Machine:
    """Its clocks and what it does; the daemon on it looks every `LOOK_S`."""

    def __init__(self, path: Path, wall_s: float = NOW_S) -> None:
        self.path, self.wall_s, self.monotonic_s = path, wall_s, 50.0
        self.seen = Seen("working", 0, 0)
        self.diary = self.started()

    def started(self) -> Diary:
        return Diary(self.path, self, lambda: self.seen)

    def monotonic(self) -> float:
        return self.monotonic_s

    def wall(self) -> float:
        return self.wall_s

    def passes(self, seconds: float, *, step_s: float = LOOK_S) -> None:
        for _ in range(round(seconds / step_s)):
            self.wall_s += step_s
            self.monotonic_s += step_s
            self.diary.look()

    def does(self, state: str, learned: int = 0, questions: int = 0) -> None:
        self.seen = Seen(state, self.seen.num_learned + learned, self.seen.num_questions + questions)

    def week(self) -> Week:
        self.diary.save()
        found = read_week(self.path, self.wall_s)
        assert found is not None
        return found


def test_time_is_kept_by_state_and_what_was_done_beside_it(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "diary.json")
    machine.does("working", learned=7)
    machine.passes(1.5 * HOUR_S)
    machine.does("paused")
    machine.passes(600)
    machine.does("working", learned=5, questions=2)
    machine.passes(LOOK_S)
    assert machine.week() == Week(NOW_S, machine.wall_s, {"working": 1.5 * HOUR_S + LOOK_S, "paused": 600.0}, 12, 2)


def test_a_daemon_that_starts_again_goes_on_and_counts_nothing_twice(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "diary.json")
    machine.does("working", learned=7)
    machine.passes(600)
    machine.diary.save()
    machine.seen = Seen("idle", 0, 0)
    machine.wall_s += 2 * HOUR_S
    machine.diary = machine.started()
    machine.passes(300)
    found = machine.week()
    assert (found.seconds, found.num_learned) == ({"working": 600.0, "idle": 300.0}, 7)
    assert found.known_since_s == NOW_S


def test_time_before_there_was_a_diary_is_not_time_in_which_the_machine_was_off(tmp_path: Path) -> None:
    """Hours are counted from their beginning; a home that is made in the middle of one was not off in its first half."""
    begun_s = NOW_S + 0.5 * HOUR_S
    machine = Machine(tmp_path / "diary.json", wall_s=begun_s)
    machine.passes(300)
    assert machine.week().known_since_s == begun_s
    machine.diary = machine.started()
    machine.passes(600)
    found = machine.week()
    assert (found.known_since_s, found.seconds) == (begun_s, {"working": 900.0})
    assert note_data("1" * 40, found, [], "", found.as_of_s)["machine"]["seconds"]["unknown"] == 0.0


def test_time_that_nobody_saw_is_in_no_state(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "diary.json")
    machine.passes(300)
    machine.passes(8 * HOUR_S, step_s=8 * HOUR_S)
    machine.does("working", learned=3)
    machine.passes(STOOD_S, step_s=STOOD_S)
    machine.passes(300)
    found = machine.week()
    assert (found.seconds, found.num_learned) == ({"working": 600.0}, 3), "what was counted did happen"


def test_what_is_older_than_seven_days_is_gone_and_the_file_stays_small(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "diary.json")
    machine.passes(300)
    for _ in range(2 * HOURS):
        machine.wall_s += HOUR_S - LOOK_S
        machine.does("idle", learned=1)
        machine.passes(LOOK_S)
    found = machine.week()
    assert found.num_learned == HOURS
    assert found.seconds == {"idle": HOURS * LOOK_S}
    assert found.known_since_s == week_begins_s(machine.wall_s)
    assert machine.path.stat().st_size < 20_000


def test_the_diary_is_written_when_the_daemon_ends(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "diary.json")
    machine.passes(LOOK_S)

    async def story() -> None:
        keeping = asyncio.create_task(machine.diary.run())
        await asyncio.sleep(0)
        keeping.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await keeping

    asyncio.run(story())
    assert read_week(machine.path, machine.wall_s) == Week(NOW_S, machine.wall_s, {"working": LOOK_S}, 0, 0)


DAMAGED: tuple[Any, ...] = (
    b"", b"{", b"[]", b"null", b"[" * 100_000, b"\xff", {"format": "another"}, {"format": "dcnr-diary-1", "as_of_s": 1},
    {"format": "dcnr-diary-1", "as_of_s": NOW_S, "hours": [{"hour": 1}]},
    {"format": "dcnr-diary-1", "as_of_s": NOW_S, "hours": [{"hour": int(NOW_S) // 3600, "seconds": {"x": -1}, "learned": 0, "questions": 0}]},
    {"format": "dcnr-diary-1", "as_of_s": NOW_S, "hours": [{"hour": int(NOW_S) // 3600, "seconds": [1], "learned": 0, "questions": 0}]},
    {"format": "dcnr-diary-1", "as_of_s": NOW_S, "hours": [{"hour": int(NOW_S) // 3600, "seconds": {}, "learned": -1, "questions": 0}]},
    b'{"format": "dcnr-diary-1", "as_of_s": 1, "begun_s": NaN, "hours": []}',
    b'{"format": "dcnr-diary-1", "as_of_s": 1, "hours": [{"hour": Infinity, "seconds": {}, "learned": 0, "questions": 0}]}',
)  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_file_that_is_no_diary_says_nothing_and_is_begun_anew(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "diary.json"
    path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    assert read_week(path, NOW_S) is None
    machine = Machine(path)
    machine.passes(LOOK_S)
    assert machine.week().seconds == {"working": LOOK_S}


def test_counts_go_on_over_the_lives_of_workers() -> None:
    now = Condition(0.0)
    for worker, reports in ((WorkerFacts(pid=1), ((3, 1), (5, 1))), (WorkerFacts(pid=2), ((2, 0), (4, 4)))):
        now.worker = worker
        for learned, questions in reports:
            now.counted(local_pb2.WorkerReport(num_learned=learned, num_questions=questions))
    assert (now.num_learned, now.num_questions) == (9, 5)


def ledgers() -> list[JobLedger]:
    """x: 4 batches cleared after an audit long ago, and 6 this week, 2 of them waiting; y: 2 cleared this week."""
    job = Job()
    job.now_ms = NOW_MS - 8 * 86_400_000
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    job.named(decisions=[Decision(name_of("a-1"), Verdict.PASSED, "nothing found")])
    job.now_ms = NOW_MS - 86_400_000
    job.named(judged("a2", "a1", piece("a-2", 4, 8), piece("a-2h", 8, 10, "y", "a.1"), held=[(0, 10)]), draw=drawn("a-2"))
    job.named(decisions=[Decision(name_of("a-2"), Verdict.PASSED, "nothing found")])
    job.named(judged("b1", "b0", piece("b-1", 0, 2), held=[(0, 2)]), draw=drawn("b-1"))
    by_digest = {job.digest(at): manifest for at, manifest in enumerate(job.manifests)}

    async def manifest(digest: str) -> model_pb2.Manifest:
        return by_digest[digest]

    return asyncio.run(read_ledgers(job.digest(-1), manifest))


def lived(**hours: float) -> Week:
    """A diary that was begun three days ago."""
    return Week(NOW_S - 72 * HOUR_S, NOW_S, {state: spent * HOUR_S for state, spent in hours.items()}, 120, 3)


def test_the_note_holds_what_the_diary_and_the_chain_say() -> None:
    data = note_data(NODES["x"], lived(working=30, serving=2, paused=10, idle=0.5), ledgers(), "", NOW_S)
    check_output("pnode note", data)
    assert data["credit"] == {
        "audited": True, "problem": "", "cleared": 4, "of": 6, "waiting": 2, "taken_back": 0, "passed": 1, "failed": 0,
    }  # fmt: skip
    assert data["machine"]["contributing_s"] == 32 * HOUR_S
    assert data["machine"]["seconds"]["unknown"] == 29.5 * HOUR_S
    assert [one["code"] for one in data["advice"]] == ["unknown", "paused"], "half an hour without work is not worth a word"
    text = note_text(data)
    for part in (
        "at work    32 h 0 min, 29 h 30 min off, asleep or not known, 10 h 0 min paused, 30 min 0 s without work",
        "learned    120 batches here, by its own count; took part in 3 answers",
        "credited   4 batches of VNodes cleared (66.7 % of everybody's), 2 wait for audits, 0 taken back",
        "audits     1 passed, 0 failed",
        "more use   it was paused for 10 h 0 min: `pnode pause --for 2h` ends by itself",
    ):
        assert part in text, part


def test_what_is_not_known_is_said_to_be() -> None:
    data = note_data(NODES["x"], None, None, "no orchestrator answers", NOW_S)
    check_output("pnode note", data)
    text = note_text(data)
    assert "at work    not known: this machine has kept no diary yet" in text
    assert "credited   not known: no orchestrator answers" in text
    assert "more use" not in text


def test_without_audits_nothing_is_credited_and_without_work_nothing_is_either() -> None:
    assert "credited   nothing: audits are not in force" in note_text(note_data(NODES["x"], None, [], "", NOW_S))
    stranger = note_data("f" * 40, lived(working=71.9), ledgers(), "", NOW_S)
    assert (stranger["credit"]["cleared"], stranger["credit"]["of"]) == (0, 6)
    assert stranger["advice"] == []
