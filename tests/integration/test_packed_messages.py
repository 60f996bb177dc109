"""Goal: nobody unpacks what somebody else packed: every server refuses a call of packed messages, and every client an answer that comes packed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from rpc_rig import SERVER, House, in_house

from dcnr.cli.local_door import SOCKET, asked
from dcnr.errors import RemoteFault
from dcnr.v1 import local_pb2, local_pb2_grpc, membership_pb2, membership_pb2_grpc
from pnode.local import LocalDoor
from trust.tls import self_signed_certificate

MADE_BRIEF = "x" * 100_000
"""Much longer than what it is packed into."""
GZIP = grpc.Compression.Gzip
PACKINGS = pytest.mark.parametrize("packing", [GZIP, grpc.Compression.Deflate], ids=["gzip", "deflate"])


class Joins(membership_pb2_grpc.MembershipServiceServicer):
    """Answers any Join at length."""

    async def Join(self, request: membership_pb2.JoinRequest, context: Any) -> membership_pb2.JoinResponse:
        return membership_pb2.JoinResponse(observed_address=MADE_BRIEF)


class Statuses(local_pb2_grpc.LocalServiceServicer):
    """Answers any Status at length."""

    async def Status(self, request: local_pb2.StatusRequest, context: Any) -> local_pb2.StatusResponse:
        return local_pb2.StatusResponse(node_id=MADE_BRIEF)


@asynccontextmanager
async def ended(server: aio.Server) -> AsyncIterator[None]:
    """It is, whatever happens meanwhile."""
    await server.start()
    try:
        yield
    finally:
        await server.stop(0)


@PACKINGS
def test_a_server_refuses_packed_messages_and_goes_on_serving(packing: grpc.Compression) -> None:
    async def scene(house: House) -> None:
        credentials = grpc.ssl_channel_credentials(self_signed_certificate(SERVER))
        options = [("grpc.ssl_target_name_override", SERVER.node_id)]
        async with aio.secure_channel(house.address, credentials, options=options) as channel:
            join = membership_pb2_grpc.MembershipServiceStub(channel).Join
            request = membership_pb2.JoinRequest(network_id=MADE_BRIEF)
            with pytest.raises(aio.AioRpcError) as refused:
                await join(request, compression=packing)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert (await join(request)).observed_address == "open"

    in_house(scene)


@pytest.mark.parametrize("packing", [grpc.Compression.NoCompression, GZIP], ids=["plain", "packed"])
def test_a_dialer_takes_no_packed_answer(packing: grpc.Compression) -> None:
    async def scene(house: House) -> None:
        rogue = aio.server(compression=packing)
        membership_pb2_grpc.add_MembershipServiceServicer_to_server(Joins(), rogue)
        port = rogue.add_secure_port(
            "127.0.0.1:0", grpc.ssl_server_credentials([(SERVER.private_pem(), self_signed_certificate(SERVER))])
        )
        async with ended(rogue):
            joining = house.dialer().join(f"127.0.0.1:{port}", membership_pb2.JoinRequest(), SERVER.node_id)
            if packing is GZIP:
                with pytest.raises(RemoteFault):
                    await joining
            else:
                answer, _ = await joining
                assert answer.observed_address == MADE_BRIEF

    in_house(scene)


def test_the_door_of_a_daemon_refuses_packed_messages(tmp_path: Path) -> None:
    async def scene() -> None:
        door = LocalDoor(status=lambda: local_pb2.StatusResponse(node_id="served"), why=lambda: [], stop=lambda hand_over: 0.0)
        await door.open(tmp_path / SOCKET)
        async with AsyncExitStack() as stack:
            stack.push_async_callback(door.close)
            channel = await stack.enter_async_context(aio.insecure_channel(f"unix:{tmp_path / SOCKET}"))
            status = local_pb2_grpc.LocalServiceStub(channel).Status
            with pytest.raises(aio.AioRpcError) as refused:
                await status(local_pb2.StatusRequest(), compression=GZIP)
            assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert (await status(local_pb2.StatusRequest())).node_id == "served"

    asyncio.run(scene())


def test_a_command_takes_no_packed_answer(tmp_path: Path) -> None:
    async def scene() -> None:
        rogue = aio.server(compression=GZIP)
        local_pb2_grpc.add_LocalServiceServicer_to_server(Statuses(), rogue)
        rogue.add_insecure_port(f"unix:{tmp_path / SOCKET}")
        async with ended(rogue):
            with pytest.raises(RemoteFault):
                await asked(tmp_path, "Status", local_pb2.StatusRequest())

    asyncio.run(scene())
