"""Goal: a receipt proves what the chain credits and nothing else: whatever is changed, cut, mixed or foreign in it is refused before it is believed."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from test_ledger_audit import HOLDER, JOB, MODEL, OTHER, PNODE, POLICY, World
from typer.testing import CliRunner

from dcnr.cli.dcnr import app
from dcnr.cli.receipt import default_path, printable
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused
from dcnr.receipts import MAX_RECEIPT_BYTES, Receipt, gather_receipt, prove, read_receipt, receipt_bytes, receipt_of
from dcnr.stored import StoredDocuments
from dcnr.system import SystemClock
from dcnr.v1 import data_pb2, identity_pb2, model_pb2, orchestrator_pb2
from gateway.reading import audit_rows
from gateway.views import Views
from trust.envelope import parse, seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain
from trust.network_file import save_policy


def made(directory: Path, world: World | None = None, pnode_id: str = PNODE.node_id, most: int = 5) -> Receipt:
    trained = world or World().train()
    documents = StoredDocuments(trained.read, POLICY, MODEL, directory)
    return asyncio.run(
        gather_receipt(documents.manifest_envelope, documents.request_envelope, POLICY, MODEL, pnode_id, trained.newest, most=most)
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Receipt:
    return made(tmp_path_factory.mktemp("receipt"))


def changed(receipt: Receipt, **fields: Any) -> bytes:
    """The file with other fields."""
    return json.dumps({**json.loads(receipt_bytes(receipt)), **fields}).encode()


def test_a_receipt_proves_what_the_chain_credits_after_a_way_through_a_file(tmp_path: Path, whole: Receipt) -> None:
    path = tmp_path / "receipt.json"
    path.write_bytes(receipt_bytes(whole))
    proof = prove(read_receipt(path), network_id=POLICY.network_id)
    assert (proof.pnode_id, proof.network_id, proof.model, proof.job_id) == (PNODE.node_id, POLICY.network_id, MODEL, JOB)
    assert (proof.account.cleared, proof.account.waiting, proof.account.taken_back, proof.account.num_passed) == (8, 4, 0, 1)
    assert (proof.vnodes, proof.total_cleared, proof.manifest_number) == ({"a": 8}, 8, 4)
    assert proof.as_of_s > 0


def test_the_receipt_of_one_job_does_not_lie_where_that_of_another_does(whole: Receipt) -> None:
    proof = prove(whole)
    paths = {default_path(one) for one in (proof, replace(proof, job_id="later"), replace(proof, pnode_id=OTHER.node_id))}
    assert len(paths) == 3
    assert str(default_path(proof)) == f"receipt-{JOB}-{PNODE.node_id[:8]}.json"


def test_somebody_elses_receipt_proves_nothing_of_oneself(tmp_path: Path, whole: Receipt) -> None:
    assert prove(whole).names_work
    found = prove(replace(whole, pnode_id=OTHER.node_id))
    assert (found.names_work, found.account.cleared) == (False, 0)
    with pytest.raises(InvalidInput):
        made(tmp_path, pnode_id="nobody")


def test_a_chain_that_is_too_long_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    with pytest.raises(Refused) as caught:
        made(tmp_path, most=4)
    assert caught.value.code == "receipt_too_large"


def test_without_audits_there_is_nothing_to_prove(tmp_path: Path) -> None:
    def unaudited(manifest: model_pb2.Manifest) -> None:
        manifest.audits = "none"

    with pytest.raises(NotFound) as caught:
        made(tmp_path, World(unaudited).train())
    assert caught.value.code == "no_ledger"


@pytest.mark.parametrize("lost", range(4))
def test_a_chain_with_a_piece_cut_out_proves_nothing(whole: Receipt, lost: int) -> None:
    with pytest.raises(Corrupt):
        prove(replace(whole, manifests=whole.manifests[:lost] + whole.manifests[lost + 1 :]))


def test_a_receipt_may_end_earlier_and_says_so(whole: Receipt) -> None:
    proof = prove(replace(whole, manifests=whole.manifests[:-1]))
    assert (proof.manifest_number, proof.account.cleared, proof.account.waiting) == (3, 0, 12), "the verdict came with the fourth"
    with pytest.raises(Corrupt, match="no manifest of its job"):
        prove(replace(whole, manifests=whole.manifests[:1]))


def test_what_another_key_signed_is_not_believed(whole: Receipt) -> None:
    last = parse(model_pb2.Manifest, whole.manifests[-1].payload)
    for one in last.contributions:
        one.batches.intervals[0].end += 100
    forged = seal(identity_pb2.DOMAIN_MANIFEST, last, NodeKey.generate())
    with pytest.raises(Corrupt, match="not signed by the listed orchestrator"):
        prove(replace(whole, manifests=(*whole.manifests[:-1], forged)))
    kept = identity_pb2.Envelope(domain=forged.domain, payload=forged.payload, signatures=whole.manifests[-1].signatures)
    with pytest.raises(Corrupt, match="does not belong"):
        prove(replace(whole, manifests=(*whole.manifests[:-1], kept)))
    request = parse(model_pb2.JobRequest, whole.request.payload)
    with pytest.raises(Refused) as caught:
        prove(replace(whole, request=seal(identity_pb2.DOMAIN_JOB_REQUEST, request, NodeKey.generate())))
    assert caught.value.code == "unsigned_job"


def test_a_network_of_the_forgers_own_is_another_network(whole: Receipt) -> None:
    forger = NodeKey.generate()
    own = create_document(forger, name="n", now_wall=0.0, orchestrator_ids=[forger.node_id], audits="drawn")
    with pytest.raises(DcnrError):
        prove(replace(whole, network=(own,)))
    with pytest.raises(Refused) as caught:
        prove(whole, network_id=verify_chain([own]).network_id)
    assert caught.value.code == "wrong_network"


def test_every_bad_file_is_refused_by_name(tmp_path: Path, whole: Receipt) -> None:
    text = json.loads(receipt_bytes(whole))
    bad = [
        b"", b"[" * 100_000, b"\xff\xfe", b"[]", b'"receipt"', changed(whole, format="dcnr-receipt-2"), changed(whole, pnode_id="x"),
        changed(whole, pnode_id=7), changed(whole, model="../.."), changed(whole, network=[]), changed(whole, network=[None]),
        changed(whole, request=3), changed(whole, manifests="abc"), changed(whole, manifests=["%%%"]), changed(whole, manifests=["ÿ"]),
        changed(whole, manifests=[text["manifests"][0][:-8]]), changed(whole, manifests=[base64.b64encode(b"x" * 40).decode()]),
        b" " * (MAX_RECEIPT_BYTES + 1),
    ]  # fmt: skip
    for data in bad:
        with pytest.raises(Corrupt):
            receipt_of(data)
    with pytest.raises(NotFound):
        read_receipt(tmp_path / "none.json")
    with pytest.raises(Corrupt):
        read_receipt(tmp_path)


def test_no_byte_of_a_receipt_can_be_changed_unseen(whole: Receipt) -> None:
    """A flipped byte is refused, or leaves what is proven as it was: base64 has bits that mean nothing."""
    data, before = receipt_bytes(whole), prove(whole)
    for place in range(7, len(data), max(1, len(data) // 150)):
        flipped = bytearray(data)
        flipped[place] ^= 0x02
        try:
            found = prove(receipt_of(bytes(flipped)), network_id=POLICY.network_id)
        except DcnrError:
            continue
        if found.pnode_id == before.pnode_id:
            assert found == before
        else:
            assert found.account.cleared == 0


class Orchestrator:
    """Answers what a gateway asks, out of a `World`."""

    def __init__(self, world: World) -> None:
        self.world, self.num_read = world, 0

    async def call(self, stub: Any, method: str, request: Any, **limits: float) -> orchestrator_pb2.GetModelResponse:
        head = model_pb2.Head(network_id=POLICY.network_id, model=MODEL)
        signed = seal(identity_pb2.DOMAIN_HEAD, head, HOLDER)
        return orchestrator_pb2.GetModelResponse(head=signed, manifest_digest=self.world.newest)

    async def stream(self, stub: Any, method: str, request: Any, **limits: float) -> AsyncGenerator[data_pb2.ReadResponse, None]:
        self.num_read += 1
        ref = request.object
        yield data_pb2.ReadResponse(chunk=self.world.objects[ref.kind, ref.owner, ref.digest])


def test_a_gateway_hands_out_the_same_receipt_and_reads_the_chain_once(whole: Receipt) -> None:
    async def ask() -> None:
        asked = Orchestrator(World().train())
        views = Views(cast(Any, asked), lambda: POLICY, SystemClock())
        with pytest.raises(NotFound) as caught:
            await views.receipt(OTHER.node_id)
        assert caught.value.code == "no_contribution"
        first = await views.receipt(PNODE.node_id)
        assert prove(receipt_of(first)).account == prove(whole).account
        assert await views.receipt(PNODE.node_id) == first
        assert asked.num_read == 5 + 1, "five manifests, and the job's request"
        _, ledgers, _ = await views.ledger()
        rows = audit_rows(ledgers, PNODE.node_id)
        assert [(row["verdict"], row["vnode"], row["batches"]) for row in rows] == [
            (word, "a", 4) for word in ("passed", "open", "spared")
        ]
        assert audit_rows(ledgers, PNODE.node_id, most=1) == rows[:1]
        assert audit_rows(ledgers, OTHER.node_id) == []

    asyncio.run(ask())


def test_the_command_says_what_is_proven_and_whether_the_network_was_compared(tmp_path: Path, whole: Receipt) -> None:
    path, home = tmp_path / "receipt.json", tmp_path / "home"
    path.write_bytes(receipt_bytes(whole))
    runner, words = CliRunner(), ["ledger", "verify-receipt", str(path), "--home", str(home)]
    text = runner.invoke(app, words).stdout
    assert "credited with 8 batches of VNodes (100.0 % of all): a 8" in text
    assert "compared with nothing" in text
    save_policy(home / "network.json", POLICY)
    told = json.loads(runner.invoke(app, [*words, "--json"]).stdout)
    assert (told["pinned"], told["cleared"], told["of"]) == (True, 8, 8)
    refused = runner.invoke(app, [*words, "--network-id", "f" * 40])
    assert isinstance(refused.exception, Refused)
    path.write_bytes(b"{}")
    assert isinstance(runner.invoke(app, words).exception, Corrupt)


def test_names_of_strangers_do_not_move_the_terminal() -> None:
    assert printable("gar\x1b[2Jden\u202e") == "gar[2Jden"
