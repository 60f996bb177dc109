"""``dcnr demo`` and ``dcnr local``: a whole network of real processes on this machine."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.files import write_whole
from dcnr.cli.homes import JsonOption, home_of, settings_of
from dcnr.errors import NotRunning, TimedOut, Unavailable
from dcnr.settings import ClientSettings

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.testing import LocalNetwork
    from dcnr.v1 import orchestrator_pb2

app = typer.Typer(help="A network of real processes on this machine, for development.", no_args_is_help=True, rich_markup_mode=None)

RUN_FILE: Final = "local.json"
STOP_LIMIT_S: Final = 60.0
POLL_S: Final = 0.2
DirectoryOption = Annotated[Path, typer.Option("--directory", help="Where everything lies; a short path.")]
_DEFAULT: Final = Path(".dcnr-local")


def add_demo(parent: typer.Typer) -> None:
    """Adds the command ``demo``."""
    parent.command("demo")(_demo)


def _demo(
    model: Annotated[str, typer.Option(help="mnist or text.", autocompletion=among("mnist", "text"))] = "mnist",
    directory: Annotated[Path | None, typer.Option(help="Where everything lies; default: .demo here.", show_default=False)] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the network running afterwards, until Ctrl-C.")] = False,
    kills: Annotated[bool, typer.Option("--kills/--no-kills", help="Kill machines on the way.")] = True,
    reference: Annotated[
        bool, typer.Option("--reference/--no-reference", help="Train the same model in one process and compare.")
    ] = True,
    store_url: Annotated[
        str,
        typer.Option(
            help="MinIO or another S3-compatible store, http://HOST:PORT, in place of the embedded one.", show_default=False
        ),
    ] = "",
    store_file: Annotated[
        Path | None, typer.Option(help="The keys for it, mode 0600; default: $DCNR_STORE_FILE.", show_default=False)
    ] = None,
) -> None:
    """A whole network on this machine, start to end. From raw data to a trained, exported model, with machines killed on the way."""
    from dcnr.demo.run import Options, run_demo

    options = Options(
        model=model, directory=directory.absolute() if directory else None, keep=keep, kills=kills, reference=reference,
        store_url=store_url, store_file=_store_keys(store_file) if store_url else None,
    )  # fmt: skip
    raise typer.Exit(run_demo(options, environment=dict(os.environ)))


def _store_keys(given: Path | None) -> Path | None:
    """The flag, else what the settings of the ``dcnr`` command name."""
    flags = {"store_file": str(given) if given else None}
    named = settings_of(ClientSettings, home_of(ClientSettings, None), flags).value.store_file
    return Path(named).expanduser() if named else None


@app.command()
def up(
    directory: DirectoryOption = _DEFAULT,
    orchestrators: Annotated[int, typer.Option(min=1, max=9, help="Number of orchestrators.")] = 3,
    pnodes: Annotated[int, typer.Option(min=0, max=64, help="Number of PNodes.")] = 3,
    cores: Annotated[float, typer.Option(min=0.1, help="Cores of each PNode.")] = 1.0,
    memory_mb: Annotated[int, typer.Option(min=257, help="Memory of each PNode in MiB, of which its daemon keeps 256.")] = 1024,
) -> None:
    """Start a network in the foreground. Ctrl-C, or `dcnr local down` elsewhere, ends it with everything it made running.

    Kill what you like: it says which process has ended and how it is started again, and goes on while an orchestrator runs. In a directory
    where one ran before the same network goes on, with its jobs; it needs as many orchestrators as then.
    """
    from contextlib import closing

    from dcnr.home_lock import HomeLock
    from dcnr.testing import LocalNetwork, LocalPNode

    where = directory.absolute()
    specs = [LocalPNode(f"p{number + 1}", cores, memory_mb) for number in range(pnodes)]
    stopping = threading.Event()
    network = LocalNetwork(where, num_orchestrators=orchestrators, pnodes=specs, say=output.say, environment=os.environ)

    def stop(*_: object) -> None:
        stopping.set()
        network.interrupt()

    with closing(HomeLock(where, "a local network", "dcnr local down, or choose another --directory")):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, stop)
        _write(where, {"pid": os.getpid()})  # at once: what an earlier one left names a process that is no longer ours
        try:
            _run(network, where, stopping)
        except Unavailable as error:
            if error.code != "interrupted":
                raise
            output.say("interrupted: every process of the network has ended")
        finally:
            (where / RUN_FILE).unlink(missing_ok=True)


def _run(network: LocalNetwork, where: Path, stopping: threading.Event) -> None:
    """From start to end of a network in the foreground. Raises Unavailable (``no_orchestrator``) when its last orchestrator has ended by itself."""
    with network:
        _write(where, {"pid": os.getpid(), "network": str(network.network_file), "bootstrap": network.bootstrap})
        output.say(f"running; in another terminal: dcnr local status --directory {where}")
        output.say(f"  export DCNR_HOME={network.maintainer_home} DCNR_NETWORK={network.network_file}")
        output.say(f"  export DCNR_BOOTSTRAP={','.join(network.bootstrap)}")
        running, has_store = [*network.orchestrators, *network.pnodes], True
        while not stopping.wait(POLL_S):
            if has_store and not network.store.running():
                has_store = False
                output.say(
                    f"the object store has ended (its log: {network.store.log_path}): training goes on, nothing is decided or kept"
                )
                output.say("  end this with Ctrl-C; dcnr local up in this directory then goes on with all that was stored")
            ended = [process for process in running if process.end]
            for process in ended:
                running.remove(process)
                output.say(process.end)
            if not any(process.alive for process in network.orchestrators):
                network.stop()
                raise Unavailable(
                    "the last orchestrator has ended", code="no_orchestrator", remedy="dcnr local up goes on with this network"
                )
            for process in ended:
                output.say(
                    f"the network goes on without {process.name}; to start it again, in another terminal:\n  {process.by_hand}"
                )
        network.stop()


@app.command()
def down(directory: DirectoryOption = _DEFAULT, as_json: JsonOption = False) -> None:
    """End the network that `dcnr local up` runs."""
    import time

    from dcnr.home_lock import is_held

    where = directory.absolute()
    pid = _pid(where)
    if pid is None:
        raise _not_running(where)
    os.kill(pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_LIMIT_S
    while is_held(where):
        if time.monotonic() > deadline:
            raise TimedOut(f"the network has not ended within {STOP_LIMIT_S:.0f} s", code="still_running")
        time.sleep(POLL_S)
    output.emit({"stopped": True}, lambda: "stopped", as_json=as_json)


@app.command()
def status(directory: DirectoryOption = _DEFAULT, as_json: JsonOption = False) -> None:
    """The nodes of the running local network."""
    import asyncio

    from dcnr.cli.watching import nodes_table
    from dcnr.sdk.client import connect_async
    from dcnr.sdk.plain import plain
    from dcnr.v1 import orchestrator_pb2

    where = directory.absolute()
    running = _read(where)
    if _pid(where) is None or running is None:
        raise _not_running(where)
    if "bootstrap" not in running:
        raise NotRunning(f"the local network in {where} is still starting", remedy="ask again when it says that it is running")

    async def ask() -> list[orchestrator_pb2.NodeView]:
        client: AsyncClient
        async with await connect_async(running["bootstrap"], network=Path(running["network"])) as client:
            return await client.nodes()

    nodes = asyncio.run(ask())
    output.emit(
        {**running, "nodes": [plain(node) for node in nodes]},
        lambda: nodes_table(orchestrator_pb2.WatchJobResponse(nodes=nodes)),
        as_json=as_json,
    )


def _write(where: Path, running: dict[str, Any]) -> None:
    import json

    text = json.dumps(running, indent=2) + "\n"
    write_whole(where / RUN_FILE, text.encode(), remedy="choose another --directory")


def _read(where: Path) -> dict[str, Any] | None:
    import json

    try:
        running = json.loads((where / RUN_FILE).read_text())
    except (OSError, ValueError):
        return None
    return running if isinstance(running, dict) and isinstance(running.get("pid"), int) else None


def _pid(where: Path) -> int | None:
    """The process that runs the network; None if it is gone: what it wrote may outlive it, and its number be another process's by now."""
    from dcnr.home_lock import is_held

    running = _read(where)
    return int(running["pid"]) if running is not None and is_held(where) else None


def _not_running(where: Path) -> NotRunning:
    return NotRunning(f"no local network runs in {where}", remedy="dcnr local up")
