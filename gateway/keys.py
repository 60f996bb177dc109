"""API keys and the log of their use, in one SQLite file (0600): of a key only a salted hash is kept, so the file gives nobody away.

A key is ``dcnr_<id>_<secret>``; the secret is 256 random bits, so one keyed BLAKE3 is enough. It is shown once, when it is made. Commands and a running gateway
share the file: a new key and a new text are in force at once, an end within `RELOAD_S`.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hmac
import os
import re
import sqlite3
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog
from blake3 import blake3

from dcnr.crashpoints import reached
from dcnr.errors import InvalidInput, NotFound, Unavailable, for_others
from dcnr.ids import check_node_id
from dcnr.ports import Clock

FILE: Final = "gateway.db"
SCOPES: Final = ("client", "admin", "node-owner")
RELOAD_S: Final = 1.0
SEEK_S: Final = 0.2
"""For keys that nobody knows the file is read no more often than this, however many ask."""
MAX_KEYS: Final = 10_000
MAX_NAME: Final = 64
MAX_USES_QUEUED: Final = 10_000
MAX_USE_ROWS: Final = 200_000
SHOWN: Final = re.compile(r"dcnr_[0-9a-f]{8}_[A-Za-z0-9_-]{43}")
PREFIX: Final = re.compile(r"dcnr_[0-9a-f]{8}_")
_SALT_BYTES: Final = 32
_BUSY_S: Final = 5.0
_AGAIN_S: Final = 0.02
_COLUMNS: Final = "id, name, scope, salt, hash, created, expires, revoked, signed, owner"
_SCHEMA: Final = """
CREATE TABLE IF NOT EXISTS keys (id TEXT PRIMARY KEY, name TEXT NOT NULL, scope TEXT NOT NULL, salt BLOB NOT NULL, hash BLOB NOT NULL,
  created REAL NOT NULL, expires REAL NOT NULL, revoked REAL NOT NULL, signed INTEGER NOT NULL, owner TEXT NOT NULL DEFAULT '');
CREATE TABLE IF NOT EXISTS uses (number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, key TEXT NOT NULL, method TEXT NOT NULL,
  route TEXT NOT NULL, status INTEGER NOT NULL, subnet TEXT NOT NULL);
