"""What a part of a traced module becomes: a VNode, or the reason why it cannot."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from vnode.importing.operations import Array, Operation, Reading, Unsupported

EPSILON: Final = 1e-5
"""Of every normalisation that ships."""
MOMENTUM: Final = 0.1


@dataclass(frozen=True, slots=True)
class Claim:
    """A VNode that stands for some operations. ``tensors`` are its first values by their names in a state, without ``w/`` and ``b/``."""

    component: str
    config: Mapping[str, Any]
    reads: tuple[str, ...]
    """Operations whose values it takes."""
    gives: str
    """The operation whose value it gives."""
    covers: frozenset[str]
    tensors: Mapping[str, Array] = field(default_factory=dict)
    weights: tuple[str, ...] = ()
    """Parameters and buffers that went into ``tensors``."""
    notes: tuple[str, ...] = ()


class Unsuitable(Exception):
    """No component stands for it: ``why``, and what could be there ``instead``."""

    def __init__(self, why: str, instead: str) -> None:
        super().__init__(why)
        self.why, self.instead = why, instead

    def about(self, operation: Operation) -> Unsupported:
        """The same of one operation."""
        return Unsupported(operation.name, operation.target, operation.where, operation.owner, self.why, self.instead)


def pair(value: Any) -> tuple[int, int] | None:
    """The two numbers of a setting of a convolution or pool, which may be one; None for anything else."""
    numbers = value if isinstance(value, tuple) else (value,)
    if len(numbers) not in (1, 2) or not all(isinstance(number, int) for number in numbers):
        return None
    return numbers[0], numbers[-1]


def affine(reading: Reading, operation: Operation) -> tuple[Array, Array] | None:
    """Weight and bias of a normalisation; None where it has not both."""
    names = operation.text("weight"), operation.text("bias")
    return (reading.value(names[0]), reading.value(names[1])) if all(names) else None
