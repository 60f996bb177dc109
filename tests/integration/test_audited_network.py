"""Goal: whoever cheats, tells two stories or slanders is found with evidence, nobody else is blamed, what was wrong is taken back, and jobs complete.

Three honest PNodes that the network document trusts, one that multiplies its gradients by ten, one that gives its commits one number, two orchestrators with
verifiers: newcomers are in probation, so that each of their intervals is audited. Those two lend more than the others, so that plans choose them first.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from collector_rig import Collector
from commands_rig import Shell
from network_rig import BATCH_SIZE, MODEL, SAMPLES, Rig, running_network
from readme_blocks import lines_where_audited

import dcnr.sdk
from dcnr.cli.receipt import write_receipt
from dcnr.errors import DcnrError
from dcnr.receipts import Proof, prove, read_receipt
from dcnr.sdk.client import connect_async
from dcnr.testing import LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.folding import AUDITS_DRAWN
from trust.ledger import Verdict
from trust.standing import Terms

QUARANTINED = orchestrator_pb2.NODE_STATE_QUARANTINED
HONEST = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "20")) for number in range(1, 4))
LIAR = LocalPNode(
    "liar", 1.0, 360, ("--cpu-percent", "40", "--behaviour", "tenfold"), program=("-m", "examples.byzantine", "pnode")
)
TELLER = LocalPNode(
    "teller", 1.0, 360, ("--cpu-percent", "40", "--behaviour", "equivocating"), program=("-m", "examples.byzantine", "pnode")
)
SLANDERER = LocalPNode(
    "slanderer", 1.0, 360, ("--cpu-percent", "20", "--behaviour", "slandering"), program=("-m", "examples.byzantine", "pnode")
)
VNODES = ("a", "b", "c", "d", "e")
PASSES = 2
ITS_MODEL = "mnist-residual"
"""Of the README's commands."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    names = [one.name for one in HONEST]
    with running_network(
        (*HONEST, TELLER, LIAR), num_orchestrators=2, vnodes=VNODES, audits=AUDITS_DRAWN, trusted=names
    ) as running:
        yield running


def manifests(rig: Rig, newest: str) -> list[model_pb2.Manifest]:
    """The chain of the job, oldest first, as anybody reads it."""

    async def read() -> list[model_pb2.Manifest]:
        found: list[model_pb2.Manifest] = []
        async with await connect_async(rig.network.bootstrap, network=rig.network.network_file, key=rig.key) as client:
            digest = newest
            while digest:
                _, manifest = await client.manifest(MODEL, digest)
                found.append(manifest)
                digest = manifest.parent_digest
        return found[::-1]

    return asyncio.run(read())


def proven(rig: Rig, node_id: str, manifest: str) -> Proof:
    """What a PNode's receipt proves to whoever has nothing but the file and the network's id."""

    async def work() -> tuple[Path, str]:
        async with await connect_async(rig.network.bootstrap, network=rig.network.network_file, key=rig.key) as client:
            path, _ = await write_receipt(client, MODEL, node_id, rig.network.directory / f"{node_id}.json", manifest=manifest)
            return path, client.policy.network_id

    path, network_id = asyncio.run(work())
    return prove(read_receipt(path), network_id=network_id)


def seen(rig: Rig, node_id: str) -> list[orchestrator_pb2.NodeView]:
    """A node as each orchestrator sees it; fewer where one does not answer."""
    found: list[orchestrator_pb2.NodeView] = []
    for place in rig.network.bootstrap:
        with (
            contextlib.suppress(DcnrError),
            dcnr.sdk.connect([place], network=rig.network.network_file, key=rig.key) as client,
        ):
            found += [one for one in client.nodes() if one.node_id == node_id]
    return found


def states_of(rig: Rig, node_id: str) -> list[int]:
    """The same: its state alone."""
    return [one.state for one in seen(rig, node_id)]


