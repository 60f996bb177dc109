"""What ``dcnr ledger receipt``, ``dcnr ledger verify-receipt`` and ``pnode receipt`` do: make receipts into files, and say what a file proves."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dcnr.cli import output
from dcnr.cli.files import write_whole
from dcnr.errors import NotFound, NotRunning

if TYPE_CHECKING:
    from dcnr.ids import NodeId
    from dcnr.receipts import Proof
    from dcnr.sdk.client import AsyncClient


async def write_receipt(
    client: AsyncClient, model: str, pnode_id: str, out: Path | None, *, manifest: str = ""
) -> tuple[Path, Proof]:
    """The receipt of a PNode in a file (default: ``receipt-JOB-NODE.json`` here), and what it proves.

    ``model`` empty: that of the newest job. Raises what `dcnr.receipts` raises, NotFound (``no_contribution``), and Refused (``disk_trouble``).
    """
    from dcnr.receipts import gather_receipt, no_contribution, prove, receipt_bytes
    from dcnr.stored import StoredDocuments
    from dcnr.v1 import data_pb2

    async def read(ref: data_pb2.ObjectRef, path: Path, max_bytes: int) -> None:
        await client.objects.read_file(ref, path, max_bytes=max_bytes)

    named = model or await newest_model(client)
    digest, _ = await client.manifest(named, manifest)
    documents = StoredDocuments(read, client.policy, named, client.scratch)
    receipt = await gather_receipt(documents.manifest_envelope, documents.request_envelope, client.policy, named, pnode_id, digest)
    proof = prove(receipt)
    if not proof.names_work:
        raise no_contribution(pnode_id)
    path = (out or default_path(proof)).expanduser().absolute()
    write_whole(path, receipt_bytes(receipt), remedy="choose another path with --out")
    return path, proof


def default_path(proof: Proof) -> Path:
    """One for each job: what a PNode is credited with in an earlier one is in no later receipt."""
    return Path(f"receipt-{proof.job_id}-{output.short(proof.pnode_id)}.json")


async def own_receipt(home: Path, model: str, out: Path | None) -> tuple[Path, Proof]:
    """As `write_receipt`, of the PNode on ``home``, over the orchestrators that its daemon knows, or where it was told to begin.

    Raises NotFound (``no_network``) where this home has joined no network, and what those raise.
    """
    pnode_id = own_id(home)
    async with await own_client(home) as client:
        return await write_receipt(client, model, pnode_id, out)


def own_id(home: Path) -> NodeId:
    """Of the PNode on ``home``. Raises NotFound (``no_network``) where it has joined no network."""
    from pnode.home import Home
    from trust.identity import NodeKey

    paths = Home(home)
    if not paths.network.exists() or not paths.key.exists():
        raise NotFound(f"{home} has joined no network yet", code="no_network", remedy="pnode start --bootstrap HOST:PORT")
    return NodeKey.load(paths.key).node_id


async def own_client(home: Path) -> AsyncClient:
    """A client of the network that ``home`` has joined, over the orchestrators that its daemon knows, or where it was told to begin. Raises Unavailable."""
    from dcnr.cli.homes import settings_of
    from dcnr.cli.local_door import asked
    from dcnr.cli.own_dashboard import contacts
    from dcnr.sdk.client import connect_async
    from dcnr.settings import PNodeSettings
    from dcnr.v1 import local_pb2
    from pnode.home import Home

    known = list(settings_of(PNodeSettings, home, {}).value.bootstrap)
    with contextlib.suppress(NotRunning):
        status = await asked(home, "Status", local_pb2.StatusRequest())
        known = [f"{node_id}@{address}" for node_id, addresses in contacts(status) for address in addresses] or known
    return await connect_async(known, network=Home(home).network)


async def newest_model(client: AsyncClient) -> str:
    """The model of the newest job. Raises NotFound (``no_job``)."""
    jobs = await client.jobs()
    if not jobs:
        raise NotFound("no job has been submitted yet: nothing was learned", code="no_job", remedy="dcnr model submit")
    return jobs[0].model


def proof_data(proof: Proof, *, pinned: bool) -> dict[str, Any]:
    """As plain values. ``pinned``: whether the network is one that the caller named."""
    account = proof.account
    return {
        "pnode": proof.pnode_id, "network_id": proof.network_id, "network_name": proof.network_name, "pinned": pinned, "model": proof.model,
        "job": proof.job_id, "manifest": proof.manifest_digest, "number": proof.manifest_number, "as_of_s": proof.as_of_s,
        "cleared": account.cleared, "of": proof.total_cleared, "waiting": account.waiting, "taken_back": account.taken_back,
        "passed": account.num_passed, "failed": account.num_failed, "vnodes": proof.vnodes,
    }  # fmt: skip


def proof_text(proof: Proof, *, pinned: bool) -> str:
    """For people."""
    account = proof.account
    share = f" ({100 * account.cleared / proof.total_cleared:.1f} % of all)" if proof.total_cleared else ""
    when = (
        datetime.fromtimestamp(proof.as_of_s, UTC).strftime("%Y-%m-%d %H:%M UTC")
        if 0 < proof.as_of_s < 32_503_680_000
        else "no verdict yet"
    )
    lines = [
        f"PNode {proof.pnode_id}",
        f"network {printable(proof.network_name)} {proof.network_id}",
        f"job {proof.job_id} of {proof.model}, as of manifest {proof.manifest_number} {output.short(proof.manifest_digest)}, {when}",
        f"credited with {account.cleared} batches of VNodes{share}: {', '.join(f'{name} {count}' for name, count in proof.vnodes.items()) or 'none'}",
        f"{account.waiting} wait for audits, {account.taken_back} were taken back; {account.num_passed} audits passed, {account.num_failed} failed",
    ]
    if not pinned:
        lines.append("this network's id was compared with nothing: see that it is the one you mean, or give --network-id")
    return "\n".join(lines)


def printable(text: str) -> str:
    """A stranger's words without what moves a terminal."""
    return "".join(letter for letter in text[:80] if letter.isprintable())
