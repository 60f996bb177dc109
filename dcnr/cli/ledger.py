"""``dcnr ledger``: what the chain of manifests says of everybody's work, read and checked anew by whoever asks."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session

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
    session = Session(home, network, bootstrap, network_id)
    ledgers = _ledgers(session, model, manifest)
    rows = [
        (one.job_id, one.num_manifests, len(one.chronicle.ledger.intervals), one.problem or "holds together") for one in ledgers
    ]
    data: list[dict[str, Any]] = [
        {
            "job": one.job_id, "manifests": one.num_manifests, "intervals": len(one.chronicle.ledger.intervals), "problem": one.problem,
        }
        for one in ledgers
    ]  # fmt: skip
    lines: list[str] = []
    if ledgers and not any(one.problem for one in ledgers):
        found = _audited(session, model, manifest)
        newest = next(row for row in data if row["job"] == found.job_id)
        newest |= {
            "problem": found.trouble, "receipts": found.num_receipts, "statements_gone": found.num_gone, "states": found.num_states,
            "evidence": found.faults, "verdicts": found.counts(),
            "cleared": {vnode: {"batches": cleared, "of": all_} for vnode, (cleared, all_) in found.cleared().items()},
        }  # fmt: skip
        lines = [f"{vnode}: {cleared} of {all_} batches cleared" for vnode, (cleared, all_) in sorted(found.cleared().items())]
        lines += [f"evidence {digest[:16]} against {pnode_id}" for digest, pnode_id in found.faults.items()]
        lines.append(found.trouble or f"{found.num_receipts} receipts and {found.num_states} states are as they must be")

    def text() -> str:
        return "\n".join([output.table(("job", "manifests", "intervals", ""), rows) if rows else "no audits were in force", *lines])

    output.emit(data, text, as_json=as_json)
    if any(row["problem"] for row in data):
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


def _audited(session: Session, model: str, manifest: str) -> LedgerAudit:
    from dcnr.audit_ledger import audit_ledger

    async def work(client: AsyncClient) -> LedgerAudit:
        return await audit_ledger(client, model, manifest=manifest)

    return session.run(work)


def _ledgers(session: Session, model: str, manifest: str) -> list[JobLedger]:
    from dcnr.ledger_check import read_ledgers

    async def work(client: AsyncClient) -> list[JobLedger]:
        async def read(digest: str) -> model_pb2.Manifest:
            return (await client.manifest(model, digest))[1]

        digest, _ = await client.manifest(model, manifest)
        return await read_ledgers(digest, read)

    return session.run(work)
