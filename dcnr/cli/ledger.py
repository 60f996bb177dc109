"""``dcnr ledger``: what the chain of manifests says of everybody's work, read and checked anew by whoever asks."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dcnr.cli import output
from dcnr.cli.homes import HomeOption, JsonOption
from dcnr.cli.session import BootstrapOption, NetworkIdOption, NetworkOption, Session
from dcnr.cli.unnoticed import NOBODY_CHECKED, unnoticed_data, unnoticed_text
from dcnr.errors import NotFound

if TYPE_CHECKING:
    from dcnr.audit_ledger import LedgerAudit
    from dcnr.audit_lineage import VNodeLineage
    from dcnr.ledger_check import JobLedger
    from dcnr.ledger_rows import Usage
    from dcnr.receipts import Proof
    from dcnr.sdk.client import AsyncClient
    from dcnr.v1 import ledger_pb2, model_pb2

app = typer.Typer(help="Who did what, and what became of it.", no_args_is_help=True, rich_markup_mode=None)

ModelArgument = Annotated[str, typer.Argument(help="Name of the model.")]
ManifestOption = Annotated[str, typer.Option(help="Digest of a manifest; default: the newest.")]
BAD_EXIT = 1


@app.command()
def verify(
    model: ModelArgument, manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Check the ledger of a model anew. Every job's chain of manifests; of the newest job receipts, evidence and states too. Exits with 1 at the first bad one.

    Where no audits were in force nobody checked what was computed, and that is said; then the signed statements are held against states and manifests.
    Disagreement is bad at any time, batches that are missing once the job has completed.

    Example: dcnr ledger verify mnist-residual
    """
    from trust.exposure import together

    session = Session(home, network, bootstrap, network_id)
    found = _audited(session, model, manifest)
    if found is None:
        _verify_statements(session, model, manifest, as_json=as_json)
        return
    header = ("job", "manifests", "intervals", "")
    rows = [
        (one.job_id, one.num_manifests, len(one.chronicle.ledger.intervals), one.problem or "holds together")
        for one in found.ledgers
    ]
    cleared, whole = sorted(found.cleared().items()), together(found.exposures)
    data = {
        "jobs": [
            {"job": row[0], "manifests": row[1], "intervals": row[2], "problem": one.problem, "unnoticed": unnoticed_data(exposure)}
            for row, one, exposure in zip(rows, found.ledgers, found.exposures, strict=True)
        ],
        "problem": found.trouble, "receipts": found.num_receipts, "statements_gone": found.num_gone, "states": found.num_states,
        "evidence": found.faults, "verdicts": found.counts(),
        "cleared": {vnode: {"batches": batches, "of": newest} for vnode, (batches, newest) in cleared},
        "unnoticed": unnoticed_data(whole),
    }  # fmt: skip
    lines = [f"{vnode}: {batches} of {newest} batches cleared" for vnode, (batches, newest) in cleared]
    lines += [f"evidence {digest[:16]} against {pnode_id}" for digest, pnode_id in found.faults.items()]
    lines.append(unnoticed_text(whole))
    lines.append(found.trouble or f"{found.num_receipts} receipts and {found.num_states} states are as they must be")
    output.emit(data, lambda: "\n".join([output.table(header, rows), *lines]), as_json=as_json)
    if not found.holds:
        raise typer.Exit(BAD_EXIT)


