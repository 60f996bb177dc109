"""Goal: a key is of use the moment it was made, and keys that nobody made cost the disk nothing."""

from __future__ import annotations

import asyncio
import secrets
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dcnr.system import SystemClock
from gateway.keys import Key, KeyFile, KeyRing

CLOCK = SystemClock()


class Counted(KeyFile):
    """A file that counts how often it is read."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.num_reads = 0

    def keys(self) -> dict[str, Key]:
        self.num_reads += 1
        return super().keys()


def made(path: Path) -> tuple[str, str]:
    """A key made by a command, in another process as far as the gateway knows: its id and its text."""
    key, text = KeyFile(path).add("one", "client", expires=0.0, signed=False, now_wall=CLOCK.wall(), rng=secrets.token_bytes)
    return key.id, text


def test_a_new_key_and_a_new_text_are_known_at_once(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    ring = KeyRing(KeyFile(path), CLOCK)

    async def story() -> None:
        await ring.reload()
        key_id, text = made(path)
        assert ring.find(text) is None
        await ring.seek(text)
        assert ring.find(text) is not None
        again = KeyFile(path).rotate(key_id, secrets.token_bytes)
        await ring.seek(again)
        assert ring.find(again) is not None
        assert ring.find(text) is None

    asyncio.run(story())


def test_texts_that_are_no_keys_share_one_look_and_known_ones_need_none(tmp_path: Path) -> None:
    file = Counted(tmp_path / "gateway.db")
    ring = KeyRing(file, CLOCK)
    unknown = [f"dcnr_{number:08x}_{'A' * 43}" for number in range(200)]

    async def story() -> None:
        _, text = made(tmp_path / "gateway.db")
        await ring.reload()
        await ring.seek(text)
        await ring.seek("no key at all")
        assert file.num_reads == 1
        await asyncio.gather(*(ring.seek(one) for one in unknown))
        assert file.num_reads <= 3, "one look that had begun, and one for all who asked meanwhile"

    asyncio.run(story())


def test_whoever_begins_the_file_while_another_writes_it_waits_for_that_one(tmp_path: Path) -> None:
    path = tmp_path / "gateway.db"
    writing, found = sqlite3.connect(path, isolation_level=None, check_same_thread=False), list[tuple[str, str]]()
    writing.execute("CREATE TABLE other (number)")
    writing.execute("BEGIN IMMEDIATE")
    writing.execute("INSERT INTO other VALUES (1)")
    with ThreadPoolExecutor(1) as pool:
        made_here = pool.submit(made, path)
        with pytest.raises(TimeoutError):
            found.append(made_here.result(timeout=0.2))
        writing.execute("COMMIT")
        key_id, _ = made_here.result(timeout=30)
    writing.close()
    assert list(KeyFile(path).keys()) == [key_id]


def test_looking_at_the_file_ends_no_lock_that_this_process_has_on_it(tmp_path: Path) -> None:
    """A closed descriptor of a file ends all locks of its process there (fcntl), so another process could write beside whoever holds one."""
    path = tmp_path / "gateway.db"
    made(path)
    writing = sqlite3.connect(path, isolation_level=None)
    writing.execute("PRAGMA journal_mode=DELETE")
    writing.execute("BEGIN EXCLUSIVE")
    KeyFile(path).prepare()
    again = f"import sqlite3; sqlite3.connect({str(path)!r}, timeout=0).execute('BEGIN EXCLUSIVE')"
    other = subprocess.run([sys.executable, "-c", again], check=False, capture_output=True, text=True, timeout=60)
    writing.close()
    assert "database is locked" in other.stderr
