"""An asyncio loop whose time passes only while everybody waits, and a wire of datagrams on it: a look-up takes the seconds that latency, silence and
patience make, on however busy a machine.
"""

from __future__ import annotations

import asyncio
import random
import selectors
from collections.abc import Callable, Coroutine
from typing import Any, Final

LATENCY_S: Final = (0.01, 0.04)
"""One way, as between homes of one continent."""
BEGIN_S: Final = 1_000.0


class _Waiting(selectors.DefaultSelector):
    """Nothing comes from outside: waiting for something to come is the passing of that time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = BEGIN_S

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            assert timeout is not None, "everybody waits for ever"
            self.now_s += max(0.0, timeout)
        return ready


class StillLoop(asyncio.SelectorEventLoop):
    """Datagram endpoints are ports of one wire; whatever is sent to one that is closed is lost without a word."""

    def __init__(self, rng: random.Random) -> None:
        self._waiting = _Waiting()
        super().__init__(self._waiting)
        self._rng = rng
        self._open: dict[int, _End] = {}
        self._next_port = 10_000

    def time(self) -> float:
        """Virtual seconds."""
        return self._waiting.now_s

    async def create_datagram_endpoint(
        self, protocol_factory: Callable[[], Any], local_addr: Any = None, **_: Any
    ) -> tuple[Any, Any]:
        """A port of the wire, a new one for port 0."""
        host, port = local_addr
        if not port:
            self._next_port += 1
            port = self._next_port
        protocol = protocol_factory()
        self._open[port] = end = _End(self, (host, port), protocol)
        protocol.connection_made(end)
        return end, protocol

    def carry(self, data: bytes, source: tuple[str, int], port: int) -> None:
        """To whoever has the port when it arrives."""
        self.call_later(self._rng.uniform(*LATENCY_S), self._arrive, data, source, port)

    def hang_up(self, end: _End) -> None:
        """From now on its port is silent."""
        if self._open.pop(end.address[1], None) is not None:
            self.call_soon(end.protocol.connection_lost, None)

    def _arrive(self, data: bytes, source: tuple[str, int], port: int) -> None:
        end = self._open.get(port)
        if end is not None:
            end.protocol.datagram_received(data, source)


class _End(asyncio.DatagramTransport):
    """One port."""

    def __init__(self, loop: StillLoop, address: tuple[str, int], protocol: Any) -> None:
        super().__init__({"sockname": address})
        self._loop, self.address, self.protocol = loop, address, protocol

    def sendto(self, data: bytes, addr: Any = None) -> None:
        """Into the wire."""
        self._loop.carry(data, self.address, addr[1])

    def is_closing(self) -> bool:
        """Whether its port is silent."""
        return self._loop._open.get(self.address[1]) is not self

    def close(self) -> None:
        """No more comes."""
        self._loop.hang_up(self)

    abort = close


def run_still(test: Coroutine[Any, Any, None], seed: int = 1) -> None:
    """Runs a test on such a loop; the same seed gives the same seconds."""
    with asyncio.Runner(loop_factory=lambda: StillLoop(random.Random(seed))) as runner:
        runner.run(test)
