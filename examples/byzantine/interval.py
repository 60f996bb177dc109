"""One interval of a PNode, honest or not, from its batches to the signed bundle: for tests and demonstrations of checks, without a network around it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from dcnr.ids import ReplicaId, digest_of
from dcnr.specs import Registry
from dcnr.stages import Stage
from dcnr.tensor import encode
from dcnr.v1 import identity_pb2, model_pb2
from examples.byzantine.behaviours import Behaviour
from examples.byzantine.worker import CheatingCompute
from trust.commits import Place
from trust.delegation import make_delegation
from trust.envelope import seal, sign_apart
from trust.identity import NodeKey
from vnode.bundle import BundleWriter, Written
from vnode.checks.claims import Claim, read
from vnode.checks.torch_record import Entry, record
from vnode.signed_frames import FrameNumber, statement
from vnode.state import Array
from vnode.torch_compute import TorchCompute
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

INCARNATION: Final = 3
MADE_AT: Final = 1_700_000_000.0


@dataclass(frozen=True, slots=True)
class Party:
    """A PNode with its worker."""

    network_id: str
    node: NodeKey = field(default_factory=NodeKey.generate)
    worker: NodeKey = field(default_factory=NodeKey.generate)

    def delegation(self) -> identity_pb2.Envelope:
        """That of its worker."""
        return make_delegation(self.node, self.network_id, self.worker.public_der, INCARNATION, ["127.0.0.1:1"], MADE_AT)


@dataclass(frozen=True, slots=True)
class Work:
    """Which stage of which job learns which batches."""

    place: Place
    stage: Stage
    registry: Registry
    num_batches: int
    seed: int
    first_state: bytes
    entries: Sequence[Entry]
    codec: str = "raw"
    state_every: int = 16
    input_codec: str = "raw"
    """Of the frames that came in. Inputs are as it leaves them."""


@dataclass(slots=True)
class Interval:
    """What a PNode says of its work and hands over; tests change it before it is written."""

    accused: Party
    commit: model_pb2.Commit
    log: model_pb2.StepLog
    parts: list[tuple[model_pb2.EvidencePart, bytes]]

    @property
    def log_bytes(self) -> bytes:
        """As the commit names it."""
        return self.log.SerializeToString(deterministic=True)

    def signed(self) -> identity_pb2.Envelope:
        """The commit, by the accused's worker."""
        return seal(identity_pb2.DOMAIN_COMMIT, self.commit, self.accused.worker)

    def restate(self) -> None:
        """The commit names the log as it is now."""
        self.commit.steps_digest = digest_of(self.log_bytes)

    def say_nothing_of_outputs(self, entries: Collection[int] | None = None) -> None:
        """Whoever sends what it likes states no output at all, or none of these entries, and nothing can be compared."""
        silent = range(len(self.log.steps)) if entries is None else entries
        for entry in silent:
            self.log.steps[entry].ClearField("outputs")
        unsaid = {(model_pb2.EVIDENCE_KIND_OUTPUT, entry) for entry in silent}
        self.parts = [one for one in self.parts if (one[0].kind, one[0].entry) not in unsaid]
        self.restate()

    def write(self, path: Path, *, statement: identity_pb2.Envelope | None = None) -> Written:
        """The bundle."""
        envelope = self.signed() if statement is None else statement
        with BundleWriter(path) as writer:
            writer.add(_part(model_pb2.EVIDENCE_KIND_STATEMENT), envelope.SerializeToString(deterministic=True))
            writer.add(_part(model_pb2.EVIDENCE_KIND_STEPS), self.log_bytes)
            for part, data in self.parts:
                writer.add(part, data)
            return writer.close()


