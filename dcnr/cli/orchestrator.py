"""``orchestrator``: runs one of the network's orchestrators, of which any number may run, with no leader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dcnr.cli import errors, output
from dcnr.cli.homes import (
    BootstrapFileOption,
    ComponentsOption,
    HomeOption,
    JsonOption,
    LogLevelOption,
    VersionOption,
    home_of,
    number_option,
    settings_of,
    show_settings,
)
from dcnr.crashpoints import reached
from dcnr.errors import NotRunning, Refused, TimedOut, Unavailable
from dcnr.settings import OrchestratorSettings

if TYPE_CHECKING:
    from dcnr.ports import Clock
    from dcnr.v1 import orchestrator_pb2
    from trust.identity import NodeKey
    from trust.network import NetworkPolicy
    from vnode.checks.verifying import Verifier

app = typer.Typer(
    help="Run an orchestrator: it places, tracks, validates and serves. Any number of them, no leader.\n\nFirst: orchestrator key",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip

config = typer.Typer(help="Settings and where they come from.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")

RUN_FILE: Final = "run.json"
KEY_FILE: Final = "key.pem"
NETWORK_FILE: Final = "network.json"
_START: Final = "orchestrator start --network network.json"
STOP_LIMIT_S: Final = 30.0
POLL_S: Final = 0.1


@app.callback()
def _root(version: VersionOption = False) -> None:
    pass


@app.command()
def key(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print this orchestrator's id. Its key is made first if there is none; `dcnr network create --orchestrator` wants the id."""
    from trust.identity import NodeKey

    path = home_of(OrchestratorSettings, home) / KEY_FILE
    node_id = NodeKey.load_or_create(path).node_id
    output.emit({"node_id": node_id, "key": str(path)}, lambda: node_id, as_json=as_json)


@app.command()
def start(
    network: Annotated[Path | None, typer.Option(help="Network file from a maintainer.", show_default=False)] = None,
    bootstrap: Annotated[list[str] | None, typer.Option(help="A node of the network, [ID@]HOST:PORT. May be repeated.")] = None,
    bootstrap_file: BootstrapFileOption = None,
    store_url: Annotated[str | None, typer.Option(help="S3-compatible store; empty: the embedded one.", show_default=False)] = None,
    store_file: Annotated[Path | None, typer.Option(help="The store's credentials, 0600.", show_default=False)] = None,
    store_bucket: Annotated[str | None, typer.Option(help="Bucket.", show_default=False)] = None,
    store_listen: Annotated[
        str | None, typer.Option(help="Address that the embedded store listens on.", show_default=False)
    ] = None,
    store_port: Annotated[str | None, number_option("Port of the embedded store; 0: a free one.")] = None,
    store_public_url: Annotated[str | None, typer.Option(help="The store as volunteers reach it.", show_default=False)] = None,
    trusted: Annotated[
        Path | None, typer.Option(help="List of PNodes to check less: an id a line, and a date if wanted.", show_default=False)
    ] = None,
    control_port: Annotated[str | None, number_option("TCP port; 0: a free one.")] = None,
    dht_port: Annotated[str | None, number_option("UDP port of the directory; 0: a free one.")] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    advertise_host: Annotated[str | None, typer.Option(help="Address that others are told.", show_default=False)] = None,
    verifier: Annotated[
        bool | None,
        typer.Option("--verifier", help="Check claimed training here too, in a process of its own.", show_default=False),
    ] = None,
    gateway: Annotated[
        str | None, typer.Option(help="Serve REST at this HOST:PORT too, say 127.0.0.1:7780.", show_default=False)
    ] = None,
    components: ComponentsOption = None,
    log_level: LogLevelOption = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log lines as JSON.", show_default=False)] = None,
    home: HomeOption = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")] = False,
) -> None:
    """Serve the network until Ctrl-C.

    Example: orchestrator start --network network.json --store-url http://127.0.0.1:9000 --store-file store.json
    """
    directory = home_of(OrchestratorSettings, home)
    flags: dict[str, Any] = {
        "network": network, "bootstrap": bootstrap, "bootstrap_file": bootstrap_file, "components": components, "store_url": store_url,
        "store_file": store_file, "store_bucket": store_bucket, "store_listen": store_listen,
        "store_port": store_port, "store_public_url": store_public_url, "control_port": control_port, "dht_port": dht_port,
        "listen_host": listen_host, "advertise_host": advertise_host, "log_level": log_level, "log_json": log_json,
        "trusted": trusted, "verifier": verifier, "gateway_listen": gateway,
    }  # fmt: skip
    settings = settings_of(OrchestratorSettings, directory, flags).value

    from dcnr.cli import foreground

    foreground.start_logging(level=settings.log_level, as_json=settings.log_json)
    if until_stdin_closes:
        foreground.end_with_stdin()
    foreground.run(_serve(settings, directory))


