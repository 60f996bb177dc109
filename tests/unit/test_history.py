"""The history keeps order over restarts, survives a damaged file, and never holds anybody up."""

from __future__ import annotations

import asyncio
import sqlite3
from pathlib import Path

from dcnr.system import SystemClock
from dcnr.v1 import common_pb2
from orchestrator.history import MAX_QUEUED, History


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


def test_a_full_queue_drops_the_oldest_and_counts() -> None:
    async def story() -> None:
        history = History(None, "me", SystemClock())
        await history.open()
        for _ in range(MAX_QUEUED + 5):
            history.heard("pnode", common_pb2.Event(kind="k"))
        assert history.num_dropped == 5
        await history.close()

    asyncio.run(story())
