"""``dcnr network``: makes a network's signed document, shows one, makes and signs the next version of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.completion import among
from dcnr.cli.files import text_in, write_whole
from dcnr.cli.homes import HomeOption, JsonOption, home_of
from dcnr.cli.session import KEY_FILE, NETWORK_FILE, BootstrapOption, KeyOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput, Refused, Stale
from dcnr.settings import ClientSettings

if TYPE_CHECKING:
    from dcnr.v1 import identity_pb2
    from trust.amendment import Amendment
    from trust.network import NetworkPolicy

DRAFT_FILE = "network-draft.json"
DraftOption = Annotated[
    Path | None,
    typer.Option(help="Where the draft goes while signatures are missing; default: beside the file.", show_default=False),
]

app = typer.Typer(help="The network's constitution: keys, orchestrators, store.", no_args_is_help=True, rich_markup_mode=None)


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
    locality: Annotated[
        str, typer.Option(help="spread, or single-host (demo and tests).", autocompletion=among("spread", "single-host"))
    ] = "spread",
    bootstrap: Annotated[list[str] | None, typer.Option(help="First nodes to ask, ID@HOST:PORT. May be repeated.")] = None,
    maintainers: Annotated[int, typer.Option(min=1, max=32, help="Number of maintainer keys to make.")] = 1,
    threshold: Annotated[int, typer.Option(min=1, max=32, help="Signatures needed.")] = 1,
    audits: Annotated[str, typer.Option(help="Whether claimed training is checked: none, or drawn.")] = "none",
    trusted: Annotated[
        list[str] | None, typer.Option(help="Id of a PNode that is checked less, never not at all. May be repeated.")
    ] = None,
    trusted_days: Annotated[float, typer.Option(min=0.0, max=3650.0, help="For how long it is trusted.")] = 365.0,
    max_vnode_mb: Annotated[int, typer.Option(min=0, help="Largest state of a VNode, MB; 0: 4 GiB.")] = 0,
    audit_floor: Annotated[float, typer.Option(min=0.0, max=1.0, help="Lowest audit probability.")] = 0.05,
    quarantine_s: Annotated[
        float, typer.Option(min=0.001, max=604800.0, help="Seconds after a first fault; then four times as long.")
    ] = 900.0,
    rehab_units: Annotated[int, typer.Option(min=1, max=1000, help="Units for nothing before probation.")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="Directory for keys and document; default: the home directory.", show_default=False)
    ] = None,
    home: HomeOption = None,
    as_json: JsonOption = False,
) -> None:
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
    scheme, address = _store(store)
    ids = [_orchestrator_id(entry) for entry in orchestrator]
    paths = [directory / (KEY_FILE if number == 0 else f"key-{number + 1}.pem") for number in range(maintainers)]
    keys = [NodeKey.load_or_create(path) for path in paths]
    envelope = create_document(
        *keys, name=name, now_wall=SystemClock().wall(), orchestrator_ids=ids,
        threshold=threshold, locality=_locality(locality), store_address=address, store_bucket=bucket, store_scheme=scheme,
        bootstrap=[*(entry for entry in orchestrator if "@" in entry), *(bootstrap or ())], audit_floor=audit_floor, audits=audits,
        trusted=trusted or (), trusted_s=trusted_days * 86400.0, max_vnode_state_bytes=max_vnode_mb * 1_000_000, terms=Terms(quarantine_s, rehab_units),
    )  # fmt: skip
    policy = verify_chain([envelope])
    save_policy(document, policy)
    data = {"network_id": policy.network_id, "network_file": str(document), "keys": [str(path) for path in paths]}
    output.emit(data, lambda: _made(policy, document, paths), as_json=as_json)


@app.command()
def show(
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """The verified document of a network. From its file, or from a node that is asked."""
    session = Session(home, network, bootstrap, network_id)
    if session.network is None and session.bootstrap:

        async def found(client: Any) -> NetworkPolicy:
            policy: NetworkPolicy = client.policy
            return policy

        policy = session.run(found)
    else:
        policy = session.policy()
    output.emit(_data(policy), lambda: _text(policy), as_json=as_json)


@app.command()
def amend(
    file: Annotated[Path | None, typer.Argument(help="The network file; default: the home directory's.", show_default=False)] = None,
    add_orchestrator: Annotated[list[str] | None, typer.Option(help="Id, or ID@HOST:PORT, which is also a first node to ask.")] = None,
    remove_orchestrator: Annotated[list[str] | None, typer.Option(help="Id of one that PNodes no longer obey.")] = None,
    add_bootstrap: Annotated[list[str] | None, typer.Option(help="One more first node to ask, ID@HOST:PORT.")] = None,
    remove_bootstrap: Annotated[list[str] | None, typer.Option(help="One less.")] = None,
    trust: Annotated[list[str] | None, typer.Option(help="Id of a PNode that is checked less, never not at all.")] = None,
    untrust: Annotated[list[str] | None, typer.Option(help="Id of one that is checked as all others.")] = None,
    trusted_days: Annotated[float, typer.Option(min=0.0, max=3650.0, help="For how long it is trusted.")] = 365.0,
    audits: Annotated[str | None, typer.Option(help="Whether claimed training is checked: none, or drawn.", show_default=False)] = None,
    store: Annotated[str | None, typer.Option(help="Store as volunteers reach it, http(s)://HOST:PORT.", show_default=False)] = None,
    draft: DraftOption = None, key: KeyOption = None, home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make and sign the next version of the network document; where one signature is not enough, a draft for other maintainers.

    Options that name somebody may be repeated. Example: dcnr network amend --add-orchestrator "$(orchestrator key)@203.0.113.8:7700"
    """
    from dcnr.system import SystemClock
    from trust.amendment import Changes, amend
    from trust.network_file import load_policy

    session, wall_s = Session(home, None, None), SystemClock().wall()
    path = (file or session.home / NETWORK_FILE).expanduser().absolute()
    added = add_orchestrator or []
    changes = Changes(
        add_orchestrators=[_orchestrator_id(entry) for entry in added], remove_orchestrators=remove_orchestrator or (),
        add_bootstrap=[*(entry for entry in added if "@" in entry), *(add_bootstrap or ())], remove_bootstrap=remove_bootstrap or (),
        trust=trust or (), untrust=untrust or (), trusted_until_unix_ms=int(1000 * (wall_s + trusted_days * 86400.0)), audits=audits,
        store=_store(store) if store is not None else None,
    )  # fmt: skip
    _amended(amend(load_policy(path), changes, session.keys(key), now_wall=wall_s), path, draft, as_json=as_json)


