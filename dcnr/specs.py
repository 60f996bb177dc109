"""What a component or an objective declares about itself without importing torch.

Validation, planning, the command line and the simulator read specs only. A registry is an argument everywhere: nothing looks one up globally.
A component file holds a spec and a ``build()`` whose body imports torch; adding one touches no other file but the table of
`vnode.registry`, and none at all where the setting ``components`` names it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from dcnr.errors import InvalidInput
from dcnr.nearest import told_nearest

ConfigValue = bool | int | float | str | tuple["ConfigValue", ...]
Config = Mapping[str, ConfigValue]

DTYPE_BYTES: Mapping[str, int] = {
    "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """dtype and shape of a tensor without its batch dimension."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def num_elements(self) -> int:
        """Elements per sample."""
        return math.prod(self.shape)

    @property
    def is_sequence(self) -> bool:
        """Whether a sample is a row of places, [T] of bytes or [T, width]: a question may bring fewer of them."""
        return len(self.shape) == 2 or (self.dtype == "uint8" and len(self.shape) == 1)

    def takes(self, shape: tuple[int, ...]) -> bool:
        """Whether a question may bring a sample of that shape."""
        if shape == self.shape:
            return True
        return self.is_sequence and len(shape) == len(self.shape) and 0 < shape[0] <= self.shape[0] and shape[1:] == self.shape[1:]

    @property
    def bytes_per_sample(self) -> int:
        """Raw bytes per sample."""
        return self.num_elements * DTYPE_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class ComponentPlan:
    """What a component does with given inputs: its output and its cost per sample (forward FLOPs; a step costs about three times that)."""

    output: TensorSpec
    num_parameters: int = 0
    forward_flops: int = 0
    activation_bytes: int = 0
    """Memory held for the local backward pass, per sample. The output of a VNode without weights is counted by its stage (`dcnr.stages`)."""


@dataclass(frozen=True, slots=True)
class ObjectivePlan:
    """Cost of an objective's own head, per sample."""

    num_parameters: int = 0
    forward_flops: int = 0
    activation_bytes: int = 0
    pair_bytes: int = 0
    """Memory held per pair of samples of a batch: it grows with the square of the batch."""


@dataclass(frozen=True, slots=True)
class CheckPlan:
    """Which checks of somebody's training apply (ALGORITHMS.md, "Checks"). Replay applies to everything; the default asks for the shortest.

    ``smooth``: no kinks (ReLU, max pool) between input and loss, so trajectories of different machines stay together for longer.
    ``sketched``: the linear and convolutional maps (``nn.Linear``, ``nn.Conv2d``) inside the module that a sketch may stand for, in the order
    of the forward pass, the module itself being ``""``. The first must read what carries no gradient. What is between and behind them is
    computed in full by the checker and should be cheap.
    ``before_kinks``: what else a worker says for a sketch in stages with kinks: parts of the module whose output two machines round differently, where a
    kink reads it, be it here or in the objective. Behind them, and behind a sketched map with a kink right after it, only operations that round
    alike everywhere may come before the kink: one product, sum or comparison by element.
    """

    smooth: bool = False
    sketched: tuple[str, ...] = ()
    before_kinks: tuple[str, ...] = ()


@runtime_checkable
class Checked(Protocol):
    """A component or objective that says which checks apply to it."""

    def checks(self, config: Config) -> CheckPlan:
        """For a configuration that `check` took."""
        ...


def checks_of(spec: object, config: Config) -> CheckPlan:
    """What ``spec`` declares; the default for one that declares nothing."""
    return spec.checks(config) if isinstance(spec, Checked) else CheckPlan()


@runtime_checkable
class Incremental(Protocol):
    """A component, or an objective with its one output as ``inputs``, whose result at a place of a sequence follows from that place and those before it:
    it can go on where a sequence ended, with what its module keeps in `vnode.torch_memory.Memory`.
    """

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """Float32 values kept of each place, 0 where it looks at no other place; None: not with these inputs."""
        ...


