"""Goal: a daemon that starts before its machine's line is up waits for it and goes on by itself; one bootstrap entry whose name is dead keeps nobody."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from pnode import joining
from pnode.entry import has_address
from pnode.joining import Joining
from pnode.lent import advertised_host

ANYWHERE = PNodeSettings(listen_host="0.0.0.0")


class Line:
    """Up after so many looks."""

    def __init__(self, num_looks: int) -> None:
        self.num_looks = num_looks

    def host(self) -> str:
        self.num_looks -= 1
        if self.num_looks > 0:
            raise Unavailable("this machine has no way to anybody", code="no_address")
        return "192.0.2.7"


@pytest.mark.parametrize("num_looks", [1, 3])
def test_a_line_that_comes_up_later_is_waited_for(monkeypatch: pytest.MonkeyPatch, num_looks: int) -> None:
    monkeypatch.setattr(joining, "RETRY_FIRST_S", 0.001)

    async def story(directory: Path) -> None:
        line = Line(num_looks)
        looking = Joining(NodeId("a" * 40), SystemClock(), asyncio.Event())
        assert await has_address(line.host, looking, directory / "run.sock")
        assert line.num_looks == 0
        assert not list(directory.iterdir())

    with tempfile.TemporaryDirectory(prefix="dcnr-") as directory:  # short enough for a socket
        asyncio.run(story(Path(directory)))


def test_who_is_told_to_stop_waits_no_longer() -> None:
    async def story(directory: Path) -> None:
        stop = asyncio.Event()
        stop.set()
        assert not await has_address(Line(1000).host, Joining(NodeId("a" * 40), SystemClock(), stop), directory / "run.sock")

    with tempfile.TemporaryDirectory(prefix="dcnr-") as directory:
        asyncio.run(story(Path(directory)))


def test_the_next_entry_shows_the_way_where_the_name_of_the_first_is_dead() -> None:
    dead, alive = "nowhere.invalid:7700", f"{'b' * 40}@127.0.0.1:7700"
    assert advertised_host(ANYWHERE, [dead, alive], single_host=False) == "127.0.0.1"
    with pytest.raises(Unavailable, match="nowhere"):
        advertised_host(ANYWHERE, [dead], single_host=False)
