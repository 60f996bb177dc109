"""The route that asks the model: tensors in JSON, as base64 or as nested lists, and an answer that says which weights gave it, how deep, and who."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dcnr import limits
from dcnr.codecs import NUMPY_DTYPES
from dcnr.errors import Corrupt, InvalidInput
from dcnr.v1 import orchestrator_pb2
from gateway.context import Context, answer
from gateway.schema import JSON, message
from gateway.shapes import Json, shown

MAX_TENSOR_TEXT: Final = 6 * limits.MIB
"""Characters of base64 in one input; the network takes less."""
MAX_INPUTS: Final = 64
DEFAULT_DEADLINE_S: Final = 30.0
MAX_DEADLINE_S: Final = 120.0
SHOWN_MESSAGES: Final = (orchestrator_pb2.ForwardResponse.DESCRIPTOR,)
WEIGHTS: Final = [value.name for value in orchestrator_pb2.Weights.DESCRIPTOR.values]


class TensorIn(BaseModel):
    """A whole tensor, batch dimension first: ``data`` (base64 of little-endian bytes, row-major) with ``shape``, or ``values`` as nested lists."""

    model_config = ConfigDict(extra="forbid")
    vnode: str = Field("", max_length=63, description="The source; empty where there is only one.")
    dtype: str = Field("float32", pattern=f"^({'|'.join(NUMPY_DTYPES)})$")
    shape: list[Annotated[int, Field(ge=0, le=2**31)]] = Field([], max_length=limits.MAX_TENSOR_RANK)
    data: str = Field("", max_length=MAX_TENSOR_TEXT)
    values: list[Any] | None = Field(None, description="Instead of shape and data; the answer then has values too.")


class ForwardIn(BaseModel):
    """A question; the fields are those of the contract's ForwardRequest."""

    model_config = ConfigDict(extra="forbid")
    model: str = Field("", pattern="^([a-z0-9][a-z0-9_-]{0,62})?$")
    inputs: list[TensorIn] = Field(min_length=1, max_length=MAX_INPUTS)
    weights: str = Field("WEIGHTS_SERVED", pattern=f"^({'|'.join(WEIGHTS)})$")
    manifest_digest: str = Field("", max_length=64)
    exit: str = Field("", max_length=63)
    full_depth: bool = False
    deadline_s: float = Field(DEFAULT_DEADLINE_S, gt=0, le=MAX_DEADLINE_S)
    redundancy: int = Field(1, ge=0, le=16)
    exact: bool = False


def routes(context: Context) -> APIRouter:
    """The route over one network."""
    router = APIRouter()

    @router.post("/v1/forward", summary="Ask the model", responses=JSON(message("ForwardResponse")))
    async def forward(body: ForwardIn, request: Request) -> Response:
        asked = request_of(body)
        asked.on_behalf = request.state.key_id
        found = await context.views.forward(asked)
        return answer(answer_of(found, with_values=any(item.values is not None for item in body.inputs)))

    return router


def request_of(body: ForwardIn) -> orchestrator_pb2.ForwardRequest:
    """The question as it travels. Raises InvalidInput."""
    return orchestrator_pb2.ForwardRequest(
        model=body.model, inputs=[_tensor(item) for item in body.inputs], weights=orchestrator_pb2.Weights.Value(body.weights),
        manifest_digest=body.manifest_digest, exit=body.exit, full_depth=body.full_depth, deadline_s=body.deadline_s,
        redundancy=body.redundancy, exact=body.exact,
    )  # fmt: skip


def answer_of(found: orchestrator_pb2.ForwardResponse, *, with_values: bool) -> Json:
    """The answer as JSON; ``with_values``: its output as nested lists too. Raises Corrupt for bytes that are not the tensor they are said to be."""
    made = shown(found)
    if with_values:
        shape, dtype = tuple(int(length) for length in found.output.shape), NUMPY_DTYPES.get(found.output.dtype)
        if dtype is None or len(found.output.data) != math.prod(shape) * dtype.itemsize:
            raise Corrupt("the answer is not the tensor that it says it is", code="bad_answer")
        array = np.frombuffer(found.output.data, dtype).reshape(shape)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise Corrupt("the answer holds numbers that are none", code="bad_answer")
        made["output"]["values"] = array.tolist()
    return made


def _tensor(item: TensorIn) -> orchestrator_pb2.NamedTensor:
    if item.values is None:
        try:
            data = base64.b64decode(item.data, validate=True)
        except (ValueError, binascii.Error) as error:
            raise InvalidInput("the data of an input is not base64", code="bad_input") from error
        return orchestrator_pb2.NamedTensor(vnode=item.vnode, dtype=item.dtype, shape=item.shape, data=data)
    if item.data or item.shape:
        raise InvalidInput("an input has values, or shape and data", code="bad_input")
    array = _array(item.values, NUMPY_DTYPES[item.dtype])
    return orchestrator_pb2.NamedTensor(vnode=item.vnode, dtype=item.dtype, shape=array.shape, data=array.tobytes())


def _array(values: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Nested lists of one shape, every number as it is. Raises InvalidInput."""
    try:
        given = np.asarray(values)
        whole = dtype.kind in "iub"
        if given.dtype.kind not in ("iub" if whole else "iuf") or given.ndim > limits.MAX_TENSOR_RANK:
            raise ValueError
        array = np.ascontiguousarray(given, dtype)
        if (whole and not (array == given).all()) or (not whole and not np.isfinite(array).all()):
            raise ValueError
    except (ValueError, OverflowError, RecursionError, RuntimeWarning) as error:
        raise InvalidInput(f"values are not nested lists of one shape with numbers of {dtype.name}", code="bad_input") from error
    return array
