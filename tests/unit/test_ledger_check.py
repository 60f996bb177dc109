"""Goal: whoever reads the chain of manifests finds who did what and what became of it, and the first entry that cannot be."""

from __future__ import annotations

import asyncio

from audited_rig import NODES, NOW_MS, Job, drawn, judged, name_of, piece

from dcnr.ledger_check import JobLedger, accounts_of, entries_of, read_ledgers
from dcnr.v1 import model_pb2
from orchestrator.audit_events import Decision
from trust.going_back import Cause
from trust.ledger import Verdict


def read(job: Job) -> list[JobLedger]:
    by_digest = {job.digest(at): manifest for at, manifest in enumerate(job.manifests)}

    async def manifest(digest: str) -> model_pb2.Manifest:
        return by_digest[digest]

    return asyncio.run(read_ledgers(job.digest(-1), manifest))


def story() -> Job:
    """x has learned 4 batches and failed with the next 4; y has learned 2 on top; z waits for an audit."""
    job = Job()
    job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1"))
    job.named(decisions=[Decision(name_of("a-1"), Verdict.PASSED, "nothing found")])
    job.named(judged("a2", "a1", piece("a-2", 4, 8), piece("a-2h", 8, 10, "y", "a.1"), held=[(0, 10)]), draw=drawn("a-2"))
    job.named(judged("b1", "b0", piece("b-1", 0, 3, "z"), held=[(0, 3)]), draw=drawn("b-1"))
    job.named(decisions=[Decision(name_of("a-2"), Verdict.FAILED, "wrong", Cause.FAULT, name_of("evidence"))])
    return job


def test_accounts_say_what_is_credited_what_waits_and_what_was_taken_back() -> None:
    [ledger] = read(story())
    assert (ledger.job_id, ledger.num_manifests, ledger.problem) == ("job", 5, "")
    found = {
        one.pnode_id: (one.cleared, one.waiting, one.taken_back, one.num_passed, one.num_failed) for one in accounts_of([ledger])
    }
    assert found == {NODES["x"]: (4, 0, 4, 1, 1), NODES["y"]: (0, 0, 2, 0, 0), NODES["z"]: (0, 3, 0, 0, 0)}


def test_accounts_of_a_time_hold_the_work_that_was_named_since() -> None:
    """By when a manifest first named it, whenever it was judged."""
    [ledger] = read(story())

    def since(manifests: int) -> dict[str, tuple[int, int, int, int, int]]:
        accounts = accounts_of([ledger], NOW_MS / 1000 + manifests)
        return {one.pnode_id: (one.cleared, one.waiting, one.taken_back, one.num_passed, one.num_failed) for one in accounts}

    assert since(1) == since(-(10**6)) == {NODES["x"]: (4, 0, 4, 1, 1), NODES["y"]: (0, 0, 2, 0, 0), NODES["z"]: (0, 3, 0, 0, 0)}
    assert since(2) == {NODES["x"]: (0, 0, 4, 0, 1), NODES["y"]: (0, 0, 2, 0, 0), NODES["z"]: (0, 3, 0, 0, 0)}
    assert since(4) == {NODES["z"]: (0, 3, 0, 0, 0)}
    assert since(5) == {}


def test_the_export_has_every_interval_with_its_last_verdict_and_evidence() -> None:
    [ledger] = read(story())
    rows = {str(row["interval"]): row for row in entries_of(ledger)}
    assert [row["verdict"] for row in rows.values()] == ["passed", "failed", "dropped", "open"]
    failed = rows[name_of("a-2")]
    assert (failed["batches"], failed["pnode"], failed["evidence"]) == ([[4, 8]], NODES["x"], name_of("evidence"))


def test_the_first_entry_that_cannot_be_is_named_with_its_manifest() -> None:
    job = story()
    forged = job.manifests[2]
    forged.number = 2
    forged.contributions[0].verdict = Verdict.SPARED.value
    for at in range(3, len(job.manifests)):
        job.manifests[at].parent_digest = job.digest(at - 1)
    [ledger] = read(job)
    assert ledger.problem.startswith("manifest 2: interval")
    assert ledger.num_manifests == 1


def test_without_audits_there_is_no_ledger() -> None:
    job = Job()
    assert read(job) == []
