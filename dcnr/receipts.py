"""Receipts: what a PNode is credited with in one job, as a file that anybody can check without asking anyone.

A receipt holds the signed network document, the maintainers' signed request of the job, and every signed manifest of it from the one that it began with: the
whole reckoning, since whether a batch is credited depends on everything before it. So a receipt stays good when the network is gone, and whoever makes one
can add nothing to it; all they can do is end it at an older manifest, which it says.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused
from dcnr.ids import check_name, check_node_id
from dcnr.ledger_check import Account, JobLedger, accounts_of, folded_job
from dcnr.v1 import identity_pb2, model_pb2
from trust.envelope import digest_of_envelope, envelope_in_text, text_of_envelope
from trust.folding import AUDITS_DRAWN
from trust.network import MAX_DOCUMENT_BYTES, MAX_HISTORY, NetworkPolicy, verify_chain

FORMAT: Final = "dcnr-receipt-1"
MAX_RECEIPT_BYTES: Final = 64 * limits.MIB
MAX_RECEIPT_MANIFESTS: Final = 20_000
ReadEnvelope = Callable[[str], Awaitable[identity_pb2.Envelope]]


@dataclass(frozen=True, slots=True)
class Receipt:
    """The documents of a receipt, as they were signed; `prove` says what follows from them."""

    pnode_id: str
    model: str
    network: tuple[identity_pb2.Envelope, ...]
    """The chain of network documents, oldest first."""
    request: identity_pb2.Envelope
    manifests: tuple[identity_pb2.Envelope, ...]
    """Oldest first; the first is what the job began with."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a receipt proves. Counts are batches of VNodes."""

    pnode_id: str
    network_id: str
    network_name: str
    model: str
    job_id: str
    manifest_digest: str
    """The newest manifest in it: as of this."""
    manifest_number: int
    as_of_s: float
    """When the newest verdict in it was decided, by the clock of who decided; Unix time, s."""
    account: Account
    total_cleared: int
    """Of everybody in that job."""
    vnodes: dict[str, int]
    """Cleared batches of the PNode by VNode; only those with some."""

    @property
    def names_work(self) -> bool:
        """Whether the chain names anything of that PNode."""
        return any((self.account.cleared, self.account.waiting, self.account.taken_back))


async def gather_receipt(
    read_manifest: ReadEnvelope, read_request: ReadEnvelope, policy: NetworkPolicy, model: str, pnode_id: str, newest: str,
    *, most: int = MAX_RECEIPT_MANIFESTS,
) -> Receipt:  # fmt: skip
    """The documents of a PNode's receipt in the job of the manifest of digest ``newest``; whether it proves anything says `prove`.

    ``read_manifest``, ``read_request``: a document as it was signed, by the manifest's digest and by the job's id; ``most``: manifests in it.
    Raises NotFound (``no_ledger``: audits are not in force), Refused (``receipt_too_large``), and what reading raises.
    """
    envelope = await read_manifest(newest)
    last = policy.open_manifest(envelope, model)
    if last.audits != AUDITS_DRAWN:
        raise NotFound(
            "the manifest was written without audits: nothing is credited, so there is nothing to prove", code="no_ledger",
            remedy="audits are in force where the network document says audits = drawn",
        )  # fmt: skip
    chain, oldest, size = [envelope], last, envelope.ByteSize()
    while oldest.job_id == last.job_id and oldest.parent_digest:
        chain.append(await read_manifest(oldest.parent_digest))
        oldest, size = policy.open_manifest(chain[-1], model), size + chain[-1].ByteSize()
        if len(chain) > most or size > MAX_RECEIPT_BYTES // 2:
            raise Refused(
                f"the chain of {last.job_id} is too long for a receipt", code="receipt_too_large",
                remedy="dcnr ledger receipt takes longer chains than a gateway, and --manifest an older end; dcnr ledger scores shows the account",
            )  # fmt: skip
    return Receipt(check_node_id(pnode_id), model, policy.history, await read_request(last.job_id), tuple(reversed(chain)))


def no_contribution(pnode_id: str) -> NotFound:
    """What is said where a PNode has nothing to prove."""
    return NotFound(
        f"the chain of manifests names no work of {pnode_id[:10]} in this job yet", code="no_contribution",
        remedy="what was learned is named with a checkpoint; pnode status shows what is durable",
    )  # fmt: skip


