"""``pnode``: lends this machine to a network, keeps its owner in control, says what it does and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import errors, output, top
from dcnr.cli.completion import among
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
from dcnr.errors import InvalidInput, NotRunning, Unavailable
from dcnr.settings import PNodeSettings, setting_rows

if TYPE_CHECKING:
    from dcnr.v1 import local_pb2
    from pnode.daemon import Daemon

MemoryOption = Annotated[str | None, number_option("Memory to lend in MiB, 256 of it for the daemon; 0: found out.")]
DeviceOption = Annotated[
    str | None,
    typer.Option(help="auto, cpu, cuda or mps.", show_default=False, autocompletion=among("auto", "cpu", "cuda", "mps")),
]
OutboundOption = Annotated[
    bool | None,
    typer.Option("--outbound-only", help="Nobody can dial this machine: it is reached through relays.", show_default=False),
]

app = typer.Typer(
    help="Lend this machine to a network that trains a model owned by its community.\n\nStart with: pnode start --bootstrap HOST:PORT",
    no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False,
)  # fmt: skip
config = typer.Typer(help="Settings and where they come from.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(config, name="config")
top.add(app)


@app.callback()
def _root(version: VersionOption = False) -> None:
    pass


@app.command()
def start(
    bootstrap: Annotated[list[str] | None, typer.Option(help="A node of the network, [ID@]HOST:PORT. May be repeated.")] = None,
    bootstrap_file: BootstrapFileOption = None,
    network: Annotated[Path | None, typer.Option(help="Network file from a maintainer.", show_default=False)] = None,
    network_id: Annotated[str | None, typer.Option(help="Id that the network must have.", show_default=False)] = None,
    cores: Annotated[str | None, number_option("Cores to lend; 0: found out.")] = None,
    memory_mb: MemoryOption = None,
    disk_mb: Annotated[str | None, number_option("Disk to lend in MiB.")] = None,
    cpu_percent: Annotated[str | None, number_option("Share of those cores' time, in percent.")] = None,
    device: DeviceOption = None,
    control_port: Annotated[str | None, number_option("TCP port of the daemon; 0: a free one.")] = None,
    data_port: Annotated[str | None, number_option("TCP port of the worker; 0: a free one.")] = None,
    dht_port: Annotated[str | None, number_option("UDP port of the directory; 0: a free one.")] = None,
    listen_host: Annotated[str | None, typer.Option(help="Address to listen on.", show_default=False)] = None,
    advertise_host: Annotated[str | None, typer.Option(help="Address that others are told.", show_default=False)] = None,
    relay_mbit: Annotated[str | None, number_option("Rate to pass on for others, in Mbit/s.")] = None,
    checkpoint_s: Annotated[str | None, number_option("Longest time between checkpoints; shorter where the job says so.")] = None,
    name: Annotated[str | None, typer.Option(help="Name shown beside this machine's id; '': none.", show_default=False)] = None,
    owner: Annotated[Path | None, typer.Option(help="Whose machine this is: a file from pnode own.", show_default=False)] = None,
    log_json: Annotated[bool | None, typer.Option("--log-json", help="Log lines as JSON.", show_default=False)] = None,
    components: ComponentsOption = None, outbound_only: OutboundOption = None, log_level: LogLevelOption = None, home: HomeOption = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")] = False,
) -> None:  # fmt: skip
    """Join a network and work for it until Ctrl-C. It hands over first; a second Ctrl-C stops now.

    Example: pnode start --bootstrap 203.0.113.7:7700 --cores 4 --memory-mb 4096
    """
    directory = home_of(PNodeSettings, home)
    flags: dict[str, Any] = {
        "bootstrap": bootstrap, "bootstrap_file": bootstrap_file, "network": network, "network_id": network_id, "components": components,
        "limits_cores": cores, "limits_memory_mb": memory_mb, "limits_disk_mb": disk_mb, "limits_cpu_percent": cpu_percent,
        "limits_device": device, "control_port": control_port, "data_port": data_port, "dht_port": dht_port, "listen_host": listen_host,
        "advertise_host": advertise_host, "outbound_only": outbound_only, "checkpoint_s": checkpoint_s,
        "owner": owner, "limits_relay_mbit": relay_mbit, "name": name, "log_level": log_level, "log_json": log_json,
    }  # fmt: skip
    loaded = settings_of(PNodeSettings, directory, flags)
    settings = loaded.value
    import os

    from dcnr.cli import foreground
    from dcnr.cli.screens import pnode_screen
    from dcnr.v1 import local_pb2
    from pnode.entry import run_pnode
    from pnode.home import Home

    shown = [local_pb2.Setting(key=key, value=value, origin=origin) for key, value, origin in setting_rows(loaded)]
    believed = not settings.network_id and not settings.network and not Home(directory).network.exists()

    def ready(daemon: Daemon) -> None:
        foreground.loaded()
        output.say(pnode_screen(daemon.status(), directory))
        if believed:
            output.say(f"note: believing the first document seen, network {daemon.status().network_id}; next time say --network-id")

    foreground.start_logging(level=settings.log_level, as_json=settings.log_json)
    if until_stdin_closes:
        foreground.end_with_stdin()
    code = foreground.run(run_pnode(settings, directory, dict(os.environ), on_ready=ready, tell=output.say, settings_shown=shown))
    output.say("stopped")
    raise typer.Exit(code)


@app.command()
def status(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """One screen that tells all about this node. Who it is, what it lends, what it does, whom it talks to."""
    from dcnr.cli.local_door import ask
    from dcnr.cli.screens import pnode_screen
    from dcnr.sdk.plain import plain
    from dcnr.v1 import local_pb2

    directory = home_of(PNodeSettings, home)
    answer = ask(directory, "Status", local_pb2.StatusRequest())
    output.emit(plain(answer), lambda: pnode_screen(answer, directory), as_json=as_json)


@app.command()
def stop(
    home: HomeOption = None,
    now: Annotated[bool, typer.Option("--now", help="Do not hand work over first.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Hand work over, then end; --now: end at once."""
    from dcnr.cli.local_door import ask, wait_gone
    from dcnr.v1 import local_pb2

    directory = home_of(PNodeSettings, home)
    answer = ask(directory, "Stop", local_pb2.StopRequest(hand_over=not now))
    output.say(f"stopping, at most {output.duration(answer.within_s)}")
    wait_gone(directory, answer.within_s + 5.0)
    output.emit({"stopped": True}, lambda: "stopped", as_json=as_json)


