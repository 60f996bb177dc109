"""Goal: whatever an accused puts into its log, the record of a fault that an auditor found in it is one that others verify."""

from __future__ import annotations

import math

from dcnr.ids import digest_of
from dcnr.v1 import identity_pb2, model_pb2
from examples.byzantine.interval import INCARNATION, Party
from pnode.auditing import Found, record_of
from trust.commits import Place
from trust.envelope import seal
from trust.evidence import DRAWN, MAX_CHALLENGED, MAX_RECORD_BYTES, MAX_WORDS_BYTES, SEED_BYTES, exhibit_of, verify
from trust.overturned import Finding
from vnode.checks.claims import Claim
from vnode.checks.opening import Opened, Stated

PLACE = Place("5" * 40, "m", "j", "a")
ACCUSED = Party(PLACE.network_id)
BEFORE, AFTER = digest_of(b"before"), digest_of(b"after")
WORDS = {"network_id": PLACE.network_id, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.0", "incarnation": INCARNATION}


def found(num_outputs: int) -> Found:
    """A fault at an entry that states so many outputs."""
    outputs = [model_pb2.StepOutput(codec="raw", digest=number.to_bytes(32, "big")) for number in range(num_outputs)]
    step = model_pb2.Step(batch=0, loss=0.5, lr=0.1, outputs=outputs)
    log = model_pb2.StepLog(**WORDS, begin_digest=BEFORE, steps=[step]).SerializeToString(deterministic=True)
    commit = model_pb2.Commit(
        **WORDS, parent_digest=BEFORE, state_digest=AFTER, batches=[0], losses=[0.5], sequence=1, steps_digest=digest_of(log),
        delegation=ACCUSED.delegation(),
    )  # fmt: skip
    envelope = seal(identity_pb2.DOMAIN_COMMIT, commit, ACCUSED.worker)
    stated = Stated((envelope,), (log,), exhibit_of([envelope], PLACE, [log]), (step,), None)
    return Found(stated, Opened(Claim((), {}), frozenset(), {0: BEFORE, 1: AFTER}), Finding.FAULT, 9.0, "output", 0)


def record(told: Found) -> model_pb2.FaultRecord:
    task = model_pb2.AuditTask(
        network_id=PLACE.network_id, model="m", job_id="j", vnode="a", bundle_digest="b" * 64, check=DRAWN, seed=b"s" * SEED_BYTES
    )
    return record_of(task, told)


def test_a_record_names_the_states_and_no_more_tensors_than_it_may() -> None:
    for num_outputs in (0, 1, MAX_CHALLENGED + 1):
        made = record(found(num_outputs))
        assert list(made.challenged)[:2] == [BEFORE, AFTER]
        assert len(made.challenged) == min(2 + num_outputs, MAX_CHALLENGED)
        proven = verify(made.SerializeToString(), PLACE.network_id, lambda exhibit, told: told.residual, 1.0)
        assert (proven.accused, proven.residual) == (ACCUSED.node.node_id, 9.0)
        del made.challenged[2:]
        assert verify(made.SerializeToString(), PLACE.network_id, lambda exhibit, told: told.residual, 1.0).residual == 9.0, (
            "the states alone are enough"
        )


def test_whatever_fits_the_bound_of_signed_words_fits_a_record() -> None:
    made = record(found(MAX_CHALLENGED))
    words = sum(one.ByteSize() for one in made.statements) + sum(map(len, made.logs))
    made.residual, made.part, made.entry = math.inf, "p" * 500, 1 << 31
    for name in ("model", "job_id", "vnode"):
        setattr(made, name, "n" * 64)
    assert MAX_WORDS_BYTES + made.ByteSize() - words <= MAX_RECORD_BYTES