def prove(receipt: Receipt, *, network_id: str | None = None) -> Proof:
    """What follows from a receipt alone. ``network_id``: the id that its network must have; None: any, and the caller has to compare it.

    Every signature, every link of the chain and the reckoning itself are checked. Raises Corrupt, Refused (``wrong_network``, ``unsigned_job``).
    """
    policy = verify_chain(receipt.network, network_id=network_id)
    request = policy.read_job_request(receipt.request)
    opened = [policy.open_manifest(envelope, receipt.model) for envelope in receipt.manifests]
    digests = [digest_of_envelope(envelope) for envelope in receipt.manifests]
    if len(opened) < 2:  # what the job began with, and what it made of it
        raise Corrupt("the receipt holds no manifest of its job", code="bad_receipt")
    if (request.model, request.initial_manifest_digest) != (receipt.model, digests[0]):
        raise Corrupt("the chain does not begin with the manifest that the job's request names", code="bad_receipt")
    for manifest, parent in zip(opened[1:], digests, strict=False):
        if manifest.parent_digest != parent or manifest.job_id != request.job_id:
            raise Corrupt(f"manifest {manifest.number} does not follow the one before it in that job", code="bad_receipt")
    ledger = folded_job(digests[0], opened)
    if ledger.problem:
        raise Corrupt(f"the ledger does not hold: {ledger.problem}", code="bad_ledger")
    accounts = accounts_of([ledger])
    own = next((one for one in accounts if one.pnode_id == receipt.pnode_id), Account(receipt.pnode_id))
    return Proof(
        receipt.pnode_id, policy.network_id, policy.document.name, receipt.model, request.job_id, digests[-1], int(opened[-1].number),
        _decided_s(opened), own, sum(one.cleared for one in accounts), _by_vnode(ledger, receipt.pnode_id),
    )  # fmt: skip


def receipt_bytes(receipt: Receipt) -> bytes:
    """As a file: JSON, the documents in base64. Raises Refused (``receipt_too_large``)."""
    table = {
        "format": FORMAT, "pnode_id": receipt.pnode_id, "model": receipt.model,
        "network": [text_of_envelope(one) for one in receipt.network],
        "request": text_of_envelope(receipt.request),
        "manifests": [text_of_envelope(one) for one in receipt.manifests],
    }  # fmt: skip
    data = (json.dumps(table, indent=0) + "\n").encode()
    if len(data) > MAX_RECEIPT_BYTES:
        raise Refused(f"a receipt of {len(data)} bytes, at most {MAX_RECEIPT_BYTES} are allowed", code="receipt_too_large")
    return data


def read_receipt(path: Path) -> Receipt:
    """The receipt in a file, bounded, nothing of it verified yet. Raises NotFound (``no_receipt``), Corrupt (``bad_receipt``)."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_RECEIPT_BYTES + 1)
    except FileNotFoundError:
        raise NotFound(
            f"there is no receipt at {path}", code="no_receipt", remedy="dcnr ledger receipt MODEL NODE --out FILE"
        ) from None
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}", code="bad_receipt") from error
    return receipt_of(data)


def receipt_of(data: bytes) -> Receipt:
    """As `read_receipt`, from its bytes."""
    if len(data) > MAX_RECEIPT_BYTES:
        raise _wrong(f"it is larger than {MAX_RECEIPT_BYTES} bytes")
    try:
        table: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _wrong("it is not JSON") from error
    if not isinstance(table, dict) or table.get("format") != FORMAT:
        raise _wrong(f"its format is not {FORMAT}")
    pnode_id, model = table.get("pnode_id"), table.get("model")
    try:
        check_node_id(pnode_id if isinstance(pnode_id, str) else "")
        check_name(model if isinstance(model, str) else "")
    except InvalidInput as error:
        raise _wrong(error.message) from error
    network = _envelopes(table.get("network"), MAX_HISTORY, MAX_DOCUMENT_BYTES)
    [request] = _envelopes([table.get("request")], 1, limits.MAX_ENVELOPE_BYTES)
    manifests = _envelopes(table.get("manifests"), MAX_RECEIPT_MANIFESTS + 1, limits.MAX_MANIFEST_BYTES)
    return Receipt(str(pnode_id), str(model), network, request, manifests)


def _envelopes(texts: Any, most: int, max_bytes: int) -> tuple[identity_pb2.Envelope, ...]:
    if not isinstance(texts, list) or not 0 < len(texts) <= most:
        raise _wrong(f"it does not hold 1 to {most} documents of a kind")
    try:
        return tuple(envelope_in_text(text, max_bytes) for text in texts)
    except Corrupt as error:
        raise _wrong(error.message) from error


def _wrong(why: str) -> Corrupt:
    return Corrupt(
        f"this is no receipt: {why}", code="bad_receipt", remedy="have it made again: dcnr ledger receipt MODEL NODE --out FILE"
    )


def _decided_s(manifests: list[model_pb2.Manifest]) -> float:
    return max((one.decided_unix_ms / 1000 for manifest in manifests[1:] for one in manifest.contributions), default=0.0)


def _by_vnode(ledger: JobLedger, pnode_id: str) -> dict[str, int]:
    book = ledger.chronicle.ledger
    found: dict[str, int] = {}
    for vnode, line in sorted(book.lines.items()):
        names = (name for one in line[: book.num_cleared(vnode)] for name in one.intervals)
        count = sum(len(book.intervals[name].batches) for name in names if book.intervals[name].pnode_id == pnode_id)
        if count:
            found[vnode] = count
    return found
