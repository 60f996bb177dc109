"""``local_ce``: cross-entropy of a small head on the VNode's own output
("pred" of Nøkland & Eidnes 2019, arXiv 1901.06656; Belilovsky et al. 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dcnr.specs import CheckPlan, Config, ObjectivePlan, TensorSpec, by_place
from vnode.objectives.head import read_head


@dataclass(frozen=True, slots=True)
class LocalCe:
    """Config: pool = 4, activation = "none" (see `vnode.objectives.head.Head`)."""

    name: str = "local_ce"

    def check(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> ObjectivePlan:
        """Cost of the head. Raises InvalidInput."""
        return read_head(config, self.name).plan(self.name, output, target, num_classes)

    def kept_per_place(self, config: Config, inputs: Sequence[TensorSpec]) -> int | None:
        """Its head reads each place of a text alone."""
        return by_place(inputs)

    def checks(self, config: Config) -> CheckPlan:
        """Only a ReLU in the head has a kink."""
        return CheckPlan(smooth=read_head(config, self.name).activation != "relu")

    def build(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> Any:
        """A `vnode.torch_objective.LocalObjective`."""
        from vnode.torch_objective import HeadObjective

        return HeadObjective(read_head(config, self.name).build(output, num_classes))


SPEC = LocalCe()
