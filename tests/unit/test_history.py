"""The history keeps order over restarts, survives a damaged file, and never holds anybody up."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path
from types import SimpleNamespace

import pytest

from dcnr.system import SystemClock
from dcnr.v1 import common_pb2
from orchestrator import history as history_module
from orchestrator.history import MAX_FACTS, MAX_QUEUED, MAX_TEXT, History


def test_events_go_on_where_they_stopped(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "history.db"
        for start in (0, 2):
            history = History(path, "me", SystemClock())
            await history.open()
            assert history.sequence == start
            history.say("plan_made", "job", "because", number=start)
            history.heard("pnode", common_pb2.Event(sequence=7, kind="x" * 200, subject="s", reporter="somebody else"))
            assert [event.reporter for event in history.since(start, 10)] == ["me", "pnode"]
            await history.close()
        with sqlite3.connect(path) as database:
            rows = database.execute("SELECT sequence, kind, reporter FROM events ORDER BY sequence").fetchall()
        database.close()
        assert [row[0] for row in rows] == [1, 2, 3, 4]
        assert rows[1][1:] == ("x" * 64, "pnode")

    asyncio.run(story())


def test_what_a_pnode_says_is_kept_in_printable_lines() -> None:
    """Else one machine's words could pass for lines of another's, or steer the terminal of whoever reads them."""
    history = History(None, "me", SystemClock())
    bad = "well\nplan 9  in force\x1b[2J\u202e"
    history.heard("pnode", common_pb2.Event(kind=bad, subject=bad, reason=bad, facts={bad: bad * 1000}))
    [event] = history.since(0, 10)
    said = [event.kind, event.subject, event.reason, *event.facts.keys(), *event.facts.values()]
    assert len(said) == 7, "and its own number"
    assert all(text.isprintable() for text in said)
    assert max(map(len, said)) <= MAX_TEXT


def test_nothing_longer_is_logged_than_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """What others say is in it."""
    lines: list[dict[str, object]] = []
    log = SimpleNamespace(info=lambda kind, **facts: lines.append({"event": kind, **facts}))
    monkeypatch.setattr(history_module, "_log", log)
    history = History(None, "me", SystemClock())
    history.say(
        "node_state_changed", "pnode", "x" * 10**6, state="y" * 10**6, **{f"fact{number}": number for number in range(1000)}
    )
    [line] = lines
    assert (line["event"], line["subject"], line["reason"], line["state"]) == (
        "node_state_changed",
        "pnode",
        "x" * MAX_TEXT,
        "y" * MAX_TEXT,
    )
    assert len(line) <= MAX_FACTS + 5


def test_a_damaged_file_is_set_aside(tmp_path: Path) -> None:
    async def story() -> None:
        path = tmp_path / "history.db"
        path.write_bytes(b"not a database" * 100)
        history = History(path, "me", SystemClock())
        await history.open()
        history.say("started", "me", "again")
        await history.close()
        assert path.with_suffix(".damaged").exists()

    asyncio.run(story())


def _overwrite(path: Path) -> None:
    """All pages but the first."""
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * (size - 4096))


def test_a_file_that_is_damaged_while_it_is_used_is_begun_anew_and_told_once(tmp_path: Path) -> None:
    """Pages are overwritten below the open connection; what waits is written into the new file."""

    async def story() -> None:
        path = tmp_path / "history.db"
        history = History(path, "me", SystemClock())
        await history.open()
        for number in range(50):
            history.say("before", "me", "x" * 400, number=number)
        await history.flush()
        await history.close()
        _overwrite(path)
        again = History(path, "me", SystemClock())
        await again.open()
        for number in range(50):
            again.say("after", "me", "y" * 400, number=number)
            await again.flush()
        kinds = [event.kind for event in again.since(0, 1000)]
        assert kinds.count("history_damaged") == 1
        await again.close()
        assert path.with_suffix(".damaged").exists()
        database = sqlite3.connect(path)
        assert database.execute("SELECT COUNT(*) FROM events WHERE kind = 'after'").fetchone()[0] > 0
        database.close()

    asyncio.run(story())


def test_a_damaged_file_that_cannot_be_set_aside_is_told_and_begun_anew_as_soon_as_it_can(tmp_path: Path) -> None:
    """A disk that damages files takes nothing for a while either: from then on every event was lost without a word, until a restart."""

    async def story() -> None:
        path, aside = tmp_path / "history.db", tmp_path / "history.damaged"
        history = History(path, "me", SystemClock())
        await history.open()
        for number in range(50):
            history.say("before", "me", "x" * 400, number=number)
        await history.flush()
        aside.mkdir()
        other = sqlite3.connect(path)  # what is cached of the file counts no more after another's write
        other.execute("UPDATE events SET reason = ''")
        other.commit()
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.close()
        _overwrite(path)
        for number in range(3):
            history.say("lost", "me", "y" * 400, number=number)
            await history.flush()
        assert [event.kind for event in history.since(0, 100)].count("history_not_written") == 1
        dropped = history.num_dropped
        assert dropped > 1
        aside.rmdir()
        history.say("after", "me", "")
        await history.close()
        with sqlite3.connect(path) as database:
            kinds = [row[0] for row in database.execute("SELECT kind FROM events ORDER BY sequence")]
        database.close()
        assert "after" in kinds
        assert history.num_dropped == dropped

    asyncio.run(story())


def test_a_place_that_cannot_be_used_costs_the_record_only(tmp_path: Path) -> None:
    async def story() -> None:
        (tmp_path / "history.db").mkdir()
        history = History(tmp_path / "history.db", "me", SystemClock())
        await history.open()
        assert [event.kind for event in history.since(0, 10)] == ["history_in_memory"]
        history.say("plan_made", "job", "because")
        await history.close()

    asyncio.run(story())


def test_a_full_queue_drops_the_oldest_and_counts() -> None:
    async def story() -> None:
        history = History(None, "me", SystemClock())
        await history.open()
        for _ in range(MAX_QUEUED + 5):
            history.heard("pnode", common_pb2.Event(kind="k"))
        assert history.num_dropped == 5
        await history.close()

    asyncio.run(story())
