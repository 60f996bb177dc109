"""Questions to the model as numpy arrays, and answers that say what they are worth: which version, how deep, by whom."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dcnr.codecs import NUMPY_DTYPES
from dcnr.errors import Corrupt, InvalidInput, Unavailable
from dcnr.v1 import orchestrator_pb2

Inputs = ArrayLike | Mapping[str, ArrayLike]
"""One array, or one for each source VNode by its id; the batch dimension comes first. float64 travels as float32."""
WEIGHTS: Final = {
    "served": orchestrator_pb2.WEIGHTS_SERVED, "live": orchestrator_pb2.WEIGHTS_LIVE, "named": orchestrator_pb2.WEIGHTS_NAMED,
}  # fmt: skip
MIN_DEADLINE_S: Final = 0.1
LOOK_S: Final = 0.5
"""Between two questions of somebody patient."""
WAITED_FOR: Final = frozenset(("no_server", "busy", "slow_messages"))


@dataclass(frozen=True, slots=True)
class Ask:
    """What is wanted of an answer."""

    model: str = ""
    """Empty: the network's only one."""
    weights: str = "served"
    """``served``: the newest released version that is served; ``live``: the training replicas as they are now; ``named``: ``manifest``."""
    manifest: str = ""
    """Digest of the version for ``named``."""
    exit: str = ""
    """VNode whose readout is wanted; empty: the deepest."""
    full_depth: bool = False
    """Rather no answer than one of a shallower exit."""
    deadline_s: float = 30.0
    redundancy: int = 1
    """Independent ways that have to agree."""
    exact: bool = False
    """Outputs go from hop to hop as they are, whatever codec the model's edges declare."""
    patient: bool = False
    """Where nobody serves yet, or all are busy, it is asked again until the deadline."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The readout of an exit, one row per sample, with what it is worth."""

    output: NDArray[Any]
    model: str
    manifest: str
    """Version of the weights; empty for live ones."""
    exit: str
    deepest: str
    degraded: bool
    degraded_reason: str
    stages: tuple[orchestrator_pb2.StageAnswer, ...]
    total_s: float
    num_ways: int
    num_agreeing: int


async def patiently(ask: Callable[[Ask], Awaitable[Answer]], asked: Ask) -> Answer:
    """What ``ask`` gives in the end: seats that are still being loaded are waited for, within the deadline of ``asked``. Raises what it raises."""
    loop = asyncio.get_running_loop()
    until = loop.time() + asked.deadline_s
    while True:
        try:
            return await ask(replace(asked, deadline_s=max(MIN_DEADLINE_S, until - loop.time())))
        except Unavailable as error:
            if not asked.patient or error.code not in WAITED_FOR or loop.time() + LOOK_S >= until:
                raise
        await asyncio.sleep(LOOK_S)


def request_of(inputs: Inputs, asked: Ask) -> orchestrator_pb2.ForwardRequest:
    """The question as it travels. Raises InvalidInput for what is no array that can."""
    if asked.weights not in WEIGHTS:
        raise InvalidInput(f"weights are one of {', '.join(WEIGHTS)}, not {asked.weights!r}", code="bad_weights")
    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    return orchestrator_pb2.ForwardRequest(
        model=asked.model, inputs=[_tensor(name, value) for name, value in named.items()], weights=WEIGHTS[asked.weights],
        manifest_digest=asked.manifest, exit=asked.exit, full_depth=asked.full_depth, deadline_s=asked.deadline_s,
        redundancy=asked.redundancy, exact=asked.exact,
    )  # fmt: skip


def answer_of(response: orchestrator_pb2.ForwardResponse) -> Answer:
    """What came back. Raises Corrupt for bytes that are not the tensor they are said to be."""
    return Answer(
        output=_array(response.output), model=response.model, manifest=response.manifest_digest, exit=response.exit,
        deepest=response.deepest, degraded=response.degraded, degraded_reason=response.degraded_reason, stages=tuple(response.stages),
        total_s=response.total_s, num_ways=response.num_ways, num_agreeing=response.num_agreeing,
    )  # fmt: skip


def _tensor(name: str, value: ArrayLike) -> orchestrator_pb2.NamedTensor:
    array = np.asarray(value)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    if array.dtype.name not in NUMPY_DTYPES or not array.ndim:
        raise InvalidInput(f"an input of {array.dtype} and shape {array.shape} cannot travel", code="bad_input")
    little = np.ascontiguousarray(array, NUMPY_DTYPES[array.dtype.name])
    return orchestrator_pb2.NamedTensor(vnode=name, dtype=array.dtype.name, shape=array.shape, data=little.tobytes())


def _array(tensor: orchestrator_pb2.NamedTensor) -> NDArray[Any]:
    shape = tuple(int(length) for length in tensor.shape)
    dtype = NUMPY_DTYPES.get(tensor.dtype)
    if dtype is None or len(tensor.data) != math.prod(shape) * dtype.itemsize:
        raise Corrupt("the answer is not the tensor that it says it is", code="bad_answer")
    return np.frombuffer(tensor.data, dtype).reshape(shape)
