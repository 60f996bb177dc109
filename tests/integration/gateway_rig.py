"""A gateway on loopback before a real orchestrator with two PNodes, in a thread of its own, so that tests ask as clients do: over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import httpx
from orchestrator_parts import Worker, stage
from service_rig import CLOCK, PNode, dial, network_over, serving

from dataservice.embedded import EmbeddedStore
from dataservice.s3 import S3Store, StoreAddress
from dcnr.client import Orchestrators
from dcnr.rpc.dialer import Dialer
from dcnr.settings import GatewaySettings
from dcnr.v1 import identity_pb2, model_pb2
from gateway.keys import FILE, KeyFile
from gateway.server import address_of, bound, serve_gateway
from trust.envelope import seal, text_of_envelope
from trust.identity import NodeKey
from trust.network import NetworkPolicy

T = TypeVar("T")
READY_S = 60.0
MODEL = "toy"


@dataclass
class Town:
    """What tests use."""

    loop: asyncio.AbstractEventLoop
    home: Path
    policy: NetworkPolicy
    maintainer: NodeKey
    store: S3Store
    orchestrator: tuple[NodeKey, str]
    workers: list[Worker]
    url: str = ""
    running: list[asyncio.Task[None]] = field(default_factory=list)

    def run(self, work: Coroutine[Any, Any, T], within_s: float = READY_S) -> T:
        """The result of ``work`` in the town's loop."""
        future: Future[T] = asyncio.run_coroutine_threadsafe(work, self.loop)
        return future.result(within_s)

    def client(self, key: str = "", **options: Any) -> httpx.Client:
        """A client of the gateway."""
        headers = {**({"Authorization": f"Bearer {key}"} if key else {}), **options.pop("headers", {})}
        return httpx.Client(base_url=self.url, headers=headers, timeout=30.0, **options)

    def key(self, scope: str = "client", *, signed: bool = False, days: float = 1.0) -> str:
        """A new key that the gateway knows already."""
        expires = CLOCK.wall() + days * 86_400
        key, text = KeyFile(self.home / FILE).add(
            "test", scope, expires=expires, signed=signed, now_wall=CLOCK.wall(), rng=secrets.token_bytes
        )
        self.until(lambda: days <= 0 or "UNAUTHORIZED_KEY" not in self._told(text), f"key {key.id} is known")
        return text

    def staged(self, job_id: str, model: str = MODEL) -> identity_pb2.Envelope:
        """A signed request whose objects are in the store."""
        return self.run(stage(self.store, self.policy, self.maintainer, model, CLOCK, job_id))

    @functools.cached_property
    def town_key(self) -> str:
        """A client's key for all that do not care which."""
        return self.key()

    def until(self, condition: Callable[[], bool], what: str, within_s: float = READY_S) -> None:
        """Returns when the condition holds."""
        deadline = CLOCK.monotonic() + within_s
        pause = threading.Event()
        while not condition():
            assert CLOCK.monotonic() < deadline, f"waited in vain until {what}"
            pause.wait(0.05)

    @contextlib.contextmanager
    def another(self, settings: GatewaySettings, home: Path, listening: socket.socket | None = None) -> Iterator[str]:
        """The URL of one more gateway, with settings of its own."""
        found = listening or bound("127.0.0.1:0")
        task = self.run(_started(serve(self, settings, found, home)))
        try:
            yield f"http://{address_of(found)}"
        finally:
            self.run(ended(task))
            found.close()

    def _told(self, key: str) -> str:
        with self.client(key) as client:
            return client.get("/version").text


async def serve(town: Town, settings: GatewaySettings, listening: socket.socket, home: Path) -> None:
    """A gateway over the town's orchestrator."""
    key, address = town.orchestrator
    dialer = Dialer(NodeKey.generate(), town.policy.network_id, clock=CLOCK, rng=secrets.token_bytes)
    orchestrators = Orchestrators(dialer, lambda: [(key.node_id, (address,))])
    try:
        await serve_gateway(settings, listening, orchestrators, policy=lambda: town.policy, clock=CLOCK, home=home)
    finally:
        await orchestrators.close()


async def _started(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    return asyncio.create_task(work)


async def ended(task: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@contextlib.contextmanager
def town(directory: Path, settings: GatewaySettings) -> Iterator[Town]:
    """Store, orchestrator, PNodes and gateway; ended with the block. The store is its own: models of other tests would be shown too."""
    store = EmbeddedStore(directory / "store", port=0)
    address = store.start().address()
    try:
        with _town(address, directory, settings) as made:
            yield made
    finally:
        store.kill()


@contextlib.contextmanager
def _town(store: StoreAddress, directory: Path, settings: GatewaySettings) -> Iterator[Town]:
    made: Future[Town] = Future()
    loop, stop = asyncio.new_event_loop(), asyncio.Event()

    def work() -> None:
        try:
            loop.run_until_complete(_live(store, directory, settings, made, stop))
        except BaseException as error:
            if made.done():
                raise
            made.set_exception(error)
        finally:
            loop.close()

    thread = threading.Thread(target=work, name="town")
    thread.start()
    try:
        yield made.result(READY_S)
    finally:
        if not loop.is_closed():
            loop.call_soon_threadsafe(stop.set)
        thread.join(READY_S)


async def _live(store: StoreAddress, directory: Path, settings: GatewaySettings, made: Future[Town], stop: asyncio.Event) -> None:
    maintainer, key = NodeKey.generate(), NodeKey.generate()
    policy = network_over(store, maintainer, key)
    objects, listening = S3Store(store), bound("127.0.0.1:0")
    home = directory / "gateway"
    home.mkdir()
    try:
        async with serving(store, directory / "o", key, policy) as address:
            workers = [Worker(policy, objects, CLOCK) for _ in range(2)]
            here = Town(asyncio.get_running_loop(), home, policy, maintainer, objects, (key, address), workers)
            here.url = f"http://{address_of(listening)}"
            links = [await dial(worker.daemon, policy, key, address) for worker in workers]
            tasks = [asyncio.create_task(PNode(worker, policy).attach(link)) for worker, link in zip(workers, links, strict=True)]
            tasks.append(asyncio.create_task(serve(here, settings, listening, home)))
            made.set_result(here)
            await stop.wait()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for link in links:
                await link.close()
    finally:
        listening.close()
        objects.close()


def in_base64(envelope: identity_pb2.Envelope) -> dict[str, Any]:
    """The body of a request with a signed envelope."""
    return {"envelope": text_of_envelope(envelope)}


def cancelled(here: Town, job_id: str, *keys: NodeKey) -> identity_pb2.Envelope:
    """A job called off, by whoever has these keys."""
    cancel = model_pb2.JobCancel(
        network_id=here.policy.network_id, job_id=job_id, model=MODEL, reason="a test", created_unix_ms=int(CLOCK.wall() * 1000)
    )
    return seal(identity_pb2.DOMAIN_JOB_CANCEL, cancel, *keys)


def paused(here: Town, job_id: str, number: int, paused: bool, *keys: NodeKey) -> identity_pb2.Envelope:
    """A job called to a halt, or let go on, by whoever has these keys."""
    wish = model_pb2.JobPause(
        network_id=here.policy.network_id, job_id=job_id, model=MODEL, number=number, paused=paused, reason="a test",
        created_unix_ms=int(CLOCK.wall() * 1000),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_JOB_PAUSE, wish, *keys)


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal."""
    return answer.status_code, answer.json()["error"]["code"]


def rest_of(connection: socket.socket) -> bytes:
    """All bytes until the other side closes."""
    parts = []
    while part := connection.recv(65536):
        parts.append(part)
    return b"".join(parts)
