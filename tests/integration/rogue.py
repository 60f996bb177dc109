"""A listed orchestrator that lies: the real server and session, false desired states and heads on every control stream, at its old address."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from dcnr.rpc.guard import peer_of
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2, orchestrator_pb2_grpc
from trust.envelope import seal
from trust.identity import NodeKey

FAR_EPOCH = 2**63


class Rogue(orchestrator_pb2_grpc.OrchestratorServiceServicer):
    """Claims for itself (listed) and for a stranger (a good key that no document lists) that nothing is placed anywhere."""

    def __init__(self, key: NodeKey, stranger: NodeKey, desired: model_pb2.DesiredState) -> None:
        self._key, self._stranger, self._desired = key, stranger, desired
        self.deceived: set[str] = set()

    def lies(self, pnode_id: str) -> Iterator[orchestrator_pb2.OrchestratorMessage]:
        for signer, epoch in ((self._stranger, int(self._desired.epoch)), (self._stranger, FAR_EPOCH), (self._key, FAR_EPOCH)):
            desired = model_pb2.DesiredState()
            desired.CopyFrom(self._desired)
            desired.epoch, desired.holder, desired.sequence, desired.pnode_id = epoch, signer.node_id, FAR_EPOCH, pnode_id
            del desired.assignments[:]
            head = model_pb2.Head(
                network_id=desired.network_id, model=desired.model, epoch=epoch, holder=signer.node_id, sequence=FAR_EPOCH,
                plan_digest=desired.plan_digest, plan_sequence=FAR_EPOCH,
            )  # fmt: skip
            sealed = seal(identity_pb2.DOMAIN_HEAD, head, signer)
            yield orchestrator_pb2.OrchestratorMessage(desired=seal(identity_pb2.DOMAIN_DESIRED_STATE, desired, signer))
            yield orchestrator_pb2.OrchestratorMessage(
                head=orchestrator_pb2.HeadNews(head=sealed, head_url="http://127.0.0.1:1/models/head")
            )

    async def Attach(self, requests: Any, context: Any) -> AsyncIterator[orchestrator_pb2.OrchestratorMessage]:
        pnode_id = peer_of(context).node_id
        first = True
        async for message in requests:
            if first:
                first = False
                yield orchestrator_pb2.OrchestratorMessage(
                    welcome=orchestrator_pb2.Welcome(orchestrator_id=self._key.node_id, beat_interval_s=0.5)
                )
                for lie in self.lies(pnode_id):
                    yield lie
                continue
            self.deceived.add(pnode_id)  # it has read everything above and goes on beating
            yield orchestrator_pb2.OrchestratorMessage(
                beat_ack=orchestrator_pb2.BeatAck(sequence=message.beat.sequence, beat_interval_s=0.5)
            )

    async def ConfirmHead(self, request: Any, context: Any) -> orchestrator_pb2.ConfirmHeadResponse:
        """Its own word on its own head, with the right nonce."""
        lie = next(item for item in reversed(list(self.lies(""))) if item.HasField("head"))
        statement = model_pb2.HeadStatement(nonce=request.nonce, head=lie.head.head, model=request.model)
        return orchestrator_pb2.ConfirmHeadResponse(statement=seal(identity_pb2.DOMAIN_HEAD_STATEMENT, statement, self._key))


@contextmanager
def rogue_at(port: int, key: NodeKey, stranger: NodeKey, desired: model_pb2.DesiredState) -> Iterator[Rogue]:
    """Serves on a thread of its own until the block ends."""
    rogue, loop = Rogue(key, stranger, desired), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="rogue", daemon=True)
    thread.start()

    async def start() -> RpcServer:
        server = RpcServer(key, desired.network_id, clock=SystemClock(), rng=secrets.token_bytes)
        server.add(lambda it: orchestrator_pb2_grpc.add_OrchestratorServiceServicer_to_server(rogue, it))
        await server.start("127.0.0.1", port)
        return server

    server = asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    try:
        yield rogue
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(0.0), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()