"""
_OWNER_ADDED: Final = "ALTER TABLE keys ADD COLUMN owner TEXT NOT NULL DEFAULT ''"
"""For a file of a gateway that knew no owners."""
RandomBytes = Callable[[int], bytes]
_log = structlog.get_logger("gateway")


@dataclass(frozen=True, slots=True)
class Key:
    """What is kept of a key. Times are seconds since 1970; 0: never."""

    id: str
    name: str
    scope: str
    salt: bytes
    hash: bytes
    created: float
    expires: float
    revoked: float
    signed: bool
    """Whether each of its requests has to bear a signature."""
    owner: str = ""
    """Of scope node-owner: id of the key with which the owner says whose machines they are."""

    def holds(self, now_wall: float) -> bool:
        """Whether it is in force."""
        return not self.revoked and (not self.expires or now_wall < self.expires)


@dataclass(frozen=True, slots=True)
class Use:
    """One request made with a key."""

    time: float
    key: str
    method: str
    route: str
    status: int
    subnet: str


class KeyFile:
    """The file, for commands and for the gateway. Calls block on the disk. All raise Unavailable where it cannot be used."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(
        self, name: str, scope: str, *, expires: float, signed: bool, now_wall: float, rng: RandomBytes, owner: str = ""
    ) -> tuple[Key, str]:  # fmt: skip
        """A new key and its text, which is not kept. Raises InvalidInput."""
        if scope not in SCOPES:
            raise InvalidInput(f"{scope!r} is no scope", code="bad_scope", remedy=f"one of {', '.join(SCOPES)}")
        if not name or len(name) > MAX_NAME or not name.isprintable():
            raise InvalidInput(f"a name has 1 to {MAX_NAME} printable characters", code="bad_name")
        if owner and scope != "node-owner":
            raise InvalidInput("only a key of scope node-owner has an owner", code="bad_scope")
        if owner:
            check_node_id(owner)
        key_id = rng(4).hex()
        text, salt = _text(key_id, rng), rng(_SALT_BYTES)
        key = Key(key_id, name, scope, salt, hash_of(text, salt), now_wall, expires, 0.0, signed, owner)
        with self._change() as database:
            if database.execute("SELECT count(*) FROM keys").fetchone()[0] >= MAX_KEYS:
                raise InvalidInput(f"{MAX_KEYS} keys are kept already", code="too_many_keys")
            database.execute(
                f"INSERT INTO keys ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?)",
                (key.id, name, scope, salt, key.hash, key.created, key.expires, key.revoked, int(signed), owner),
            )
        return key, text

    def rotate(self, key_id: str, rng: RandomBytes) -> str:
        """The new text of a key in force; the old one is refused from now on. Raises NotFound."""
        text, salt = _text(key_id, rng), rng(_SALT_BYTES)
        with self._change() as database:
            changed = database.execute(
                "UPDATE keys SET salt = ?, hash = ? WHERE id = ? AND revoked = 0", (salt, hash_of(text, salt), key_id)
            )
            _require(changed, key_id)
        return text

    def revoke(self, key_id: str, now_wall: float) -> None:
        """The key is refused from now on; its uses stay. Raises NotFound."""
        with self._change() as database:
            _require(database.execute("UPDATE keys SET revoked = ? WHERE id = ? AND revoked = 0", (now_wall, key_id)), key_id)

    def keys(self) -> dict[str, Key]:
        """All keys by id, oldest first."""
        with self._open() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM keys ORDER BY created, id").fetchall()
        return {row[0]: Key(*(*row[:8], bool(row[8]), row[9])) for row in rows}

    def note(self, uses: list[Use]) -> None:
        """Appends to the log; the oldest rows go when there are too many."""
        with self._change() as database:
            database.executemany(
                "INSERT INTO uses (time, key, method, route, status, subnet) VALUES (?,?,?,?,?,?)",
                [(use.time, use.key, use.method, use.route, use.status, use.subnet) for use in uses],
            )
            database.execute("DELETE FROM uses WHERE number <= (SELECT max(number) FROM uses) - ?", (MAX_USE_ROWS,))

    def uses(self, limit: int, key_id: str = "") -> list[Use]:
        """The newest uses, newest first: of that key, or of all."""
        with self._open() as database:
            rows = database.execute(
                "SELECT time, key, method, route, status, subnet FROM uses WHERE ? IN ('', key) ORDER BY number DESC LIMIT ?",
                (key_id, limit),
            ).fetchall()
        return [Use(*row) for row in rows]

    def prepare(self) -> None:
        """An empty file for its owner alone, if there is none. One that is there is not opened: closing it would end the locks that this process has on it."""
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self._path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))

    @contextlib.contextmanager
    def _change(self) -> Iterator[sqlite3.Connection]:
        with self._open() as database:
            yield database
            reached("apikey.written")
        reached("apikey.committed")

    @contextlib.contextmanager
    def _open(self) -> Iterator[sqlite3.Connection]:
        try:
            self.prepare()
            database = sqlite3.connect(self._path, timeout=_BUSY_S)
            try:
                _begin_log(database)
                database.executescript(_SCHEMA)
                if "owner" not in (row[1] for row in database.execute("PRAGMA table_info(keys)")):
                    database.execute(_OWNER_ADDED)
                with database:
                    yield database
            finally:
                database.close()
        except sqlite3.Error as error:
            raise self._unusable(str(error)) from error
        except OSError as error:
            raise self._unusable(for_others(error)) from error

    def _unusable(self, why: str) -> Unavailable:
        return Unavailable(
            f"{self._path} cannot be used: {why}", code="no_key_file", remedy="check the disk and the directory's permissions"
        )


