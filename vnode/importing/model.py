"""`from_torch`: a maintainer's module as a graph that the network can train, with its weights as checkpoint 0 where the maintainer wants them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor, nn

from dcnr.errors import InvalidInput
from dcnr.graph import Graph, stages_of_graph
from dcnr.ids import check_name
from dcnr.specs import Registry, TensorSpec
from dcnr.v1 import model_pb2
from vnode.importing.comparison import compared
from vnode.importing.heads import identity_head
from vnode.importing.mapping import Mapped, MappedVNode, mapped
from vnode.importing.operations import Array
from vnode.importing.tracing import traced
from vnode.registry import default_registry

SGD: Final[Mapping[str, Any]] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "one_cycle"}
ADAMW: Final[Mapping[str, Any]] = {
    "name": "adamw", "lr": 4e-3, "beta1": 0.9, "beta2": 0.95, "weight_decay": 0.05, "clip": 1.0, "schedule": "cosine",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """What the maintainer chooses and the module does not say."""

    name: str = "imported"
    """Of the model."""
    dataset: str = ""
    """Name of the staged data; empty: that of the model."""
    passes: int = 1
    batch_size: int = 64
    seed: int = 0
    objective: str = "local_ce"
    """Of every VNode with weights."""
    objectives: Mapping[str, Mapping[str, Any]] | None = None
    """``{"name", "config"}`` for single VNodes, by id."""
    optimizer: Mapping[str, Any] | None = None
    """``{"name", ...}`` for all; None: SGD with momentum, and AdamW for texts."""
    num_classes: int = 0
    """0: as many as the module's last dimension."""


@dataclass(frozen=True, slots=True)
class Imported:
    """A module as a graph. ``weights`` go with it into `submit`, else training begins from the seed."""

    graph: model_pb2.ModelGraph
    weights: Mapping[str, Mapping[str, Array]]
    """By VNode, then by name in its state without ``w/`` and ``b/``."""
    nodes: Mapping[str, tuple[str, ...]]
    """By VNode: the operations of the traced module that it stands for."""
    notes: tuple[str, ...]
    """Where the graph is not literally the module, and what follows."""
    answer: str
    """The VNode whose exit gives what the module gives; empty where no exit does."""
    difference: float
    """Largest difference to the module on the example, relative to the largest value."""


def from_torch(
    module: nn.Module, example: Tensor | ArrayLike, chosen: Chosen | None = None, *, registry: Registry | None = None
) -> Imported:
    """``module`` as VNodes, checked against it on ``example`` (batch first, two samples or more; one is doubled).

    The module is traced as it answers: dropouts become ``dropout``, normalisations use what they have seen. Raises
    `vnode.importing.operations.UnsupportedOperations` with every operation that has no component, and InvalidInput: ``not_traceable``,
    ``module_failed``, ``bad_module``, ``import_differs``, ``bad_graph``.
    """
    wanted, known = chosen or Chosen(), registry or default_registry()
    batch = _batch(example)
    found = traced(module, batch)
    stateful = frozenset(name for name, spec in known.components.items() if spec.stateful)
    plan = mapped(found, stateful)
    scores = found.values[plan.scores]
    num_classes = wanted.num_classes or int(scores.shape[-1])
    graph = _graph(plan, wanted, batch, scores.shape, num_classes, stateful)
    weights, answer = _weights(plan, scores.shape, num_classes, stateful)
    wrong = sorted(set(wanted.objectives or {}) - set(weights))
    if wrong:
        raise InvalidInput(
            f"no VNode with weights is named {', '.join(wrong)}; there are {', '.join(weights)}", code="bad_objective"
        )
    stages = stages_of_graph(graph, known)
    outputs = {vnode.id: found.values[vnode.claim.gives] for vnode in plan.vnodes}
    exits = {answer: scores} if answer else {}
    difference = compared(stages, known, weights, batch, outputs, exits)
    alone = (
        () if answer else (f"no exit gives what the module gives: {plan.vnodes[-1].id} has a head of its own behind its output",)
    )
    ends = plan.head.covers if plan.head is not None else frozenset()
    covers = {vnode.id: vnode.claim.covers | (ends if vnode.id == plan.head_vnode else frozenset()) for vnode in plan.vnodes}
    nodes = {vnode: tuple(o.name for o in found.operations if o.name in names) for vnode, names in covers.items()}
    return Imported(graph, weights, nodes, (*plan.notes, *alone), answer, difference)


def _batch(example: Tensor | ArrayLike) -> Tensor:
    """The example as a batch of at least two samples on this machine's processor: with one, a batch cannot be told from a dimension of 1."""
    given = example if isinstance(example, Tensor) else torch.from_numpy(np.ascontiguousarray(np.asarray(example)))
    batch = given.detach().cpu()
    batch = batch.float() if batch.dtype is torch.float64 else batch
    if batch.dim() < 2 or batch.shape[0] < 1 or batch.dtype not in (torch.float32, torch.int64, torch.int32, torch.uint8):
        raise InvalidInput(
            f"an example of {batch.dtype} and shape {list(batch.shape)} is no batch", code="bad_example", remedy="float32, or bytes as integers, batch first"
        )  # fmt: skip
    return batch if batch.shape[0] > 1 else torch.cat([batch, batch])


def _graph(
    plan: Mapped, chosen: Chosen, batch: Tensor, scores: tuple[int, ...], num_classes: int, stateful: frozenset[str]
) -> model_pb2.ModelGraph:
    text = len(scores) == 3
    is_bytes = batch.dtype is not torch.float32
    target = TensorSpec("uint8" if text and num_classes <= 256 else "int64", tuple(scores[1:2]) if text else ())
    dataset = check_name(chosen.dataset or chosen.name)
    graph = Graph(
        check_name(chosen.name), input=TensorSpec("uint8" if is_bytes else "float32", tuple(batch.shape[1:])), target=target,
        num_classes=num_classes, train={"passes": chosen.passes, "batch_size": chosen.batch_size, "seed": chosen.seed},
        data={use: f"dataset:{dataset}#{use}" for use in ("train", "validation", "test")},
    )  # fmt: skip
    optimizer = dict(chosen.optimizer or (ADAMW if text else SGD))
    for vnode in plan.vnodes:
        learns = vnode.claim.component in stateful
        graph.vnode(
            vnode.id, vnode.claim.component, vnode.claim.config, inputs=vnode.inputs, objective=_objective(vnode, chosen) if learns else None,
            optimizer=optimizer if learns else None,
        )  # fmt: skip
    return graph.build()


def _objective(vnode: MappedVNode, chosen: Chosen) -> Mapping[str, Any]:
    """What the maintainer chose; the head's own form (pool, activation) is the module's where it has one there."""
    own = (chosen.objectives or {}).get(vnode.id, {})
    return {"name": own.get("name", chosen.objective), "config": {**vnode.objective, **own.get("config", {})}}


def _weights(
    plan: Mapped, scores: tuple[int, ...], num_classes: int, stateful: frozenset[str]
) -> tuple[dict[str, dict[str, Array]], str]:
    """First values by VNode, and the VNode whose exit answers as the module does."""
    found = {vnode.id: dict(vnode.claim.tensors) for vnode in plan.vnodes if vnode.claim.component in stateful}
    if plan.head is not None and plan.head.num_classes == num_classes:
        found[plan.head_vnode].update(plan.head.tensors)
        return found, plan.head_vnode
    last = plan.vnodes[-1]
    if last.claim.gives == plan.scores and last.claim.component == "linear" and len(scores) == 2 and scores[-1] == num_classes:
        found[last.id].update(identity_head(num_classes))
        return found, last.id
    return found, ""
