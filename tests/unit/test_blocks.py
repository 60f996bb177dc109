"""Goal: whoever is cut off while it sends a file leaves none open, in whichever moment: a daemon lives for months."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from dataservice.blocks import Blocks
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.system import SystemClock
from dcnr.v1 import vnode_pb2
from pnode.donors import Donor
from pnode.uplink import Uplink

STATE, NETWORK = b"a state", "a" * 40


class Slow:
    """A disk on which opening takes until it may go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.opening, self.may_open = list[Any](), threading.Event(), threading.Event()
        self._open: Any = Path.open
        monkeypatch.setattr(Path, "open", lambda path, *mode: self._held_up(path, *mode))

    def _held_up(self, path: Path, *mode: str) -> Any:
        self.opening.set()
        assert self.may_open.wait(10.0)
        self.opened.append(self._open(path, *mode))
        return self.opened[-1]


def test_it_gives_all_and_is_closed_by_whoever_ends_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "state"
    path.write_bytes(STATE)
    blocks = Blocks(path)
    assert [blocks.read(4), blocks.read(4), blocks.read(4)] == [STATE[:4], STATE[4:], b""]
    blocks.close()
    assert blocks.read(4) == b""
    slow, late = Slow(monkeypatch), Blocks(path)
    reader = threading.Thread(target=late.read, args=(4,))
    reader.start()
    slow.opening.wait()
    late.close()
    slow.may_open.set()
    reader.join()
    assert [file.closed for file in slow.opened] == [True]


def test_a_file_that_is_not_there_is_the_disks_trouble(tmp_path: Path) -> None:
    with pytest.raises(Unavailable) as refused:
        Blocks(tmp_path / "none").read(1)
    assert refused.value.code == "disk_trouble"


def test_who_asks_for_a_state_and_goes_at_once_leaves_no_file_open_at_its_donor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "state"
    path.write_bytes(STATE)
    slow = Slow(monkeypatch)

    async def story() -> None:
        donor = Donor(NETWORK, lambda model, vnode, digest: path, Uplink(SystemClock()))
        given = donor.give(vnode_pb2.DonateRequest(network_id=NETWORK, digest=digest_of(STATE)), "somebody")
        taking = asyncio.ensure_future(anext(given))
        await asyncio.to_thread(slow.opening.wait)
        taking.cancel()
        await asyncio.wait([taking])
        slow.may_open.set()
        await asyncio.get_running_loop().shutdown_default_executor()

    asyncio.run(story())
    assert [file.closed for file in slow.opened] == [True]
