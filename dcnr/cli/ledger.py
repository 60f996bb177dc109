"""``dcnr ledger``: what the chain of manifests says of everybody's work, read and checked anew by whoever asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.errors import NotFound

if TYPE_CHECKING:
    from dcnr.audit_ledger import LedgerAudit
    from dcnr.ledger_check import JobLedger
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import model_pb2

app = typer.Typer(help="Who did what, and what became of it.", no_args_is_help=True, rich_markup_mode=None)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]
ManifestOption = Annotated[str, typer.Option(help="Digest of a manifest; default: the newest.")]
BAD_EXIT = 1


@app.command()
def verify(
    model: ModelArgument, manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Check every job's chain of manifests, and of the newest job the receipts, the evidence and the states. Exits with 1 at the first bad entry.

    Example: dcnr ledger verify mnist-residual
    """
    found = _audited(Session(home, network, bootstrap, network_id), model, manifest)
    if found is None:
        output.emit([], lambda: "no audits were in force", as_json=as_json)
        return
    header = ("job", "manifests", "intervals", "")
    rows = [
        (one.job_id, one.num_manifests, len(one.chronicle.ledger.intervals), one.problem or "holds together")
        for one in found.ledgers
    ]
    cleared = sorted(found.cleared().items())
    data = {
        "jobs": [{"job": row[0], "manifests": row[1], "intervals": row[2], "problem": one.problem} for row, one in zip(rows, found.ledgers, strict=True)],
        "problem": found.trouble, "receipts": found.num_receipts, "statements_gone": found.num_gone, "states": found.num_states,
        "evidence": found.faults, "verdicts": found.counts(),
        "cleared": {vnode: {"batches": batches, "of": newest} for vnode, (batches, newest) in cleared},
    }  # fmt: skip
    lines = [f"{vnode}: {batches} of {newest} batches cleared" for vnode, (batches, newest) in cleared]
    lines += [f"evidence {digest[:16]} against {pnode_id}" for digest, pnode_id in found.faults.items()]
    lines.append(found.trouble or f"{found.num_receipts} receipts and {found.num_states} states are as they must be")
    output.emit(data, lambda: "\n".join([output.table(header, rows), *lines]), as_json=as_json)
    if not found.holds:
        raise typer.Exit(BAD_EXIT)


@app.command()
def scores(
    model: ModelArgument, manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """By PNode: batches credited, waiting for an audit and taken back, audits passed (k) and the credibility that follows from them."""
    from dcnr.ledger_check import accounts_of

    accounts = accounts_of(_ledgers(Session(home, network, bootstrap, network_id), model, manifest))
    rows = [
        (
            output.short(one.pnode_id), one.cleared, one.waiting, one.taken_back, one.num_passed, one.num_failed, f"{one.passes:.1f}",
            f"{one.credibility:.3f}",
        )
        for one in accounts
    ]  # fmt: skip
    data = [
        {
            "pnode": one.pnode_id, "cleared": one.cleared, "waiting": one.waiting, "taken_back": one.taken_back, "passed": one.num_passed,
            "failed": one.num_failed, "passes": one.passes, "credibility": one.credibility,
        }
        for one in accounts
    ]  # fmt: skip
    header = ("node", "cleared", "waiting", "taken back", "passed", "failed", "k", "credibility")
    output.emit(data, lambda: output.table(header, rows), as_json=as_json)


@app.command()
def export(
    model: ModelArgument, manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
) -> None:  # fmt: skip
    """Every interval with its last verdict, one JSON object a line."""
    from dcnr.ledger_check import entries_of

    for ledger in _ledgers(Session(home, network, bootstrap, network_id), model, manifest):
        for entry in entries_of(ledger):
            print(json.dumps(entry, ensure_ascii=False))  # noqa: T201


def _audited(session: Session, model: str, manifest: str) -> LedgerAudit | None:
    """None where no audits were in force."""
    from dcnr.audit_ledger import audit_ledger

    async def work(client: AsyncClient) -> LedgerAudit | None:
        try:
            return await audit_ledger(client, model, manifest=manifest)
        except NotFound as error:
            if error.code != "no_ledger":
                raise
            return None

    return session.run(work)


def _ledgers(session: Session, model: str, manifest: str) -> list[JobLedger]:
    from dcnr.ledger_check import read_ledgers

    async def work(client: AsyncClient) -> list[JobLedger]:
        async def read(digest: str) -> model_pb2.Manifest:
            return (await client.manifest(model, digest))[1]

        digest, _ = await client.manifest(model, manifest)
        return await read_ledgers(digest, read)

    return session.run(work)
