"""The routes that ask the model: tensors in JSON, as base64 or as nested lists, and an answer that says which weights gave it, how deep, and who.

An answer of more than `MAX_INLINE_BYTES` is kept for a while and named in ``output_ref`` (`gateway.results`).
"""

from __future__ import annotations

import base64
import math
from itertools import chain
from typing import Annotated, Any, Final

import numpy as np
from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from dcnr import limits
from dcnr.codecs import NUMPY_DTYPES
from dcnr.errors import Corrupt, InvalidInput
from dcnr.v1 import orchestrator_pb2
from gateway import bodies
from gateway.context import Context, answer
from gateway.results import Results
from gateway.schema import JSON, holds, message
from gateway.shapes import Json, shown

MAX_TENSOR_TEXT: Final = 6 * limits.MIB
"""Characters of base64 in one input; the network takes less."""
MAX_INPUTS: Final = 64
MAX_INLINE_BYTES: Final = limits.MIB
"""Of the tensor; larger ones are fetched."""
DEFAULT_DEADLINE_S: Final = 30.0
MAX_DEADLINE_S: Final = 120.0
SHOWN_MESSAGES: Final = (orchestrator_pb2.ForwardResponse.DESCRIPTOR,)
_REF: Final = holds(
    href={"type": "string"}, size_bytes={"type": "integer"}, sha256={"type": "string"}, expires_unix_ms={"type": "integer"}
)  # fmt: skip
FORWARDED: Final[Json] = {"allOf": [message("ForwardResponse"), {"type": "object", "properties": {"output_ref": _REF}}]}
BYTES: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "The bytes.", "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}
}
ResultId = Annotated[str, Path(pattern="^[0-9a-f]{32}$", description="As in output_ref.")]
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
    router = bodies.router()

    @router.post("/v1/forward", summary="Ask the model", responses=JSON(FORWARDED))
    async def forward(body: ForwardIn, request: Request) -> Response:
        asked, key = request_of(body), request.state.key
        asked.on_behalf = key.id
        found = await context.views.forward(asked)
        if len(found.output.data) > MAX_INLINE_BYTES:
            return answer(referred(found, context.results, key.id))
        return answer(answer_of(found, with_values=any(item.values is not None for item in body.inputs)))

    @router.get(
        "/v1/results/{result_id}",
        summary="An answer that was too large for JSON, as its bytes",
        responses=BYTES,
        response_class=Response,
    )
    async def fetch(result_id: ResultId, request: Request) -> Response:
        found = context.results.find(request.state.key.id, result_id)
        return Response(found.content, media_type="application/octet-stream")

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


def referred(found: orchestrator_pb2.ForwardResponse, results: Results, key_id: str) -> Json:
    """The answer without the bytes of its output, and where that key fetches them. Raises Unavailable (``results_full``)."""
    kept = results.keep(key_id, found.output.data)
    told = orchestrator_pb2.ForwardResponse()
    told.CopyFrom(found)
    told.output.ClearField("data")
    reference = {
        "href": f"/v1/results/{kept.id}", "size_bytes": len(kept.content), "sha256": kept.sha256, "expires_unix_ms": kept.expires_unix_ms,
    }  # fmt: skip
    return {**shown(told), "output_ref": reference}


def _tensor(item: TensorIn) -> orchestrator_pb2.NamedTensor:
    if item.values is None:
        try:
            data = base64.b64decode(item.data, validate=True)
        except ValueError as error:
            raise InvalidInput("the data of an input is not base64", code="bad_input") from error
        return orchestrator_pb2.NamedTensor(vnode=item.vnode, dtype=item.dtype, shape=item.shape, data=data)
    if item.data or item.shape:
        raise InvalidInput("an input has values, or shape and data", code="bad_input")
    array = _array(item.values, NUMPY_DTYPES[item.dtype])
    return orchestrator_pb2.NamedTensor(vnode=item.vnode, dtype=item.dtype, shape=array.shape, data=array.tobytes())


def _array(values: list[Any], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Nested lists of one shape, every number as it is. Raises InvalidInput."""
    try:
        if not _leaves(values) <= {int, float, bool}:
            raise ValueError
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


def _leaves(values: list[Any]) -> set[type]:
    """The kinds of what the nested lists hold. Known before numpy looks: among texts it would make all as long as the longest. Raises ValueError."""
    level: list[Any] = values
    for _ in range(limits.MAX_TENSOR_RANK):
        kinds = set(map(type, level))
        if list not in kinds:
            return kinds
        if kinds != {list}:
            raise ValueError
        level = list(chain.from_iterable(level))
    raise ValueError
