"""A traced module as plain records: what is computed, from what, and where its author wrote it. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt

from dcnr.errors import InvalidInput

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Ref:
    """The value of another operation."""

    name: str


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of the traced graph. Shapes have the batch first; they are empty for what is no single tensor."""

    name: str
    target: str
    """As torch names it: ``aten.conv2d.default``."""
    arguments: Mapping[str, Any]
    """By their names in the operator's schema, defaults filled in; tensors are a `Ref`, lists of them a tuple."""
    shape: tuple[int, ...]
    dtype: str
    owner: str
    """Path of the submodule that computes it; empty for the module itself."""
    where: str
    """Line of the maintainer's source."""
    fixed: bool
    """It depends on no input: a parameter, a buffer, or what is made of them."""
    in_place: bool = False

    @property
    def kind(self) -> str:
        """``conv2d`` for ``aten.conv2d.default``, ``relu`` also for ``aten.relu_.default``."""
        name = self.target.removeprefix("aten.").partition(".")[0]
        return name.rstrip("_") if self.in_place else name

    @property
    def reads(self) -> tuple[str, ...]:
        """Names of the operations whose values it takes, in the order of its arguments."""
        return tuple(ref.name for value in self.arguments.values() for ref in refs_in(value))

    def text(self, argument: str) -> str:
        """The name behind one tensor argument; empty where there is none."""
        value = self.arguments.get(argument)
        return value.name if isinstance(value, Ref) else ""


@dataclass(frozen=True, slots=True)
class Traced:
    """A module on one example. ``values`` holds what every operation gave for it, parameters included."""

    operations: tuple[Operation, ...]
    values: Mapping[str, Array]
    input: str
    output: str
    identities: Mapping[str, int]
    """Of parameters and buffers: the same number for two names of one tensor."""


@dataclass(frozen=True, slots=True)
class Unsupported:
    """An operation that no component stands for."""

    node: str
    target: str
    where: str
    owner: str
    why: str
    instead: str

    def __str__(self) -> str:
        place = (f" in {self.owner}" if self.owner else "") + (f" at {self.where}" if self.where else "")
        return f"{self.node}: {self.target}{place}: {self.why}; instead: {self.instead}"


class UnsupportedOperations(InvalidInput):
    """Everything in a module that cannot be imported, all at once: ``operations`` in the order of the computation."""

    def __init__(self, operations: Sequence[Unsupported]) -> None:
        self.operations = tuple(operations)
        listed = "\n".join(f"  {one}" for one in self.operations)
        super().__init__(
            f"{len(self.operations)} operations have no component:\n{listed}", code="unsupported_operations",
            remedy="replace them in the module, or write a graph with a component of your own that the setting components names",
        )  # fmt: skip


class Reading:
    """A traced module without what changes nothing (copies, casts between integers, views of the same shape): who reads whom."""

    def __init__(self, traced: Traced) -> None:
        self.traced = traced
        self._same: dict[str, str] = {}
        self.by_name: dict[str, Operation] = {}
        self.users: dict[str, list[Operation]] = {}
        for raw in traced.operations:
            if raw.kind.startswith("_assert"):
                continue
            operation = replace(raw, arguments={name: self._behind(value) for name, value in raw.arguments.items()})
            if not raw.fixed and raw.reads and self._changes_nothing(operation):
                self._same[raw.name] = operation.reads[0]
                continue
            self.by_name[raw.name] = operation
            if not raw.fixed:
                for name in dict.fromkeys(operation.reads):
                    self.users.setdefault(name, []).append(operation)
        self.output = self._same.get(traced.output, traced.output)

    def __iter__(self) -> Iterator[Operation]:
        return iter(
            [operation for operation in self.by_name.values() if not operation.fixed and operation.name != self.traced.input]
        )

    def value(self, name: str) -> Array:
        """What an operation gave for the example."""
        return self.traced.values[name]

    def fixed(self, name: str) -> bool:
        """Whether a value depends on no input."""
        return name in self.by_name and self.by_name[name].fixed

    def next(self, name: str) -> Operation | None:
        """The only operation that reads ``name``; None where others do too, or the result is the module's own."""
        users = self.users.get(name, [])
        return users[0] if len(users) == 1 and name != self.output else None

    def sample(self, name: str) -> tuple[int, ...]:
        """Shape of a value without the batch."""
        return self.by_name[name].shape[1:]

    def _behind(self, value: Any) -> Any:
        if isinstance(value, Ref):
            return Ref(self._same.get(value.name, value.name))
        return tuple(self._behind(item) for item in value) if isinstance(value, tuple) else value

    def _changes_nothing(self, operation: Operation) -> bool:
        before = self.by_name.get(operation.reads[0])
        if before is None or before.fixed or operation.shape != before.shape or not operation.shape:
            return False
        match operation.kind:
            case (
                "contiguous"
                | "clone"
                | "detach"
                | "alias"
                | "lift_fresh"
                | "lift_fresh_copy"
                | "view"
                | "reshape"
                | "flatten"
                | "unflatten"
            ):
                return True
            case "to" | "_to_copy" | "type_as":
                return operation.dtype == before.dtype or {_is_integer(operation.dtype), _is_integer(before.dtype)} == {True}
            case "dropout" | "dropout2d" | "feature_dropout" | "alpha_dropout":
                return operation.arguments.get("p") == 0
        return False


def refs_in(value: Any) -> Iterator[Ref]:
    """The references in an argument."""
    if isinstance(value, Ref):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from refs_in(item)


def _is_integer(dtype: str) -> bool:
    return dtype.startswith(("int", "uint"))