@app.command()
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """What the running orchestrator says of itself."""
    from dcnr.cli.screens import orchestrator_screen
    from dcnr.sdk.plain import plain

    answer = _status(home_of(OrchestratorSettings, home))
    output.emit(plain(answer), lambda: orchestrator_screen(answer), as_json=as_json)


@app.command()
def stop(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """End the running orchestrator. Another one takes over what it decides."""
    import os
    import signal
    import time

    from dcnr.home_lock import is_held

    directory = home_of(OrchestratorSettings, home)
    _status(directory)  # the process that is written down is alive and has our key: no stranger is signalled
    pid = int(_running(directory)["pid"])
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while is_held(directory):
        if time.monotonic() > deadline:
            raise TimedOut(f"process {pid} has not ended within {STOP_LIMIT_S:.0f} s", code="still_running", pid=pid)
        time.sleep(POLL_S)
    output.emit({"stopped": True}, lambda: "stopped", as_json=as_json)


@config.command("show")
def config_show(
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The settings that a start without flags takes here. The file, then the environment. Flags of a running orchestrator are not seen."""
    show_settings(OrchestratorSettings, home_of(OrchestratorSettings, home), origin=origin, as_json=as_json)


async def _serve(settings: OrchestratorSettings, home: Path) -> None:
    """Runs until SIGTERM or SIGINT; a second one does not wait for anything. Raises Refused where an orchestrator runs on ``home``."""
    from contextlib import closing

    from dcnr.home_lock import HomeLock

    with closing(HomeLock(home, "an orchestrator", "see `orchestrator status`, or choose another --home")):
        try:
            await _serve_alone(settings, home)
        finally:
            (home / RUN_FILE).unlink(missing_ok=True)


async def _serve_alone(settings: OrchestratorSettings, home: Path) -> None:
    import asyncio
    import os
    import random
    import secrets
    import signal
    from functools import partial

    from dcnr.cli import foreground
    from dcnr.cli.gateway_serving import beside, gateways_of
    from dcnr.system import SystemClock
    from orchestrator.service import run_orchestrator
    from trust.addresses import join_address
    from trust.identity import NodeKey
    from trust.in_force import InForce
    from trust.network_file import save_policy

    clock, stop = SystemClock(), asyncio.Event()
    key = NodeKey.load_or_create(home / KEY_FILE)
    policy = _policy(settings, home, key.node_id, clock.wall())
    network = InForce(policy, partial(save_policy, home / NETWORK_FILE))
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None

    def end() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end)

    async with beside(settings.gateway, home, network, clock, settings.tracing) as begin:

        def ready(host: str, port: int) -> None:
            foreground.loaded()
            begin(key.node_id, address := join_address(host, port))
            running = {"pid": os.getpid(), "node_id": key.node_id, "address": address, "network_id": policy.network_id}
            _write_running(home, running)
            output.say(
                f"orchestrator {key.node_id}\n  network {policy.document.name} {policy.network_id}"
                f"\n  address {key.node_id}@{running['address']}"
            )

        await run_orchestrator(
            settings, home, key=key, network=network, clock=clock, rng=random.Random(secrets.randbits(64)), random_bytes=secrets.token_bytes,
            stop=stop, store_file=Path(settings.store_file) if settings.store_file else None, on_ready=ready,
            gateways=gateways_of(settings.gateway, home),
            verifier=_verifier(settings, home, key, policy.network_id, clock) if settings.verifier else None,
        )  # fmt: skip


def _verifier(settings: OrchestratorSettings, home: Path, key: NodeKey, network_id: str, clock: Clock) -> Verifier:
    """One that starts its process when there is something to check."""
    import os

    from pnode.verifying import WorkerVerifier

    return WorkerVerifier(
        key, network_id, clock=clock, directory=home / "verifier", environment=dict(os.environ), components=settings.components
    )


def _policy(settings: OrchestratorSettings, home: Path, node_id: str, now_wall: float) -> NetworkPolicy:
    """The network's policy: from the given file or from what an earlier run kept in the home directory, whichever is newer.

    Raises Refused (``not_listed``) where it does not name us: no PNode would obey.
    """
    from trust.network_file import newest_policy, save_policy

    kept = home / NETWORK_FILE
    policy = newest_policy(Path(settings.network) if settings.network else None, kept, now_wall)
    if not policy.is_orchestrator(node_id):
        raise Refused(
            f"network {policy.document.name} does not list this orchestrator: no PNode would obey it", code="not_listed",
            network=policy.network_id,
            remedy=f"use --home of a listed one, or have it listed by the maintainers: dcnr network amend --add-orchestrator {node_id}",
        )  # fmt: skip
    save_policy(kept, policy)
    return policy


def _status(home: Path) -> orchestrator_pb2.GetStatusResponse:
    """The answer of the orchestrator that runs on ``home``. Raises NotRunning."""
    import asyncio
    import secrets

    from dcnr.rpc.dialer import Dialer
    from dcnr.system import SystemClock
    from dcnr.v1 import orchestrator_pb2
    from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
    from trust.identity import NodeKey

    running = _running(home)

    async def ask() -> orchestrator_pb2.GetStatusResponse:
        dialer = Dialer(NodeKey.load(home / KEY_FILE), running["network_id"], clock=SystemClock(), rng=secrets.token_bytes)
        connection = await dialer.connect(running["node_id"], [running["address"]])
        try:
            stub = OrchestratorServiceStub(connection.channel)
            return await connection.call(stub.GetStatus, orchestrator_pb2.GetStatusRequest())
        finally:
            await connection.close()

    try:
        return asyncio.run(ask())
    except Unavailable as error:
        if error.code == "unreachable":
            raise NotRunning(f"no orchestrator answers at {running['address']}", remedy=_start(home)) from error
        raise


def _running(home: Path) -> dict[str, str]:
    """What the running orchestrator wrote down. Raises NotRunning."""
    import json

    try:
        running = json.loads((home / RUN_FILE).read_text("utf-8"))
    except (OSError, ValueError):
        running = None
    if not isinstance(running, dict) or not {"pid", "node_id", "address", "network_id"} <= set(running):
        raise NotRunning(f"no orchestrator runs on {home}", remedy=_start(home))
    return {key: str(value) for key, value in running.items()}


def _start(home: Path) -> str:
    """The command that starts an orchestrator on that home."""
    import shlex

    return f"{_START} --home {shlex.quote(str(home))}"


def _write_running(home: Path, running: dict[str, object]) -> None:
    import json

    temporary = home / f".{RUN_FILE}"
    temporary.write_text(json.dumps(running) + "\n")
    reached("running.drafted")
    temporary.replace(home / RUN_FILE)


def main() -> None:
    """The command ``orchestrator``."""
    errors.run(app, "orchestrator")


if __name__ == "__main__":
    main()
