"""Cuts a graph into stages: one stateful VNode each, with the stateless VNodes it evaluates itself. Pure, torch-free.

A stateless VNode is a function without weights, so every stateful successor evaluates it inside itself and only stateful VNodes
exchange frames.
A stateless VNode that nobody reads is a *sink*; it is evaluated after the one stage it depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, for_others
from dcnr.nearest import told_nearest
from dcnr.specs import ComponentPlan, Config, ObjectivePlan, Registry, TensorSpec

MAX_OPERATIONS = 16384
"""Stateless VNodes of all stages of a graph together, each counted once per stage that evaluates it."""

_FROM_OUTSIDE = (
    "correct the name; one from outside the tree must be in the setting components, here and on every machine that is to run it"
)
FAULTY: Final = "mend the component, or what the graph gives it, and name the same file on every machine"
"""What to do about a spec, or what it builds, that does not work."""

INPUT = "input"
"""The name under which a graph's VNodes read the batch itself."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class VNodeSpec:
    """One VNode as the graph describes it. Stateless VNodes leave ``objective`` and ``optimizer`` empty."""

    id: str
    component: str
    config: Config
    inputs: tuple[str, ...]
    objective: str = ""
    objective_config: Config = field(default_factory=dict)
    optimizer: str = ""
    optimizer_config: Config = field(default_factory=dict)
    replicas: int = 1
    """0: as many as the planner finds useful."""
    redundancy: int = 1


@dataclass(frozen=True, slots=True)
class Operation:
    """A stateless VNode as its stage evaluates it: ``inputs`` name external inputs, other operations, or (sinks) the stage."""

    id: str
    component: str
    config: Config
    inputs: tuple[str, ...]
    input_specs: tuple[TensorSpec, ...]
    output: TensorSpec


@dataclass(frozen=True, slots=True)
class StageInput:
    """A tensor that reaches a stage from outside: the batch (``input``) or a stateful VNode's output."""

    id: str
    spec: TensorSpec


@dataclass(frozen=True, slots=True)
class Stage:
    """One stateful VNode with everything needed to build, place and check it.

    Costs are per sample, operations and head included.
    """

    id: str
    component: str
    config: Config
    component_inputs: tuple[str, ...]
    component_input_specs: tuple[TensorSpec, ...]
    operations: tuple[Operation, ...]
    inputs: tuple[StageInput, ...]
    """External inputs in a fixed order: that in which the graph first needs them."""
    objective: str
    objective_config: Config
    optimizer: str
    optimizer_config: Config
    output: TensorSpec
    target: TensorSpec
    num_classes: int
    sinks: tuple[Operation, ...] = ()
    replicas: int = 1
    """Wanted; 0: as many as the planner finds useful."""
    redundancy: int = 1
    num_parameters: int = 0
    forward_flops: int = 0
    activation_bytes: int = 0
    """What the backward pass needs, and the outputs of all operations and sinks: each is held until the pass is over. For a backward pass these need no
    more: no gradient reaches operations, and sinks are computed where none is wanted.
    """
    pair_bytes: int = 0
    """Per pair of samples of a batch."""

    @property
    def is_source(self) -> bool:
        """True if the stage reads batches by number itself."""
        return any(item.id == INPUT for item in self.inputs)


def stages_of(
    vnodes: Sequence[VNodeSpec],
    registry: Registry,
    input_spec: TensorSpec,
    target_spec: TensorSpec,
    num_classes: int,
    batch_size: int = 1,
) -> tuple[Stage, ...]:
    """The stages of a graph, every one after those it reads from. No output of a VNode is a tensor above `limits.MAX_TENSOR_BYTES` at that batch size.

    Raises InvalidInput with ``details['vnode']`` and ``details['field']``.
    """
    ordered = _in_order(vnodes)
    by_id = {vnode.id: vnode for vnode in ordered}
    plans: dict[str, ComponentPlan] = {}
    specs = {INPUT: input_spec}
    for vnode in ordered:
        plans[vnode.id] = _checked(vnode, registry, specs)
        specs[vnode.id] = plans[vnode.id].output
        _check_size(vnode.id, specs[vnode.id], batch_size)
    stateful = {vnode.id for vnode in ordered if registry.components[vnode.component].stateful}
    if not stateful:
        raise InvalidInput("the graph has no VNode with weights", code="bad_graph", vnode="", field="component")
    sinks = _sinks(ordered, by_id, stateful, specs)
    stages: list[Stage] = []
    num_operations = 0
    for vnode in ordered:
        if vnode.id in stateful:
            after = tuple(sinks.get(vnode.id, ()))
            stages.append(_stage(vnode, by_id, stateful, specs, plans, registry, target_spec, num_classes, after))
            num_operations += len(stages[-1].operations) + len(after)
            if num_operations > MAX_OPERATIONS:
                raise _error(vnode.id, "inputs", f"stages would evaluate more than {MAX_OPERATIONS} stateless VNodes between them")
    return tuple(stages)


