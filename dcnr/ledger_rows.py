"""What ``dcnr ledger scores``, ``usage`` and ``export`` say, as plain values: the chain's accounts beside an orchestrator's history (docs/reference/ledger.md).

Two sources that must not be mixed: the chain of manifests can be checked by everybody and says what was true; a history is one orchestrator's own view of
who was in time.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from dcnr.ledger_check import Account, JobLedger, entries_of
from dcnr.sdk.plain import plain
from dcnr.v1 import identity_pb2, ledger_pb2
from trust.envelope import text_of_envelope

SUMMED: Final = ("vnode_batches", "num_answers", "num_samples", "vnode_samples")
Usage = tuple[ledger_pb2.UsageStatement, identity_pb2.Envelope]


def score_rows(accounts: Sequence[Account], answer: ledger_pb2.ListScoresResponse) -> list[dict[str, Any]]:
    """One row per PNode that the chain or the history knows, most credited first; ``history`` None where that orchestrator has no result of it."""
    known = {one.pnode_id: one for one in answer.scores}
    every = [*accounts, *(Account(pnode_id) for pnode_id in sorted(known.keys() - {one.pnode_id for one in accounts}))]
    return [_score_row(one, known.get(one.pnode_id)) for one in every]


def export_rows(
    ledgers: Sequence[JobLedger], answer: ledger_pb2.ListScoresResponse, usage: Sequence[Usage]
) -> list[dict[str, Any]]:  # fmt: skip
    """Every interval with its last verdict, every score, what is expected of classes of devices, and every statement of usage with its signature."""
    rows: list[dict[str, Any]] = [{"record": "interval", **entry} for ledger in ledgers for entry in entries_of(ledger)]
    rows += [{"record": "score", "reporter": answer.reporter, **plain(one)} for one in answer.scores]
    rows += [{"record": "expected", "reporter": answer.reporter, **plain(one)} for one in answer.expected]
    rows += [{"record": "usage", **plain(said), "envelope": text_of_envelope(signed)} for said, signed in usage]
    return rows


def usage_rows(usage: Sequence[Usage]) -> list[dict[str, Any]]:
    """One row per kind, client and for whom it asked, in order of first use: the sums over its statements."""
    rows: dict[tuple[int, tuple[str, ...], str], dict[str, Any]] = {}
    for said, _ in usage:
        begins = {"kind": plain(said)["kind"], "users": list(said.users), "on_behalf": said.on_behalf, **dict.fromkeys(SUMMED, 0)}
        row = rows.setdefault((said.kind, tuple(said.users), said.on_behalf), {**begins, "statements": 0})
        row["statements"] += 1
        for name in SUMMED:
            row[name] += getattr(said, name)
    return list(rows.values())


def _score_row(one: Account, history: ledger_pb2.PNodeScore | None) -> dict[str, Any]:
    return {
        "pnode": one.pnode_id, "cleared": one.cleared, "waiting": one.waiting, "taken_back": one.taken_back, "passed": one.num_passed,
        "failed": one.num_failed, "passes": one.passes, "credibility": one.credibility,
        "score": history.score if history is not None else None, "history": plain(history) if history is not None else None,
    }  # fmt: skip
