"""What `pnode start` runs: home, key, network, probe, then the daemon until it is told to stop."""

from __future__ import annotations

import asyncio
import random
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from shlex import quote
from typing import Final

from dcnr.errors import InvalidInput, Refused, Unavailable
from dcnr.ports import Clock
from dcnr.rpc.dialer import Dialer
from dcnr.settings import PNodeSettings
from dcnr.system import SystemClock
from dcnr.tracing import started
from dcnr.v1 import identity_pb2, local_pb2
from membership.bootstrap import listed
from membership.discovery import discover
from pnode.daemon import Daemon
from pnode.disk import on_disk
from pnode.home import Home
from pnode.joining import Joining
from pnode.lent import advertised_host, beyond
from pnode.probe import probe_machine
from pnode.reasons import NOT_STARTED
from pnode.supervisor import WORKER, Start
from trust.identity import NodeKey
from trust.in_force import InForce
from trust.network import NetworkPolicy
from trust.network_file import newest_policy, save_policy
from trust.ownership import load_ownership
from trust.public_names import check_public_name
from vnode.registry import registry_with

LOOK_S: Final = 0.5
STARTING: Final = "starting"
TAKING_PART: Final = ("idle", "working", "serving")
"""States in which nothing has to happen first."""


async def run_pnode(
    settings: PNodeSettings, home_path: Path, environment: Mapping[str, str], *, on_ready: Callable[[Daemon], None] = lambda daemon: None,
    tell: Callable[[str], None] = lambda line: None, settings_shown: Sequence[local_pb2.Setting] = (), worker: Start = WORKER,
) -> int:  # fmt: skip
    """Runs one PNode until SIGTERM, SIGINT or the end of its terminal (a second one skips handing over) and returns its exit code.

    ``tell`` hears, a line each, which limits are beyond this machine, and once that it takes part.
    """
    settings = replace(settings, bootstrap=listed(settings.bootstrap, settings.bootstrap_file))
    clock = SystemClock()
    home = Home(home_path)
    home.open()
    try:
        key = NodeKey.load_or_create(home.key)
        check_public_name(settings.name)
        registry = registry_with(settings.components)
        started(
            settings.tracing, "dcnr-pnode", key.node_id
        ).close()  # what is wrong with it is said here: a worker could tell only its log
        owner = _owner(settings, home, key)
        machine = await asyncio.to_thread(probe_machine, home_path)
        for line in beyond(settings, machine):
            tell(line)
        stopped = asyncio.Event()
        _on_signal(stopped.set, stopped.set)
        policy = _known_policy(settings, home, clock) or await _found_policy(settings, home, key, clock, stopped)
        if policy is None:
            return 0
        save_policy(home.network, policy)
        bootstrap = [*settings.bootstrap, *policy.document.bootstrap]
        host = partial(advertised_host, settings, bootstrap, single_host=policy.single_host)
        if not await has_address(host, Joining(key.node_id, clock, stopped), home.socket):
            return 0
        begun = asyncio.Event()

        def ready(daemon: Daemon) -> None:
            on_ready(daemon)
            begun.set()

        incarnation = await _numbered(home, clock, stopped)
        if incarnation is None:
            return 0
        network = InForce(policy, partial(save_policy, home.network))
        daemon = Daemon(
            settings, home, key=key, network=network, machine=machine, clock=clock, rng=random.Random(secrets.randbits(64)),
            environment=environment, bootstrap=bootstrap, registry=registry, incarnation=incarnation, owner=owner, on_ready=ready,
            settings_shown=settings_shown, worker=worker,
        )  # fmt: skip
        _on_signal(lambda: daemon.request_stop(hand_over=True), daemon.hang_up)
        if stopped.is_set():  # in the turn in which the network was found
            return 0
        await _run(daemon, begun, lambda line: tell(f"{line}; watch it with: pnode status --home {quote(str(home_path))}"))
    finally:
        home.close()
    return 0


async def has_address(host: Callable[[], str], joining: Joining, socket: Path) -> bool:
    """Waits until this machine has an address to tell others: a daemon may start before its line is up. False if it was stopped before. ``host`` blocks, and
    raises Unavailable while there is none.
    """

    async def ask() -> bool:
        await asyncio.to_thread(host)
        return True

    try:
        return await ask()
    except Unavailable:
        return bool(await joining.find(ask, socket))


async def _numbered(home: Home, clock: Clock, stopped: asyncio.Event) -> int | None:
    """This life's number, once the disk has it; None if it was stopped before. Raises Unavailable where the disk takes none."""
    try:
        return await on_disk(lambda: home.next_incarnation(clock.wall()), stopped)
    except Unavailable:
        if stopped.is_set():
            return None
        raise


async def _run(daemon: Daemon, begun: asyncio.Event, tell: Callable[[str], None]) -> None:
    telling = asyncio.create_task(_told_ready(daemon, begun, tell))
    try:
        await daemon.run()
    finally:
        telling.cancel()
        await asyncio.wait([telling])


async def _told_ready(daemon: Daemon, begun: asyncio.Event, tell: Callable[[str], None]) -> None:
    """One line when it first takes part, and before that one for each reason why its worker does not start: the log leaves out a worker's last words. A start
    takes seconds, in which its screen says that it is starting.
    """
    await begun.wait()
    told = NOT_STARTED
    while True:
        status = daemon.status()
        if status.state in TAKING_PART:
            tell(f"ready: {status.state}, {status.reason}")
            return
        if status.state == STARTING and status.reason != told:
            told = status.reason
            tell(f"not ready: {told}; it is tried again")
        await asyncio.sleep(LOOK_S)


def _on_signal(stop: Callable[[], object], hang_up: Callable[[], object]) -> None:
    """What SIGTERM and SIGINT do from now on, and what the end of the terminal does: nothing to who was started with ``nohup``."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hang_up)


def _owner(settings: PNodeSettings, home: Home, key: NodeKey) -> identity_pb2.Envelope | None:
    """The statement whose machine this is. Raises NotFound, Corrupt where one is asked for that does not hold."""
    path = Path(settings.owner) if settings.owner else home.owner
    return load_ownership(path, key.node_id) if settings.owner or path.exists() else None


def _known_policy(settings: PNodeSettings, home: Home, clock: SystemClock) -> NetworkPolicy | None:
    """The network from the given file or from an earlier run. Raises Refused (``wrong_network``), InvalidInput (``no_network``)."""
    wanted, given = settings.network_id, Path(settings.network) if settings.network else None
    if given is not None or home.network.exists():
        policy = newest_policy(given, home.network, clock.wall())
        if wanted and policy.network_id != wanted:
            raise Refused(
                f"{given or home.network} belongs to network {policy.network_id}, not to {wanted}", code="wrong_network",
                remedy="use another --home, or the right --network-id",
            )  # fmt: skip
        return policy
    if not settings.bootstrap:
        raise InvalidInput(
            "no network is known",
            code="no_network",
            remedy="pass --bootstrap HOST:PORT of any node of the network, or --network FILE",
        )
    return None


async def _found_policy(
    settings: PNodeSettings, home: Home, key: NodeKey, clock: SystemClock, stopped: asyncio.Event
) -> NetworkPolicy | None:
    """The network of the first node of the bootstrap list that answers; None if this was stopped before."""
    wanted = settings.network_id
    dialer = Dialer(key, wanted, clock=clock, rng=secrets.token_bytes)

    async def ask() -> NetworkPolicy:
        policy, _ = await discover(settings.bootstrap, dialer=dialer, clock=clock, network_id=wanted or None)
        return policy

    return await Joining(key.node_id, clock, stopped).find(ask, home.socket)