def kept_per_place(spec: object, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
    """What ``spec`` declares; None for one that declares nothing."""
    return spec.kept_per_place(config, inputs) if isinstance(spec, Incremental) else None


@runtime_checkable
class Crowded(Protocol):
    """A component that cannot learn from just any number of samples."""

    def least_batch(self, config: Config, inputs: Sequence[TensorSpec]) -> int:
        """Samples that a batch must have, for a configuration and inputs that `check` took."""
        ...


def least_batch(spec: object, config: Config, inputs: Sequence[TensorSpec]) -> int:
    """What ``spec`` declares; 1 for one that declares nothing."""
    return spec.least_batch(config, inputs) if isinstance(spec, Crowded) else 1


def by_place(inputs: Sequence[TensorSpec]) -> int | None:
    """For whatever works on the last dimension of its inputs alone: nothing is kept where all of them are sequences."""
    return 0 if all(spec.is_sequence and len(spec.shape) == 2 for spec in inputs) else None


class ComponentSpec(Protocol):
    """A kind of VNode. ``stateful`` components own weights and need an objective; others own neither."""

    @property
    def name(self) -> str: ...
    @property
    def stateful(self) -> bool: ...

    def check(self, config: Config, inputs: Sequence[TensorSpec]) -> ComponentPlan:
        """The plan for these inputs. Raises InvalidInput whose ``details['field']`` names the offending config field or ``inputs``."""
        ...

    def build(self, config: Config, inputs: Sequence[TensorSpec]) -> Any:
        """A ``torch.nn.Module`` taking the inputs in order (batch first); imports torch here and nowhere else."""
        ...


class ObjectiveSpec(Protocol):
    """A local objective: it turns a VNode's output and the target into a scalar loss, and reads logits out."""

    @property
    def name(self) -> str: ...

    def check(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> ObjectivePlan:
        """Cost of the head. Raises InvalidInput with ``details['field']``."""
        ...

    def build(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> Any:
        """An objective module (see `vnode.objectives`)."""
        ...


class OptimizerSpec(Protocol):
    """An optimiser: validated configuration, slots per parameter, and a build over named parameters."""

    @property
    def name(self) -> str: ...
    @property
    def slots_per_parameter(self) -> int: ...

    def check(self, config: Config) -> None:
        """Raises InvalidInput with ``details['field']``."""
        ...


@dataclass(frozen=True, slots=True)
class Registry:
    """The allow-list: what may be named in a graph."""

    components: Mapping[str, ComponentSpec]
    objectives: Mapping[str, ObjectiveSpec]
    optimizers: Mapping[str, OptimizerSpec]

    @property
    def names(self) -> frozenset[str]:
        """Everything that a graph may name here, each with its kind: ``component linear``."""
        return kinds_of(self.components, self.objectives, self.optimizers)


def kinds_of(components: Iterable[str], objectives: Iterable[str], optimizers: Iterable[str]) -> frozenset[str]:
    """These names, each with its kind before it: an objective may be called as a component is."""
    kinds = (("component", components), ("objective", objectives), ("optimizer", optimizers))
    return frozenset(f"{kind} {name}" for kind, names in kinds for name in names)


class Fields:
    """Reads a config field by field with type and range, and refuses what nobody read: one way to validate for all components.

    Usage: ``with Fields(config, "linear") as f: out = f.integer("out_features", low=1, high=65536)``.
    """

    def __init__(self, config: Config, owner: str) -> None:
        self._config, self._owner, self._read = config, owner, set[str]()

    def __enter__(self) -> Fields:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if kind is None:
            for name in sorted(set(self._config) - self._read):
                known = ", ".join(sorted(self._read)) or "none"
                raise self.error(name, f"unknown field {name!r}{told_nearest(name, self._read)}; known: {known}")

    def error(self, field: str, message: str) -> InvalidInput:
        """The error to raise for ``field``."""
        return InvalidInput(f"{self._owner}: {message}", code="bad_config", field=field)

    def _value(self, name: str, default: Any) -> Any:
        self._read.add(name)
        value = self._config.get(name, default)
        if value is None:
            meant = told_nearest(name, set(self._config) - self._read, lead="; nearest of those given: ")
            raise self.error(name, f"field {name!r} is missing{meant}")
        return value

    def integer(self, name: str, default: int | None = None, *, low: int, high: int) -> int:
        """An integer in [low, high]."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.error(name, f"field {name!r} must be an integer from {low} to {high}, not {value!r}")
        return value

    def number(self, name: str, default: float | None = None, *, low: float, high: float) -> float:
        """A finite number in [low, high]."""
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise self.error(name, f"field {name!r} must be a number from {low} to {high}, not {value!r}")
        return float(value)

    def choice(self, name: str, default: str | None = None, *, options: Sequence[str]) -> str:
        """One of ``options``."""
        value = self._value(name, default)
        if value not in options:
            raise self.error(name, f"field {name!r} must be one of {', '.join(options)}, not {value!r}")
        return str(value)

    def flag(self, name: str, default: bool) -> bool:
        """A boolean."""
        value = self._value(name, default)
        if not isinstance(value, bool):
            raise self.error(name, f"field {name!r} must be true or false, not {value!r}")
        return value
