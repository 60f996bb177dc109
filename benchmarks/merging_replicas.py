"""Replicas of local-loss stages in one process: each learns its own units, deltas and anchors are on their way for a while, as in a network.

The maths is that of a worker (`vnode.torch_compute.TorchCompute`), and who learns what is decided by `dcnr.units`. Time is counted in
batches of the whole job: a delta or an anchor takes a set number of them. Nothing is lost or refused.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch

from benchmarks.merging_rules import Arrival, Nesterov, Outer
from dcnr.graph import Graph, stages_of_graph
from dcnr.ids import ReplicaId
from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage
from dcnr.units import Share, owner_of
from vnode.registry import default_registry
from vnode.state import anchor_schema, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues, encode
from vnode.torch_stage import initial_state, schema_of
from vnode.vocabulary import Mode

NUM_CLASSES: Final = 10
WIDTH: Final = 32
HIDDEN: Final = 128
NUM_CLUSTERS: Final = 120
SPREAD: Final = 1.3
NUM_TEST: Final = 8192

OPTIMIZERS: Final[dict[str, dict[str, Any]]] = {
    "sgd": {"name": "sgd", "lr": 0.02, "momentum": 0.9, "schedule": "one_cycle"},
    "adamw": {"name": "adamw", "lr": 2e-3, "weight_decay": 0.01, "schedule": "cosine"},
}


@dataclass(frozen=True, slots=True)
class Setting:
    """What is trained, and how long messages take."""

    optimizer: str
    seed: int
    num_batches: int
    batch_size: int = 32
    num_stages: int = 3
    num_replicas: int = 4
    unit_batches: int = 8
    delay_batches: int = 16
    """A delta, and likewise an anchor, is on its way for so many batches of the whole job."""
    width: int = WIDTH
    hidden: int = HIDDEN
    lr: float | None = None
    """None: the optimiser's own."""

    def stages(self) -> tuple[Stage, ...]:
        """Linear maps with a GELU before each but the first, every one with its own loss."""
        graph = Graph(
            "merging", input=TensorSpec("float32", (self.width,)), target=TensorSpec("int64", ()), num_classes=NUM_CLASSES,
            train={"passes": 1, "batch_size": self.batch_size, "seed": self.seed, "codec": "raw"},
            data={use: f"dataset:points#{use}" for use in ("train", "validation", "test")},
        )  # fmt: skip
        optimizer = OPTIMIZERS[self.optimizer] | ({} if self.lr is None else {"lr": self.lr})
        before = "input"
        for number in range(1, self.num_stages + 1):
            if number > 1:
                graph.vnode(f"g{number}", "gelu", {}, inputs=[before])
                before = f"g{number}"
            graph.vnode(
                f"s{number}", "linear", {"out_features": self.hidden}, inputs=[before],
                objective={"name": "local_ce", "config": {}}, optimizer=optimizer,
            )  # fmt: skip
            before = f"s{number}"
        return tuple(stages_of_graph(graph.build(), default_registry()))


class Data(Protocol):
    """What is learned and what is tested."""

    def batch(self, number: int) -> tuple[Any, Any]:
        """Inputs and targets of a training batch."""
        ...

    def test(self) -> tuple[Any, Any]:
        """All that is tested, at once."""
        ...


class Points:
    """Points around the centres of clusters, several clusters to a class, drawn at random: no line separates the classes, and no point comes twice."""

    def __init__(self, setting: Setting) -> None:
        rng = np.random.Generator(np.random.Philox(key=setting.seed))
        count = setting.num_batches * setting.batch_size
        centres = SPREAD * rng.standard_normal((NUM_CLUSTERS, setting.width), dtype=np.float32)
        classes = rng.integers(0, NUM_CLASSES, NUM_CLUSTERS)
        chosen = rng.integers(0, NUM_CLUSTERS, count + NUM_TEST)
        self._x = centres[chosen] + rng.standard_normal((count + NUM_TEST, setting.width), dtype=np.float32)
        self._y = classes[chosen].astype(np.int64)
        self._batch_size, self._num_train = setting.batch_size, count

    def batch(self, number: int) -> tuple[Any, Any]:
        """Inputs and targets of a training batch."""
        part = slice(number * self._batch_size, (number + 1) * self._batch_size)
        return self._x[part], self._y[part]

    def test(self) -> tuple[Any, Any]:
        """All test points at once."""
        return self._x[self._num_train :], self._y[self._num_train :]


@dataclass
class _Replica:
    """One contributor's or primary's books."""

    compute: TorchCompute
    anchor: dict[str, torch.Tensor]
    num_known: int = 0
    """Batches in the anchor that it stands on; a primary's lineage."""
    num_open: int = 0
    num_after: int = 0
    is_waiting: bool = False
    """For the anchor that it measures itself against."""

    @property
    def num_learned(self) -> int:
        return self.num_known + self.num_open + self.num_after