def make_interval(work: Work, accused: Party, sender: Party | None = None, behaviour: Behaviour | None = None) -> Interval:
    """What a worker hands over. ``sender``: whose worker signed the inputs; None for a source, whose inputs are the data set's."""
    num_steps = sum(entry.mode is Mode.TRAIN for entry in work.entries)
    if behaviour is None:
        compute = TorchCompute(work.stage, work.registry, num_batches=work.num_batches, seed=work.seed)
    else:
        compute = CheatingCompute(
            work.stage, work.registry, behaviour, num_batches=work.num_batches, seed=work.seed, num_steps=num_steps
        )
    claim = record(compute, work.first_state, work.entries, codec=work.codec, state_every=work.state_every)
    place, replica = work.place, f"{work.place.vnode}.1"
    states = {entry: digest_of(state) for entry, state in claim.states.items()}
    parts = [(_part(model_pb2.EVIDENCE_KIND_STATE, entry=entry), state) for entry, state in claim.states.items()]
    steps = [_step(work, claim, index, states, replica, sender, parts) for index in range(len(claim.steps))]
    log = model_pb2.StepLog(
        network_id=place.network_id, model=place.model, job_id=place.job_id, vnode=place.vnode, replica=replica, incarnation=INCARNATION,
        begin_digest=states[0], steps=steps,
    )  # fmt: skip
    learned = [step for step in claim.steps if step.mode is Mode.TRAIN]
    commit = model_pb2.Commit(
        network_id=place.network_id, model=place.model, job_id=place.job_id, vnode=place.vnode, replica=replica, incarnation=INCARNATION,
        parent_digest=states[0], state_digest=states[len(steps)], batches=[step.batch for step in learned],
        losses=[step.loss for step in learned], sequence=1, delegation=accused.delegation(),
    )  # fmt: skip
    interval = Interval(accused, commit, log, parts)
    interval.restate()
    return interval


def _step(
    work: Work, claim: Claim, index: int, states: Mapping[int, str], replica: str, sender: Party | None,
    parts: list[tuple[model_pb2.EvidencePart, bytes]],
) -> model_pb2.Step:  # fmt: skip
    claimed = claim.steps[index]
    assert claimed.output is not None
    batch, inputs = claimed.batch, []
    sent = encode(read(claimed.output), claimed.codec)
    parts.append((_part(model_pb2.EVIDENCE_KIND_OUTPUT, entry=index, batch=batch), bytes(sent.payload)))
    if sender is not None:
        for port, array in enumerate(claimed.inputs):
            assert not callable(array), "an entry of this house holds its inputs"
            part, data, digest = _frame(work, index, batch, port, array, replica, sender)
            parts.append((part, data))
            inputs.append(digest)
    return model_pb2.Step(
        batch=batch, forward_only=claimed.mode is Mode.FORWARD_ONLY, num_learned=claimed.num_learned, inputs=inputs,
        outputs=[model_pb2.StepOutput(codec=claimed.codec, digest=bytes.fromhex(sent.header.digest))], loss=claimed.loss, lr=claimed.lr,
        state_digest=states.get(index + 1, ""),
    )  # fmt: skip


def _frame(
    work: Work, entry: int, batch: int, port: int, array: Array, replica: str, sender: Party
) -> tuple[model_pb2.EvidencePart, bytes, bytes]:
    """An input as its sender signed it; the delegation comes with the first one."""
    sent = encode(array, work.input_codec)
    source = ReplicaId(f"{work.stage.inputs[port].id}.1")
    number = FrameNumber(TRAIN_LANE, batch, Mode.TRAIN)
    said = statement(Peer(source, INCARNATION), ReplicaId(replica), number, sent.header, entry)
    proof = model_pb2.FrameProof(
        source_replica=source, target_replica=replica, target_incarnation=INCARNATION, source_incarnation=INCARNATION, step=entry,
        dtype=sent.header.dtype, shape=sent.header.shape, codec=sent.header.codec,
        signature=sign_apart(identity_pb2.DOMAIN_FRAME, said, sender.worker),
        delegation=sender.delegation() if entry == port == 0 else None,
    )  # fmt: skip
    part = _part(model_pb2.EVIDENCE_KIND_INPUT, entry=entry, batch=batch, port=port)
    part.frame.CopyFrom(proof)
    return part, bytes(sent.payload), bytes.fromhex(sent.header.digest)


def _part(kind: model_pb2.EvidenceKind.ValueType, *, entry: int = 0, batch: int = 0, port: int = 0) -> model_pb2.EvidencePart:
    return model_pb2.EvidencePart(kind=kind, entry=entry, batch=batch, port=port)