def test_a_cheat_is_caught_with_evidence_and_the_job_completes_without_what_it_taught(rig: Rig) -> None:
    teller, liar = rig.network.pnodes[-2:]
    job_id = rig.submit("audited", passes=PASSES, checkpoint_steps=16)
    shown: list[orchestrator_pb2.JobView] = []

    def is_found(node_id: str) -> bool:
        shown.append(rig.ask(lambda client: client.job(job_id, MODEL)))
        return QUARANTINED in states_of(rig, node_id)

    for found, what in ((liar, "the liar is quarantined"), (teller, "who tells two stories is banned")):
        rig.until(lambda found=found: is_found(found.node_id), what, 240.0, pause_s=0.3)  # type: ignore[misc]
    rig.until(
        lambda: is_found(liar.node_id) and any(one.cleared_steps for one in shown), "something is cleared", 120.0, pause_s=0.3
    )
    assert all(0.0 < one.unnoticed_steps <= one.cleared_steps for one in shown if one.cleared_steps), (
        "who looks at the job is told as well"
    )
    done = rig.ended(job_id, 300.0)
    chain = manifests(rig, done.outcome.manifest_digest)
    told = [one for manifest in chain for one in manifest.contributions]
    failed = [one for one in told if one.verdict == Verdict.FAILED.value]
    assert failed
    blamed = {one.pnode_id for one in failed}
    assert liar.node_id in blamed
    assert blamed <= {liar.node_id, teller.node_id}, "nobody else is blamed"
    assert all(one.evidence for one in failed)
    assert any(manifest.retracted for manifest in chain), "what it taught is taken back"
    last = {one.interval: one for one in told}
    cleared = [one for one in last.values() if one.verdict in (Verdict.PASSED.value, Verdict.SPARED.value)]
    assert liar.node_id not in {one.pnode_id for one in cleared}, "and it is credited with nothing"
    assert {one.vnode for one in rig.audit()} == set(VNODES)
    num_batches = PASSES * SAMPLES // BATCH_SIZE
    for entry in chain[-1].entries:
        assert [(one.first, one.end) for one in entry.working[0].lineage.intervals] == [(0, num_batches)]
        assert entry.cleared.digest == entry.working[0].digest, "everything in the release is checked"
    honest = chain[-1].entries[0].cleared.pnode_id
    proofs = {node_id: proven(rig, node_id, done.outcome.manifest_digest) for node_id in (honest, liar.node_id)}
    assert {one.total_cleared for one in proofs.values()} == {len(VNODES) * num_batches}, "each batch is credited once"
    assert proofs[honest].account.cleared > 0
    assert (proofs[liar.node_id].account.cleared, proofs[liar.node_id].account.num_failed > 0) == (0, True)
    check_unnoticed(rig, done.outcome.manifest_digest, len(VNODES) * num_batches)
    both = [QUARANTINED] * 2
    rig.until(
        lambda: states_of(rig, liar.node_id) == both, "the other orchestrator has verified the evidence itself", 120.0, pause_s=1.0
    )
    assert not any("sender_unknown" in one.log.read_text() for one in rig.network.orchestrators), "plans had whoever sent something"
    evidence = {one.evidence for one in failed if one.pnode_id == liar.node_id}
    with dcnr.sdk.connect(rig.network.bootstrap, network=rig.network.network_file, key=rig.key) as client:
        shown = next(one for one in client.nodes() if one.node_id == liar.node_id)
    assert any("banned" in one.reason for one in seen(rig, teller.node_id)), "where both statements came to"
    assert shown.evidence in evidence, "everybody may see it"

    def is_told() -> bool:
        found = rig.status(liar)
        return found is not None and any(one.state == QUARANTINED and one.evidence in evidence for one in found.orchestrators)

    rig.until(is_told, "its owner is told why, with the evidence", 60.0)


def check_unnoticed(rig: Rig, manifest: str, num_steps: int) -> None:
    """Everybody is told how much of the release may be wrong unnoticed: by who checks the chain, with the exported weights, and at the end of the job."""
    directory = rig.network.directory
    where = (
        "--home",
        str(rig.network.maintainer_home),
        "--network",
        str(rig.network.network_file),
        "--bootstrap",
        rig.network.bootstrap[0],
    )
    with Collector() as collector:
        shell = Shell(rig.network, collector)
        ledger = ("dcnr ledger verify --json", MODEL, "--manifest", manifest, *where)
        export = ("dcnr model export --json", MODEL, "--out", str(directory / "release"), "--manifest", manifest, *where)
        shown, exported = (json.loads(shell.run(*words))["unnoticed"] for words in (ledger, export))
        texts = [shell.run(words[0].removesuffix(" --json"), *words[1:]) for words in (ledger, export)]
        texts.append(shell.run("dcnr job watch", "--model", MODEL, *where))
        readme = [shell.run(line.replace(ITS_MODEL, MODEL), *where) for line in lines_where_audited()]
    assert shown == exported
    assert shown["of"] == num_steps
    assert 0.0 < shown["share"] < 1.0, "whom the document trusts is drawn at a fifth of the rate, so not everything was"
    said = f"at most {shown['steps']:.1f} of {num_steps} cleared steps"
    assert [said in text for text in texts] == [True] * 3, texts[-1]
    assert len(readme) == 2, "the README's commands for such a network work as they stand"
    assert said in readme[0]