class Group:
    """The replicas of one stage; the first is the primary. They merge as workers do, ``centred`` or not: a contributor asks for the anchor, hands in how far
    it is from that, and goes on from there: elastic averaging (Zhang, Choromanska, LeCun 2015) with the centre as it is just then. So what others have learned
    since it began is pulled back by as much as its own steps count.

    The last one's deltas are ``bad_factor`` times too long.
    """

    def __init__(
        self, setting: Setting, stage: Stage, merge_every: int, *, codec: str = "raw", centred: bool = False, bad_factor: float = 1.0,
    ) -> None:  # fmt: skip
        registry = default_registry()
        state = initial_state(stage, registry, seed=setting.seed, model="merging", graph="0" * 64, num_batches=setting.num_batches)
        self._setting, self._merge_every, self._codec = setting, merge_every, codec
        self._centred, self._bad_factor = centred, bad_factor
        self._schema = anchor_schema(schema_of(stage, registry))
        self._shares = [Share(ReplicaId(f"{stage.id}.{number}"), 1.0) for number in range(setting.num_replicas)]
        self._replicas: dict[ReplicaId, _Replica] = {}
        self._due: list[tuple[int, Callable[[int], None]]] = []
        for number, share in enumerate(self._shares):
            compute = TorchCompute(stage, registry, num_batches=setting.num_batches, seed=setting.seed, threads=1)
            self._info = compute.restore(state)
            if number:
                compute.follow()
            self._replicas[share.replica] = _Replica(compute, self._weights(compute))
        self.primary, self._last = self._replicas[self._shares[0].replica], self._replicas[self._shares[-1].replica]

    def weights(self) -> dict[str, torch.Tensor]:
        """The primary's, by name."""
        return self._weights(self.primary.compute)

    def contributors(self) -> list[dict[str, torch.Tensor]]:
        """The weights of all but the primary, by name."""
        return [self._weights(replica.compute) for replica in self._replicas.values() if replica is not self.primary]

    def _weights(self, compute: TorchCompute) -> dict[str, torch.Tensor]:
        return self._weights_in(compute.anchor(self._info))

    def _weights_in(self, anchor: bytes) -> dict[str, torch.Tensor]:
        arrays = parse(anchor, self._schema)[1]
        return {name[2:]: torch.tensor(array) for name, array in arrays.items() if name.startswith("w/")}

    def learn(self, batch: int, inputs: Sequence[Any], target: Any) -> Any:
        """The owner learns it; its output."""
        self._deliver(batch)
        owner = owner_of(batch // self._setting.unit_batches, self._shares)
        assert owner is not None
        replica = self._replicas[owner]
        result = replica.compute.learn(batch, inputs, target, replica.num_learned)
        if replica is self.primary:
            replica.num_known += 1
        else:
            replica.num_after += 1
            if replica.num_after >= self._merge_every and not replica.num_open and not replica.is_waiting:
                self._send(replica, batch)
        return result.output

    def finish(self) -> None:
        """Everything on its way arrives, and what is left is merged."""
        never = self._setting.num_batches * 1000
        self._deliver(never)
        for replica in self._replicas.values():
            if replica is not self.primary and replica.num_after:
                self._send(replica, self._setting.num_batches)
        self._deliver(never)

    def _send(self, replica: _Replica, batch: int) -> None:
        anchor, num_known = self.primary.compute.anchor(self._info), self.primary.num_known
        replica.is_waiting = True
        self._due.append((batch + self._setting.delay_batches, lambda now: self._meet(replica, anchor, num_known, now)))

    def _meet(self, replica: _Replica, anchor: bytes, num_known: int, now: int) -> None:
        data = replica.compute.delta(self._codec, anchor)
        replica.num_known, replica.num_open, replica.num_after, replica.is_waiting = num_known, replica.num_after, 0, False
        self._due.append((now + self._setting.delay_batches, lambda then: self._merge(replica, data, then)))

    def _merge(self, replica: _Replica, data: bytes, now: int) -> None:
        self._take_in(replica, self._values(replica, data))
        self._due.append((now + self._setting.delay_batches, lambda _: self._answered(replica)))

    def _values(self, replica: _Replica, data: bytes) -> DeltaValues:
        values: DeltaValues = self.primary.compute.check_delta(data, self._codec)
        if replica is self._last:
            factor = np.float32(self._bad_factor)
            values = DeltaValues({name: factor * value for name, value in values.weights.items()}, values.buffers)
        return values

    def _take_in(self, replica: _Replica, values: DeltaValues) -> None:
        self.primary.compute.merge([values], [replica.num_open], [1.0 / self._setting.num_replicas], centred=self._centred)
        self.primary.num_known += replica.num_open

    @staticmethod
    def _answered(replica: _Replica) -> None:
        replica.num_known, replica.num_open = replica.num_known + replica.num_open, 0

    def _deliver(self, batch: int) -> None:
        while True:
            due = [item for item in self._due if item[0] <= batch]
            if not due:
                return
            first = min(due, key=lambda item: item[0])
            self._due.remove(first)
            first[1](first[0])


class Added(Group):
    """A contributor hands in how far it came from the anchor that it began with, and the answer to that is the anchor it goes on from. ``outer`` None: a part
    of as many as there are replicas is added.
    """

    def __init__(
        self, setting: Setting, stage: Stage, merge_every: int, *, codec: str = "raw", outer: Callable[[], Outer] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(setting, stage, merge_every, codec=codec)
        self._outer = outer() if outer is not None else None

    def _send(self, replica: _Replica, batch: int) -> None:
        moved = {name: (value - replica.anchor[name]).numpy() for name, value in self._weights(replica.compute).items()}
        data, began = encode(DeltaValues(moved, {}), self._codec), dict(replica.anchor)
        for name, part in replica.compute.check_delta(data, self._codec).weights.items():
            replica.anchor[name] = replica.anchor[name] + torch.from_numpy(part)
        replica.num_open, replica.num_after = replica.num_after, 0
        self._due.append((batch + self._setting.delay_batches, lambda now: self._add(replica, data, began, now)))

    def _add(self, replica: _Replica, data: bytes, began: dict[str, torch.Tensor], now: int) -> None:
        primary, count, values = self.primary, replica.num_open, self._values(replica, data)
        share = count / (count + primary.num_known - replica.num_known)
        if self._outer is None:
            self._take_in(replica, values)
        else:
            before = self._weights(primary.compute)
            after = {name: value.clone() for name, value in before.items()}
            self._outer(after, Arrival(values, began, share, self._setting.num_replicas))
            moved = DeltaValues({name: (value - before[name]).numpy() for name, value in after.items()}, values.buffers)
            primary.compute.merge([moved], [count], [1.0])
            primary.num_known += count
        anchor, num_known = primary.compute.anchor(self._info), primary.num_known
        self._due.append((now + self._setting.delay_batches, lambda _: self._rebase(replica, anchor, num_known)))

    def _rebase(self, replica: _Replica, anchor: bytes, num_known: int) -> None:
        own, weights = self._weights(replica.compute), self._weights_in(anchor)
        kept = {f"w/{name}": (value + own[name] - replica.anchor[name]).numpy() for name, value in weights.items()}
        arrays = parse(anchor, self._schema)[1]
        replica.compute.rebase(serialise(self._schema, self._info, {**arrays, **kept}), keep_after=False)
        replica.anchor, replica.num_known, replica.num_open = weights, num_known, 0


class Rounds(Group):
    """All replicas stop every so many steps and go on from their mean (local SGD, Stich 2019), or from where an outer step with the mean of their
    displacements leads (DiLoCo): nothing is on its way.
    """

    def __init__(self, setting: Setting, stage: Stage, merge_every: int, outer: Nesterov | None = None) -> None:
        super().__init__(setting, stage, setting.num_batches)
        self._every, self._step = merge_every * setting.num_replicas, outer
        self.primary.compute.follow()

    def learn(self, batch: int, inputs: Sequence[Any], target: Any) -> Any:
        """The owner learns it; all meet where it is time."""
        output = super().learn(batch, inputs, target)
        if (batch + 1) % self._every == 0:
            self._average()
        return output

    def finish(self) -> None:
        """They meet a last time."""
        if self._setting.num_batches % self._every:
            self._average()

    def _average(self) -> None:
        anchors = [parse(replica.compute.anchor(self._info), self._schema) for replica in self._replicas.values()]
        arrays = [arrays for _, arrays in anchors]
        mean = {name: np.mean([each[name] for each in arrays], axis=0).astype(arrays[0][name].dtype) for name in arrays[0]}
        if self._step is not None:
            weights = {name: value.clone() for name, value in self.primary.anchor.items()}
            self._step.step(weights, {name: torch.from_numpy(mean[f"w/{name}"]) - value for name, value in weights.items()})
            mean |= {f"w/{name}": value.numpy() for name, value in weights.items()}
        data = serialise(self._schema, self._info, mean)
        total = sum(
            replica.num_after + (replica.num_known if replica is self.primary else 0) for replica in self._replicas.values()
        )
        for replica in self._replicas.values():
            replica.compute.rebase(data, keep_after=False)
            replica.anchor = self._weights_in(data)
            replica.num_known, replica.num_after = total, 0


@dataclass(frozen=True, slots=True)
class Exit:
    """What one depth knows at the end."""

    loss: float
    """Cross-entropy in nats per sample."""
    share: float
    """Of what was tested, right."""


def train(setting: Setting, data: Data, groups: Sequence[Group], stages: Sequence[Stage]) -> list[Exit]:
    """Learns all batches and tests every exit."""
    for batch in range(setting.num_batches):
        x, y = data.batch(batch)
        values: dict[str, Any] = {INPUT: x}
        for stage, group in zip(stages, groups, strict=True):
            values[stage.id] = group.learn(batch, [values[item.id] for item in stage.inputs], y)
    x, y = data.test()
    values, exits = {INPUT: x}, []
    for stage, group in zip(stages, groups, strict=True):
        group.finish()
        result = group.primary.compute.forward(0, [values[item.id] for item in stage.inputs], Mode.EVAL, y)
        values[stage.id] = result.output
        exits.append(Exit(result.sum_loss / result.count, result.correct / result.count))
    return exits
