"""Goal: beats wait for nothing: not for what an orchestrator's words make the daemon do, and not for bytes of other calls to the same orchestrator."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from dcnr.client import Orchestrators
from dcnr.ids import NodeId
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import orchestrator_pb2, orchestrator_pb2_grpc
from pnode.control import ControlStreams
from trust.identity import NodeKey

NETWORK = "a" * 40
SERVER, CLIENT = NodeKey.generate(), NodeKey.generate()


class CountingClock(SystemClock):
    """Counts how often it was looked at."""

    num_looks = 0

    def monotonic(self) -> float:
        self.num_looks += 1
        return super().monotonic()


class Servicer(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """An orchestrator that asks for work, and notes who called over which connection."""

    def __init__(self) -> None:
        self.num_beats = self.num_streams = 0
        self.attached_over = self.asked_over = ""
        self.welcomes = asyncio.Event()
        self.welcomes.set()

    async def Attach(self, request_iterator: Any, context: Any) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        self.num_streams += 1
        self.attached_over = context.peer()
        await self.welcomes.wait()
        yield orchestrator_pb2.OrchestratorMessage(welcome=orchestrator_pb2.Welcome(beat_interval_s=0.2))
        yield orchestrator_pb2.OrchestratorMessage(head=orchestrator_pb2.HeadNews())
        async for message in request_iterator:
            if message.HasField("beat"):
                self.num_beats += 1
                yield orchestrator_pb2.OrchestratorMessage(
                    beat_ack=orchestrator_pb2.BeatAck(sequence=message.beat.sequence, beat_interval_s=0.2)
                )

    async def GetStatus(self, request: orchestrator_pb2.GetStatusRequest, context: Any) -> orchestrator_pb2.GetStatusResponse:
        self.asked_over = context.peer()
        return orchestrator_pb2.GetStatusResponse()


async def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_beats_go_on_while_a_message_is_being_handled_and_over_a_connection_of_their_own() -> None:
    async def story() -> None:
        servicer, stuck = Servicer(), asyncio.Event()
        handled: list[str] = []
        server = RpcServer(SERVER, NETWORK, clock=SystemClock(), rng=secrets.token_bytes)
        server.add(lambda target: orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(servicer, target))
        port = await server.start("127.0.0.1", 0)
        dialer = Dialer(CLIENT, NETWORK, clock=SystemClock(), rng=secrets.token_bytes)

        served: list[tuple[NodeId, tuple[str, ...]]] = [(SERVER.node_id, (f"127.0.0.1:{port}",))]

        def known() -> list[tuple[NodeId, tuple[str, ...]]]:
            return list(served)

        async def handle(node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
            handled.append(message.WhichOneof("kind") or "")
            if message.HasField("head"):
                stuck.set()
                await asyncio.Event().wait()

        streams = ControlStreams(
            dialer, known, hello=orchestrator_pb2.Hello, beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence),
            on_message=handle, holders=list, clock=SystemClock(), rng=random.Random(1),
        )  # fmt: skip
        orchestrators = Orchestrators(dialer, known)
        running = asyncio.create_task(streams.run())
        try:
            async with asyncio.timeout(120):
                await stuck.wait()
            before, began = servicer.num_beats, time.monotonic()
            await until(lambda: servicer.num_beats >= before + 10)
            assert handled == ["welcome", "head"]
            assert (servicer.num_streams, streams.attached) == (1, (SERVER.node_id,))
            assert time.monotonic() - began >= 1.0  # at their times, not in a flood
            await orchestrators.call(
                orchestrator_pb2_grpc.OrchestratorServiceStub, "GetStatus", orchestrator_pb2.GetStatusRequest()
            )
            assert servicer.asked_over != servicer.attached_over
            streams.renew()
            await until(lambda: servicer.num_streams == 2)
            served.clear()
            streams.renew()  # whether or not the client has noticed yet that its second stream is open
            await until(lambda: not streams.contacts())
            assert servicer.num_streams == 2, "who is known no longer is left"
        finally:
            running.cancel()
            await asyncio.wait([running])
            await orchestrators.close()
            await server.stop(0)

    asyncio.run(story())


def test_news_for_an_orchestrator_that_has_not_welcomed_us_cost_nothing_while_it_does_not() -> None:
    async def story() -> None:
        servicer, clock = Servicer(), CountingClock()
        servicer.welcomes.clear()
        server = RpcServer(SERVER, NETWORK, clock=SystemClock(), rng=secrets.token_bytes)
        server.add(lambda target: orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(servicer, target))
        port = await server.start("127.0.0.1", 0)
        dialer = Dialer(CLIENT, NETWORK, clock=SystemClock(), rng=secrets.token_bytes)

        async def handle(node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
            pass

        streams = ControlStreams(
            dialer, lambda: [(SERVER.node_id, (f"127.0.0.1:{port}",))], hello=orchestrator_pb2.Hello,
            beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence), on_message=handle, holders=list, clock=clock,
            rng=random.Random(1),
        )  # fmt: skip
        running = asyncio.create_task(streams.run())
        try:
            await until(lambda: servicer.num_streams > 0)
            looks, began = clock.num_looks, time.monotonic()
            streams.nudge()
            for _ in range(400):  # turns of the loop, in which it could look again and again
                await asyncio.sleep(0)
            turns = (time.monotonic() - began) / 0.05
            assert clock.num_looks - looks <= 20 + 4 * turns
            servicer.welcomes.set()
            await until(lambda: servicer.num_beats > 0)
        finally:
            servicer.welcomes.set()
            running.cancel()
            await asyncio.wait([running])
            await server.stop(0)

    asyncio.run(story())
