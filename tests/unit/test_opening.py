"""Goal: a bundle becomes a claim only if all of it is what the accused, its neighbours and the job have signed; nobody else is ever blamed for what is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dcnr.errors import Refused, Unavailable
from dcnr.ids import ReplicaId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.limits import KIB, MIB
from dcnr.specs import Config, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from dcnr.tensor import Array, TensorHeader, decode, encode
from dcnr.v1 import identity_pb2, model_pb2
from examples.byzantine.behaviours import BEHAVIOURS
from examples.byzantine.interval import INCARNATION, Interval, Party, Work, make_interval
from trust.commits import MAX_COMMIT_BYTES, Place
from trust.comparison import judge
from trust.envelope import sign_apart
from trust.step_logs import MAX_LOG_BYTES
from vnode.bundle import Bundle, read_bundle
from vnode.checks import opening
from vnode.checks.claims import read
from vnode.checks.merges import MAX_REPLICAS
from vnode.checks.opening import UNVERIFIABLE, Assigned, Opened, Source, open_claim, read_stated
from vnode.checks.torch_check import Checker
from vnode.checks.torch_record import Entry
from vnode.registry import default_registry
from vnode.signed_frames import FrameNumber, statement
from vnode.state import parse, serialise
from vnode.torch_stage import initial_state, schema_of
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

REGISTRY = default_registry()
NETWORK = "5" * 40
NUM_BATCHES, BATCH_SIZE, NUM_STEPS = 64, 8, 4
SGD: Config = {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
ACCUSED, NEIGHBOUR, STRANGER = (Party(NETWORK) for _ in range(3))
STATE, INPUT, OUTPUT = model_pb2.EVIDENCE_KIND_STATE, model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT


def make_stages() -> tuple[Stage, Stage]:
    vnodes = [
        VNodeSpec(name, "linear_block", {}, (before,), "local_ce", {}, "sgd", SGD) for name, before in (("a", "input"), ("b", "a"))
    ]
    first, second = stages_of(vnodes, REGISTRY, TensorSpec("float32", (12,)), TensorSpec("int64", ()), 4)
    return first, second


SOURCE_STAGE, STAGE = make_stages()


class Data:
    """The data set."""

    def read_input(self, batch: int) -> Array:
        rng = np.random.default_rng(batch)
        return rng.standard_normal((BATCH_SIZE, 12), dtype=np.float32)

    def read_target(self, batch: int) -> Array:
        return np.random.default_rng(1000 + batch).integers(0, 4, BATCH_SIZE)


DATA = Data()


def decoded(array: Array, codec: str) -> Array:
    """As whoever gets it in that codec sees it."""
    sent = encode(array, codec)
    return decode(sent.header, sent.payload)


def work_of(stage: Stage, *, codec: str = "raw", first: int = 0, input_codec: str = "raw") -> Work:
    """Batches from the data set, or as a stage before it might send them; the second one is only passed through."""
    entries = [
        Entry(
            first + number, Mode.FORWARD_ONLY if number == 1 else Mode.TRAIN, (decoded(DATA.read_input(first + number), input_codec),),
            DATA.read_target(first + number),
        )
        for number in range(NUM_STEPS)
    ]  # fmt: skip
    state = initial_state(stage, REGISTRY, seed=7, model="m", graph="", num_batches=NUM_BATCHES)
    return Work(
        Place(NETWORK, "m", "j", stage.id),
        stage,
        REGISTRY,
        NUM_BATCHES,
        7,
        state,
        entries,
        codec,
        state_every=2,
        input_codec=input_codec,
    )


def assigned(stage: Stage = STAGE, codec: str = "auto") -> Assigned:
    return Assigned(Place(NETWORK, "m", "j", stage.id), stage, BATCH_SIZE, NUM_BATCHES, codec, is_read=stage is SOURCE_STAGE)


@pytest.fixture
def interval() -> Interval:
    return make_interval(work_of(STAGE), ACCUSED, NEIGHBOUR)


@contextmanager
def opened_bundle(interval: Interval, folder: Path) -> Iterator[Bundle]:
    path = folder / "bundle"
    interval.write(path)
    with read_bundle(path) as bundle:
        yield bundle


def opened(interval: Interval, folder: Path, stage: Stage = STAGE, codec: str = "auto") -> Opened:
    with opened_bundle(interval, folder) as bundle:
        stated = read_stated(bundle, assigned(stage, codec))
        assert stated.broken is None
        return open_claim(stated, bundle, assigned(stage, codec), DATA)


def ratio(claimed: Opened, stage: Stage = STAGE) -> float:
    checker = Checker(assigned(stage), REGISTRY, 7, "")
    outcome = judge(checker.comparisons(claimed.claim, model_pb2.CHECK_KIND_REPLAY, b"s" * 32), to_the_end=True)
    assert outcome.worst is not None
    return outcome.worst.ratio


def refused(interval: Interval, folder: Path, stage: Stage = STAGE, codec: str = "auto") -> str:
    """The reason for which the interval is unverifiable."""
    with pytest.raises(Refused) as raised:
        opened(interval, folder, stage, codec)
    assert raised.value.code == UNVERIFIABLE
    return raised.value.message


# ---- honest work ----------------------------------------------------------------------------------------------------------------


def test_a_state_of_an_earlier_job_is_taken_as_this_job_began_with_it(tmp_path: Path, interval: Interval) -> None:
    """Also where both jobs have the same graph, seed and number of batches."""
    schema = schema_of(STAGE, REGISTRY)
    info, tensors = parse(work_of(STAGE).first_state, schema)
    slots = {name: value + 1 if name.startswith("o/") else value for name, value in tensors.items()}
    earlier = serialise(schema, replace(info, lineage=IntervalSet.of((0, NUM_BATCHES)), updates=9), slots)
    at = next(at for at, (part, _) in enumerate(interval.parts) if part.kind == STATE and part.entry == 0)
    interval.parts[at] = (interval.parts[at][0], earlier)
    interval.log.begin_digest = interval.commit.parent_digest = digest_of(earlier)
    interval.restate()
    assert ratio(opened(interval, tmp_path)) <= 1.0


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_an_honest_interval_becomes_a_claim_that_passes(tmp_path: Path, codec: str) -> None:
    claimed = opened(make_interval(work_of(STAGE, codec=codec), ACCUSED, NEIGHBOUR), tmp_path)
    assert claimed.sources == {Source("a", "a.1", NEIGHBOUR.node.node_id, INCARNATION)}
    assert sorted(claimed.claim.states) == [0, 2, 4]
    assert ratio(claimed) <= 1.0


@pytest.mark.parametrize(
    ("declared", "sent"), [("auto", "int8"), ("", "int8"), ("bf16", "bf16"), ("bf16", "raw"), ("fp16", "fp16"), ("raw", "raw")]
)
def test_inputs_come_in_the_codec_of_their_edge_or_raw(tmp_path: Path, declared: str, sent: str) -> None:
    claimed = opened(make_interval(work_of(STAGE, input_codec=sent), ACCUSED, NEIGHBOUR), tmp_path, codec=declared)
    assert ratio(claimed) <= 1.0


def test_a_source_takes_its_inputs_from_the_data_set_alone(tmp_path: Path) -> None:
    interval = make_interval(work_of(SOURCE_STAGE), ACCUSED)
    claimed = opened(interval, tmp_path, SOURCE_STAGE)
    assert claimed.sources == frozenset()
    assert ratio(claimed, SOURCE_STAGE) <= 1.0
    for step in claimed.claim.steps:
        assert np.array_equal(step.data()[0][0], DATA.read_input(step.batch))


def test_a_source_that_learns_other_samples_than_its_batch_has_is_at_fault(tmp_path: Path) -> None:
    work = work_of(SOURCE_STAGE)
    others = [Entry(one.batch, one.mode, (DATA.read_input(one.batch + 9),), one.target) for one in work.entries]
    interval = make_interval(
        Work(work.place, work.stage, REGISTRY, NUM_BATCHES, 7, work.first_state, others, state_every=2), ACCUSED
    )
    assert ratio(opened(interval, tmp_path, SOURCE_STAGE), SOURCE_STAGE) > 2.0


def test_an_input_that_only_the_accused_vouches_for_is_told(tmp_path: Path, interval: Interval) -> None:
    for part, _ in interval.parts:
        part.ClearField("frame")
    assert opened(interval, tmp_path).sources == {Source("a")}


def test_an_output_that_nobody_reads_is_not_asked_for(tmp_path: Path, interval: Interval) -> None:
    interval.say_nothing_of_outputs()
    assert ratio(opened(interval, tmp_path)) <= 1.0


@pytest.mark.parametrize("entries", [(0,), (1,), (NUM_STEPS - 1,), range(NUM_STEPS)], ids=["first", "forward only", "last", "all"])
def test_who_does_not_say_what_it_sent_to_others_has_nothing_that_could_be_verified(tmp_path: Path, entries: Sequence[int]) -> None:
    """Nothing could be compared with a replay: whatever it sent would pass."""
    interval = make_interval(work_of(SOURCE_STAGE), ACCUSED)
    interval.say_nothing_of_outputs(entries)
    assert f"entry {entries[0]} does not say" in refused(interval, tmp_path, SOURCE_STAGE)


def test_an_output_in_several_codecs_is_compared_in_each(tmp_path: Path, interval: Interval) -> None:
    step, output = interval.log.steps[2], opened(interval, tmp_path).claim.steps[2].output
    assert output is not None
    values = read(output)
    for factor, passes in ((1.0, True), (1.5, False)):
        sent = encode(values * np.float32(factor), "int8")
        del step.outputs[1:]
        step.outputs.append(model_pb2.StepOutput(codec="int8", digest=bytes.fromhex(sent.header.digest)))
        part = model_pb2.EvidencePart(kind=OUTPUT, entry=2, batch=step.batch, port=1)
        interval.parts = [one for one in interval.parts if one[0].port == 0] + [(part, bytes(sent.payload))]
        interval.restate()
        assert (ratio(opened(interval, tmp_path)) <= 1.0) is passes


def test_data_that_is_not_here_is_the_auditors_trouble(tmp_path: Path, interval: Interval) -> None:
    class Nothing(Data):
        def read_target(self, batch: int) -> Array:
            raise Unavailable("not here", code="no_samples")

    with opened_bundle(interval, tmp_path) as bundle, pytest.raises(Unavailable):
        ratio(open_claim(read_stated(bundle, assigned()), bundle, assigned(), Nothing()))


# ---- what was not handed over ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [STATE, INPUT, OUTPUT], ids=["state", "input", "output"])
def test_what_is_missing_or_is_not_what_was_named_makes_it_unverifiable(tmp_path: Path, interval: Interval, kind: int) -> None:
    whole = list(interval.parts)
    ends = [at for at, (part, _) in enumerate(whole) if part.kind == kind and (kind != STATE or part.entry in (0, NUM_STEPS))]
    assert len(ends) >= 2
    for at in ends:
        interval.parts = whole[:at] + whole[at + 1 :]
        assert "holds no" in refused(interval, tmp_path)
        part, data = whole[at]
        interval.parts = [*whole[:at], (part, bytes([data[0] ^ 1]) + data[1:]), *whole[at + 1 :]]
        refused(interval, tmp_path)


def test_a_state_in_between_may_be_missing_but_not_another(tmp_path: Path, interval: Interval) -> None:
    at = next(at for at, (part, _) in enumerate(interval.parts) if part.kind == STATE and part.entry == 2)
    part, data = interval.parts[at]
    interval.parts[at] = (part, data + b"\0")
    refused(interval, tmp_path)
    del interval.parts[at]
    assert sorted(opened(interval, tmp_path).claim.states) == [0, 4]


def test_an_entry_states_one_output_of_each_codec(tmp_path: Path, interval: Interval) -> None:
    """No honest worker states more, and a record of a fault has room for a bounded number of them."""
    step, (part, data) = interval.log.steps[2], next(one for one in interval.parts if one[0].kind == OUTPUT and one[0].entry == 2)
    step.outputs.append(step.outputs[0])
    again = model_pb2.EvidencePart(kind=OUTPUT, entry=2, batch=part.batch, port=1)
    interval.parts.append((again, data))
    interval.restate()
    assert "two outputs in one codec" in refused(interval, tmp_path)


def test_words_that_no_fault_record_would_hold_are_unverifiable(tmp_path: Path, interval: Interval) -> None:
    """Whoever found a fault behind them could tell nobody. Fields that nobody knows count too."""
    for size, message in ((MIB // 4, interval.commit), (MAX_LOG_BYTES - 64 * KIB, interval.log)):
        message.MergeFromString(b"\xc2\x3e" + _varint(size) + bytes(size))
        interval.restate()
    assert ratio(opened(interval, tmp_path)) <= 1.0, "what fits is read"
    size = MAX_COMMIT_BYTES - MIB // 4 - 16 * KIB
    interval.commit.MergeFromString(b"\xc2\x3e" + _varint(size) + bytes(size))
    interval.restate()
    assert "no fault record" in refused(interval, tmp_path)


@pytest.mark.parametrize(
    ("bound", "most", "message"),
    [
        ("MAX_STEPS", NUM_STEPS - 1, f"an interval of {NUM_STEPS} entries"), ("MAX_STATEMENTS", 0, "too many"),
        ("MAX_COMMIT_BYTES", 64, "too large"), ("MAX_LOG_BYTES", 64, "too large"),
    ],
)  # fmt: skip
def test_what_is_above_its_bound_is_refused_before_anything_of_it_is_read(
    tmp_path: Path, interval: Interval, monkeypatch: pytest.MonkeyPatch, bound: str, most: int, message: str
) -> None:
    monkeypatch.setattr(f"vnode.checks.opening.{bound}", most)
    assert message in refused(interval, tmp_path)


def _varint(value: int) -> bytes:
    return bytes((value & 127 | 128, value >> 7 & 127 | 128, value >> 14))


def _proof(interval: Interval) -> model_pb2.FrameProof:
    return next(part.frame for part, _ in interval.parts if part.kind == INPUT and part.entry == 2)


def _first_proof(interval: Interval) -> model_pb2.FrameProof:
    return next(part.frame for part, _ in interval.parts if part.kind == INPUT and part.entry == 0)


WRONG_PROOFS: dict[str, Callable[[Interval], object]] = {
    "signature": lambda one: setattr(_proof(one), "signature", b"\x30" + _proof(one).signature[1:-1] + b"\0"),
    "batch": lambda one: setattr(_proof(one), "signature", _first_proof(one).signature),
    "step": lambda one: setattr(_proof(one), "step", 77),
    "mode": lambda one: setattr(_proof(one), "forward_only", True),
    "shape": lambda one: _proof(one).shape.__setitem__(0, 4),
    "codec": lambda one: setattr(_proof(one), "codec", "int8"),
    "another target": lambda one: setattr(_proof(one), "target_replica", "b.2"),
    "another source": lambda one: setattr(_proof(one), "source_replica", "c.1"),
    "another incarnation": lambda one: setattr(_proof(one), "source_incarnation", 4),
    "no delegation": lambda one: _first_proof(one).ClearField("delegation"),
    "a stranger's delegation": lambda one: _first_proof(one).delegation.CopyFrom(STRANGER.delegation()),
    "a delegation of another network": lambda one: _first_proof(one).delegation.CopyFrom(Party("6" * 40).delegation()),
}


@pytest.mark.parametrize("change", WRONG_PROOFS.values(), ids=WRONG_PROOFS)
def test_a_wrong_proof_of_an_input_falls_back_on_the_accused(
    tmp_path: Path, interval: Interval, change: Callable[[Interval], object]
) -> None:
    change(interval)
    refused(interval, tmp_path)


def resign(interval: Interval, entry: int, replica: str, sender: Party) -> None:
    """That input says that it came from another replica of the stage before, signed by whoever that is."""
    step, (part, data) = (
        interval.log.steps[entry],
        next(one for one in interval.parts if (one[0].kind, one[0].entry) == (INPUT, entry)),
    )
    proof = part.frame
    proof.source_replica = replica
    header = TensorHeader(proof.dtype, tuple(proof.shape), proof.codec, len(data), step.inputs[0].hex())
    number = FrameNumber(TRAIN_LANE, int(step.batch), Mode.TRAIN)
    source = Peer(ReplicaId(replica), int(proof.source_incarnation))
    said = statement(source, ReplicaId(proof.target_replica), number, header, int(proof.step))
    proof.signature = sign_apart(identity_pb2.DOMAIN_FRAME, said, sender.worker)
    proof.delegation.CopyFrom(sender.delegation())


@pytest.mark.parametrize("name", ["a.first", "a.", "a", "a.-1", f"a.{'1' * 16}"])
def test_a_sender_whose_name_is_none_makes_no_report_that_its_reader_refuses(tmp_path: Path, interval: Interval, name: str) -> None:
    """Every finding names the senders. Each auditor would have counted as silent, and whoever helps the accused leaves them out."""
    for entry in range(NUM_STEPS):
        resign(interval, entry, name if entry == 0 else "a.1", STRANGER)
    refused(interval, tmp_path)


def test_evidence_names_no_more_senders_than_a_report_has_room_for(
    tmp_path: Path, interval: Interval, monkeypatch: pytest.MonkeyPatch
) -> None:
    for entry in range(NUM_STEPS):
        resign(interval, entry, f"a.{entry + 1}", STRANGER)
    monkeypatch.setattr(opening, "MAX_SOURCES", NUM_STEPS)
    assert len(opened(interval, tmp_path).sources) == NUM_STEPS
    monkeypatch.setattr(opening, "MAX_SOURCES", NUM_STEPS - 1)
    refused(interval, tmp_path)


def told_otherwise(interval: Interval, codec: str) -> None:
    """A proof that the last input was the same bytes in another codec, signed by a stranger under its own delegation."""
    step = interval.log.steps[-1]
    part, data = next(one for one in interval.parts if one[0].kind == INPUT and one[0].entry == NUM_STEPS - 1)
    proof = part.frame
    proof.codec = codec
    header = TensorHeader(proof.dtype, tuple(proof.shape), codec, len(data), step.inputs[0].hex())
    sender = Peer(ReplicaId(proof.source_replica), int(proof.source_incarnation))
    number = FrameNumber(TRAIN_LANE, int(step.batch), Mode.TRAIN)
    said = statement(sender, ReplicaId(proof.target_replica), number, header, int(proof.step))
    proof.signature = sign_apart(identity_pb2.DOMAIN_FRAME, said, STRANGER.worker)
    proof.delegation.CopyFrom(STRANGER.delegation())


@pytest.mark.parametrize(("declared", "other"), [("bf16", "fp16"), ("fp16", "bf16")])
def test_nobody_can_say_that_the_bytes_of_an_input_were_another_array(tmp_path: Path, declared: str, other: str) -> None:
    """Goal: an auditor that signs for the sender with a key of its own cannot convict who learned from what came."""
    interval = make_interval(work_of(STAGE, input_codec=declared), ACCUSED, NEIGHBOUR)
    told_otherwise(interval, other)
    assert f"a frame in '{other}', on an edge of {declared}" in refused(interval, tmp_path, codec=declared)


@pytest.mark.parametrize("other", ["fp16", "bf16"])
def test_on_an_edge_of_auto_no_input_came_in_a_codec_that_nobody_chose(tmp_path: Path, other: str) -> None:
    refused(make_interval(work_of(STAGE, input_codec=other), ACCUSED, NEIGHBOUR), tmp_path)


def test_what_the_accused_made_up_and_a_neighbour_never_sent_is_unverifiable(tmp_path: Path) -> None:
    """Named in its log, signed by a key of its own, under the neighbour's name."""
    interval = make_interval(work_of(STAGE), ACCUSED, STRANGER)
    _first_proof(interval).delegation.CopyFrom(NEIGHBOUR.delegation())
    refused(interval, tmp_path)


