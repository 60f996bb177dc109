"""Goal: tensors survive JSON in both forms, and what is no tensor is refused before anybody is asked."""

from __future__ import annotations

import base64
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from pydantic import ValidationError

from dcnr.codecs import NUMPY_DTYPES
from dcnr.errors import Corrupt, InvalidInput
from dcnr.v1 import orchestrator_pb2
from gateway.asking import ForwardIn, answer_of, request_of

SHAPES = arrays.array_shapes(min_dims=1, max_dims=3, max_side=4)


@given(st.sampled_from(sorted(NUMPY_DTYPES)), st.data())
def test_both_forms_say_the_same_tensor(dtype: str, data: st.DataObject) -> None:
    kind = NUMPY_DTYPES[dtype]
    elements: dict[str, Any] = {"allow_nan": False, "allow_infinity": False} if kind.kind == "f" else {}
    array = data.draw(arrays.arrays(kind, SHAPES, elements=arrays.from_dtype(kind, **elements)))
    text = base64.b64encode(array.tobytes()).decode()
    by_values = request_of(ForwardIn(inputs=[{"dtype": dtype, "values": array.tolist()}]))  # type: ignore[list-item]
    by_bytes = request_of(ForwardIn(inputs=[{"dtype": dtype, "shape": list(array.shape), "data": text}]))  # type: ignore[list-item]
    assert by_values == by_bytes
    answered = orchestrator_pb2.ForwardResponse(output=by_bytes.inputs[0])
    made = answer_of(answered, with_values=True)
    assert np.array_equal(np.asarray(made["output"]["values"], kind), array)
    assert made["output"]["data"] == text
    assert "values" not in answer_of(answered, with_values=False)["output"]


@pytest.mark.parametrize(
    ("dtype", "values"),
    [
        ("float32", [[1.0], [1.0, 2.0]]), ("float32", ["1"]), ("float32", [None]), ("float32", [[{}]]), ("float32", [math.nan]), ("float32", [math.inf]),
        ("float32", [1e39]), ("uint8", [256]), ("uint8", [-1]), ("uint8", [1.0]), ("int64", [2**63]), ("bool", [2]), ("float32", [[[[[[[[[1.0]]]]]]]]]),
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_tensor_of_that_kind_is_refused(dtype: str, values: list[Any]) -> None:
    with pytest.raises(InvalidInput):
        request_of(ForwardIn(inputs=[{"dtype": dtype, "values": values}]))  # type: ignore[list-item]


@pytest.mark.parametrize(
    "wrong",
    [{"inputs": []}, {"inputs": [{"dtype": "object", "values": [1]}]}, {"inputs": [{"values": [1]}], "weights": "best"},
     {"inputs": [{"values": [1]}], "deadline_s": 0},
     {"inputs": [{"values": [1]}], "more": 1}, {"inputs": [{"values": [1]}] * 65}],
    ids=str,
)  # fmt: skip
def test_what_is_no_question_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ForwardIn(**wrong)


def test_bytes_that_are_not_their_tensor_are_refused() -> None:
    with pytest.raises(InvalidInput):
        request_of(ForwardIn(inputs=[{"data": "!"}]))  # type: ignore[list-item]
    with pytest.raises(InvalidInput):
        request_of(ForwardIn(inputs=[{"data": "AAAA", "values": [1.0]}]))  # type: ignore[list-item]
    for shape, data in (((2,), bytes(4)), ((1,), np.array([np.nan], "<f4").tobytes())):
        answered = orchestrator_pb2.ForwardResponse(output=orchestrator_pb2.NamedTensor(dtype="float32", shape=shape, data=data))
        with pytest.raises(Corrupt):
            answer_of(answered, with_values=True)
