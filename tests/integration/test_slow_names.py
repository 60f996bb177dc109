"""Goal: names whose servers take their time over an answer keep nobody waiting but those who asked for them."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from dcnr.errors import Unavailable
from dcnr.ids import NodeId
from dcnr.limits import MAX_BOOTSTRAP_ENTRIES
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.resolving import PLACES, Resolver
from dcnr.system import SystemClock
from membership.dht import DhtDirectory
from trust.identity import NodeKey

SLOW = "slow.example"
DEFAULT_THREADS = 64
"""More than the default executor of a loop has on any machine that runs this."""


class Names:
    """Stands for the name servers of the world: they answer when they are let."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.asked, self._came = threading.Event(), 0, threading.Condition()
        known = socket.getaddrinfo

        def slow(host: Any, *given: Any, **more: Any) -> Any:
            if host == SLOW:
                with self._came:
                    self.asked += 1
                    self._came.notify_all()
                self.go.wait(60)
                raise socket.gaierror("no such host")
            return known(host, *given, **more)

        self._waits = ThreadPoolExecutor(1)
        monkeypatch.setattr(socket, "getaddrinfo", slow)

    async def all_asked(self, number: int) -> None:
        def wait() -> None:
            with self._came:
                assert self._came.wait_for(lambda: self.asked >= number, 60)

        await asyncio.get_running_loop().run_in_executor(self._waits, wait)


def test_while_all_look_ups_wait_threads_of_the_loop_are_free_and_further_names_are_refused_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names = Names(monkeypatch)

    async def story() -> None:
        dialer = Dialer(NodeKey.generate(), "network", clock=SystemClock(), rng=secrets.token_bytes)
        wanted = NodeKey.generate().node_id
        dials = [asyncio.create_task(dialer.connect(wanted, [f"{SLOW}:1"])) for _ in range(DEFAULT_THREADS)]
        try:
            await names.all_asked(PLACES)
            assert await asyncio.to_thread(lambda: "planned") == "planned"
            for dial in asyncio.as_completed(dials[PLACES:]):
                with pytest.raises(Unavailable, match="too many names"):
                    await dial
            assert names.asked == PLACES
            assert not names.go.is_set()
            with pytest.raises(Unavailable) as refused:  # an address needs no look-up
                await dialer.connect(wanted, ["127.0.0.1:1"])
            assert "too many names" not in refused.value.message
        finally:
            names.go.set()
            await asyncio.gather(*dials, return_exceptions=True)

    asyncio.run(asyncio.wait_for(story(), 60))


def test_entries_of_the_directory_keep_no_thread_of_the_loop_either_and_each_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)

    async def story() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        node = DhtDirectory(
            NodeId("0" * 40), clock=SystemClock(), rng=random.Random(1), verify=lambda *given: None, single_host=True
        )
        await node.start("127.0.0.1", 0)
        entering = asyncio.create_task(node.bootstrap([(SLOW, number) for number in range(1, 1 + MAX_BOOTSTRAP_ENTRIES)]))
        try:
            await names.all_asked(MAX_BOOTSTRAP_ENTRIES)
            assert await asyncio.to_thread(lambda: "planned") == "planned"
            assert not names.go.is_set()
            assert not entering.done()
        finally:
            names.go.set()
            assert await entering == 0
            await node.stop()

    asyncio.run(asyncio.wait_for(story(), 60))


def test_who_gives_up_keeps_its_place_until_the_thread_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    names = Names(monkeypatch)

    async def story() -> None:
        resolver = Resolver(1)
        look = asyncio.create_task(resolver.resolve(SLOW, 1))
        await names.all_asked(1)
        look.cancel()
        await asyncio.gather(look, return_exceptions=True)
        with pytest.raises(Unavailable) as refused:
            await resolver.resolve("localhost", 1)
        assert "too many" in refused.value.message
        names.go.set()
        found: tuple[str, ...] = ()
        while not found:
            try:
                found = await resolver.resolve("localhost", 1)
            except Unavailable:
                await asyncio.sleep(0.01)
        assert found[0] in ("127.0.0.1", "::1")

    asyncio.run(asyncio.wait_for(story(), 60))
