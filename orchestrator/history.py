"""The orchestrator's own append-only memory of what happened and why: SQLite in WAL mode, for people and scores. It can be lost: no decision needs it.

Writing never holds up a decision: events go through a bounded queue to one writer thread; when the queue is full the oldest are dropped and counted.
The newest events are also kept in memory, for watchers. A damaged file is set aside and begun anew, a disk that takes nothing costs the record only; both
are told once.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import sqlite3
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import structlog

from dcnr.crashpoints import reached
from dcnr.errors import for_others
from dcnr.logs import vnode_in
from dcnr.ports import Clock
from dcnr.v1 import common_pb2
from orchestrator.beat_bounds import shown_text
from orchestrator.results import Kind, Result
from orchestrator.track import MAX_PER_NODE

KEPT_IN_MEMORY: Final = 1024
MAX_QUEUED: Final = 4096
MAX_FACTS: Final = 32
MAX_TEXT: Final = 500
MAX_HEARD_FACTS: Final = 8
MAX_HEARD_TEXT: Final = 128
"""What others tell is kept shorter: full answers to watchers must fit a message."""
MAX_EVENT_ROWS: Final = 200_000
"""Events kept on disk; the oldest go first. Strangers' events must not fill it."""
MAX_RESULT_ROWS: Final = 200_000
"""Results kept on disk; of each PNode no more than count."""
PRUNE_EVERY: Final = 1000
FLUSH_S: Final = 0.5