def all_behind(reads: Mapping[str, Sequence[str]], of: Iterable[str]) -> dict[str, frozenset[str]]:
    """By VNode in ``of``: itself, and all that read from it, directly or not. ``reads``: what each VNode reads."""
    readers: dict[str, list[str]] = {}
    for name, read in reads.items():
        for other in read:
            readers.setdefault(other, []).append(name)
    behind: dict[str, frozenset[str]] = {}
    for name in of:
        seen, walk = {name}, [name]
        while walk:
            further = set(readers.get(walk.pop(), ())) - seen
            seen |= further
            walk += further
        behind[name] = frozenset(seen)
    return behind


def _error(vnode: str, field_name: str, message: str) -> InvalidInput:
    return InvalidInput(f"{vnode}: {message}", code="bad_graph", vnode=vnode, field=field_name)


def _unknown(vnode: str, field_name: str, message: str) -> InvalidInput:
    """What another registry than this one might have."""
    return InvalidInput(f"{vnode}: {message}", code="unknown_component", remedy=_FROM_OUTSIDE, vnode=vnode, field=field_name)


def _in_order(vnodes: Sequence[VNodeSpec]) -> list[VNodeSpec]:
    """Topological order, breadth first, readers of one VNode in the order of the graph."""
    known = {INPUT}
    for vnode in vnodes:
        if vnode.id in known:
            raise _error(vnode.id, "id", "the id is used twice or reserved")
        known.add(vnode.id)
    for vnode in vnodes:
        if not vnode.inputs:
            raise _error(vnode.id, "inputs", "a VNode needs at least one input")
        for name in vnode.inputs:
            if name not in known:
                raise _error(vnode.id, "inputs", f"there is no VNode {name!r}{told_nearest(name, known - {vnode.id})}")
    readers: dict[str, list[int]] = {}
    missing = [len(set(vnode.inputs)) for vnode in vnodes]
    for index, vnode in enumerate(vnodes):
        for name in sorted(set(vnode.inputs)):
            readers.setdefault(name, []).append(index)
    ordered: list[VNodeSpec] = []
    ready = [INPUT]
    for name in ready:  # grows while it is read
        for index in readers.get(name, ()):
            missing[index] -= 1
            if missing[index] == 0:
                ordered.append(vnodes[index])
                ready.append(vnodes[index].id)
    if len(ordered) != len(vnodes):
        left = sorted({vnode.id for vnode in vnodes} - {vnode.id for vnode in ordered})
        raise _error(left[0], "inputs", f"these VNodes form a cycle: {', '.join(left)}")
    return ordered


def _checked(vnode: VNodeSpec, registry: Registry, specs: Mapping[str, TensorSpec]) -> ComponentPlan:
    component = registry.components.get(vnode.component)
    if component is None:
        known, meant = ", ".join(sorted(registry.components)), told_nearest(vnode.component, registry.components)
        raise _unknown(vnode.id, "component", f"unknown component {vnode.component!r}{meant}; known: {known}")
    for kind, name, table in (
        ("objective", vnode.objective, registry.objectives),
        ("optimizer", vnode.optimizer, registry.optimizers),
    ):
        if component.stateful and name not in table:
            known, refusal = ", ".join(sorted(table)), _unknown if kind == "objective" and name else _error
            raise refusal(
                vnode.id, kind, f"a VNode with weights needs one {kind} of: {known}; not {name!r}{told_nearest(name, table)}"
            )
        if not component.stateful and name:
            raise _error(vnode.id, kind, f"{vnode.component!r} has no weights and owns no {kind}")
    if not component.stateful and vnode.replicas > 1:
        raise _error(vnode.id, "replicas", f"{vnode.component!r} has no weights: it runs with every replica of what reads it")
    return _told(
        vnode.id, vnode.component, ComponentPlan, lambda: component.check(vnode.config, [specs[name] for name in vnode.inputs])
    )


def _told(vnode: str, name: str, kind: type[T], check: Callable[[], object]) -> T:
    """What a spec makes of a configuration and its inputs. Raises InvalidInput, whatever the spec raises: it may be from outside the tree."""
    try:
        found = check()
    except InvalidInput as error:
        raise _error(vnode, error.details.get("field", "config"), error.message) from error
    except DcnrError:
        raise
    except Exception as error:  # somebody else's code: whoever named it is told, and an orchestrator goes on
        raise _faulty(vnode, f"{name}: check() fails: {for_others(error)}") from error
    if not isinstance(found, kind):
        raise _faulty(vnode, f"{name}: check() gives a {type(found).__name__}, not a {kind.__name__}")
    return found


def _faulty(vnode: str, message: str) -> InvalidInput:
    return InvalidInput(f"{vnode}: {message}", code="bad_component", remedy=FAULTY, vnode=vnode, field="component")


