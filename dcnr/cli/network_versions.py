"""The next versions of a network document: ``dcnr network amend``, ``sign`` and ``key`` make one, ``publish`` brings it to the nodes that run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.files import text_in, write_whole
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import KEY_FILE, NETWORK_FILE, BootstrapOption, KeyOption, Session
from dcnr.errors import InvalidInput, Refused, Stale, Unavailable

if TYPE_CHECKING:
    from dcnr.sdk.publishing import Told
    from dcnr.v1 import identity_pb2
    from trust.amendment import Amendment

DRAFT_FILE = "network-draft.json"
DraftOption = Annotated[
    Path | None,
    typer.Option(help="Where the draft goes while signatures are missing; default: beside the file.", show_default=False),
]


def add_versions(app: typer.Typer) -> None:
    """Puts the commands of this module under ``app``."""
    for command in (key, amend, sign, publish):
        app.command()(command)


def key(home: HomeOption = None, as_json: JsonOption = False) -> None:
    """Print a maintainer's public key, made first if there is none.

    Other maintainers add it to the network document. Example: dcnr network amend --add-maintainer "$(dcnr network key)"
    """
    import base64

    from trust.identity import NodeKey

    path = Session(home, None, None).home / KEY_FILE
    found = NodeKey.load_or_create(path)
    text = base64.b64encode(found.public_der).decode()
    output.emit({"maintainer_id": found.node_id, "public_key": text, "key": str(path)}, lambda: text, as_json=as_json)


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
    add_data_host: Annotated[list[str] | None, typer.Option(help="Host from which data sets may be staged over https, HOST or HOST:PORT.")] = None,
    remove_data_host: Annotated[list[str] | None, typer.Option(help="One from which they may be no longer.")] = None,
    add_component: Annotated[list[str] | None, typer.Option(help="Component that models may be built from. Those not named may not be used any more.")] = None,
    remove_component: Annotated[list[str] | None, typer.Option(help="One less; with none left, all may be used.")] = None,
    add_maintainer: Annotated[list[str] | None, typer.Option(help="Public key of one more, as dcnr network key prints it.")] = None,
    remove_maintainer: Annotated[list[str] | None, typer.Option(help="Id of one whose key counts no longer.")] = None,
    threshold: Annotated[int | None, typer.Option(min=1, max=32, help="Signatures needed from then on.", show_default=False)] = None,
    draft: DraftOption = None, key: KeyOption = None, home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Make and sign the next version of the network document; where one signature is not enough, a draft for other maintainers.

    Options that name somebody may be repeated. A change of keys or threshold is signed by enough maintainers before it, and by enough after it.
    Example: dcnr network amend --add-orchestrator "$(orchestrator key)@203.0.113.8:7700"
    """
    from dcnr.system import SystemClock
    from trust.amendment import Changes, amend
    from trust.network_file import load_policy

    session, wall_s = Session(home, None, None), SystemClock().wall()
    path = (file or session.home / NETWORK_FILE).expanduser().absolute()
    added = add_orchestrator or []
    changes = Changes(
        add_orchestrators=[orchestrator_id(entry) for entry in added], remove_orchestrators=remove_orchestrator or (),
        add_bootstrap=[*(entry for entry in added if "@" in entry), *(add_bootstrap or ())], remove_bootstrap=remove_bootstrap or (),
        trust=trust or (), untrust=untrust or (), trusted_until_unix_ms=int(1000 * (wall_s + trusted_days * 86400.0)), audits=audits,
        store=store_of(store) if store is not None else None, add_maintainers=[_public_key(text) for text in add_maintainer or ()],
        remove_maintainers=remove_maintainer or (), threshold=threshold,
        add_data_hosts=add_data_host or (), remove_data_hosts=remove_data_host or (),
        add_components=add_component or (), remove_components=remove_component or (),
    )  # fmt: skip
    _amended(amend(load_policy(path), changes, session.keys(key), now_wall=wall_s), path, draft, as_json=as_json)


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


