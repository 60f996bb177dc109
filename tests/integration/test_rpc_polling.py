"""Goal: gRPC's polling thread is there for all loops of a process, one after another and at once, and is not ended and made anew between them."""

from __future__ import annotations

import asyncio
import gc
import secrets
import threading

from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from trust.identity import NodeKey

NETWORK = "ab" * 20


def polling() -> set[int | None]:
    """The threads that poll, by identity."""
    return {thread.ident for thread in threading.enumerate() if "_poll_wrapper" in thread.name}


async def talk() -> set[int | None]:
    """A server and a client with an open session; all of it closed and, in a cycle, left to the search for garbage."""
    server = RpcServer(NodeKey.generate(), NETWORK, clock=SystemClock(), rng=secrets.token_bytes)
    port = await server.start("127.0.0.1", 0)
    dialer = Dialer(NodeKey.generate(), NETWORK, clock=SystemClock(), rng=secrets.token_bytes)
    connection = await dialer.connect(server.node_id, [f"127.0.0.1:{port}"])
    cycle: list[object] = [server, dialer, connection]
    cycle.append(cycle)
    await connection.close()
    await server.stop(0)
    return polling()


def test_one_thread_polls_for_all_loops_of_a_process() -> None:
    first = asyncio.run(talk())
    gc.collect()
    assert polling() == first
    assert len(first) == 1
    seen: list[set[int | None]] = []
    threads = [threading.Thread(target=lambda: seen.append(asyncio.run(talk()))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    gc.collect()
    assert [*seen, polling()] == [first, first, first]