@app.command()
def sign(
    draft: Annotated[Path, typer.Argument(help="The draft, as another maintainer's dcnr network amend wrote it.")],
    file: Annotated[Path | None, typer.Option(help="The network file to write; default: the home directory's.", show_default=False)] = None,
    key: KeyOption = None, home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Sign the draft of a network document; with enough signatures it becomes the network file. Says first what changes.

    Example: dcnr network sign network-draft.json --key key-2.pem
    """
    from trust.amendment import MAX_DRAFT_BYTES, Amendment

    session = Session(home, None, None)
    text = text_in(draft, MAX_DRAFT_BYTES, code="bad_draft", remedy="name a file that dcnr network amend wrote")
    found = Amendment.from_json(text)
    path = (file or session.home / NETWORK_FILE).expanduser().absolute()
    _check_follows(found, path)
    output.say("\n".join(["this signs:", *_change_lines(found)]))
    _amended(found.sign(*session.keys(key)), path, draft, as_json=as_json)


def _check_follows(found: Amendment, path: Path) -> None:
    """Raises Refused (``wrong_network``), Stale (``document_not_newer``) where ``path`` holds another network, or a version that the draft does not know."""
    from trust.network_file import load_policy

    if not path.exists():
        return
    own, draft_id = load_policy(path), found.before.network_id
    if own.network_id != draft_id:
        raise Refused(
            f"the draft is of network {draft_id}, {path} holds {own.network_id}",
            code="wrong_network",
            remedy="choose the file of the draft's network: --file",
        )
    if own.document.version > found.before.document.version:
        raise Stale(
            f"the draft follows version {found.before.document.version}, {path} holds version {own.document.version}",
            code="document_not_newer",
            remedy="draft it anew from the newest version: dcnr network amend",
        )


def _amended(found: Amendment, path: Path, draft: Path | None, *, as_json: bool) -> None:
    """Into the network file if it is in force, else into the draft."""
    from trust.network_file import save_policy

    missing, version = found.missing(), int(found.document.version)
    target = path if not missing else (draft or path.with_name(DRAFT_FILE)).expanduser().absolute()
    if missing:
        write_whole(target, found.to_json().encode(), remedy="choose another --draft")
    else:
        save_policy(target, found.policy())
    data = {
        "network_id": found.before.network_id,
        "version": version,
        "missing": missing,
        "file": str(target),
        "changed": _changed(found),
    }
    output.emit(data, lambda: _amended_text(data, found, target), as_json=as_json)


def _changed(found: Amendment) -> dict[str, Any]:
    """By field: what it is in the next version, where that is something else."""
    from dcnr.sdk.plain import plain

    before, after = plain(found.before.document), plain(found.document)
    return {
        name: value
        for name, value in after.items()
        if value != before[name] and name not in ("version", "network_id", "created_unix_ms")
    }


def _change_lines(found: Amendment) -> list[str]:
    """As what is signed says it, in full: the version, and each field that changes with what it was and what it will be."""
    from dcnr.sdk.plain import plain

    before = plain(found.before.document)
    lines = [
        f"  version {found.document.version} of network {found.before.network_id}, after version {found.before.document.version}"
    ]
    return [*lines, *(f"  {name}: {before[name]!r} -> {value!r}" for name, value in _changed(found).items())]


def _amended_text(data: dict[str, Any], found: Amendment, target: Path) -> str:
    lines = [f"version {data['version']} of network {data['network_id']}"]
    lines += [f"  {name} = {value}" for name, value in data["changed"].items()]
    if data["missing"]:
        return "\n".join(
            [*lines, f"{data['missing']} more signatures are needed", f"next: dcnr network sign {target} --key ANOTHER"]
        )
    return "\n".join(
        [
            *lines, f"  document  {target}",
            "each node takes it when it is started again with this file, orchestrators first; until then the version before is in force there",
            f"next: orchestrator start --network {target}, then pnode start --network {target}",
        ]
    )  # fmt: skip


def _made(policy: NetworkPolicy, document: Path, paths: list[Path]) -> str:
    lines = [f"network {policy.network_id} ({policy.document.name})", f"  document  {document}"]
    lines += [f"  key       {path} (mode 0600: back it up, give it to its maintainer alone)" for path in paths]
    if len(paths) == 1:
        lines.append("  one key decides alone; a network of several maintainers: --maintainers 3 --threshold 2")
    return "\n".join([*lines, f"next: orchestrator start --network {document}"])


def _orchestrator_id(entry: str) -> str:
    from dcnr.ids import check_node_id

    try:
        return check_node_id(entry.partition("@")[0])
    except InvalidInput as error:
        raise InvalidInput(
            f"{entry!r} does not begin with the id of an orchestrator",
            code="bad_address",
            remedy="write ID@HOST:PORT, with the id that orchestrator key prints",
        ) from error


def _store(text: str) -> tuple[str, str]:
    """Scheme and host:port of ``http(s)://host:port`` or ``host:port``."""
    scheme, separator, address = text.rpartition("://")
    if separator and scheme not in ("http", "https"):
        raise InvalidInput(f"{text!r} is neither http:// nor https://", code="bad_address")
    return scheme or "https", address.rstrip("/")


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
    lines += [f"bootstrap      {entry}" for entry in data["bootstrap"]]
    return "\n".join(lines)


def _day(unix_ms: int) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(unix_ms / 1000, UTC).date().isoformat()