class KeyRing:
    """The keys as a running gateway knows them, and the queue of their uses; both meet the disk once in `RELOAD_S`, in a thread."""

    def __init__(self, file: KeyFile, clock: Clock) -> None:
        self.file, self._clock = file, clock
        self._keys: Mapping[str, Key] = {}
        self._uses: deque[Use] = deque(maxlen=MAX_USES_QUEUED)
        self._told = False
        self._seeking = asyncio.Lock()
        self._sought_at = -SEEK_S

    async def seek(self, text: str) -> None:
        """Reads the file where ``text`` could be a key and is none that is known: it may be new. Waits for `SEEK_S` and the disk at most."""
        if self.find(text) is not None or not SHOWN.fullmatch(text):
            return
        asked_at = self._clock.monotonic()
        async with self._seeking:
            if self._sought_at > asked_at:
                return  # somebody else's look began after this was asked
            await asyncio.sleep(max(0.0, self._sought_at + SEEK_S - self._clock.monotonic()))
            self._sought_at = self._clock.monotonic()
            with contextlib.suppress(Unavailable):  # told by `turn`
                await self.reload()

    def find(self, text: str) -> Key | None:
        """The key of that text, if it is one and in force. Takes as long for a wrong secret as for a right one."""
        held = self.held(text)
        return held if held is not None and held.holds(self._clock.wall()) else None

    def held(self, text: str) -> Key | None:
        """The same, also where it is revoked or expired."""
        found = self._keys.get(text[5:13]) if SHOWN.fullmatch(text) else None
        salt, wanted = (found.salt, found.hash) if found is not None else (bytes(_SALT_BYTES), bytes(_SALT_BYTES))
        same = hmac.compare_digest(hash_of(text, salt), wanted)
        return found if same else None

    def stays(self, key: Key | None) -> bool:
        """Whether who was let in with that key, or without one, would be let in with it now: it has not expired, and was neither revoked nor rotated."""
        if key is None:
            return True
        now = self._keys.get(key.id)
        return now is not None and now.hash == key.hash and now.holds(self._clock.wall())

    def note(self, use: Use) -> None:
        """Queues one use; where the disk takes nothing for long, the oldest are lost."""
        self._uses.append(use)

    async def reload(self) -> None:
        """What is in the file is in force at once. Raises Unavailable."""
        self._keys = await asyncio.to_thread(self.file.keys)

    async def turn(self) -> None:
        """Reads the keys, writes the uses. A disk that fails costs the log and news of keys, and is told once."""
        taken = list(self._uses)
        try:
            self._keys = await asyncio.to_thread(self.file.keys)
            if taken:
                await asyncio.to_thread(self.file.note, taken)
        except Unavailable as error:
            if not self._told:
                _log.error("key_file_away", reason=error.message)
            self._told = True
            return
        self._told = False
        for _ in taken:
            self._uses.popleft()

    async def run(self) -> None:
        """Turns until cancelled; what is queued then is written."""
        try:
            while True:
                await self.turn()
                await asyncio.sleep(RELOAD_S)
        finally:
            if self._uses:
                with contextlib.suppress(Unavailable):
                    self.file.note(list(self._uses))


def hash_of(text: str, salt: bytes) -> bytes:
    """What is kept of a key."""
    return blake3(text.encode(), key=salt).digest()


def _text(key_id: str, rng: RandomBytes) -> str:
    return f"dcnr_{key_id}_{base64.urlsafe_b64encode(rng(32)).decode().rstrip('=')}"


def _begin_log(database: sqlite3.Connection) -> None:
    """The write-ahead log. Two that begin it at once do not wait for each other by themselves: SQLite refuses one of them at once, as a deadlock."""
    until_s = time.monotonic() + _BUSY_S
    while True:
        try:
            database.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError:
            if time.monotonic() >= until_s:
                raise
            time.sleep(_AGAIN_S)


def _require(changed: sqlite3.Cursor, key_id: str) -> None:
    if not changed.rowcount:
        raise NotFound(f"there is no key {key_id[:16]!r} in force", code="no_such_key", remedy="dcnr gateway key list")
