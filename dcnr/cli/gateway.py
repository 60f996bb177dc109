"""``dcnr gateway``: REST over a network, and the API keys of who may use it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.homes import HomeOption, JsonOption, home_of, settings_of
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.settings import ClientSettings

if TYPE_CHECKING:
    from gateway.keys import KeyFile

app = typer.Typer(help="REST over a network, and its API keys.", no_args_is_help=True, rich_markup_mode=None)
keys = typer.Typer(help="API keys of the gateway that runs on this home.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(keys, name="key")

KeyArgument = Annotated[str, typer.Argument(help="Id of the key (see: dcnr gateway key list).")]
DAY_S = 86_400.0
MAX_SHOWN = 1000


@app.command()
def start(
    listen: Annotated[str | None, typer.Option(help="HOST:PORT; port 0: a free one.", show_default=False)] = None,
    public_reads: Annotated[
        str | None, typer.Option(help="Whether reading needs no key: yes, no, or auto (on loopback).", show_default=False)
    ] = None,
    host: Annotated[
        list[str] | None, typer.Option(help="Name that the header Host may have. May be repeated.", show_default=False)
    ] = None,
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    until_stdin_closes: Annotated[bool, typer.Option("--until-stdin-closes", help="End when standard input closes.")] = False,
) -> None:  # fmt: skip
    """Serve REST for a network until Ctrl-C, away from its orchestrators.

    Example: dcnr gateway start --bootstrap 203.0.113.7:7700 --listen 127.0.0.1:7780
    """
    flags: dict[str, Any] = {
        "gateway_listen": listen,
        "gateway_public_reads": public_reads,
        "gateway_hosts": host,
    }
    session = Session(home, network, bootstrap, network_id)
    settings = settings_of(ClientSettings, session.home, flags).value

    import asyncio
    import signal

    from dcnr.cli import foreground
    from dcnr.cli.gateway_serving import alone

    foreground.start_logging(level="info", as_json=log_json)
    if until_stdin_closes:
        foreground.end_with_stdin()

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        foreground.loaded()
        await alone(
            settings.gateway,
            session.home,
            network=session.network,
            bootstrap=session.bootstrap,
            network_id=network_id,
            stop=stop,
            tracing=settings.tracing,
        )

    foreground.run(serve())


@app.command("id")
def show_id(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Id of the gateway that runs on this home. Orchestrators whose setting ``gateways`` has it do not count its questions as a stranger's.

    Example: dcnr gateway id
    """
    from dcnr.cli.gateway_serving import KEY_FILE
    from trust.identity import NodeKey

    node_id = NodeKey.load_or_create(home_of(ClientSettings, home) / KEY_FILE).node_id
    output.emit({"node_id": node_id}, lambda: node_id, as_json=as_json)


@keys.command()
def add(
    name: Annotated[str, typer.Argument(help="Whose it is, for people.")],
    scope: Annotated[str, typer.Option(help="client, admin or node-owner.", autocompletion=among("client", "admin", "node-owner"))] = "client",
    days: Annotated[float, typer.Option(min=0.0, max=36_500.0, help="For how long; 0: until it is revoked.")] = 365.0,
    signed: Annotated[bool, typer.Option("--signed", help="Refuse its requests unless each bears a signature.")] = False,
    owner: Annotated[
        str, typer.Option(help="For node-owner: id of the owner, as pnode own says it.", show_default=False)
    ] = "",
    home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make a key. It is shown once; only a salted hash is kept.

    Example: dcnr gateway key add alice --scope client
    """
    import secrets

    now = _now()
    key, text = _file(home).add(
        name, scope, expires=now + days * DAY_S if days else 0.0, signed=signed, now_wall=now, rng=secrets.token_bytes, owner=owner
    )  # fmt: skip
    output.emit({"id": key.id, "name": name, "scope": scope, "key": text}, lambda: text, as_json=as_json)
    output.say(f"shown this once; in force from now on at the gateway that runs on {home_of(ClientSettings, home)}")
    if scope == "node-owner" and not owner:
        output.say("it names no owner, so it reads and sees no machines: --owner ID names one")


@keys.command("list")
def list_keys(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """All keys, oldest first, with what they may do. Never the keys themselves."""
    now, rows = _now(), list(_file(home).keys().values())
    data = [
        {
            "id": key.id, "name": key.name, "scope": key.scope, "owner": key.owner, "signed": key.signed, "created": key.created, "expires": key.expires,
            "revoked": key.revoked, "in_force": key.holds(now),
        }
        for key in rows
    ]  # fmt: skip
    shown = [
        (key.id, key.name, key.scope, "in force" if key.holds(now) else "revoked" if key.revoked else "expired", "signed" if key.signed else "")
        for key in rows
    ]  # fmt: skip
    output.emit(data, lambda: output.table(("id", "name", "scope", "state", ""), shown), as_json=as_json)


@keys.command()
def rotate(key_id: KeyArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Replace the secret of a key. The old one is refused within a second, the new one is shown once."""
    import secrets

    text = _file(home).rotate(key_id, secrets.token_bytes)
    output.emit({"id": key_id, "key": text}, lambda: text, as_json=as_json)


@keys.command()
def revoke(key_id: KeyArgument, home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Refuse a key from now on, within a second."""
    _file(home).revoke(key_id, _now())
    output.emit({"id": key_id, "revoked": True}, lambda: f"{key_id} is revoked", as_json=as_json)


@keys.command()
def log(
    limit: Annotated[int, typer.Option(min=1, max=MAX_SHOWN, help="Rows.")] = 50,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
    """The newest requests that were made with keys, newest first."""
    from datetime import UTC, datetime

    uses = _file(home).uses(limit)
    data = [
        {"time": use.time, "key": use.key, "method": use.method, "route": use.route, "status": use.status, "subnet": use.subnet} for use in uses
    ]  # fmt: skip
    rows = [
        (
            datetime.fromtimestamp(use.time, UTC).isoformat(timespec="seconds"),
            use.key,
            use.method,
            use.route,
            use.status,
            use.subnet,
        )
        for use in uses
    ]
    output.emit(data, lambda: output.table(("time", "key", "method", "route", "status", "subnet"), rows), as_json=as_json)


def _file(home: Path | None) -> KeyFile:
    from gateway.keys import FILE, KeyFile

    return KeyFile(home_of(ClientSettings, home) / FILE)


def _now() -> float:
    from dcnr.system import SystemClock

    return SystemClock().wall()
