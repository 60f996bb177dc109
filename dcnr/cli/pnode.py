"""``pnode``: lends this machine to a network, keeps its owner in control, says what it does and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import errors, output
from dcnr.cli.homes import HomeOption, JsonOption, VersionOption, home_of, settings_of, show_settings
from dcnr.settings import PNodeSettings

if TYPE_CHECKING:
    from pnode.daemon import Daemon

_START = "pnode start --bootstrap HOST:PORT"

app = typer.Typer(
    help="Lend this machine to a network that trains a model owned by its community.\n\nStart with: pnode start --bootstrap HOST:PORT",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip
config = typer.Typer(help="Settings and where they come from.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")


@app.callback()
def _root(version: VersionOption = False) -> None:
    pass


@app.command()
def start(
    bootstrap: Annotated[list[str] | None, typer.Option(help="A node of the network, [ID@]HOST:PORT. May be repeated.")] = None,
    network: Annotated[Path | None, typer.Option(help="Network file from a maintainer.", show_default=False)] = None,
    network_id: Annotated[str | None, typer.Option(help="Id that the network must have.", show_default=False)] = None,
    cores: Annotated[float | None, typer.Option(help="Cores to lend; 0: found out.", show_default=False)] = None,
    memory_mb: Annotated[
        int | None, typer.Option(help="Memory to lend in MiB, 256 of it for the daemon; 0: found out.", show_default=False)
    ] = None,
    disk_mb: Annotated[int | None, typer.Option(help="Disk to lend in MiB.", show_default=False)] = None,
    cpu_percent: Annotated[float | None, typer.Option(help="Share of those cores' time, in percent.", show_default=False)] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps.", show_default=False)] = None,
    control_port: Annotated[int | None, typer.Option(help="TCP port of the daemon; 0: a free one.", show_default=False)] = None,
    data_port: Annotated[int | None, typer.Option(help="TCP port of the worker; 0: a free one.", show_default=False)] = None,
    dht_port: Annotated[int | None, typer.Option(help="UDP port of the directory; 0: a free one.", show_default=False)] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    advertise_host: Annotated[str | None, typer.Option(help="Address that others are told.", show_default=False)] = None,
    checkpoint_s: Annotated[float | None, typer.Option(help="Longest time between checkpoints.", show_default=False)] = None,
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.", show_default=False)] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log lines as JSON.", show_default=False)] = None,
    home: HomeOption = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")] = False,
) -> None:
    """Join a network and work for it until Ctrl-C (hands over first; a second Ctrl-C stops now).

    Example: pnode start --bootstrap 203.0.113.7:7700 --cores 4 --memory-mb 4096
    """
    directory = home_of(PNodeSettings, home)
    flags: dict[str, Any] = {
        "bootstrap": tuple(bootstrap) if bootstrap else None, "network": str(network.absolute()) if network else None, "network_id": network_id,
        "limits_cores": cores, "limits_memory_mb": memory_mb, "limits_disk_mb": disk_mb, "limits_cpu_percent": cpu_percent,
        "limits_device": device, "control_port": control_port, "data_port": data_port, "dht_port": dht_port, "listen_host": listen_host,
        "advertise_host": advertise_host, "checkpoint_s": checkpoint_s, "log_level": log_level, "log_json": log_json,
    }  # fmt: skip
    settings = settings_of(PNodeSettings, directory, flags).value
    import asyncio
    import os

    from dcnr.cli import foreground
    from dcnr.cli.screens import pnode_screen
    from pnode.entry import run_pnode
    from pnode.home import Home

    believed = not settings.network_id and not settings.network and not Home(directory).network.exists()

    def ready(daemon: Daemon) -> None:
        output.say(pnode_screen(daemon.status(), directory))
        if believed:
            output.say(f"note: believing the first document seen, network {daemon.status().network_id}; next time say --network-id")

    foreground.start_logging(level=settings.log_level, as_json=settings.log_json)
    if until_stdin_closes:
        foreground.end_with_stdin()
    code = asyncio.run(run_pnode(settings, directory, dict(os.environ), on_ready=ready))
    raise typer.Exit(code)


@app.command()
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """One screen: who this node is, what it lends, what it does, whom it talks to."""
    from dcnr.cli.local_door import ask
    from dcnr.cli.screens import pnode_screen
    from dcnr.sdk.plain import plain
    from dcnr.v1 import local_pb2

    directory = home_of(PNodeSettings, home)
    answer = ask(directory, "Status", local_pb2.StatusRequest(), start=_START)
    output.emit(plain(answer), lambda: pnode_screen(answer, directory), as_json=as_json)


@app.command()
def stop(
    home: HomeOption = None,
    now: Annotated[bool, typer.Option("--now", help="Do not hand work over first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """End the daemon: it hands its work over, then goes."""
    from dcnr.cli.local_door import ask, wait_gone
    from dcnr.v1 import local_pb2

    directory = home_of(PNodeSettings, home)
    answer = ask(directory, "Stop", local_pb2.StopRequest(hand_over=not now), start=_START)
    output.say(f"stopping, at most {output.duration(answer.within_s)}")
    wait_gone(directory, answer.within_s + 5.0)
    output.emit({"stopped": True}, lambda: "stopped", as_json=as_json)


@app.command()
def why(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Why this node is as it is, and what would change that."""
    from dcnr.cli.local_door import ask
    from dcnr.sdk.plain import plain
    from dcnr.v1 import local_pb2

    answer = ask(home_of(PNodeSettings, home), "Why", local_pb2.WhyRequest(), start=_START)

    def text() -> str:
        lines = [f"{line.code}: {line.reason}" + (f"\n  change: {line.change}" if line.change else "") for line in answer.lines]
        return "\n".join(lines) or "working"

    output.emit(plain(answer), text, as_json=as_json)


@config.command("show")
def config_show(
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The settings that a start without flags takes here: file < environment. Flags of a running daemon are not seen."""
    show_settings(PNodeSettings, home_of(PNodeSettings, home), origin=origin, as_json=as_json)


def main() -> None:
    """The command ``pnode``."""
    errors.run(app, "pnode")


if __name__ == "__main__":
    main()