@app.command()
def receipt(
    model: ModelArgument,
    node: Annotated[str, typer.Argument(help="Id of a PNode.")],
    out: Annotated[Path | None, typer.Option(help="File; default: receipt-JOB-NODE.json here.", show_default=False)] = None,
    manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Write a file that proves what a PNode is credited with. It is about one job; anybody can check it, also when the network is gone.

    Example: dcnr ledger receipt mnist-residual 3f0c… --out receipt.json
    """
    from dcnr.cli.receipt import proof_data, proof_text, write_receipt

    async def work(client: AsyncClient) -> tuple[Path, Proof]:
        return await write_receipt(client, model, node, out, manifest=manifest)

    path, proof = Session(home, network, bootstrap, network_id).run(work)
    data = {**proof_data(proof, pinned=True), "file": str(path)}
    output.emit(data, lambda: f"{proof_text(proof, pinned=True)}\nwritten to {path}", as_json=as_json)


@app.command("verify-receipt")
def verify_receipt(
    file: Annotated[Path, typer.Argument(help="A receipt, from dcnr ledger receipt or pnode receipt.")],
    home: HomeOption = None, network: NetworkOption = None, network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Check a receipt and say what it proves. Every signature, every link of the chain, the reckoning; nobody is asked. Exits with 1 where it does not hold.

    Example: dcnr ledger verify-receipt receipt.json --network-id ID
    """
    from dcnr.cli.receipt import proof_data, proof_text
    from dcnr.receipts import prove, read_receipt

    session = Session(home, network, None, network_id)
    wanted = network_id or (session.known_network_id() if session.network is not None else None)
    proof = prove(read_receipt(file.expanduser()), network_id=wanted)
    output.emit(proof_data(proof, pinned=wanted is not None), lambda: proof_text(proof, pinned=wanted is not None), as_json=as_json)


@app.command()
def scores(
    model: ModelArgument, manifest: ManifestOption = "",
    works: Annotated[bool, typer.Option("--works", help="Also by component and device class: provisioning and step times.")] = False,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """The score of each PNode, with its parts. 100 times C (credibility) times R (reliability), k (audits passed), and the batches behind it.

    Batches and audits are read from the chain of manifests, scores come from one orchestrator's own history; "-" where it has none.
    """
    from dcnr.ledger_check import accounts_of
    from dcnr.ledger_rows import score_rows

    ledgers, answer, _ = _read(Session(home, network, bootstrap, network_id), model, manifest)
    data = score_rows(accounts_of(ledgers, now_s=time.time()), answer)
    output.emit(data, lambda: _scores_text(data, answer, works=works), as_json=as_json)


@app.command()
def usage(
    model: ModelArgument, home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None,
    network_id: NetworkIdOption = None, as_json: JsonOption = False,
) -> None:  # fmt: skip
    """Who used what, by one orchestrator's history. Signed: jobs, and answered questions by client and by for whom it asked.

    Of questions everybody sees its own, and a maintainer's key all; gateways say which of their keys asked.
    """
    from dcnr.ledger_rows import usage_rows

    async def work(client: AsyncClient) -> list[Usage]:
        return await client.usage(model)

    rows = usage_rows(Session(home, network, bootstrap, network_id).run(work))
    header = ("what", "who", "on behalf of", "batches of VNodes", "answers", "samples", "samples of VNodes")
    names = ("on_behalf", "vnode_batches", "num_answers", "num_samples", "vnode_samples")
    table = [(row["kind"], " ".join(map(output.short, row["users"])) or "others", *(row[name] for name in names)) for row in rows]
    output.emit(rows, lambda: output.table(header, table), as_json=as_json)


@app.command()
def quote(
    model: ModelArgument,
    samples: Annotated[int, typer.Option(min=1, help="In all questions together; a text has one per token at most.")] = 1,
    exit_: Annotated[str, typer.Option("--exit", help="VNode whose readout is wanted; default: the deepest.")] = "",
    redundancy: Annotated[int, typer.Option(min=1, max=4, help="Independent ways that have to agree.")] = 1,
    home: HomeOption = None, network: NetworkOption = None, bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
    as_json: JsonOption = False,
) -> None:  # fmt: skip
    """What questions would cost, as signed. No money. What a job would cost: dcnr model plan."""
    from dcnr.sdk.plain import plain
    from dcnr.sdk.quoting import quote_questions

    async def work(client: AsyncClient) -> ledger_pb2.CostQuote:
        return await quote_questions(client, model, samples, exit_=exit_, redundancy=redundancy)

    found = Session(home, network, bootstrap, network_id).run(work)
    told = f"cost: at most {found.vnode_samples} samples of VNodes, {found.num_samples} samples through {found.num_vnodes} VNodes each; no money"
    output.emit(plain(found), lambda: told, as_json=as_json)


@app.command()
def export(
    model: ModelArgument, manifest: ManifestOption = "", home: HomeOption = None, network: NetworkOption = None,
    bootstrap: BootstrapOption = None, network_id: NetworkIdOption = None,
) -> None:  # fmt: skip
    """The whole ledger, one JSON object a line. Every interval with its last verdict, every score, every signed statement of usage; "record" says which."""
    from dcnr.ledger_rows import export_rows

    for row in export_rows(*_read(Session(home, network, bootstrap, network_id), model, manifest)):
        print(json.dumps(row, ensure_ascii=False))  # noqa: T201


def _scores_text(rows: list[dict[str, Any]], answer: ledger_pb2.ListScoresResponse, *, works: bool) -> str:
    header = ("node", "score", "C", "R", "k", "results", "cleared", "waiting", "taken back", "passed", "failed")
    table = []
    for row in rows:
        known = row["history"]
        parts = (
            (known["score"], f"{known['credibility']:.3f}", f"{known['reliability']:.3f}", f"{known['passes']:.1f}", known["num_results"])
            if known is not None
            else ("-", f"{row['credibility']:.3f}", "-", f"{row['passes']:.1f}", 0)
        )  # fmt: skip
        counts = (row["cleared"], row["waiting"], row["taken_back"], row["passed"], row["failed"])
        table.append((output.short(row["pnode"]), *parts, *counts))
    parts_text = [output.table(header, table)]
    if works:
        parts_text.append(_works_text(answer))
    if answer.scores:
        parts_text.append(f"scores as {output.short(answer.reporter)} has them")
    return "\n".join(parts_text)


def _works_text(answer: ledger_pb2.ListScoresResponse) -> str:
    """Nodes, then what is expected of each class."""
    header = ("node", "component", "device", "in time", "provisioning p50", "p95", "step p50", "p95")
    rows = [
        (
            output.short(one.pnode_id), work.component, work.device_class, f"{work.num_on_time} of {work.num_results}",
            *_seconds(work, "provisioning_s"), *_seconds(work, "step_s"),
        )
        for one in answer.scores
        for work in one.works
    ]  # fmt: skip
    expected = [
        (one.component, one.device_class, *_seconds(one, "provisioning_s"), *_seconds(one, "s_per_gflop"))
        for one in answer.expected
    ]
    expected_header = ("component", "device", "provisioning p50", "p95", "step per GFLOP p50", "p95")
    return "\n".join([output.table(header, rows), output.table(expected_header, expected)])


def _seconds(message: ledger_pb2.WorkRecord | ledger_pb2.ExpectedWork, name: str) -> tuple[str, str]:
    if not message.HasField(name):  # type: ignore[arg-type]
        return "-", "-"
    times = getattr(message, name)
    return f"{times.p50:.3g} s", f"{times.p95:.3g} s"


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


def _verify_statements(session: Session, model: str, manifest: str, *, as_json: bool) -> None:
    """What can be verified without audits: who says to have learned what, and that states, commits and manifests agree on it."""
    from dcnr.audit_lineage import audit_lineage
    from dcnr.v1 import model_pb2

    async def work(client: AsyncClient) -> tuple[list[VNodeLineage], bool]:
        digest, newest = await client.manifest(model, manifest)
        ended = [job.outcome for job in await client.jobs(model) if job.state == model_pb2.JOB_STATE_COMPLETED]
        is_done = any((one.job_id, one.manifest_digest) == (newest.job_id, digest) for one in ended)
        return await audit_lineage(client, model, manifest=digest), is_done

    lineages, is_done = session.run(work)
    tell_statements(lineages, is_done=is_done, as_json=as_json)


def tell_statements(lineages: list[VNodeLineage], *, is_done: bool, as_json: bool) -> None:
    """Says what was found; exits with 1 where states, commits and manifests disagree, or batches are missing of a job that is said to be completed."""
    problem = next((f"{one.vnode}: {one.reason}" for one in lineages if not (one.exact if is_done else one.agrees)), "")
    data = {
        "audits": "none", "completed": is_done, "problem": problem,
        "vnodes": [
            {"vnode": one.vnode, "state": one.state_digest, "batches": one.num_batches, "commits": one.num_commits, "exact": one.exact,
             "reason": one.reason, "pnodes": list(one.pnodes)}
            for one in lineages
        ],
    }  # fmt: skip
    output.emit(data, lambda: _statements_text(lineages, problem, is_done=is_done), as_json=as_json)
    if problem:
        raise typer.Exit(BAD_EXIT)


def _statements_text(lineages: list[VNodeLineage], problem: str, *, is_done: bool) -> str:
    def said(one: VNodeLineage) -> str:
        return "every batch of the job once" if one.exact else "so far" if one.agrees and not is_done else one.reason

    rows = [
        (one.vnode, one.num_batches, one.num_commits, ", ".join(map(output.short, one.pnodes)) or "-", said(one))
        for one in lineages
    ]
    return "\n".join(
        [
            f"{NOBODY_CHECKED}; below is what was signed",
            output.table(("vnode", "batches", "commits", "by", ""), rows),
            problem or f"{len(lineages)} states are there, and agree with signed commits back to checkpoint 0",
        ]
    )


def _read(session: Session, model: str, manifest: str) -> tuple[list[JobLedger], ledger_pb2.ListScoresResponse, list[Usage]]:
    """The chain, and an orchestrator's history beside it."""
    from dcnr.ledger_check import read_ledgers

    async def work(client: AsyncClient) -> tuple[list[JobLedger], ledger_pb2.ListScoresResponse, list[Usage]]:
        async def read(digest: str) -> model_pb2.Manifest:
            return (await client.manifest(model, digest))[1]

        digest, _ = await client.manifest(model, manifest)
        return await read_ledgers(digest, read), await client.scores(), await client.usage(model)

    return session.run(work)
