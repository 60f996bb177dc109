"""One end of the hand-over benchmark as a process of its own: our data plane as a worker assembles it, or bare `grpc.aio` streaming.

``serve ours|grpc`` prints one JSON line that ``receive ours|grpc`` takes as its argument; the receiver then answers one JSON line
``{"size", "frames", "one_by_one"}`` on standard input with the seconds it took. Both end when their standard input closes.
"""

from __future__ import annotations

import asyncio
import json
import random
import secrets
import struct
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc
import numpy as np

from benchmarks.handover_replicas import SIZES, Source, Target
from dcnr import limits
from dcnr.ids import ReplicaId
from dcnr.rpc.options import channel_options, server_options
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2
from pnode.hub import LinkHub
from pnode.links import LinkService, PeerLinks
from pnode.outbox import Outbox
from pnode.rpc import HeldPort, data_server, outward
from pnode.service import DataPlane
from pnode.spool import Spool
from trust.delegation import make_delegation, open_delegation
from trust.identity import NodeKey
from trust.tls import self_signed_certificate
from vnode.events import EdgeUp

NETWORK: Final = "7" * 40
CLOCK: Final = SystemClock()
EXECUTOR_THREADS: Final = 4
"""As in `pnode.worker`, which would bring torch along; a test compares them."""
START_S: Final = 20.0
MEASURE_S: Final = 120.0
TENSOR_CHUNK_BYTES: Final = 512 * 1024
_METHOD: Final = "/bench.Bare/Stream"
_ASK: Final = struct.Struct("!QQ")

Transfer = Callable[[int, int], Awaitable[float]]
"""(bytes of a frame, number of frames) → seconds from asking for them until the last one is there."""


async def serve_ours() -> None:
    """A sending worker: data server, hub, outbox with its spool."""
    node, worker = NodeKey.generate(), NodeKey.generate()
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ThreadPoolExecutor(EXECUTOR_THREADS) as executor:
        outbox = Outbox(Spool(Path(directory), max_bytes=limits.SPOOL_BYTES), executor, lambda: "raw")
        source = Source(outbox, NETWORK)
        hub = LinkHub(CLOCK, node.node_id, None, lambda *_: None)  # type: ignore[arg-type]  # this end opens no Link
        hub.add(source)
        held = HeldPort("127.0.0.1", 0)
        nothing: Any = None  # nobody merges or restores here
        server = data_server(
            worker,
            NETWORK,
            CLOCK,
            lambda peer: DataPlane(
                LinkService(CLOCK, worker, hub.find, peer, _told),
                peer=peer,
                desk=nothing,
                donor=nothing,
                uplink=nothing,
                infer=nothing,
            ),
        )
        held.free()
        await server.start(held.host, held.port)
        delegation = make_delegation(node, NETWORK, worker.public_der, 1, [f"127.0.0.1:{held.port}"], CLOCK.wall())
        _print({"delegation": delegation.SerializeToString().hex(), "pnode": node.node_id})
        sending = asyncio.ensure_future(source.run())
        await _until_stdin_closes()
        sending.cancel()
        await server.stop(0)
        outbox.close()


async def receive_ours(there: dict[str, Any]) -> None:
    """A receiving worker: dialler, Links, hub."""
    node, worker = NodeKey.generate(), NodeKey.generate()
    delegation = make_delegation(node, NETWORK, worker.public_der, 1, ["127.0.0.1:1"], CLOCK.wall())
    with ThreadPoolExecutor(EXECUTOR_THREADS) as executor:
        peers = PeerLinks(
            CLOCK, random.Random(1), executor, outward(worker, NETWORK, CLOCK, lambda: delegation).dial, lambda *_: None, _told
        )
        hub = LinkHub(CLOCK, node.node_id, peers, lambda *_: None)
        target = Target(hub, NETWORK)
        running = [asyncio.ensure_future(peers.run()), asyncio.ensure_future(hub.run())]
        hub.add(target)
        envelope = identity_pb2.Envelope.FromString(bytes.fromhex(there["delegation"]))
        hub.neighbour(ReplicaId("a.1"), open_delegation(envelope, network_id=NETWORK, now_wall=CLOCK.wall()))
        hub.want(target, 0, {ReplicaId("a.1"): there["pnode"]})
        async with asyncio.timeout(START_S):
            await target.until(EdgeUp)
        await _answer(target.transfer)
        hub.remove(target)
        for task in running:
            task.cancel()
        await asyncio.wait(running)


async def serve_grpc() -> None:
    """The bare peer: the same certificate, options and chunk size; no header, digest, signature, spool or decoding."""
    buffers = {size: secrets.token_bytes(size) for size in SIZES}

    async def stream(asked: Any, context: Any) -> None:
        async for request in asked:
            size, frames = _ASK.unpack(request)
            data = buffers[size]
            for _ in range(frames):
                for start in range(0, size, limits.MAX_CHUNK_BYTES):
                    await context.write(data[start : start + limits.MAX_CHUNK_BYTES])

    await _serve_bare(grpc.stream_stream_rpc_method_handler(stream))


