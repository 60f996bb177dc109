"""``dcnr model release``: which manifest of a model answers and is exported, as maintainers signed it; and the way back to an older one."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, KeyOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import InvalidInput

if TYPE_CHECKING:
    from dcnr.sdk.client import AsyncClient
    from dcnr.sdk.releasing import Released


def add(app: typer.Typer) -> None:
    """Puts the command into ``app``."""
    app.command()(release)


def release(
    model: Annotated[str, typer.Argument(help="Name of the model.")],
    manifest: Annotated[str, typer.Option(help="Digest of the manifest that is to answer, as dcnr job watch and dcnr job list --json name it.")] = "",
    follow_training: Annotated[bool, typer.Option("--follow-training", help="Whatever training brings answers again.")] = False,
    reason: Annotated[str, typer.Option(help="Why, for the record.")] = "",
    key: KeyOption = None, home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None,
    network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Say which manifest answers and is exported, signed by maintainers. With neither option: show what is in force, and who signed it.

    Example: dcnr model release mnist --manifest DIGEST --reason "the newest is worse"
    """
    if (manifest and follow_training) or (reason and not manifest and not follow_training):
        raise InvalidInput(
            "give either --manifest or --follow-training; a reason belongs to one of them", code="bad_arguments",
            remedy=f"dcnr model release {model} --manifest DIGEST",
        )  # fmt: skip
    session = Session(home, network, bootstrap, network_id)
    keys = session.keys(key) if manifest or follow_training else []

    async def work(client: AsyncClient) -> Released:
        return await (client.release(model, keys, manifest=manifest, reason=reason) if keys else client.released(model))

    found = session.run(work)
    output.emit(asdict(found), lambda: _text(found), as_json=as_json)


def _text(found: Released) -> str:
    """For people."""
    from datetime import UTC, datetime

    if not found.number:
        return f"{found.model} follows its training: nothing was ever released"
    what = f"manifest {found.manifest} answers and is exported" if found.manifest else "it follows its training again"
    at = datetime.fromtimestamp(found.created_unix_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"{found.model}: {what}", f"  release {found.number}, signed {at} by {', '.join(found.signers)}"]
    return "\n".join([*lines, f"  reason: {found.reason}"] if found.reason else lines)
