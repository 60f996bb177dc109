"""Goal: over a real connection too, a sibling that asks again ends its older call, read or not, and gets a whole answer itself."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import grpc
import pytest
from test_merge_desk import ANCHOR, HELPER, NETWORK, Counter, delta, opening, run
from test_merge_desk import DATA as WEIGHTS

from dcnr.limits import MIB
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import error_from_rpc
from dcnr.rpc.server import RpcServer
from dcnr.system import SystemClock
from dcnr.v1 import vnode_pb2, vnode_pb2_grpc
from pnode.rpc import pnode_of
from pnode.service import DataPlane
from pnode.uplink import Uplink
from trust.identity import NodeKey
from vnode.vocabulary import Verdict

ANCHOR_BYTES = 24 * MIB
"""More than connections hold."""


def test_an_older_call_ends_though_nobody_reads_it() -> None:
    async def story(counter: Counter) -> None:
        clock, unused, key = SystemClock(), None, NodeKey.generate()
        nothing: Any = unused
        server = RpcServer(key, NETWORK, clock=clock, rng=secrets.token_bytes)
        plane = DataPlane(
            nothing, peer=pnode_of, desk=lambda name: counter.desk, donor=nothing, uplink=Uplink(clock), infer=nothing
        )
        server.add(plane.add_to)
        await server.start("127.0.0.1", 0)
        dialer = Dialer(HELPER, NETWORK, clock=clock, rng=secrets.token_bytes, own_connections=True)
        connections = [await dialer.connect(server.node_id, [f"127.0.0.1:{server.port}"]) for _ in range(2)]

        async def requests() -> AsyncIterator[vnode_pb2.MergeRequest]:
            yield vnode_pb2.MergeRequest(open=opening(delta()))
            yield vnode_pb2.MergeRequest(chunk=WEIGHTS)

        async def called(number: int) -> Any:
            """A call whose answer has begun."""
            connection = connections[number]
            call: Any = vnode_pb2_grpc.VNodeServiceStub(connection.channel).Merge(requests(), metadata=connection.metadata)
            await counter.until_heard(number + 1)
            counter.desk.answer(counter.heard[-1].request, Verdict.MERGED, "", "", replace(ANCHOR, data=bytes(ANCHOR_BYTES)))
            assert (await call.read()).answer.anchor_bytes == ANCHOR_BYTES
            return call

        async def rest(call: Any) -> int:
            count = 0
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
                count += len(message.chunk)
            return count

        older, newer = await called(0), await called(1)
        assert await rest(newer) == ANCHOR_BYTES
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await rest(older)
        assert error_from_rpc(ended.value).code == "replaced"
        for connection in connections:
            await connection.close()
        await server.stop(0)

    run(story)