@pytest.mark.long
def test_who_has_passed_ten_audits_audits_others_and_who_faults_what_is_right_is_found() -> None:
    """Goal: nobody is trusted; the verifier audits until PNodes are active, then these audit one another. One of them faults whatever it is given."""
    names = (*HONEST[:2], SLANDERER)
    with running_network(names, num_orchestrators=1, vnodes=("a", "b", "c"), audits=AUDITS_DRAWN) as rig:
        job_id = rig.submit("audited", passes=14, checkpoint_s=0.5, checkpoint_steps=16)
        slanderer = rig.network.pnodes[-1]
        rig.until(lambda: QUARANTINED in states_of(rig, slanderer.node_id), "the slanderer is quarantined", 300.0, pause_s=1.0)
        done = rig.ended(job_id, 300.0)
        chain = manifests(rig, done.outcome.manifest_digest)
        assert all(entry.cleared.digest == entry.working[0].digest for entry in chain[-1].entries)
        assert not [one for manifest in chain for one in manifest.contributions if one.verdict == Verdict.FAILED.value], (
            "nobody failed"
        )
        with rig.client() as client:
            nodes = {one.node_id: one for one in client.nodes()}
        assert "faulted what is right" in nodes[slanderer.node_id].reason
        honest = [process.node_id for process in rig.network.pnodes[:-1]]
        assert not any(nodes[node_id].state == QUARANTINED for node_id in honest)
        assert orchestrator_pb2.NODE_STATE_ACTIVE in {nodes[node_id].state for node_id in honest}
        [orchestrator] = rig.network.orchestrators
        asked = [line for line in orchestrator.log.read_text().splitlines() if "drawn among those that are independent" in line]
        assert any(slanderer.node_id in line for line in asked), "an active PNode was asked to audit"


@pytest.mark.long
def test_who_cheated_comes_back_over_rehab_and_its_next_fault_costs_four_times_as_long() -> None:
    """Goal: the whole way over the real network, with terms of seconds: quarantine, units whose truth is known, probation, work, and quarantine again."""
    with running_network(
        (*HONEST[:2], LIAR), num_orchestrators=1, vnodes=("a", "b", "c"), audits=AUDITS_DRAWN, terms=Terms(4.0, 3)
    ) as rig:
        rig.submit("way-back", passes=60, checkpoint_s=0.5, checkpoint_steps=16)
        liar = rig.network.pnodes[-1]
        way = ["probation", "quarantined", "rehab", "probation", "quarantined"]

        def has_gone() -> bool:
            return [one for one in states_told(rig, liar.node_id) if one in way][: len(way)] == way

        rig.until(has_gone, "it came back, cheated and was found again", 420.0, pause_s=1.0)
        [orchestrator] = rig.network.orchestrators
        asked = [line for line in orchestrator.log.read_text().splitlines() if "a unit in rehab" in line]
        assert len([line for line in asked if liar.node_id in line]) >= 3
        with rig.client() as client:
            shown = next(one for one in client.nodes() if one.node_id == liar.node_id)
        assert shown.evidence, "with the evidence of the newer fault"


def states_told(rig: Rig, node_id: str) -> list[str]:
    """Its states, one after the other, as the orchestrator has them in its history."""
    [orchestrator] = rig.network.orchestrators
    with contextlib.closing(sqlite3.connect(f"file:{orchestrator.home / 'history.db'}?mode=ro", uri=True)) as database:
        rows = database.execute(
            "SELECT facts FROM events WHERE kind = 'node_state_changed' AND subject = ? ORDER BY sequence", (node_id,)
        )
        return [json.loads(facts)["state"] for (facts,) in rows]
