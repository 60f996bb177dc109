"""What ``pnode dashboard`` runs: a gateway for the owner alone, on this machine, that asks the daemon here and the orchestrators that it knows.

The page and its files come from the installed package: they open while no orchestrator answers, and while the daemon does not run.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import secrets
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from dcnr.cli.local_door import asked
from dcnr.errors import DcnrError, InvalidInput, NotFound
from dcnr.ids import NodeId
from dcnr.limits import KIB

if TYPE_CHECKING:
    from dcnr.v1 import local_pb2
    from trust.in_force import InForce

DEFAULT_LISTEN: Final = "127.0.0.1:7785"
FOLDER: Final = "dashboard"
"""In the PNode's home: the gateway's own key."""
ASK_EVERY_S: Final = 5.0
FIRST_WITHIN_S: Final = 5.0
"""A daemon that has just begun may know no orchestrator yet; so long it is waited for before the page opens."""
LOOK_S: Final = 0.2
LOG_TAIL_BYTES: Final = 64 * KIB
_TOKEN_BYTES: Final = 24


async def serve(home: Path, listen: str, *, on_ready: Callable[[str], None], stop: asyncio.Event) -> None:
    """Serves until ``stop`` is set; ``on_ready`` gets the address of the page, token included.

    Raises InvalidInput for an address that others reach too, NotFound where this home has joined no network, Unavailable (``address_in_use``).
    """
    from dcnr.cli.note import note_of_home
    from dcnr.client import Orchestrators
    from dcnr.rpc.dialer import Dialer
    from dcnr.settings import GatewaySettings
    from dcnr.system import SystemClock
    from gateway.here import Here
    from gateway.server import bound, serve_gateway
    from pnode.home import Home
    from trust.identity import NodeKey
    from trust.in_force import InForce
    from trust.network_file import load_policy

    paths, clock = Home(home), SystemClock()
    if not paths.network.exists():
        raise NotFound(f"{home} has joined no network yet", code="no_network", remedy="pnode start --bootstrap HOST:PORT")
    network = InForce(load_policy(paths.network, clock.wall()))
    listening = bound(listen)
    try:
        _only_here(str(listening.getsockname()[0]))
        folder = home / FOLDER
        folder.mkdir(mode=0o700, exist_ok=True)
        dialer = Dialer(
            NodeKey.load_or_create(folder / "gateway.pem"), network.policy.network_id, clock=clock, rng=secrets.token_bytes
        )
        known: list[tuple[NodeId, Sequence[str]]] = []
        orchestrators = Orchestrators(dialer, lambda: known)
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        here = Here(
            token,
            lambda method, request: asked(home, method, request),
            lambda lines: tail(paths.log / "worker.log", lines),
            partial(note_of_home, home, NodeKey.load(paths.key).node_id),
        )
        await first_known(home, known)
        serving = asyncio.create_task(
            serve_gateway(
                GatewaySettings(), listening, orchestrators, policy=lambda: network.policy, clock=clock, home=folder, here=here,
                on_ready=lambda address: on_ready(f"http://{address}/#/here/{token}"),
            )
        )  # fmt: skip
        beside = [asyncio.create_task(_keep_known(home, known, network)), asyncio.create_task(stop.wait())]
        try:
            await asyncio.wait([serving, beside[1]], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*beside, serving):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await serving
            await orchestrators.close()
    finally:
        listening.close()


def tail(path: Path, lines: int) -> list[str]:
    """The newest whole lines of a log, at most so many of the last `LOG_TAIL_BYTES`; none where there is no log."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            first = max(0, size - LOG_TAIL_BYTES)
            file.seek(first)
            found = file.read(LOG_TAIL_BYTES).decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return found[1 if first else 0 :][-lines:]


async def first_known(home: Path, known: list[tuple[NodeId, Sequence[str]]]) -> None:
    """Returns when the daemon knows an orchestrator, at once where no daemon answers, and after `FIRST_WITHIN_S` anyway."""
    from dcnr.v1 import local_pb2

    with contextlib.suppress(DcnrError, TimeoutError):
        async with asyncio.timeout(FIRST_WITHIN_S):
            while not known:
                known[:] = contacts(await asked(home, "Status", local_pb2.StatusRequest()))
                if not known:
                    await asyncio.sleep(LOOK_S)


async def _keep_known(home: Path, known: list[tuple[NodeId, Sequence[str]]], network: InForce) -> None:
    """Orchestrators and network document are those that the daemon knows; the last ones while it does not run."""
    from dcnr.system import SystemClock
    from dcnr.v1 import local_pb2
    from pnode.home import Home
    from trust.network_file import load_policy

    clock, path = SystemClock(), Home(home).network
    while True:
        with contextlib.suppress(DcnrError):
            network.take((await asyncio.to_thread(load_policy, path)).history, now_wall=clock.wall())
        with contextlib.suppress(DcnrError):
            status: local_pb2.StatusResponse = await asked(home, "Status", local_pb2.StatusRequest())
            known[:] = contacts(status)
        await asyncio.sleep(ASK_EVERY_S)


def contacts(status: local_pb2.StatusResponse) -> list[tuple[NodeId, Sequence[str]]]:
    """Whom the daemon has an address of; the attached ones first."""
    rows = sorted((one for one in status.orchestrators if one.address), key=lambda one: (not one.attached, one.node_id))
    return [(NodeId(one.node_id), (one.address,)) for one in rows]


def _only_here(host: str) -> None:
    if not ipaddress.ip_address(host.partition("%")[0]).is_loopback:
        raise InvalidInput(
            "the own page is for this machine alone", code="not_loopback", remedy="--listen 127.0.0.1:PORT; from elsewhere: ssh -L PORT:127.0.0.1:PORT"
        )  # fmt: skip