def publish(
    file: Annotated[Path | None, typer.Argument(help="The network file; default: the home directory's.", show_default=False)] = None,
    bootstrap: BootstrapOption = None, home: HomeOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Hand a network document to the nodes that run. From the orchestrators it spreads to everybody within seconds.

    Anybody may do that: nodes believe signatures, and take no older version. Example: dcnr network publish network.json
    """
    import asyncio
    import secrets

    from dcnr.rpc.dialer import Dialer
    from dcnr.sdk import publishing
    from dcnr.system import SystemClock
    from trust.identity import NodeKey
    from trust.network_file import load_policy

    session, clock = Session(home, None, bootstrap), SystemClock()
    policy = load_policy((file or session.home / NETWORK_FILE).expanduser().absolute(), clock.wall())
    dialer = Dialer(NodeKey.generate(), policy.network_id, clock=clock, rng=secrets.token_bytes)
    told = asyncio.run(publishing.publish(dialer, policy, session.bootstrap, clock))
    version = int(policy.document.version)
    reasons = "; ".join(f"{one.address}: {one.problem}" for one in told[:3]) or "no node of it is known"
    if not any(one.version for one in told):
        raise Unavailable(
            f"version {version} reached nobody ({reasons})", code="no_orchestrator",
            remedy="give --bootstrap HOST:PORT of a node that runs, or start an orchestrator with this file",
        )  # fmt: skip
    if not any(one.taken for one in told):
        raise Stale(
            f"version {version} was taken nowhere ({reasons})", code="document_not_newer",
            remedy="get what is in force with dcnr network show --bootstrap HOST:PORT --save FILE, and draft the change anew from it",
        )  # fmt: skip
    data = {"network_id": policy.network_id, "version": version, "told": [asdict(one) for one in told]}
    output.emit(data, lambda: _published_text(version, told), as_json=as_json)


def _published_text(version: int, told: Sequence[Told]) -> str:
    lines = [f"version {version} of the network document"]
    for one in told:
        state = "has it in force" if one.taken else one.problem
        lines.append(f"  {one.node_id[:8] or 'somebody'} at {one.address}  {state}")
    return "\n".join(lines)


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
        "waiting_for": [{"version": one.version, "missing": one.count, "of": list(one.waiting)} for one in found.lacking()],
        "file": str(target),
        "changed": _changed(found),
    }
    output.emit(data, lambda: _amended_text(data, found, target), as_json=as_json)


def _changed(found: Amendment) -> dict[str, Any]:
    """By field: what it is in the next version, where that is something else."""
    before, after = _fields(found.before.document), _fields(found.document)
    return {
        name: value
        for name, value in after.items()
        if value != before[name] and name not in ("version", "network_id", "created_unix_ms")
    }


def _fields(document: identity_pb2.NetworkDocument) -> dict[str, Any]:
    """What a document says, its maintainers by the ids of their keys."""
    from dcnr.ids import node_id_of
    from dcnr.sdk.plain import plain

    fields = plain(document)
    del fields["maintainer_keys"]
    return {**fields, "maintainer_ids": [node_id_of(key) for key in document.maintainer_keys]}


def _change_lines(found: Amendment) -> list[str]:
    """As what is signed says it, in full: the version, and each field that changes with what it was and what it will be."""
    before = _fields(found.before.document)
    lines = [
        f"  version {found.document.version} of network {found.before.network_id}, after version {found.before.document.version}"
    ]
    return [*lines, *(f"  {name}: {before[name]!r} -> {value!r}" for name, value in _changed(found).items())]


def _amended_text(data: dict[str, Any], found: Amendment, target: Path) -> str:
    lines = [f"version {data['version']} of network {data['network_id']}"]
    lines += [f"  {name} = {value}" for name, value in data["changed"].items()]
    if data["missing"]:
        lines.append(f"more signatures are needed, {data['missing']} at least")
        lines += [f"  {one.count} of the maintainers of version {one.version}: {', '.join(one.waiting)}" for one in found.lacking()]
        return "\n".join([*lines, f"next: dcnr network sign {quote(str(target))} --key ANOTHER"])
    word = quote(str(target))
    return "\n".join(
        [*lines, f"  document  {target}", f"next: dcnr network publish {word}, or orchestrator start --network {word}"]
    )


def orchestrator_id(entry: str) -> str:
    """The id in ID or ID@HOST:PORT. Raises InvalidInput."""
    from dcnr.ids import check_node_id

    try:
        return check_node_id(entry.partition("@")[0])
    except InvalidInput as error:
        raise InvalidInput(
            f"{entry!r} does not begin with the id of an orchestrator",
            code="bad_address",
            remedy="write ID@HOST:PORT, with the id that orchestrator key prints",
        ) from error


def store_of(text: str) -> tuple[str, str]:
    """Scheme and host:port of ``http(s)://host:port``; two empty texts of an empty one. Raises InvalidInput: a guessed scheme would be signed."""
    scheme, _, address = text.rpartition("://")
    if text and scheme not in ("http", "https"):
        remedy = f"write http://{text}, or https://{text}" if not scheme else "write http://HOST:PORT or https://HOST[:PORT]"
        raise InvalidInput(f"{text!r} is neither http:// nor https://", code="bad_address", remedy=remedy)
    return scheme, address.rstrip("/")


def _public_key(text: str) -> bytes:
    """The key that ``dcnr network key`` printed. Raises InvalidInput."""
    import base64

    from dcnr.errors import Corrupt
    from trust.identity import check_public_key

    try:
        return check_public_key(base64.b64decode(text, validate=True))
    except (ValueError, Corrupt) as error:
        raise InvalidInput(
            f"{text[:24]!r}... is no public key", code="bad_key", remedy="what dcnr network key prints there"
        ) from error