_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS events (
  sequence INTEGER PRIMARY KEY, time_unix_ms INTEGER NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL,
  reason TEXT NOT NULL, facts TEXT NOT NULL, reporter TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS placements (
  number INTEGER PRIMARY KEY, time_unix_ms INTEGER NOT NULL, model TEXT NOT NULL, plan TEXT NOT NULL, replica TEXT NOT NULL,
  pnode TEXT NOT NULL, outcome TEXT NOT NULL, predicted_step_s REAL NOT NULL, measured_step_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS results (
  number INTEGER PRIMARY KEY, time_s REAL NOT NULL, pnode TEXT NOT NULL, model TEXT NOT NULL, job TEXT NOT NULL, vnode TEXT NOT NULL,
  replica TEXT NOT NULL, component TEXT NOT NULL, device_class TEXT NOT NULL, kind TEXT NOT NULL, on_time INTEGER NOT NULL,
  seconds REAL NOT NULL, gflop REAL NOT NULL, corrects INTEGER NOT NULL, reason TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS usage (
  number INTEGER PRIMARY KEY AUTOINCREMENT, model TEXT NOT NULL, kind TEXT NOT NULL, subject TEXT NOT NULL, statement BLOB NOT NULL
);
"""
_EVENT: Final = "INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)"
_PLACEMENT: Final = "INSERT INTO placements VALUES (NULL, ?, ?, ?, ?, ?, ?, ?, ?)"
_RESULT: Final = "INSERT INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_USAGE: Final = "INSERT INTO usage VALUES (NULL, ?, ?, ?, ?)"
_NEWEST: Final = "SELECT * FROM (SELECT *, ROW_NUMBER() OVER (PARTITION BY pnode ORDER BY number DESC) AS age FROM results)"
_KINDS: Final = frozenset(kind.value for kind in Kind)
_Row = tuple[str, tuple[object, ...]]
OF_JOBS: Final = frozenset(
    (
        "job_accepted",
        "job_state_changed",
        "job_ended",
        "end_differs",
        "ended_by_removed",
        "cancel_recorded",
        "plan_made",
        "usage_recorded",
        "usage_not_recorded",
    )
)
"""Kinds of events whose subject is a job."""
_log = structlog.get_logger("orchestrator")


class History:
    """``path`` None keeps it in memory only. Call `open` first, run `run`, end with `close`."""

    def __init__(self, path: Path | None, reporter: str, clock: Clock) -> None:
        self._path, self._reporter, self._clock = path, reporter, clock
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="history")
        self._database: sqlite3.Connection | None = None
        self._queue: deque[_Row] = deque(maxlen=MAX_QUEUED)
        self._recent: deque[common_pb2.Event] = deque(maxlen=KEPT_IN_MEMORY)
        self._sequence = 0
        self._pruned = 0
        self._num_results = self._pruned_results = 0
        self._news = asyncio.Event()
        self.num_dropped = 0
        self._remark: tuple[str, str] | None = None
        self._refused = ""

    async def open(self) -> None:
        """Opens or creates the file; a damaged one is set aside, since nothing depends on it. Where there can be none, memory has to do."""
        self._sequence = await asyncio.get_running_loop().run_in_executor(self._executor, self._open)
        self._tell()

    def say(self, kind: str, subject: str, reason: str, **facts: object) -> common_pb2.Event:
        """Records an event of this orchestrator."""
        event = common_pb2.Event(kind=kind, subject=subject, reason=reason[:MAX_TEXT], reporter=self._reporter)
        for name, value in list(facts.items())[:MAX_FACTS]:
            event.facts[name] = str(value)[:MAX_TEXT]
        event.time_unix_ms = int(self._clock.wall() * 1000)
        self._append(event)
        about = {**vnode_in(kind, subject), **({"job": subject} if kind in OF_JOBS else {})}
        _log.info(kind, subject=subject, reason=event.reason, **{**about, **event.facts})
        return event

    def heard(self, reporter: str, event: common_pb2.Event) -> None:
        """Records what a PNode says happened there; its own number becomes a fact."""
        copy = common_pb2.Event(
            kind=shown_text(event.kind, 64), subject=shown_text(event.subject, 128), reason=shown_text(event.reason, MAX_TEXT), reporter=reporter,
            time_unix_ms=event.time_unix_ms,
        )  # fmt: skip
        for name in sorted(event.facts)[:MAX_HEARD_FACTS]:
            copy.facts[shown_text(name, 64)] = shown_text(event.facts[name], MAX_HEARD_TEXT)
        copy.facts["number"] = str(event.sequence)
        self._append(copy)

    def placed(
        self, model: str, plan: str, replica: str, pnode: str, outcome: str, predicted_step_s: float, measured_step_s: float
    ) -> None:
        """Records what became of a placement."""
        now = int(self._clock.wall() * 1000)
        measured_s = measured_step_s if math.isfinite(measured_step_s) else 0.0  # a volunteer's word: SQLite takes no NaN
        self._enqueue((_PLACEMENT, (now, model, plan, replica, pnode, outcome, predicted_step_s, measured_s)))

    def result(self, result: Result) -> None:
        """Records what became of work that a PNode was given."""
        one = result
        self._enqueue((_RESULT, (
            one.number, one.time_s, one.pnode_id, one.model, one.job_id, one.vnode, one.replica, one.component, one.device_class,
            one.kind.value, int(one.on_time), one.seconds, one.gflop, one.corrects, one.reason,
        )))  # fmt: skip
        self._num_results += 1

    async def results(self) -> list[Result]:
        """What is kept of them, in order."""
        rows = await self._select(f"{_NEWEST} WHERE age <= {MAX_PER_NODE} ORDER BY number LIMIT {MAX_RESULT_ROWS}", ())
        return [_result(row) for row in rows if row[9] in _KINDS]

    def used(self, model: str, kind: str, subject: str, statement: bytes) -> None:
        """Records a signed statement of usage, as it came."""
        self._enqueue((_USAGE, (model, kind, subject, statement)))
        self._num_results += 1

    async def usage(self, model: str, after: int, limit: int, reader: tuple[str, str] = ("", "")) -> list[tuple[int, bytes]]:
        """Statements of a model (empty: of all) with a higher number, oldest first. ``reader``: only those of that kind, or whose subject begins so."""
        await self.flush()
        query = "SELECT number, statement FROM usage WHERE number > ? AND (? = '' OR model = ?)"
        kind, subject = reader
        if kind or subject:
            query += " AND (kind = ? OR substr(subject, 1, length(?)) = ?)"
        values = (after, model, model, *((kind, subject, subject) if kind or subject else ()), limit)
        return await self._select(f"{query} ORDER BY number LIMIT ?", values)

    async def used_subjects(self, kind: str) -> set[tuple[str, str]]:
        """(model, subject) of everything of that kind that is recorded."""
        await self.flush()
        return set(await self._select("SELECT DISTINCT model, subject FROM usage WHERE kind = ?", (kind,)))

    async def _select(self, query: str, values: tuple[object, ...]) -> list[Any]:
        def read() -> list[Any]:
            try:
                return self._database.execute(query, values).fetchall() if self._database is not None else []
            except sqlite3.Error:
                return []  # damage is found, and told, with the next write

        return await asyncio.get_running_loop().run_in_executor(self._executor, read)

    def since(self, sequence: int, limit: int) -> list[common_pb2.Event]:
        """The newest events with a higher number, oldest first."""
        return [event for event in self._recent if event.sequence > sequence][-limit:]

    def about(self, subjects: set[str], limit: int) -> list[common_pb2.Event]:
        """The newest events about any of ``subjects``."""
        return [event for event in self._recent if event.subject in subjects][-limit:]

    @property
    def sequence(self) -> int:
        """Number of the newest event."""
        return self._sequence

    async def run(self) -> None:
        """Writes what was recorded, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            await self.flush()
            await asyncio.sleep(FLUSH_S)

    async def flush(self) -> None:
        """Writes everything that waits."""
        rows = list(self._queue)
        self._queue.clear()
        if rows:
            await asyncio.get_running_loop().run_in_executor(self._executor, self._write, rows)
            self._tell()

    async def close(self) -> None:
        """Writes what waits and closes the file."""
        await self.flush()
        await asyncio.get_running_loop().run_in_executor(self._executor, self._close)
        self._executor.shutdown(wait=True)

    def _append(self, event: common_pb2.Event) -> None:
        self._sequence += 1
        event.sequence = self._sequence
        self._recent.append(event)
        facts = json.dumps(dict(event.facts), sort_keys=True)
        row = (event.sequence, event.time_unix_ms, event.kind, event.subject, event.reason, facts, event.reporter)
        self._enqueue((_EVENT, row))

    def _enqueue(self, row: _Row) -> None:
        if len(self._queue) == MAX_QUEUED:
            self.num_dropped += 1
        self._queue.append(row)
        self._news.set()

    def _tell(self) -> None:
        """What the writer thread has found out, as an event."""
        remark, self._remark = self._remark, None
        if remark is not None:
            self.say(remark[0], self._reporter, remark[1])

    def _open(self) -> int:
        if self._path is None:
            return self._connect(":memory:")
        try:
            return self._connect(str(self._path))
        except sqlite3.DatabaseError as error:
            why = str(error)
            if _is_damage(error):
                try:
                    return self._begin_anew(self._path, error)
                except sqlite3.Error as second:
                    why = str(second)
                except OSError as second:
                    why = for_others(second)
        self._close()
        self._remark = (
            "history_in_memory",
            f"{self._path.name} cannot be used: {why}; see the disk, then start again: until then events are not kept",
        )
        return self._connect(":memory:")

    def _begin_anew(self, path: Path, error: sqlite3.DatabaseError) -> int:
        """The file and what belongs to it are set aside; a log left behind would be played into the new file."""
        self._close()
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        for suffix in ("-wal", "-shm"):
            path.with_name(path.name + suffix).unlink(missing_ok=True)
        self._remark = (
            "history_damaged",
            f"{path.name} was damaged ({error}) and is begun anew; what is left of it lies in {aside.name}",
        )
        return self._connect(str(path))

    def _connect(self, target: str) -> int:
        database = sqlite3.connect(target, isolation_level=None, check_same_thread=False)
        try:
            database.execute("PRAGMA journal_mode=WAL")
            database.execute("PRAGMA synchronous=NORMAL")
            database.executescript(_SCHEMA)
            (newest,) = database.execute("SELECT COALESCE(MAX(sequence), 0) FROM events").fetchone()
        except sqlite3.Error:
            database.close()
            raise
        self._database = database
        return int(newest)

    def _write(self, rows: Sequence[_Row]) -> None:
        try:
            try:
                if self._database is None and self._path is not None:  # a file that could not be begun anew then
                    self._connect(str(self._path))
                self._write_rows(rows)
            except sqlite3.DatabaseError as error:
                if self._path is None or not _is_damage(error):
                    raise
                self._begin_anew(self._path, error)
                self._write_rows(rows)
            self._refused = ""
        except sqlite3.OperationalError as error:  # a full disk stops the record, not the orchestrator
            self._not_written(len(rows), str(error))
        except sqlite3.Error as error:
            self._not_written(len(rows), str(error), "this is a fault of ours: report it")
        except OSError as error:
            self._not_written(len(rows), for_others(error))

    def _not_written(self, num_rows: int, why: str, advice: str = "free disk space") -> None:
        self.num_dropped += num_rows
        if why != self._refused:
            self._refused = why
            self._remark = ("history_not_written", f"{why}: events are not kept until they can be written again; {advice}")

    def _write_rows(self, rows: Sequence[_Row]) -> None:
        database = self._database
        if database is None:
            return
        try:
            database.execute("BEGIN")
            for statement, values in rows:
                database.execute(statement, values)
            if self._sequence // PRUNE_EVERY != self._pruned:
                self._pruned = self._sequence // PRUNE_EVERY
                database.execute("DELETE FROM events WHERE sequence <= ?", (self._sequence - MAX_EVENT_ROWS,))
            if self._num_results // PRUNE_EVERY != self._pruned_results:
                self._pruned_results = self._num_results // PRUNE_EVERY
                self._prune_results(database)
            reached("history.written")
            database.execute("COMMIT")
            reached("history.committed")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                if database.in_transaction:
                    database.execute("ROLLBACK")
            raise

    def _prune_results(self, database: sqlite3.Connection) -> None:
        """Of each PNode the newest stay, and of all of them together no more than there is room for; likewise of placements, and of statements of each kind:
        many questions push out no job."""
        ages = "SELECT number, ROW_NUMBER() OVER (PARTITION BY kind ORDER BY number DESC) AS age FROM usage"
        database.execute(f"DELETE FROM usage WHERE number IN (SELECT number FROM ({ages}) WHERE age > {MAX_RESULT_ROWS})")
        database.execute(f"DELETE FROM placements WHERE number <= (SELECT MAX(number) FROM placements) - {MAX_RESULT_ROWS}")
        kept = f"SELECT number FROM ({_NEWEST}) WHERE age <= {MAX_PER_NODE} ORDER BY number DESC LIMIT {MAX_RESULT_ROWS}"
        database.execute(f"DELETE FROM results WHERE number NOT IN ({kept})")

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None


def _is_damage(error: sqlite3.DatabaseError) -> bool:
    """Whether the file itself is bad: its subclasses mean a full disk, a lock or a bug of ours."""
    return type(error) is sqlite3.DatabaseError


def _result(row: tuple[Any, ...]) -> Result:
    number, time_s, pnode, model, job, vnode, replica, component, device_class, kind, on_time, seconds, gflop, corrects, reason, _ = row  # fmt: skip
    return Result(
        number, time_s, pnode, model, job, vnode, replica, component, device_class, Kind(kind), bool(on_time), seconds, gflop, corrects,
        reason,
    )  # fmt: skip
