"""Graphs of stages for the simulator: chains, forks, joins, several sources, a source in the middle."""

from __future__ import annotations

import random
from dataclasses import dataclass

from dcnr.ids import VNodeId
from dcnr.stages import all_behind

INPUT = "input"


@dataclass(frozen=True, slots=True)
class Topology:
    """Every stage with what it reads, in topological order."""

    name: str
    inputs: dict[str, tuple[str, ...]]

    def successors(self, stage: str) -> tuple[str, ...]:
        """Stages that read this one."""
        return tuple(other for other, read in self.inputs.items() if stage in read)

    def behind(self, stage: str) -> dict[VNodeId, frozenset[VNodeId]]:
        """By successor: itself and all behind it."""
        behind = all_behind(self.inputs, self.successors(stage))
        return {VNodeId(name): frozenset(map(VNodeId, others)) for name, others in behind.items()}

    def input_edges(self, stage: str) -> frozenset[int]:
        """Edges that read the data set."""
        return frozenset(edge for edge, read in enumerate(self.inputs[stage]) if read == INPUT)


def chain(length: int) -> Topology:
    """One stage after another."""
    names = [f"s{index}" for index in range(length)]
    return Topology(f"chain{length}", {name: (names[index - 1] if index else INPUT,) for index, name in enumerate(names)})


def wide(branches: int, length: int) -> Topology:
    """A stem that many branches read, each a chain, and a join that reads them all."""
    inputs: dict[str, tuple[str, ...]] = {"stem": (INPUT,)}
    for branch in range(branches):
        before = "stem"
        for place in range(length):
            inputs[f"b{branch}.{place}"] = (before,)
            before = f"b{branch}.{place}"
    inputs["join"] = tuple(f"b{branch}.{length - 1}" for branch in range(branches))
    inputs["tail"] = ("join",)
    return Topology(f"wide{branches}x{length}", inputs)


RESIDUAL = Topology(
    "residual",
    {"conv1": (INPUT,), "conv2": ("conv1",), "conv3": ("conv2",), "conv4": ("conv2", "conv3"), "conv5": ("conv4",)},
)
TWO_SOURCES = Topology(
    "two_sources", {"a1": (INPUT,), "b1": (INPUT,), "a2": ("a1",), "join": ("a2", "b1"), "tail": ("join",), "side": ("b1",)}
)
LATE_INPUT = Topology("late_input", {"a": (INPUT,), "b": ("a",), "c": ("b", INPUT), "d": ("c", "a")})


def any_topology(rng: random.Random) -> Topology:
    """One of them."""
    return rng.choice([chain(rng.randint(4, 8)), RESIDUAL, RESIDUAL, TWO_SOURCES, LATE_INPUT])
