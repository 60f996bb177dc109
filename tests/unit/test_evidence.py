"""Goal: a fault record proves itself to whoever reads it or weighs nothing; two different commits of one number prove an equivocation and nothing else does."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest

from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused
from dcnr.ids import digest_of
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import Place, follows
from trust.delegation import make_delegation
from trust.envelope import digest_of_envelope, seal
from trust.equivocation import equivocation_of
from trust.evidence import MAX_CHALLENGED, MAX_RECORD_BYTES, MAX_STATEMENTS, Exhibit, exhibit_of, verify
from trust.findings import DOUBT_FACTOR, finding_of
from trust.identity import NodeKey
from trust.overturned import Finding

NOW, NETWORK = 1_700_000_000.0, "5" * 40
NODE, WORKER, STRANGER = (NodeKey.generate() for _ in range(3))
PLACE = Place(NETWORK, "m", "j", "a")
BEFORE, AFTER, ANCHOR, ELSE = ("1" * 64, "2" * 64, "3" * 64, "4" * 64)
TOLERANCE = 1e-5


def delegation(*, node: NodeKey = NODE, worker: NodeKey = WORKER, incarnation: int = 3, at_s: float = NOW) -> identity_pb2.Envelope:
    return make_delegation(node, NETWORK, worker.public_der, incarnation, ["127.0.0.1:1"], at_s)


def commit(worker: NodeKey = WORKER, **changes: object) -> identity_pb2.Envelope:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": 3, "parent_digest": BEFORE,
        "state_digest": AFTER, "batches": [1, 2], "losses": [0.5, 0.25], "sequence": 7, "delegation": delegation(), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_COMMIT, model_pb2.Commit(**facts), worker)  # type: ignore[arg-type]


def delta(replica: str = "a.1") -> identity_pb2.Envelope:
    message = model_pb2.Delta(
        network_id=NETWORK, model="m", job_id="j", vnode="a", replica=replica, incarnation=3, sequence=1, anchor_digest=ANCHOR, batches=[5],
        losses=[1.0], codec="raw", digest=AFTER, size_bytes=9, delegation=delegation(),
    )  # fmt: skip
    return seal(identity_pb2.DOMAIN_DELTA, message, WORKER)


def record(**changes: object) -> bytes:
    facts: dict[str, object] = {
        "kind": model_pb2.FAULT_KIND_COMPUTATION, "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "statements": [commit()],
        "challenged": [BEFORE, AFTER], "seed": b"s" * 32, "residual": 1.0,
        "check": model_pb2.CHECK_KIND_REPLAY, **changes,
    }  # fmt: skip
    return model_pb2.FaultRecord(**facts).SerializeToString(deterministic=True)  # type: ignore[arg-type]


def measured(residual: float) -> Callable[[Exhibit, model_pb2.FaultRecord], float]:
    return lambda exhibit, told: residual


def never(exhibit: Exhibit, told: model_pb2.FaultRecord) -> float:
    raise AssertionError("nothing is measured for a record that cannot hold")


# ---- computations ---------------------------------------------------------------------------------------------------------------


def test_a_fault_is_proven_by_an_own_measurement() -> None:
    data = record()
    found = verify(data, NETWORK, measured(1e-3), TOLERANCE)
    assert (found.accused, found.interval, found.record) == (NODE.node_id, digest_of_envelope(commit_in(data)), digest_of(data))
    assert found.residual == 1e-3, "as measured here, not as told"


def commit_in(data: bytes) -> identity_pb2.Envelope:
    return model_pb2.FaultRecord.FromString(data).statements[0]


def test_a_delta_ends_an_interval_too() -> None:
    data = record(statements=[delta()], challenged=[ANCHOR, AFTER])
    assert verify(data, NETWORK, measured(1.0), TOLERANCE).accused == NODE.node_id


def test_what_is_told_weighs_nothing_against_what_is_measured() -> None:
    for residual in (0.0, TOLERANCE, DOUBT_FACTOR * TOLERANCE, math.nan, -1.0):
        with pytest.raises(Refused) as refused:
            verify(record(residual=1e9), NETWORK, measured(residual), TOLERANCE)
        assert refused.value.code == "unproven"


def test_without_the_tensors_nothing_is_proven() -> None:
    def missing(exhibit: Exhibit, told: model_pb2.FaultRecord) -> float:
        raise NotFound("no such tensor")

    with pytest.raises(NotFound):
        verify(record(), NETWORK, missing, TOLERANCE)


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 40,
        b"\0" * (MAX_RECORD_BYTES + 1),
        record(kind=model_pb2.FAULT_KIND_UNSPECIFIED),
        record(network_id="6" * 40),
        record(model="other"),
        record(job_id="other"),
        record(vnode="b"),
        record(statements=[]),
        record(statements=[commit(), commit()]),
        record(statements=[commit(STRANGER)]),
        record(statements=[commit(incarnation=4)]),
        record(statements=[commit(delegation=delegation(worker=STRANGER))]),
        record(statements=[delegation()]),
        record(challenged=[]),
        record(challenged=[BEFORE] * (MAX_CHALLENGED + 1)),
        record(challenged=["x"]),
        record(statements=[commit(parent_digest="x")], challenged=["x"]),
        record(challenged=[BEFORE, ELSE]),
        record(challenged=[BEFORE, ANCHOR]),
        record(seed=b"s" * 31),
        record(seed=b""),
        record(check=model_pb2.CHECK_KIND_UNSPECIFIED),
        record(check=model_pb2.CHECK_KIND_SKETCH),
        record(check=model_pb2.CHECK_KIND_REFEREE),
    ],
)
def test_what_cannot_hold_is_refused_before_anything_is_measured(data: bytes) -> None:
    with pytest.raises((Corrupt, Refused)):
        verify(data, NETWORK, never, TOLERANCE)


def test_a_hundred_forged_records_prove_nothing() -> None:
    """Whatever byte a liar changes in a record about an honest node: no fault. The tensors are right, so their residual is small."""
    rng, good = random.Random(5), record()
    proven = 0
    for _ in range(100):
        forged = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            forged[rng.randrange(len(forged))] ^= rng.randint(1, 255)
        try:
            verify(bytes(forged), NETWORK, measured(1e-7), TOLERANCE)
            proven += 1
        except DcnrError:
            pass
    assert proven == 0


def test_findings_follow_the_residual() -> None:
    assert [finding_of(factor * TOLERANCE, TOLERANCE) for factor in (0.0, 1.0, 1.5, 2.0, 2.1, 5.0, math.inf)] == [
        Finding.PASS, Finding.PASS, Finding.DOUBT, Finding.DOUBT, Finding.FAULT, Finding.FAULT, Finding.FAULT,
    ]  # fmt: skip
    for residual, tolerance in ((math.nan, 1.0), (-1e-9, 1.0), (1.0, 0.0), (1.0, math.inf), (1.0, math.nan)):
        with pytest.raises(InvalidInput):
            finding_of(residual, tolerance)


# ---- equivocation ---------------------------------------------------------------------------------------------------------------


def proof(one: identity_pb2.Envelope, other: identity_pb2.Envelope) -> bytes:
    kind = model_pb2.FAULT_KIND_EQUIVOCATION
    return record(kind=kind, statements=[one, other], challenged=[], seed=b"")


def test_two_stories_about_one_place_prove_themselves_in_any_order() -> None:
    one, other = commit(), commit(losses=[0.5, 0.125])
    found = equivocation_of(one, other, PLACE)
    assert (found.pnode_id, found.replica, found.incarnation, found.sequence) == (NODE.node_id, "a.0", 3, 7)
    assert found == equivocation_of(other, one, PLACE)
    assert found.statements == tuple(sorted((digest_of_envelope(one), digest_of_envelope(other))))
    proven = verify(proof(one, other), NETWORK, never, TOLERANCE)
    assert (proven.accused, proven.residual) == (NODE.node_id, 0.0)


@pytest.mark.parametrize(
    "change",
    [{"state_digest": ELSE}, {"parent_commit": ELSE}, {"batches": [2, 1]}, {"anchor_digest": ANCHOR}, {"parent_digest": ELSE}],
    ids=lambda change: next(iter(change)),
)
def test_every_difference_in_what_is_stated_counts(change: dict[str, object]) -> None:
    assert equivocation_of(commit(), commit(**change), PLACE).sequence == 7


def test_another_worker_key_of_the_same_incarnation_is_the_same_node() -> None:
    other = commit(STRANGER, state_digest=ELSE, delegation=delegation(worker=STRANGER))
    assert equivocation_of(commit(), other, PLACE).pnode_id == NODE.node_id


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (commit(), commit()),
        (commit(), commit(delegation=delegation(at_s=NOW + 60))),
        (commit(), commit(sequence=8, state_digest=ELSE)),
        (commit(sequence=0), commit(sequence=0, state_digest=ELSE)),
        (commit(), commit(replica="a.1", state_digest=ELSE)),
        (commit(), commit(incarnation=4, state_digest=ELSE, delegation=delegation(incarnation=4))),
        (commit(), commit(state_digest=ELSE, delegation=delegation(node=STRANGER))),
    ],
    ids=["twice", "renewed delegation", "next", "not numbered", "another replica", "another incarnation", "another node"],
)
def test_honest_pairs_prove_nothing(one: identity_pb2.Envelope, other: identity_pb2.Envelope) -> None:
    with pytest.raises(Refused) as refused:
        equivocation_of(one, other, PLACE)
    assert refused.value.code == "no_equivocation"


@pytest.mark.parametrize("foreign", [commit(STRANGER), commit(job_id="other"), commit(vnode="b"), commit(incarnation=4)])
def test_what_the_node_did_not_sign_there_is_not_held_against_it(foreign: identity_pb2.Envelope) -> None:
    for pair in ((commit(), foreign), (foreign, commit())):
        with pytest.raises(Refused):
            equivocation_of(*pair, PLACE)
    with pytest.raises(Corrupt):
        verify(
            record(kind=model_pb2.FAULT_KIND_EQUIVOCATION, statements=[commit()], challenged=[], seed=b""),
            NETWORK,
            never,
            TOLERANCE,
        )


@pytest.mark.parametrize("more", [{"challenged": [BEFORE]}, {"seed": b"s" * 32}, {"statements": [commit(), commit(), commit()]}])
def test_an_equivocation_is_two_statements_and_nothing_else(more: dict[str, object]) -> None:
    facts = {"statements": [commit(), commit(losses=[0.5, 0.125])], "challenged": [], "seed": b"", **more}
    with pytest.raises(Corrupt) as refused:
        verify(record(kind=model_pb2.FAULT_KIND_EQUIVOCATION, **facts), NETWORK, never, TOLERANCE)
    assert refused.value.code == "bad_evidence"


def test_numbers_grow_along_a_chain() -> None:
    """Else whoever numbers every commit alike would prove its own honest chain to be an equivocation, and hide a fork among others."""

    def stated(**changes: object) -> model_pb2.Commit:
        return model_pb2.Commit.FromString(commit(**changes).payload)

    parent = stated()
    assert follows(stated(parent_digest=AFTER, sequence=8), parent)
    assert follows(stated(parent_digest=AFTER, sequence=1, incarnation=4), parent), "another incarnation counts anew"
    assert follows(stated(parent_digest=AFTER, sequence=1, replica="a.1"), parent), "so does another replica"
    assert follows(stated(parent_digest=AFTER, sequence=0), stated(sequence=0))
    for number in (0, 6, 7):
        assert not follows(stated(parent_digest=AFTER, sequence=number), parent)
    assert not follows(stated(parent_digest=ELSE, sequence=8), parent)


# ---- logs of steps --------------------------------------------------------------------------------------------------------------

INPUT, OUTPUT = b"\x07" * 32, b"\x08" * 32


def steps_of(**changes: object) -> list[model_pb2.Step]:
    first = model_pb2.Step(
        batch=1, num_learned=4, inputs=[INPUT], outputs=[model_pb2.StepOutput(codec="raw", digest=OUTPUT)], loss=0.5, lr=0.1
    )
    second = model_pb2.Step(batch=2, num_learned=5, loss=0.25, lr=0.1, state_digest=AFTER)
    for name, value in changes.items():
        setattr(second, name, value)
    return [first, second]


def log_of(**changes: object) -> bytes:
    facts: dict[str, object] = {
        "network_id": NETWORK, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": 3, "begin_digest": BEFORE,
        "steps": steps_of(), **changes,
    }  # fmt: skip
    return model_pb2.StepLog(**facts).SerializeToString(deterministic=True)  # type: ignore[arg-type]


def logged(log: bytes, **changes: object) -> dict[str, object]:
    """A record about a commit that names this log."""
    return {"statements": [commit(steps_digest=digest_of(log))], "logs": [log], **changes}


def test_a_log_that_the_statement_names_extends_what_may_be_challenged() -> None:
    data = record(**logged(log_of(), challenged=[INPUT.hex(), OUTPUT.hex(), digest_of(log_of()), BEFORE]))
    assert verify(data, NETWORK, measured(1.0), TOLERANCE).residual == 1.0
    for logs in ([], [log_of(begin_digest=ELSE)], [b"\xff"], [log_of(), log_of()]):
        with pytest.raises((Corrupt, Refused)):
            verify(record(**logged(log_of(), logs=logs, challenged=[INPUT.hex()])), NETWORK, never, TOLERANCE)
    with pytest.raises((Corrupt, Refused)):
        verify(record(logs=[log_of()], challenged=[INPUT.hex()]), NETWORK, never, TOLERANCE)


@pytest.mark.parametrize(
    "log",
    [
        log_of(vnode="b"),
        log_of(replica="a.1"),
        log_of(incarnation=4),
        log_of(begin_digest=ELSE),
        log_of(steps=[]),
        log_of(steps=steps_of()[:1]),
        log_of(steps=steps_of(batch=3)),
        log_of(steps=steps_of(loss=0.26)),
        log_of(steps=steps_of(loss=1e300)),
        log_of(steps=steps_of(loss=math.nan)),
        log_of(steps=steps_of(lr=math.inf)),
        log_of(steps=steps_of(num_learned=6)),
        log_of(steps=steps_of(forward_only=True)),
        log_of(steps=[*steps_of(), model_pb2.Step(batch=1, num_learned=9, forward_only=True)]),
        log_of(steps=[*steps_of(), model_pb2.Step(batch=1, num_learned=6, forward_only=True, inputs=[b"short"])]),
    ],
)
def test_signed_words_that_contradict_one_another_need_no_measurement(log: bytes) -> None:
    found = verify(record(**logged(log, challenged=[digest_of(log)])), NETWORK, never, TOLERANCE)
    assert (found.accused, found.residual) == (NODE.node_id, math.inf)


def test_an_honest_log_contradicts_nothing() -> None:
    """Also with a batch that was only passed through, and a loss that single precision rounds."""
    passed = model_pb2.Step(batch=1, num_learned=6, forward_only=True)
    for log, changes in (
        (log_of(), {}),
        (log_of(steps=[*steps_of(), passed]), {}),
        (log_of(steps=steps_of(loss=0.1)), {"losses": [0.5, 0.1]}),
    ):
        envelope = commit(steps_digest=digest_of(log), **changes)
        with pytest.raises(Refused) as refused:
            verify(record(statements=[envelope], logs=[log]), NETWORK, measured(0.0), TOLERANCE)
        assert refused.value.code == "unproven"
    merged = log_of(steps=steps_of(num_learned=9))
    proved = record(
        **{
            **logged(merged),
            "statements": [commit(steps_digest=digest_of(merged), merges=[model_pb2.Merged(after=1, delta=delta())])],
        }
    )
    with pytest.raises(Refused):
        verify(proved, NETWORK, measured(0.0), TOLERANCE)


def test_commits_of_anchors_and_the_state_after_them_are_one_interval() -> None:
    first = commit(state_digest="", anchor_digest=ANCHOR)
    last = commit(sequence=8, parent_digest=ANCHOR, parent_commit=digest_of_envelope(first))
    found = verify(record(statements=[first, last], challenged=[ANCHOR]), NETWORK, measured(1.0), TOLERANCE)
    assert found.interval == digest_of_envelope(last)
    other = commit(sequence=8, parent_digest=ANCHOR)
    named = commit(anchor_digest=ANCHOR)
    after = commit(sequence=8, parent_digest=ANCHOR, parent_commit=digest_of_envelope(named))
    strange = commit(sequence=8, parent_digest=ANCHOR, parent_commit=digest_of_envelope(first), replica="a.1")
    again = commit(sequence=7, parent_digest=ANCHOR, parent_commit=digest_of_envelope(first))
    whole = commit()
    next_one = commit(sequence=8, parent_digest=AFTER, parent_commit=digest_of_envelope(whole))
    pairs = [
        [whole, next_one],
        [first, other],
        [last, first],
        [named, after],
        [first, strange],
        [first, again],
        [delta(), last],
        [first, delta()],
    ]
    for pair in (*pairs, [delta("a.0"), last], [first, delta("a.0")]):
        with pytest.raises(Refused):
            verify(record(statements=pair, challenged=[AFTER if pair[0] is whole else ANCHOR]), NETWORK, never, TOLERANCE)


def test_the_place_of_a_contradiction_is_counted_over_all_logs() -> None:
    good, bad = log_of(), log_of(begin_digest=ANCHOR, steps=steps_of(loss=0.26))
    first = commit(state_digest="", anchor_digest=ANCHOR, steps_digest=digest_of(good))
    parent = digest_of_envelope(first)
    last = commit(sequence=8, parent_digest=ANCHOR, parent_commit=parent, steps_digest=digest_of(bad))
    found = exhibit_of([first, last], PLACE, [good, bad])
    assert found.broken is not None
    assert found.broken.entry == 2 + 1


def test_an_interval_has_a_bounded_number_of_statements() -> None:
    delegated = delegation()
    chain = [commit(state_digest="", anchor_digest=ANCHOR, sequence=1, delegation=delegated)]
    for sequence in range(2, MAX_STATEMENTS + 2):
        parent = digest_of_envelope(chain[-1])
        chain.append(
            commit(
                state_digest="",
                anchor_digest=ANCHOR,
                sequence=sequence,
                parent_digest=ANCHOR,
                parent_commit=parent,
                delegation=delegated,
            )
        )
    assert verify(record(statements=chain[:-1], challenged=[ANCHOR]), NETWORK, measured(1.0), TOLERANCE).residual == 1.0
    with pytest.raises(Corrupt):
        verify(record(statements=chain, challenged=[ANCHOR]), NETWORK, never, TOLERANCE)