def test_statements_of_others_or_about_something_else_are_unverifiable(tmp_path: Path, interval: Interval) -> None:
    other = Interval(STRANGER, interval.commit, interval.log, interval.parts)
    refused(other, tmp_path)
    refused(make_interval(work_of(SOURCE_STAGE), ACCUSED), tmp_path)
    interval.log.begin_digest = "1" * 64
    refused(interval, tmp_path)  # not the log that the commit names


def test_a_merge_that_does_not_say_where_it_lies_or_of_how_many_is_unverifiable(tmp_path: Path, interval: Interval) -> None:
    after = len(interval.commit.batches)
    for at, replicas in ((1, 2), (after, 1), (after, MAX_REPLICAS + 1)):
        merged = model_pb2.Merged(after=at, replicas=replicas)
        del interval.commit.merges[:]
        interval.commit.merges.append(merged)
        assert "a merge that does not say" in refused(interval, tmp_path)


# ---- words that contradict one another, or the job ------------------------------------------------------------------------------


def _batch_of_no_job(interval: Interval) -> None:
    interval.log.steps[3].batch = interval.commit.batches[2] = NUM_BATCHES


CONTRADICTIONS: dict[str, Callable[[Interval], object]] = {
    "batch of no job": _batch_of_no_job,
    "inputs": lambda one: one.log.steps[2].inputs.append(b"\0" * 32),
    "order": lambda one: setattr(one.log.steps[2], "num_learned", 7),
    "loss": lambda one: setattr(one.log.steps[2], "loss", one.log.steps[2].loss * 1.01),
    "begin": lambda one: setattr(one.log, "begin_digest", "1" * 64),
    "replica": lambda one: setattr(one.log, "replica", "b.2"),
}  # fmt: skip


@pytest.mark.parametrize("change", CONTRADICTIONS.values(), ids=CONTRADICTIONS)
def test_contradictions_are_a_fault_of_their_own(tmp_path: Path, interval: Interval, change: Callable[[Interval], object]) -> None:
    change(interval)
    interval.restate()
    with opened_bundle(interval, tmp_path) as bundle:
        assert read_stated(bundle, assigned()).broken is not None


# ---- cheats ---------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda one: one.name)
def test_every_cheat_is_a_claim_that_fails(tmp_path: Path, behaviour: object) -> None:
    claimed = opened(make_interval(work_of(STAGE), ACCUSED, NEIGHBOUR, behaviour), tmp_path)  # type: ignore[arg-type]
    assert ratio(claimed) > 2.0


def test_a_wrong_learning_rate_is_seen(tmp_path: Path, interval: Interval) -> None:
    interval.log.steps[2].lr *= 2
    interval.restate()
    assert math.isfinite(ratio(opened(interval, tmp_path)))
    assert ratio(opened(interval, tmp_path)) > 2.0
