"""Goal: a signed statement binds its author to every step of its interval; what contradicts itself is seen without a tensor, and honest logs never are."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from dcnr.errors import Corrupt, DcnrError
from dcnr.ids import digest_of
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place
from trust.delegation import make_delegation
from trust.envelope import seal
from trust.equivocation import equivocation_of
from trust.identity import NodeKey
from trust.step_logs import MAX_ENTRIES, begins_with, contradiction_in, named_in, open_log

NETWORK, BEGIN, END = "5" * 40, "1" * 64, "2" * 64
NODE, WORKER = NodeKey.generate(), NodeKey.generate()
NUM_STEPS = 40
"""More than sixteen."""


def step(batch: int, *, forward_only: bool = False, num_learned: int | None = None) -> model_pb2.Step:
    lessons = {} if forward_only else {"loss": 1.0 / (batch + 1), "lr": 0.125}
    return model_pb2.Step(
        batch=batch, num_learned=batch if num_learned is None else num_learned, forward_only=forward_only,
        inputs=[bytes([batch]) * 32], outputs=[model_pb2.StepOutput(codec="raw", digest=bytes([200 - batch]) * 32)], **lessons,
    )  # fmt: skip


def log_of(steps: list[model_pb2.Step], **changes: object) -> model_pb2.StepLog:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": 3, "begin_digest": BEGIN, "steps": steps,
        **changes,
    }  # fmt: skip
    return model_pb2.StepLog(**facts)  # type: ignore[arg-type]


def commit_of(log: model_pb2.StepLog, **changes: object) -> model_pb2.Commit:
    """What an honest worker states about that log."""
    learned = [one for one in log.steps if not one.forward_only]
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": 3, "parent_digest": BEGIN,
        "state_digest": END, "batches": [one.batch for one in learned], "losses": [one.loss for one in learned], "sequence": 7,
        "delegation": make_delegation(NODE, NETWORK, WORKER.public_der, 3, ["127.0.0.1:1"], 1_700_000_000.0),
        "steps_digest": digest_of(log.SerializeToString(deterministic=True)), **changes,
    }  # fmt: skip
    return model_pb2.Commit(**facts)  # type: ignore[arg-type]


def honest() -> model_pb2.StepLog:
    """Learned in order, one batch computed again in between."""
    steps = [step(number) for number in range(NUM_STEPS)]
    return log_of([*steps[:5], step(2, forward_only=True, num_learned=5), *steps[5:]])


CHANGES: dict[str, Callable[[model_pb2.Step], None]] = {
    "input": lambda one: one.inputs.__setitem__(0, b"x" * 32),
    "output": lambda one: setattr(one.outputs[0], "digest", b"x" * 32),
    "loss": lambda one: setattr(one, "loss", one.loss + 1.0),
    "rate": lambda one: setattr(one, "lr", one.lr + 1.0),
    "batch": lambda one: setattr(one, "batch", one.batch + 100),
    "mode": lambda one: setattr(one, "forward_only", not one.forward_only),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("at", [0, 1, 16, 17, NUM_STEPS])
def test_no_step_of_a_committed_interval_can_be_told_otherwise(at: int, change: Callable[[model_pb2.Step], None]) -> None:
    """However long ago the step was: the other story is not the log that was named, and to name it takes a second statement of one number."""
    log = honest()
    said = commit_of(log)
    assert contradiction_in(said, open_log(log.SerializeToString(deterministic=True), said)) is None
    other = model_pb2.StepLog.FromString(log.SerializeToString(deterministic=True))
    change(other.steps[at])
    with pytest.raises(Corrupt) as caught:
        open_log(other.SerializeToString(deterministic=True), said)
    assert caught.value.code == "wrong_log"
    both = [seal(identity_pb2.DOMAIN_COMMIT, one, WORKER) for one in (said, commit_of(other))]
    proof = equivocation_of(both[0], both[1], Place(NETWORK, "m", "j", "a"))
    assert (proof.pnode_id, proof.sequence) == (NODE.node_id, 7)


def test_a_statement_without_a_log_is_about_none() -> None:
    with pytest.raises(Corrupt):
        open_log(b"", commit_of(log_of([]), steps_digest=""))


@pytest.mark.parametrize(
    ("log", "changes", "entry", "reason"),
    [
        (log_of([step(0)], vnode="b"), {}, 0, "something else"),
        (log_of([step(0)], begin_digest=END), {}, 0, "something else"),
        (log_of([step(0)], incarnation=4), {}, 0, "something else"),
        (log_of([step(0), step(1)]), {"batches": [0, 2]}, 1, "not what the statement says"),
        (log_of([step(0), step(1)]), {"batches": [0], "losses": [1.0]}, 1, "not what the statement says"),
        (log_of([step(0), step(1)]), {"losses": [1.0]}, 1, "another loss"),
        (log_of([step(0), step(1)]), {"losses": [1.0, 0.25]}, 1, "another loss"),
        (log_of([step(0)]), {"batches": [0, 1], "losses": [1.0, 0.5]}, 1, "1 batches were learned"),
        (log_of([step(0), step(1, num_learned=5)]), {}, 1, "does not learn on"),
        (log_of([step(0), step(1, num_learned=0)]), {}, 1, "does not learn on"),
        (log_of([step(3, forward_only=True), step(4)]), {}, 1, "does not learn on"),
        (log_of([model_pb2.Step(batch=0, inputs=[b"short"])]), {}, 0, "without a digest"),
        (log_of([model_pb2.Step(batch=0, outputs=[model_pb2.StepOutput(digest=b"")])]), {}, 0, "without a digest"),
        (log_of([model_pb2.Step(batch=0, loss=math.nan)]), {"losses": [1.0]}, 0, "not finite"),
        (log_of([model_pb2.Step(batch=0, lr=math.inf)]), {}, 0, "not finite"),
        (log_of([model_pb2.Step(batch=0, forward_only=True, loss=1.0)]), {}, 0, "where nothing was learned"),
        (log_of([model_pb2.Step(batch=0, forward_only=True, lr=1.0)]), {}, 0, "where nothing was learned"),
    ],
)  # fmt: skip
def test_words_that_do_not_fit_one_another_are_seen(
    log: model_pb2.StepLog, changes: dict[str, object], entry: int, reason: str
) -> None:
    found = contradiction_in(commit_of(log, **changes), log)
    assert found is not None
    assert found.entry == entry
    assert reason in found.reason


def test_a_log_has_a_bound() -> None:
    def long(number: int) -> model_pb2.StepLog:
        return log_of([model_pb2.Step(batch=1, forward_only=True) for _ in range(number)])

    assert contradiction_in(commit_of(long(MAX_ENTRIES)), long(MAX_ENTRIES)) is None
    found = contradiction_in(commit_of(long(MAX_ENTRIES + 1)), long(MAX_ENTRIES + 1))
    assert found is not None
    assert found.entry == MAX_ENTRIES


def test_merges_in_between_let_a_lineage_grow_and_never_shrink() -> None:
    merged = {"merges": [model_pb2.Merged(after=1)]}
    grown, shrunk = log_of([step(0), step(1, num_learned=9)]), log_of([step(5), step(6, num_learned=5)])
    same = log_of([step(0), step(1)])
    assert contradiction_in(commit_of(grown, **merged), grown) is None
    assert contradiction_in(commit_of(same, **merged), same) is None, "they may lie behind the last entry"
    assert contradiction_in(commit_of(shrunk, **merged), shrunk) is not None


def test_a_contributors_log_begins_with_its_anchor_and_may_follow_new_ones() -> None:
    log = log_of([step(4), step(2)])
    delta = model_pb2.Delta(
        network_id=NETWORK, model="m", job_id="j", vnode="a", replica="a.0", incarnation=3, anchor_digest=BEGIN, batches=[4, 2],
        losses=[one.loss for one in log.steps],
    )  # fmt: skip
    assert begins_with(delta) == BEGIN == begins_with(commit_of(log))
    assert contradiction_in(delta, log) is None
    delta.anchor_digest = END
    assert contradiction_in(delta, log) is not None


def test_losses_are_compared_as_statements_hold_them() -> None:
    """In single precision, in which some are infinite, and nothing raises."""
    fine, huge = log_of([step(0)]), log_of([step(0)])
    fine.steps[0].loss, huge.steps[0].loss = 0.1, 1e300
    assert contradiction_in(commit_of(fine), fine) is None
    assert contradiction_in(commit_of(huge, losses=[math.inf]), huge) is None
    assert contradiction_in(commit_of(huge, losses=[-math.inf]), huge) is not None


def test_all_digests_that_a_log_names() -> None:
    one = step(1)
    one.state_digest = "9" * 64
    assert named_in(log_of([one, step(2)])) == {BEGIN, "9" * 64, *(bytes([n]).hex() * 32 for n in (1, 2, 199, 198))}
    assert named_in(log_of([], begin_digest="")) == frozenset()
    with pytest.raises(DcnrError):
        open_log(b"\xff" * 9, commit_of(log_of([]), steps_digest=digest_of(b"\xff" * 9)))
