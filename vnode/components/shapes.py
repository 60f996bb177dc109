"""Checks that several components make of their inputs, with errors that name ``inputs``."""

from __future__ import annotations

from collections.abc import Sequence

from dcnr.errors import InvalidInput
from dcnr.specs import TensorSpec


def bad_inputs(owner: str, message: str) -> InvalidInput:
    """The error for inputs that a component cannot take."""
    return InvalidInput(f"{owner}: {message}", code="bad_config", field="inputs")


def one_input(owner: str, inputs: Sequence[TensorSpec]) -> TensorSpec:
    """The only input. Raises InvalidInput."""
    if len(inputs) != 1:
        raise bad_inputs(owner, f"takes exactly one input, not {len(inputs)}")
    return inputs[0]


def one_float_input(owner: str, inputs: Sequence[TensorSpec], ranks: Sequence[int] = ()) -> TensorSpec:
    """The only input, float32 and of one of ``ranks`` (any if empty). Raises InvalidInput."""
    spec = one_input(owner, inputs)
    if spec.dtype != "float32":
        raise bad_inputs(owner, f"takes float32, not {spec.dtype}")
    if ranks and len(spec.shape) not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        raise bad_inputs(owner, f"takes {wanted} dimensions besides the batch, not {list(spec.shape)}")
    return spec
