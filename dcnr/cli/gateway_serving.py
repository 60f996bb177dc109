"""How a gateway is served: beside an orchestrator in its process, or alone with a network found by bootstrap."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from dcnr.cli import output
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.logs import name_node
from dcnr.ports import Clock
from dcnr.rpc.dialer import Dialer
from dcnr.sdk.contact import Contact, find, look_again
from dcnr.settings import GatewaySettings, TracingSettings
from dcnr.system import SystemClock
from dcnr.tracing import started
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network_file import load_policy

T = TypeVar("T")

KEY_FILE: Final = "gateway.pem"
"""The gateway's own key: it may do what any stranger with a session may, no more."""
LOOK_AGAIN_S: Final = 60.0
"""Between questions for a newer network document, where no orchestrator is in this process."""


def gateways_of(settings: GatewaySettings, home: Path) -> tuple[NodeId, ...]:
    """The id of the gateway that `beside` serves, if it does."""
    return (NodeKey.load_or_create(home / KEY_FILE).node_id,) if settings.listen else ()


@contextlib.asynccontextmanager
async def beside(
    settings: GatewaySettings, home: Path, network: InForce, clock: Clock, tracing: TracingSettings
) -> AsyncIterator[Callable[[NodeId, str], None]]:
    """Gives what begins the gateway once the orchestrator of that id serves at that address; it ends with the block. Nothing where none is wanted.

    The address is taken at once. Raises Unavailable (``address_in_use``).
    """
    if not settings.listen:
        yield lambda node_id, address: None
        return
    from gateway.server import bound  # FastAPI and what it needs: only where a gateway is wanted

    listening = bound(settings.listen)
    try:
        async with asyncio.TaskGroup() as group:
            tasks: list[asyncio.Task[None]] = []

            def begin(node_id: NodeId, address: str) -> None:
                known = [(node_id, (address,))]
                tasks.append(group.create_task(_serve(settings, listening, home, network, clock, known, tracing)))

            yield begin
            for task in tasks:
                task.cancel()
    finally:
        listening.close()


async def alone(
    settings: GatewaySettings, home: Path, *, network: Path | None, bootstrap: Sequence[str], network_id: str | None, stop: asyncio.Event,
    tracing: TracingSettings,
) -> None:  # fmt: skip
    """Serves until ``stop`` is set. Raises Unavailable, Refused (``wrong_network``), InvalidInput."""
    from gateway.server import DEFAULT_LISTEN, bound

    clock = SystemClock()
    policy = load_policy(network, clock.wall(), network_id=network_id) if network is not None else None
    listening = bound(settings.listen or DEFAULT_LISTEN)
    try:
        key = NodeKey.load_or_create(home / KEY_FILE)
        dialer = Dialer(key, policy.network_id if policy else network_id or "", clock=clock, rng=secrets.token_bytes)
        finding = find(dialer, policy=policy, bootstrap=bootstrap, network_id=network_id, now_wall=clock.wall())
        contact = await _unless(stop, finding)
        if contact is None:
            return
        if not contact.pinned:
            output.say(f"note: believing the first document seen, network {contact.policy.network_id}; pin it with --network-id")
        found, known = InForce(contact.policy), list(contact.orchestrators)
        serving = asyncio.create_task(_serve(settings, listening, home, found, clock, known, tracing))
        stopping, looking = asyncio.create_task(stop.wait()), asyncio.create_task(_keep_known(dialer, contact, found, known, clock))
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        for task in (stopping, looking, serving):
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await serving
    finally:
        listening.close()


async def _unless(stop: asyncio.Event, work: Coroutine[Any, Any, T]) -> T | None:
    """The result of ``work``, which is cancelled where ``stop`` is set before it has ended: then None. Raises what it raises."""
    working, stopping = asyncio.create_task(work), asyncio.create_task(stop.wait())
    try:
        await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for task in (working, stopping):
            task.cancel()
        await asyncio.wait([working, stopping])


async def _keep_known(
    dialer: Dialer, contact: Contact, network: InForce, known: list[tuple[NodeId, tuple[str, ...]]], clock: Clock
) -> None:
    """Follows newer versions of the network document and the orchestrators that they list."""
    while True:
        await asyncio.sleep(LOOK_AGAIN_S)
        with contextlib.suppress(DcnrError):
            contact = await look_again(dialer, contact, clock.wall())
            network.take(contact.policy.history, now_wall=clock.wall())
            known[:] = contact.orchestrators


async def _serve(
    settings: GatewaySettings, listening: socket.socket, home: Path, network: InForce, clock: Clock,
    known: Sequence[tuple[NodeId, Sequence[str]]], tracing: TracingSettings,
) -> None:  # fmt: skip
    from gateway.server import serve_gateway

    key = NodeKey.load_or_create(home / KEY_FILE)
    name_node(key.node_id)
    tracer = started(tracing, "dcnr-gateway", key.node_id)
    orchestrators = Orchestrators(Dialer(key, network.policy.network_id, clock=clock, rng=secrets.token_bytes), lambda: known)
    try:
        await serve_gateway(
            settings, listening, orchestrators, policy=lambda: network.policy, clock=clock, home=home,
            on_ready=lambda address: output.say(f"  gateway http://{address}"), tracer=tracer,
        )  # fmt: skip
    finally:
        await orchestrators.close()
        tracer.close()
