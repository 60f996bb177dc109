"""``dcnr network``: makes a network's signed document and shows one; its next versions are made in `dcnr.cli.network_versions`."""

from __future__ import annotations

from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.homes import HomeOption, JsonOption, home_of
from dcnr.cli.network_versions import add_versions, orchestrator_id, store_of
from dcnr.cli.session import KEY_FILE, NETWORK_FILE, BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput, Refused
from dcnr.settings import ClientSettings

if TYPE_CHECKING:
    from dcnr.v1 import identity_pb2
    from trust.network import NetworkPolicy

app = typer.Typer(help="The network's constitution: keys, orchestrators, store.", no_args_is_help=True, rich_markup_mode=None)

LocalityOption = Annotated[
    str, typer.Option(help="spread, or single-host (demo and tests).", autocompletion=among("spread", "single-host"))
]
DataHostOption = Annotated[
    list[str] | None, typer.Option(help="Host from which data sets may be staged over https, HOST or HOST:PORT. May be repeated.")
]

ComponentOption = Annotated[
    list[str] | None,
    typer.Option(help="Component that models may be built from; without any: all that there are. May be repeated."),
]


@app.command()
def create(
    name: Annotated[str, typer.Option(help="Name for people.")],
    orchestrator: Annotated[
        list[str], typer.Option(help="Id of an orchestrator (see: orchestrator key), or ID@HOST:PORT. May be repeated.")
    ],
    store: Annotated[
        str, typer.Option(help="Store as volunteers reach it, http(s)://HOST:PORT; empty: bytes go through orchestrators.")
    ] = "",
    bucket: Annotated[str, typer.Option(help="Bucket in the store.")] = "dcnr",
    locality: LocalityOption = "spread",
    bootstrap: Annotated[list[str] | None, typer.Option(help="First nodes to ask, ID@HOST:PORT. May be repeated.")] = None,
    maintainers: Annotated[int, typer.Option(min=1, max=32, help="Number of maintainer keys to make.")] = 1,
    threshold: Annotated[int, typer.Option(min=1, max=32, help="Signatures needed.")] = 1,
    audits: Annotated[str, typer.Option(help="Whether claimed training is checked: none, or drawn.")] = "none",
    trusted: Annotated[list[str] | None, typer.Option(help="Id of a PNode that is checked less, never not at all. May be repeated.")] = None,
    trusted_days: Annotated[float, typer.Option(min=0.0, max=3650.0, help="For how long it is trusted.")] = 365.0,
    max_vnode_mb: Annotated[int, typer.Option(min=0, help="Largest state of a VNode, MB; 0: 4 GiB.")] = 0,
    data_host: DataHostOption = None, component: ComponentOption = None,
    audit_floor: Annotated[float, typer.Option(min=0.0, max=1.0, help="Lowest audit probability.")] = 0.05,
    quarantine_s: Annotated[
        float, typer.Option(min=0.001, max=604800.0, help="Seconds after a first fault; then four times as long.")
    ] = 900.0,
    rehab_units: Annotated[int, typer.Option(min=1, max=1000, help="Units for nothing before probation.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Directory for keys and document; default: the home directory.", show_default=False)
    ] = None,
    home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make maintainer keys and the signed network document.

    Example: dcnr network create --name garden --orchestrator "$(orchestrator key)@203.0.113.7:7700" --store http://203.0.113.7:7790
    """
    from dcnr.system import SystemClock
    from trust.identity import NodeKey
    from trust.network import create_document, verify_chain
    from trust.network_file import save_policy
    from trust.standing import Terms

    directory = (out or home_of(ClientSettings, home)).expanduser().absolute()
    document = directory / NETWORK_FILE
    if document.exists():
        raise Refused(f"there is a network at {document} already", code="network_exists", remedy="choose another --out")
    scheme, address = store_of(store)
    ids = [orchestrator_id(entry) for entry in orchestrator]
    paths = [directory / (KEY_FILE if number == 0 else f"key-{number + 1}.pem") for number in range(maintainers)]
    keys = [NodeKey.load_or_create(path) for path in paths]
    envelope = create_document(
        *keys, name=name, now_wall=SystemClock().wall(), orchestrator_ids=ids,
        threshold=threshold, locality=_locality(locality), store_address=address, store_bucket=bucket, store_scheme=scheme,
        bootstrap=[*(entry for entry in orchestrator if "@" in entry), *(bootstrap or ())], audit_floor=audit_floor, audits=audits,
        trusted=trusted or (), trusted_s=trusted_days * 86400.0, max_vnode_state_bytes=max_vnode_mb * 1_000_000, data_hosts=data_host or (),
        components=component or (),
        terms=Terms(quarantine_s, rehab_units),
    )  # fmt: skip
    policy = verify_chain([envelope])
    save_policy(document, policy)
    data = {"network_id": policy.network_id, "network_file": str(document), "keys": [str(path) for path in paths]}
    output.emit(data, lambda: _made(policy, document, paths), as_json=as_json)


@app.command()
def show(
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    save: Annotated[Path | None, typer.Option(help="Network file to write it to.", show_default=False)] = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """The verified document of a network. From its file, or from a node that is asked."""
    from trust.network_file import save_policy

    session = Session(home, network, bootstrap, network_id)
    if session.network is None and session.bootstrap:

        async def found(client: Any) -> NetworkPolicy:
            policy: NetworkPolicy = client.policy
            return policy

        policy = session.run(found)
    else:
        policy = session.policy()
    if save is not None:
        save_policy(save.expanduser().absolute(), policy)
    output.emit(_data(policy), lambda: _text(policy), as_json=as_json)


def _made(policy: NetworkPolicy, document: Path, paths: list[Path]) -> str:
    lines = [f"network {policy.network_id} ({policy.document.name})", f"  document  {document}"]
    lines += [f"  key       {path} (mode 0600: back it up, give it to its maintainer alone)" for path in paths]
    if len(paths) == 1:
        lines.append("  one key decides alone; a network of several maintainers: --maintainers 3 --threshold 2")
    stored = policy.document
    lines.append(
        f"  store     {stored.store_scheme}://{stored.store_address}"
        if stored.store_address
        else "  store     none told: orchestrators pass the bytes on"
    )
    if not stored.bootstrap:
        lines.append(
            "  note: no orchestrator has an address here, so everybody who starts or asks needs --bootstrap HOST:PORT of a node that runs"
        )
        lines.append(
            f"        to add one: dcnr network amend {quote(str(document))} --key {quote(str(paths[0]))} --add-bootstrap ID@HOST:PORT"
        )
    return "\n".join([*lines, f"next: orchestrator start --network {quote(str(document))}"])


def _locality(text: str) -> identity_pb2.Locality.ValueType:
    from dcnr.v1 import identity_pb2

    localities = {"spread": identity_pb2.LOCALITY_SPREAD, "single-host": identity_pb2.LOCALITY_SINGLE_HOST}
    if text not in localities:
        raise InvalidInput(f"locality {text!r} is neither spread nor single-host", code="bad_locality")
    return localities[text]


def _data(policy: NetworkPolicy) -> dict[str, Any]:
    from dcnr.ids import node_id_of
    from dcnr.sdk.plain import plain

    document = plain(policy.document)
    document["maintainer_ids"] = [node_id_of(key) for key in policy.document.maintainer_keys]
    document["network_id"] = policy.network_id
    return document


def _text(policy: NetworkPolicy) -> str:
    from dcnr.cli.screens import single_host

    data = _data(policy)
    lines = [
        f"network {policy.network_id} ({data['name']}), version {data['version']}{single_host(policy.document.locality)}",
        f"maintainers    {', '.join(data['maintainer_ids'])} ({data['threshold']} of {len(data['maintainer_ids'])} must sign)",
        f"store          {data['store_scheme'] or 'https'}://{data['store_address']} bucket {data['store_bucket']}"
        if data["store_address"]
        else "store          through orchestrators",
        f"audits         drawn, at least {data['audit_floor']:g}" if policy.audits_drawn else "audits         none",
        f"a first fault  {policy.terms.first_quarantine_s:g} s of quarantine, then {policy.terms.shadow_units} units for nothing",
    ]
    lines += [f"orchestrator   {node_id}" for node_id in data["orchestrator_ids"]]
    lines += [f"trusted        {item.node_id} until {_day(item.expires_unix_ms)}" for item in policy.document.trusted_pnodes]
    lines += [f"data host      {host}" for host in data["data_hosts"]]
    lines += [f"component      {name}" for name in data["components"]]
    lines += [f"bootstrap      {entry}" for entry in data["bootstrap"]]
    return "\n".join(lines)


def _day(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, UTC).date().isoformat()


add_versions(app)
