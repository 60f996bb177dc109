"""Goal: a key is of use the moment it was made, and keys that nobody made cost the disk nothing."""

from __future__ import annotations

import asyncio
import secrets
from pathlib import Path

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
