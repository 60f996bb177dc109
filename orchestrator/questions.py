"""A question as it may be asked: bounded, and held against what the model's graph says of its input, before anything is computed. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr import limits
from dcnr.codecs import CODECS, NUMPY_DTYPES
from dcnr.errors import DcnrError, InvalidInput, RemoteFault
from dcnr.ids import check_digest
from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage
from dcnr.tensor import Array, EncodedTensor, check_finite, encode_final
from dcnr.tokens import LIKELIEST, Drawing, drawing_of
from dcnr.v1 import orchestrator_pb2
from orchestrator.view import JobFacts

MAX_INPUT_BYTES: Final = 4 * limits.MIB
"""Of all tensors of a question together, and of an answer."""
DEFAULT_DEADLINE_S: Final = 30.0
MAX_DEADLINE_S: Final = 120.0
MAX_REDUNDANCY: Final = 4
RAW: Final = "raw"
"""Outputs as they are: the network answers as one process would."""
READOUT_DTYPE: Final = "float32"
NUM_TOKENS: Final = 256
"""Texts are bytes."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked, by source; ``num_samples`` is the batch dimension of all inputs."""

    inputs: Mapping[str, EncodedTensor]
    num_samples: int
    exit: str
    full_depth: bool
    deadline_s: float
    num_ways: int
    """Independent ways that have to agree."""
    draft: int = 0
    """Tokens by which the first stage extends the one sequence that is asked."""
    last: int = 0
    """Of the readout of sequences: so many last places; 0: all."""
    drawing: Drawing = LIKELIEST
    """How drafts are chosen."""
    codec: str = RAW
    """In which outputs go from hop to hop."""
    begins_session: bool = False
    """Stages are to keep keys and values, under the id of the question."""
    session: bytes = b""
    """What stages keep under this id is gone on from: they have"""
    offset: int = 0
    """so many places of the one sequence; the inputs are the rest."""
    batch_size: int = 0
    """Samples that a stage computes in one call at most."""


def deadline_of(request: orchestrator_pb2.ForwardRequest) -> float:
    """Seconds that the caller waits. Raises InvalidInput."""
    deadline_s = request.deadline_s or DEFAULT_DEADLINE_S
    if not 0.0 < deadline_s <= MAX_DEADLINE_S:
        raise InvalidInput(f"a deadline is above 0 and at most {MAX_DEADLINE_S:g} s", code="bad_deadline")
    return deadline_s


def question_of(request: orchestrator_pb2.ForwardRequest, job: JobFacts) -> Question:
    """The question. Raises InvalidInput, which names what is wrong."""
    if request.redundancy > MAX_REDUNDANCY:
        raise InvalidInput(f"at most {MAX_REDUNDANCY} ways are compared", code="bad_redundancy")
    if request.redundancy > 1 and request.weights == orchestrator_pb2.WEIGHTS_LIVE:
        raise InvalidInput(
            "live weights differ from replica to replica: their answers cannot be compared", code="bad_redundancy",
            remedy="ask the served weights",
        )  # fmt: skip
    sources = {stage.id: _input_spec(stage) for stage in job.stages if stage.is_source}
    if sum(len(item.data) for item in request.inputs) > MAX_INPUT_BYTES:
        raise InvalidInput(
            f"the inputs have more than {MAX_INPUT_BYTES} bytes", code="input_too_large", remedy="ask in several parts"
        )
    given = _by_source(request, sources)
    most = int(job.graph.train.batch_size)
    inputs = {name: _tensor(name, item, sources[name], most) for name, item in given.items()}
    sizes = {encoded.header.shape[0] for encoded in inputs.values()}
    if len(sizes) != 1:
        raise InvalidInput("the inputs have different numbers of samples", code="bad_shape")
    exit_ = request.exit or job.stages[-1].id
    if exit_ not in {stage.id for stage in job.stages}:
        raise InvalidInput(
            f"there is no exit {exit_!r}; there are {', '.join(stage.id for stage in job.stages)}", code="no_such_exit"
        )
    if request.draft:
        _check_draft(request, inputs, sources)
    return Question(
        inputs, sizes.pop(), exit_, request.full_depth, deadline_of(request), max(1, int(request.redundancy)), int(request.draft), int(request.last),
        codec=codec_of(request, job), drawing=drawing_of(request.drawing), batch_size=most,
    )  # fmt: skip


def version_of(request: orchestrator_pb2.ForwardRequest) -> str:
    """The digest of the manifest that alone may answer; empty: any. Raises InvalidInput where named weights name none, or what is no digest."""
    if request.weights != orchestrator_pb2.WEIGHTS_NAMED:
        return ""
    if not request.manifest_digest:
        raise InvalidInput(
            "named weights need the digest of a manifest", code="no_manifest_named", remedy="--manifest DIGEST; dcnr model evaluate prints one"
        )  # fmt: skip
    return check_digest(request.manifest_digest)


def codec_of(request: orchestrator_pb2.ForwardRequest, job: JobFacts) -> str:
    """In which outputs go from hop to hop: the lossy one that the model's edges declare, since its stages have learned from such inputs, else as they are.

    ``auto`` declares none: which edges of the job were slow is not known any more.
    """
    declared = str(job.graph.train.codec)
    return RAW if request.exact or declared not in CODECS else declared