async def receive_grpc(there: dict[str, Any]) -> None:
    """Reads the bare stream and counts bytes."""
    async with _bare_channel(there) as channel:
        method: Any = channel.stream_stream
        call = method(_METHOD)()

        async def transfer(size: int, frames: int) -> float:
            begun = time.perf_counter()
            await call.write(_ASK.pack(size, frames))
            missing = size * frames
            while missing > 0:
                missing -= len(await call.read())
            return time.perf_counter() - begun

        await _answer(transfer)
        call.cancel()


async def serve_tensors() -> None:
    """The peer that hands over tensor by tensor: a stream each, answered when it is there."""

    async def take(parts: Any, context: Any) -> bytes:
        async for _ in parts:
            pass
        return b"k"

    await _serve_bare(grpc.stream_unary_rpc_method_handler(take))


async def send_tensors(there: dict[str, Any]) -> None:
    """Sends tensors over one warm connection; of several at once as many as fit our window."""
    buffers = {size: secrets.token_bytes(size) for size in SIZES}
    async with _bare_channel(there) as channel:
        method: Any = channel.stream_unary
        call = method(_METHOD)

        async def parts(data: bytes) -> AsyncIterator[bytes]:
            for start in range(0, len(data), TENSOR_CHUNK_BYTES):
                yield data[start : start + TENSOR_CHUNK_BYTES]

        async def transfer(size: int, frames: int) -> float:
            begun = time.perf_counter()
            left = iter(range(frames))

            async def one_after_the_other() -> None:
                for _ in left:
                    await call(parts(buffers[size]))

            await asyncio.gather(*[one_after_the_other() for _ in range(min(frames, max(1, limits.WINDOW_BYTES // size)))])
            return time.perf_counter() - begun

        await _answer(transfer)


async def _serve_bare(handler: Any) -> None:
    """A bare peer's server, until standard input closes."""
    key = NodeKey.generate()
    certificate = self_signed_certificate(key)
    server = grpc.aio.server(options=server_options())
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bench.Bare", {"Stream": handler}),))
    port = server.add_secure_port("127.0.0.1:0", grpc.ssl_server_credentials([(key.private_pem(), certificate)]))
    await server.start()
    _print({"port": port, "id": key.node_id, "certificate": certificate.decode()})
    await _until_stdin_closes()
    await server.stop(0)


def _bare_channel(there: dict[str, Any]) -> grpc.aio.Channel:
    """To that server, over a connection of its own."""
    credentials = grpc.ssl_channel_credentials(root_certificates=there["certificate"].encode())
    return grpc.aio.secure_channel(
        f"127.0.0.1:{there['port']}", credentials, options=channel_options(there["id"], own_connection=True)
    )


async def hand_over_locally(size: int, frames: int) -> dict[str, float]:
    """Two replicas of one worker: seconds for all frames, spool included, and the seconds from sending one until it is there (median)."""
    with tempfile.TemporaryDirectory(prefix="bench-") as directory, ThreadPoolExecutor(EXECUTOR_THREADS) as executor:
        outbox = Outbox(Spool(Path(directory), max_bytes=limits.SPOOL_BYTES), executor, lambda: "raw")
        hub = LinkHub(CLOCK, "p", None, lambda *_: None)  # type: ignore[arg-type]  # nobody is elsewhere
        source, target = Source(outbox, NETWORK), Target(hub, NETWORK)
        hub.add(source)
        hub.add(target)
        hub.want(target, 0, {ReplicaId("a.1"): "p"})
        sending = asyncio.ensure_future(source.run())
        try:
            await target.transfer(size, frames)
            seconds = await target.transfer(size, frames)
        finally:
            sending.cancel()
            await asyncio.wait({sending})
        outbox.close()
        return {"seconds": seconds, "hop_us": 1e6 * float(np.median(source.hops[-frames:]))}


async def _answer(transfer: Transfer) -> None:
    """Answers measurements until standard input closes."""
    _print({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        size, frames = int(asked["size"]), int(asked["frames"])
        async with asyncio.timeout(MEASURE_S):
            if asked["one_by_one"]:
                seconds = sum([await transfer(size, 1) for _ in range(frames)])
            else:
                seconds = await transfer(size, frames)
        _print({"seconds": seconds})


async def _until_stdin_closes() -> None:
    while await asyncio.to_thread(sys.stdin.readline):
        pass


def _told(kind: str, subject: str, reason: str) -> None:
    sys.stderr.write(f"{kind} {subject}: {reason}\n")


def _print(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Entry point."""
    match sys.argv[1:]:
        case ["serve", "ours"]:
            asyncio.run(serve_ours())
        case ["serve", "grpc"]:
            asyncio.run(serve_grpc())
        case ["serve", "tensors"]:
            asyncio.run(serve_tensors())
        case ["receive", "ours", there]:
            asyncio.run(receive_ours(json.loads(there)))
        case ["receive", "grpc", there]:
            asyncio.run(receive_grpc(json.loads(there)))
        case ["receive", "tensors", there]:
            asyncio.run(send_tensors(json.loads(there)))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main()