def _check_size(vnode: str, output: TensorSpec, batch_size: int) -> None:
    """Joined again and again, an output would become larger than any machine, in a graph of a few lines; and a batch of it travels in one frame."""
    size_bytes = batch_size * output.bytes_per_sample
    if size_bytes <= limits.MAX_TENSOR_BYTES:
        return
    most = limits.MAX_TENSOR_BYTES // output.bytes_per_sample
    found = f"{vnode}: its output {list(output.shape)} has {size_bytes} bytes for a batch of {batch_size}, more than {limits.MAX_TENSOR_BYTES}"
    remedy = (
        f"set train.batch_size to {most} or less, or make the output smaller"
        if most
        else "make the output smaller: no batch size is small enough"
    )
    raise InvalidInput(found, code="bad_graph", remedy=remedy, vnode=vnode, field="train.batch_size" if most else "inputs")


def _operation(vnode: VNodeSpec, specs: Mapping[str, TensorSpec]) -> Operation:
    return Operation(
        id=vnode.id,
        component=vnode.component,
        config=vnode.config,
        inputs=vnode.inputs,
        input_specs=tuple(specs[name] for name in vnode.inputs),
        output=specs[vnode.id],
    )


def _ancestry(names: Sequence[str], by_id: Mapping[str, VNodeSpec], stateful: set[str]) -> tuple[list[str], list[str]]:
    """(external inputs, stateless VNodes in topological order) that ``names`` depend on. Iterative: graphs may be deep chains."""
    external: list[str] = []
    inside: list[str] = []
    stack = [(name, False) for name in reversed(names)]
    seen: set[str] = set()
    while stack:
        name, done = stack.pop()
        if done:
            inside.append(name)
        elif name not in seen:
            seen.add(name)
            if name == INPUT or name in stateful:
                external.append(name)
            else:
                stack.append((name, True))
                stack.extend((parent, False) for parent in reversed(by_id[name].inputs))
    return external, inside


def _sinks(
    ordered: Sequence[VNodeSpec], by_id: Mapping[str, VNodeSpec], stateful: set[str], specs: Mapping[str, TensorSpec]
) -> dict[str, list[Operation]]:
    """Stateless VNodes that no stage evaluates, by the stage after which they run."""
    needed = [name for vnode in ordered if vnode.id in stateful for name in vnode.inputs]
    used = set(_ancestry(needed, by_id, stateful)[1])
    result: dict[str, list[Operation]] = {}
    placed: set[str] = set()
    root: dict[str, set[str]] = {}  # of each stateless VNode: the external inputs it depends on, at most two kept
    for vnode in ordered:
        if vnode.id in stateful:
            continue
        root[vnode.id] = set(sorted({r for name in vnode.inputs for r in root.get(name, {name})})[:2])
        if vnode.id in used:
            continue
        if len(root[vnode.id]) != 1 or INPUT in root[vnode.id]:
            raise _error(
                vnode.id, "inputs", "a VNode that nobody reads and that has no weights must follow exactly one VNode with weights"
            )
        stage = next(iter(root[vnode.id]))
        for name in [*_ancestry([n for n in vnode.inputs if n not in placed], by_id, stateful)[1], vnode.id]:
            if name not in placed:
                placed.add(name)
                result.setdefault(stage, []).append(_operation(by_id[name], specs))
    return result


def _stage(
    vnode: VNodeSpec,
    by_id: Mapping[str, VNodeSpec],
    stateful: set[str],
    specs: Mapping[str, TensorSpec],
    plans: Mapping[str, ComponentPlan],
    registry: Registry,
    target: TensorSpec,
    num_classes: int,
    sinks: tuple[Operation, ...],
) -> Stage:
    external, inside = _ancestry(vnode.inputs, by_id, stateful)
    objective = registry.objectives[vnode.objective]
    head = _told(
        vnode.id,
        vnode.objective,
        ObjectivePlan,
        lambda: objective.check(vnode.objective_config, specs[vnode.id], target, num_classes),
    )
    try:
        registry.optimizers[vnode.optimizer].check(vnode.optimizer_config)
    except InvalidInput as error:
        raise _error(vnode.id, error.details.get("field", "config"), error.message) from error
    costs: list[ComponentPlan | ObjectivePlan] = [plans[vnode.id], *(plans[name] for name in inside), head]
    held = [*inside, *(sink.id for sink in sinks)]
    return Stage(
        id=vnode.id,
        component=vnode.component,
        config=vnode.config,
        component_inputs=vnode.inputs,
        component_input_specs=tuple(specs[name] for name in vnode.inputs),
        operations=tuple(_operation(by_id[name], specs) for name in inside),
        inputs=tuple(StageInput(name, specs[name]) for name in external),
        objective=vnode.objective,
        objective_config=vnode.objective_config,
        optimizer=vnode.optimizer,
        optimizer_config=vnode.optimizer_config,
        output=specs[vnode.id],
        target=target,
        num_classes=num_classes,
        sinks=sinks,
        replicas=vnode.replicas,
        redundancy=vnode.redundancy,
        num_parameters=sum(cost.num_parameters for cost in costs),
        forward_flops=sum(cost.forward_flops for cost in costs),
        activation_bytes=sum(cost.activation_bytes for cost in costs)
        + sum(plans[sink.id].activation_bytes for sink in sinks)
        + sum(specs[name].bytes_per_sample for name in held),
        pair_bytes=head.pair_bytes,
    )