@app.command()
def finish(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Hand work over, then end: as pnode stop. Nothing that was learned here is learned again elsewhere."""
    stop(home=home, now=False, as_json=as_json)


@app.command()
def pause(
    for_: Annotated[str | None, typer.Option("--for", help="How long: 45m, 2h, 1d.", show_default=False)] = None,
    until: Annotated[str | None, typer.Option(help="Until when, by the clock here: 07:00.", show_default=False)] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Compute nothing for a while. Without a time, until it is resumed. Work is handed over, memory is free within seconds.

    Example: pnode pause --for 2h
    """
    from datetime import datetime

    from dcnr.cli.local_door import ask
    from dcnr.cli.times import seconds_for, seconds_until
    from dcnr.v1 import local_pb2

    if for_ is not None and until is not None:
        raise InvalidInput("--for and --until say two different things", code="bad_pause", remedy="give one of them")
    seconds = seconds_for(for_) if for_ is not None else seconds_until(until, datetime.now()) if until is not None else 0.0
    answer = ask(home_of(PNodeSettings, home), "Pause", local_pb2.PauseRequest(for_s=seconds))
    lasts = f"for {output.duration(seconds)}" if seconds else "until `pnode resume`"
    output.emit(
        {"paused": True, "for_s": seconds},
        lambda: f"paused {lasts}, in at most {output.duration(answer.within_s)}",
        as_json=as_json,
    )


@app.command()
def resume(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """End a pause: take work again."""
    from dcnr.cli.local_door import ask
    from dcnr.v1 import local_pb2

    ask(home_of(PNodeSettings, home), "Resume", local_pb2.ResumeRequest())
    output.emit({"paused": False}, lambda: "resumed", as_json=as_json)


@app.command()
def why(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Why this node is as it is, and what would change that."""
    from dcnr.cli.local_door import ask
    from dcnr.sdk.plain import plain
    from dcnr.v1 import local_pb2

    answer = ask(home_of(PNodeSettings, home), "Why", local_pb2.WhyRequest())

    def text() -> str:
        lines = [f"{line.code}: {line.reason}" + (f"\n  change: {line.change}" if line.change else "") for line in answer.lines]
        return "\n".join(lines) or "working"

    output.emit(plain(answer), text, as_json=as_json)


@app.command()
def own(
    key: Annotated[Path, typer.Option(help="The owner's key, for all machines of one owner the same; made if there is none.")],
    node: Annotated[str | None, typer.Option(help="Id of the machine; default: this one's.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option(help="Where the statement goes; default: this home.", show_default=False)] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Sign that a machine is yours. So replicas of one VNode are not all put onto machines of yours, and where audits are drawn it can audit those of
    other owners, and be audited by them. It counts from the next start.

    The key need not lie on that machine: pnode own --key owner.pem --node ID --out owner.pb, and there pnode start --owner owner.pb
    """
    from pnode.home import Home, write_atomically
    from trust.identity import NodeKey
    from trust.ownership import make_ownership

    paths = Home(home_of(PNodeSettings, home))
    if node is not None and out is None:
        raise InvalidInput("a statement about another machine needs a file", code="no_statement_file", remedy="say --out FILE")
    owner = NodeKey.load_or_create(key.expanduser().absolute())
    statement = make_ownership(owner, node or NodeKey.load_or_create(paths.key).node_id)
    path = (out or paths.owner).expanduser().absolute()
    write_atomically(path, statement.SerializeToString(deterministic=True))
    output.emit({"owner": owner.node_id, "statement": str(path)}, lambda: f"owner {owner.node_id}, said in {path}", as_json=as_json)


@app.command()
def receipt(
    model: Annotated[str, typer.Option(help="Name of the model; default: that of the newest job.")] = "",
    out: Annotated[Path | None, typer.Option(help="File; default: receipt-JOB-NODE.json here.", show_default=False)] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write a file that proves what this machine is credited with. Anybody can check it, also when the network is gone.

    Others check it with: dcnr ledger verify-receipt FILE --network-id ID
    """
    import asyncio

    from dcnr.cli.receipt import own_receipt, proof_data, proof_text

    path, proof = asyncio.run(own_receipt(home_of(PNodeSettings, home), model, out))
    data = {**proof_data(proof, pinned=True), "file": str(path)}
    output.emit(data, lambda: f"{proof_text(proof, pinned=True)}\nwritten to {path}", as_json=as_json)


@app.command()
def note(
    model: Annotated[str, typer.Option(help="Name of the model; default: that of the newest job.")] = "",
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """What this machine was good for in the last seven days. Time at work, batches, audits, and what would make it more useful.

    What it did is from its own diary, what is credited from the chain of manifests; what one of them does not know is said to be unknown.
    """
    import asyncio

    from dcnr.cli.note import note_text, own_note

    data = asyncio.run(own_note(home_of(PNodeSettings, home), model))
    output.emit(data, lambda: note_text(data), as_json=as_json)


@app.command()
def dashboard(
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT on this machine; port 0: a free one. Default: 127.0.0.1:7785.", show_default=False)
    ] = None,
    home: HomeOption = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")] = False,
) -> None:
    """Serve the dashboard to you alone until Ctrl-C. It has a page for this machine: pause, finish, limits, history, logs.

    The address that is printed holds the token of this run: whoever has it has this machine's PNode in hand.

    Example: pnode dashboard
    """
    import asyncio
    import signal

    from dcnr.cli import foreground
    from dcnr.cli.own_dashboard import DEFAULT_LISTEN, serve

    directory = home_of(PNodeSettings, home)
    foreground.start_logging(level="warning", as_json=False)
    if until_stdin_closes:
        foreground.end_with_stdin()

    async def run() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        foreground.loaded()
        await serve(directory, listen or DEFAULT_LISTEN, on_ready=lambda address: output.say(f"your machine: {address}"), stop=stop)

    foreground.run(run())


@config.command("show")
def config_show(
    home: HomeOption = None,
    origin: Annotated[bool, typer.Option("--origin", help="Say where each value comes from.")] = False,
    as_json: JsonOption = False,
) -> None:
    """The settings of the daemon that runs here, flags included. Else those that a start without flags takes: file < environment."""
    directory = home_of(PNodeSettings, home)
    running = _running_settings(directory)
    if running is None:
        show_settings(PNodeSettings, directory, origin=origin, as_json=as_json)
        return
    import tomllib

    values = {item.key: {"value": tomllib.loads(f"value = {item.value}")["value"], "origin": item.origin} for item in running}
    lines = [f"{item.key} = {item.value}" + (f"  # {item.origin}" if origin else "") for item in running]
    head = [f"# home: {directory}", "# of the daemon that runs"]
    output.emit({"home": str(directory), "running": True, "settings": values}, lambda: "\n".join([*head, *lines]), as_json=as_json)


def _running_settings(directory: Path) -> list[local_pb2.Setting] | None:
    """What the daemon on that home took; None where none runs."""
    from dcnr.cli.local_door import SOCKET

    if not (directory / SOCKET).exists():  # most of the time: says so without gRPC
        return None
    from dcnr.cli.local_door import ask
    from dcnr.v1 import local_pb2

    try:
        return list(ask(directory, "Settings", local_pb2.SettingsRequest()).settings)
    except (NotRunning, Unavailable):
        return None


def main() -> None:
    """The command ``pnode``."""
    errors.run(app, "pnode")


if __name__ == "__main__":
    main()
