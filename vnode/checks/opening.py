"""From a bundle of evidence to claims that can be checked: everything in it is held against what the accused, its neighbours and the job have signed.

Three ends. Signed words of the accused that contradict one another, or the job, are a fault in form (`Stated.broken`). What is missing, or is not
what the signed words name, makes the interval unverifiable (Refused): the accused has failed to hand over, and nothing is known of its work. All
else is a claim, in which every value is one that the accused, or whoever sent it an input, is bound to. Inputs and targets of the data set are
never taken from the bundle. Torch-free.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from dcnr.codecs import CODECS, codecs_sent
from dcnr.errors import Corrupt, DcnrError, InvariantBroken, Refused
from dcnr.ids import Digest, check_replica_id, digest_of, vnode_of
from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage
from dcnr.tensor import Payload, TensorHeader, reader
from dcnr.v1 import identity_pb2, model_pb2
from trust.commits import MAX_COMMIT_BYTES, Place
from trust.delegation import VerifiedDelegation, open_past_delegation
from trust.envelope import check_signature, digest_of_envelope, parse_envelope
from trust.evidence import MAX_SOURCES, MAX_STATEMENTS, MAX_WORDS_BYTES, Exhibit, exhibit_of
from trust.step_logs import MAX_LOG_BYTES, Contradiction, Statement
from vnode.bundle import Bundle
from vnode.checks.claims import MAX_STEPS, Claim, ClaimedStep, Given, MapClaim, Sent, States
from vnode.checks.merges import anchored_in, displacement_in, is_idle, named_by, restated_in
from vnode.signed_frames import FrameNumber, statement
from vnode.state import Array
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

UNVERIFIABLE: Final = "unverifiable"
_INPUT, _OUTPUT = model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT


@dataclass(frozen=True, slots=True)
class Assigned:
    """What the signed job says of the VNode whose interval it is."""

    place: Place
    stage: Stage
    batch_size: int
    num_batches: int
    codec: str
    """That the graph declares for its edges."""
    is_read: bool
    """Whether other VNodes read its outputs."""


@dataclass(frozen=True, slots=True)
class Source:
    """Who signed inputs of one VNode; no replica: nobody but the accused. The holder holds it against its plans."""

    vnode: str
    replica: str = ""
    pnode_id: str = ""
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Stated:
    """What the accused has signed about its interval: believed as its words, and not yet as the truth."""

    envelopes: tuple[identity_pb2.Envelope, ...]
    logs: tuple[bytes, ...]
    exhibit: Exhibit
    steps: tuple[model_pb2.Step, ...]
    broken: Contradiction | None
    """Where its words contradict one another or the job."""

    @property
    def batches(self) -> tuple[int, ...]:
        """Which the data set has to give."""
        return tuple(sorted({int(step.batch) for step in self.steps}))


@dataclass(frozen=True, slots=True)
class Opened:
    """A claim with where its inputs came from."""

    claim: Claim
    sources: frozenset[Source]
    names: Mapping[int, Digest]
    """By number of entries before it, what each state of the claim is named."""


class Samples(Protocol):
    """The job's data set on this machine, by number of the batch: a pure function of the job. It is read when an entry is checked, each time anew. What cannot
    be read says nothing of what is checked: Unavailable.
    """

    def read_input(self, batch: int) -> Array:
        """What a source reads."""
        ...

    def read_target(self, batch: int) -> Array:
        """What the objective compares with."""
        ...


def read_stated(bundle: Bundle, assigned: Assigned, first: str = "") -> Stated:
    """The signed statements of the interval with their logs. Raises Refused (``unverifiable``).

    ``first``: digest of the statement with which the interval begins, as the holder knows it. Where an accused left out what comes before an anchor, that
    anchor would be believed, and nobody would look at the steps that led to it.
    """
    with _or_unverifiable():
        envelopes = [
            parse_envelope(data, MAX_COMMIT_BYTES) for data in _texts(bundle, model_pb2.EVIDENCE_KIND_STATEMENT, MAX_COMMIT_BYTES)
        ]
        if first and (not envelopes or digest_of_envelope(envelopes[0]) != first):
            raise Refused("the bundle does not begin with the statement with which its interval begins", code=UNVERIFIABLE)
        logs = list(_texts(bundle, model_pb2.EVIDENCE_KIND_STEPS, MAX_LOG_BYTES))
        if not logs:
            raise Refused("the bundle holds no log of steps", code=UNVERIFIABLE)
        if (size_bytes := sum(one.ByteSize() for one in envelopes) + sum(map(len, logs))) > MAX_WORDS_BYTES:
            raise Refused(f"{size_bytes} bytes of statements and logs: no fault record would hold them", code=UNVERIFIABLE)
        exhibit = exhibit_of(envelopes, assigned.place, logs)
    steps = tuple(step for log in exhibit.logs for step in log.steps)
    broken = exhibit.broken or _against_the_job(steps, assigned)
    return Stated(tuple(envelopes), tuple(logs), exhibit, steps, broken)


def open_claim(stated: Stated, bundle: Bundle, assigned: Assigned, samples: Samples, *, maps: tuple[str, ...] = ()) -> Opened:
    """The claim of an interval whose words hold together, with products of ``maps`` if they are wanted. Nothing is read of ``samples`` yet, and of the bundle
    only whether its bytes are those that were stated: tensors and states are decoded when the claim's are looked at, one after the other. So an audit takes no
    more memory where an interval is longer. What cannot be decoded then raises Corrupt.

    Raises Refused (``unverifiable``).
    """
    if stated.broken is not None:
        raise InvariantBroken("no claim follows from words that contradict one another", code="broken_words")
    with _or_unverifiable():
        statements, entries = stated.exhibit.statements, [len(log.steps) for log in stated.exhibit.logs]
        if len(stated.steps) > MAX_STEPS:
            raise Refused(f"an interval of {len(stated.steps)} entries", code=UNVERIFIABLE)
        if is_idle(statements):
            begin = _states(bundle, {0: Digest(stated.exhibit.logs[0].begin_digest)}, 0)
            claim = Claim((), begin, {0: restated_in(bundle, statements, entries)}, may_begin_job=_is_first(statements[0]))
            return Opened(claim, frozenset(), {0: Digest(named_by(statements[-1]))})
        anchored = anchored_in(bundle, statements, entries, assigned.place)
        names = _names_of_states(stated)
        states = _states(
            bundle, {entry: name for entry, name in names.items() if entry == 0 or entry not in anchored}, len(stated.steps)
        )
        inputs = _Inputs(bundle, assigned, stated.exhibit)
        steps = tuple(_claimed(bundle, assigned, inputs, entry, step, samples, maps) for entry, step in enumerate(stated.steps))
        claim = Claim(steps, states, anchored, displacement_in(bundle, statements), _is_first(statements[0]))
        claim.check()
    known = {*states, *anchored, *([len(steps)] if claim.displacement is not None else [])}
    names = {**{sum(entries[: at + 1]): named_by(one) for at, one in enumerate(statements)}, **names}
    return Opened(claim, frozenset(inputs.sources), {entry: name for entry, name in names.items() if entry in known})


def _against_the_job(steps: tuple[model_pb2.Step, ...], assigned: Assigned) -> Contradiction | None:
    """Batches are assigned by the job: a worker chooses nothing."""
    num_inputs = sum(item.id != INPUT for item in assigned.stage.inputs)
    for entry, step in enumerate(steps):
        if step.batch >= assigned.num_batches:
            return Contradiction(entry, f"the job has no batch {step.batch}")
        if len(step.inputs) != num_inputs:
            return Contradiction(entry, f"{len(step.inputs)} inputs, not {num_inputs}")
    return None


def _is_first(statement: Statement) -> bool:
    """Whether a job begins with it. A delta begins with an anchor, which its primary has made in this job."""
    return isinstance(statement, model_pb2.Commit) and not statement.parent_commit


def _texts(bundle: Bundle, kind: model_pb2.EvidenceKind.ValueType, max_bytes: int) -> Iterator[bytes]:
    """The bytes of all parts of a kind, in order, without a gap."""
    for entry, part in enumerate(bundle.parts(kind)):
        if part.entry != entry or part.size_bytes > max_bytes or entry >= MAX_STATEMENTS:
            raise Corrupt("statements or logs out of order, too large, or too many", code="bad_bundle")
        yield bytes(bundle.data(kind, entry=entry, batch=int(part.batch), port=int(part.port)))


def _names_of_states(stated: Stated) -> dict[int, Digest]:
    """What the state after so many entries is called in the signed words, where it is called anything."""
    names = {0: stated.exhibit.logs[0].begin_digest}
    names.update({entry: step.state_digest for entry, step in enumerate(stated.steps, start=1) if step.state_digest})
    last = stated.exhibit.statements[-1]
    if isinstance(last, model_pb2.Commit) and stated.steps:
        names[len(stated.steps)] = named_by(last)
    elif stated.steps:  # what a contributor moved is all that anybody goes on from: the state behind it is in no bundle
        names.pop(len(stated.steps), None)
    return {entry: Digest(name) for entry, name in names.items()}


def _states(bundle: Bundle, names: Mapping[int, Digest], last: int) -> States:
    """Those of the named states that are there; the first and the last have to be."""
    found: dict[int, Payload] = {}
    for entry, name in names.items():
        if bundle.has(model_pb2.EVIDENCE_KIND_STATE, entry=entry) or entry in (0, last):
            state = bundle.data(model_pb2.EVIDENCE_KIND_STATE, entry=entry)
            if digest_of(state) != name:
                raise Corrupt(f"the state after {entry} entries is not the one that was stated", code="wrong_digest")
            found[entry] = state
    return States(found, lambda entry: bytes(found[entry]))


def _claimed(
    bundle: Bundle, assigned: Assigned, inputs: _Inputs, entry: int, step: model_pb2.Step, samples: Samples,
    maps: tuple[str, ...],
) -> ClaimedStep:  # fmt: skip
    if assigned.is_read and not step.outputs:
        raise Refused(f"entry {entry} does not say what came out of it, and others read that", code=UNVERIFIABLE)
    if len({output.codec for output in step.outputs}) < len(step.outputs):
        raise Refused(f"entry {entry} states two outputs in one codec", code=UNVERIFIABLE)
    sent = [_sent(bundle, assigned, entry, int(step.batch), port, output) for port, output in enumerate(step.outputs)]
    best = min(sent, key=lambda one: one.codec != "raw", default=Sent(None, "raw"))
    return ClaimedStep(
        batch=int(step.batch),
        mode=Mode.FORWARD_ONLY if step.forward_only else Mode.TRAIN,
        inputs=inputs.of(entry, step, partial(samples.read_input, int(step.batch))),
        target=partial(samples.read_target, int(step.batch)),
        num_learned=int(step.num_learned),
        output=best.values,
        codec=best.codec,
        loss=step.loss,
        lr=step.lr,
        maps=_products(bundle, entry, int(step.batch), maps),
        also_sent=tuple(one for one in sent if one is not best),
    )


def _sent(bundle: Bundle, assigned: Assigned, entry: int, batch: int, port: int, output: model_pb2.StepOutput) -> Sent:
    if output.codec not in CODECS:
        raise Corrupt("an output in a codec that is none", code="bad_output")
    payload = bundle.data(_OUTPUT, entry=entry, batch=batch, port=port)
    return Sent(_tensor(payload, assigned.stage.output, assigned.batch_size, output.codec, output.digest), output.codec)


def _tensor(payload: Payload, spec: TensorSpec, rows: int, codec: str, digest: bytes) -> Callable[[], Array]:
    """What reads a tensor of that kind. Raises Corrupt, RemoteFault for bytes that are not those of the digest, or no such tensor."""
    return reader(TensorHeader(spec.dtype, (rows, *spec.shape), codec, len(payload), digest.hex()), payload)


def _products(bundle: Bundle, entry: int, batch: int, maps: tuple[str, ...]) -> Mapping[str, MapClaim]:
    if not maps:
        return {}
    raise Refused("products of maps are not read from bundles", code=UNVERIFIABLE)


class _Inputs:
    """Inputs that came from other stages: each is what the log names, and signed by who sent it."""

    def __init__(self, bundle: Bundle, assigned: Assigned, exhibit: Exhibit) -> None:
        self._bundle, self._assigned, self._exhibit = bundle, assigned, exhibit
        self._keys: dict[tuple[str, int], VerifiedDelegation] = {}
        self.sources: set[Source] = set()

    def of(self, entry: int, step: model_pb2.Step, read: Callable[[], Array]) -> tuple[Given, ...]:
        """All inputs of an entry, in the order of the stage's; ``read`` gives that of the data set."""
        named, found = iter(step.inputs), list[Given]()
        for port, item in enumerate(self._assigned.stage.inputs):
            if item.id == INPUT:
                found.append(read)
            else:
                found.append(self._one(entry, int(step.batch), port, next(named), item.id, item.spec))
        return tuple(found)

    def _one(self, entry: int, batch: int, port: int, digest: bytes, source: str, spec: TensorSpec) -> Given:
        where = {"entry": entry, "batch": batch, "port": port}
        part, payload = self._bundle.part(_INPUT, **where), self._bundle.data(_INPUT, **where)
        is_signed = part.HasField("frame")
        if is_signed:
            self._check_kind(part.frame, spec)
        values = _tensor(payload, spec, self._assigned.batch_size, part.frame.codec if is_signed else "raw", digest)
        if is_signed:
            self._check_sender(part.frame, len(payload), digest, batch, source)
        else:
            self.sources.add(Source(source))
        return values

    def _check_kind(self, proof: model_pb2.FrameProof, spec: TensorSpec) -> None:
        """Raises Corrupt for a tensor that this input does not take, or in a codec that no honest sender uses on its edge: the accused's log names bytes, and
        anybody can sign that the same bytes are another array.
        """
        if proof.dtype != spec.dtype or tuple(proof.shape) != (self._assigned.batch_size, *spec.shape):
            raise Corrupt("a frame that this input does not take", code="bad_frame")
        if proof.codec not in codecs_sent(self._assigned.codec):
            raise Corrupt(f"a frame in {proof.codec!r:.20}, on an edge of {self._assigned.codec}", code="bad_frame")

    def _check_sender(self, proof: model_pb2.FrameProof, size_bytes: int, digest: bytes, batch: int, source: str) -> None:
        """``digest``: of so many bytes. Raises Corrupt, Refused: what nobody else has signed is the accused's own word, and blames nobody else."""
        replica = check_replica_id(proof.source_replica)
        if vnode_of(replica) != source or proof.target_replica != self._exhibit.replica:
            raise Refused("an input of another edge", code=UNVERIFIABLE)
        delegation = self._key_of(proof)
        header = TensorHeader(proof.dtype, tuple(proof.shape), proof.codec, size_bytes, digest.hex())
        mode = Mode.FORWARD_ONLY if proof.forward_only else Mode.TRAIN
        sender = Peer(replica, int(proof.source_incarnation))
        said = statement(
            sender, check_replica_id(proof.target_replica), FrameNumber(TRAIN_LANE, batch, mode), header, int(proof.step)
        )
        check_signature(identity_pb2.DOMAIN_FRAME, said, delegation.worker_public_der, proof.signature)
        self.sources.add(Source(source, replica, delegation.pnode_id, sender.incarnation))
        if len(self.sources) > MAX_SOURCES:
            raise Refused(f"inputs of more than {MAX_SOURCES} senders: no report would name them all", code=UNVERIFIABLE)

    def _key_of(self, proof: model_pb2.FrameProof) -> VerifiedDelegation:
        """The delegation of a sender's worker, which comes with its first part only."""
        sender = (proof.source_replica, int(proof.source_incarnation))
        if proof.HasField("delegation"):
            found = open_past_delegation(proof.delegation, network_id=self._assigned.place.network_id)
            if found.incarnation != sender[1]:
                raise Refused("a frame of another incarnation than its sender's delegation", code=UNVERIFIABLE)
            self._keys[sender] = found
        if sender not in self._keys:
            raise Refused(f"nothing says whose key signed for {sender[0]}", code=UNVERIFIABLE)
        return self._keys[sender]


@contextmanager
def _or_unverifiable() -> Iterator[None]:
    """Whatever is missing or wrong in a bundle is its maker's failure to hand over."""
    try:
        yield
    except InvariantBroken:
        raise
    except DcnrError as error:
        raise Refused(error.message, code=UNVERIFIABLE, cause=error.code) from error