def context_of(job: JobFacts) -> int:
    """How many tokens a model of texts reads at once. Raises InvalidInput (``not_text``) for a model of something else."""
    sources = [_input_spec(stage) for stage in job.stages if stage.is_source]
    is_text = len(sources) == 1 and sources[0].dtype == "uint8" and len(sources[0].shape) == 1 and sources[0].shape[0] > 1
    if not is_text or job.graph.num_classes != NUM_TOKENS:
        raise InvalidInput(
            "this model does not write: it reads no sequence of bytes, or does not say what follows each", code="not_text",
            remedy="ask it with dcnr infer, or POST /v1/forward",
        )  # fmt: skip
    return sources[0].shape[0]


def check_readout(
    stages: Sequence[Stage], exit_: str, question: Question, num_drafted: int, dtype: str, shape: tuple[int, ...]
) -> None:
    """Returns only for what that exit can answer: logits [samples, classes], of sequences [samples, places, classes]. Raises RemoteFault (``bad_answer``)."""
    stage = next(one for one in stages if one.id == exit_)
    target = stage.target.shape
    places = _places(stages, target[0], question, num_drafted) if len(target) == 1 else ()
    has_drafts = num_drafted == question.draft or (num_drafted < question.draft and stage.num_classes > NUM_TOKENS)
    fits = shape == (question.num_samples, *target, stage.num_classes)
    if places:
        fits = len(shape) == 3 and (shape[0], shape[2]) == (question.num_samples, stage.num_classes) and shape[1] in places
    if dtype != READOUT_DTYPE or not fits or not has_drafts:
        raise RemoteFault(
            f"an answer of {dtype[:16]} {list(shape[:8])} with {num_drafted} drafts is none of {exit_} to {question.num_samples} samples", code="bad_answer"
        )  # fmt: skip


def _places(stages: Sequence[Stage], whole: int, question: Question, num_drafted: int) -> Collection[int]:
    """For how many places an exit may answer that has ``whole`` of them: where what comes has as many, for those that came; else for any number of them."""
    specs = {stage.id: _input_spec(stage) for stage in stages if stage.is_source}
    came = {(specs[name].shape[0], one.header.shape[1]) for name, one in question.inputs.items() if specs[name].is_sequence}
    is_alike = len(came) <= 1 and all(longest == whole for longest, _ in came)
    counts = {whole, *(brought + num_drafted for _, brought in came)} if is_alike else range(1, whole + 1)
    return {min(count, question.last or count) for count in counts}


def _check_draft(
    request: orchestrator_pb2.ForwardRequest, inputs: Mapping[str, EncodedTensor], sources: Mapping[str, TensorSpec]
) -> None:
    spec = next(iter(sources.values()))
    shape = next(iter(inputs.values())).header.shape
    if len(sources) != 1 or spec.dtype != "uint8" or len(spec.shape) != 1 or shape[0] != 1:
        raise InvalidInput("drafts follow one sequence of bytes, and nothing else", code="bad_draft")
    if request.draft > limits.MAX_DRAFT or shape[1] + request.draft > spec.shape[0]:
        raise InvalidInput(
            f"at most {limits.MAX_DRAFT} tokens are drafted, within the {spec.shape[0]} that the model reads", code="bad_draft"
        )
    if request.redundancy > 1:
        raise InvalidInput("answers with drafts cannot be compared", code="bad_redundancy")


def _input_spec(stage: Stage) -> TensorSpec:
    return next(item.spec for item in stage.inputs if item.id == INPUT)


def _by_source(
    request: orchestrator_pb2.ForwardRequest, sources: Mapping[str, TensorSpec]
) -> dict[str, orchestrator_pb2.NamedTensor]:
    """One tensor for each source; a single one without a name is for all of them, as a batch is."""
    if len(request.inputs) == 1 and not request.inputs[0].vnode:
        return dict.fromkeys(sources, request.inputs[0])
    names = [item.vnode for item in request.inputs]
    if sorted(names) != sorted(sources):
        given = f"not for {', '.join(names) or 'nothing'}" if all(names) else f"and {names.count('')} of {len(names)} have no name"
        raise InvalidInput(
            f"inputs are wanted for {', '.join(sources)}, {given}",
            code="bad_inputs",
            remedy="give one tensor, or one for each source, named",
        )
    return {item.vnode: item for item in request.inputs}


def _tensor(name: str, item: orchestrator_pb2.NamedTensor, spec: TensorSpec, most: int) -> EncodedTensor:
    shape = tuple(int(length) for length in item.shape)
    if item.dtype != spec.dtype:
        raise InvalidInput(f"{name} takes {spec.dtype}, not {item.dtype or 'nothing'}", code="bad_dtype")
    if not spec.takes(shape[1:]):
        wanted = ", ".join(map(str, ("samples", *spec.shape)))
        raise InvalidInput(f"{name} takes an array of shape [{wanted}], not {list(shape)}", code="bad_shape")
    if not 1 <= shape[0] <= most:
        raise InvalidInput(f"a question has 1 to {most} samples, not {shape[0]}", code="bad_shape", remedy="ask in several parts")
    if len(item.data) != math.prod(shape) * NUMPY_DTYPES[spec.dtype].itemsize:
        raise InvalidInput(f"{len(item.data)} bytes are not a tensor of that shape", code="bad_shape")
    array: Array = np.frombuffer(item.data, NUMPY_DTYPES[spec.dtype]).reshape(shape)
    try:
        check_finite(array)
        return encode_final(array, "raw")
    except DcnrError as error:
        raise InvalidInput(error.message, code="bad_input") from error
