"""``predsim``: prediction loss plus similarity matching (Nøkland & Eidnes 2019, arXiv 1901.06656, sections 2.1 and 2.2).

The similarity loss is the mean squared difference between two B×B matrices of cosine similarities: of the features after a
learned map (3×3
convolution and per-channel standard deviation over space, or a linear map), and of the one-hot targets, each sample centred.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dcnr.errors import InvalidInput
from dcnr.specs import CheckPlan, Config, Fields, ObjectivePlan, TensorSpec
from vnode.objectives.head import Head

SIMILARITY_BYTES: Final = 4 * 4
"""Per pair of samples: both similarities, their difference or its gradient, and the gradient's transpose, in float32."""


@dataclass(frozen=True, slots=True)
class PredSim:
    """Config: pool = 4, activation = "none", similarity = 0.5 (weight of the similarity loss; the prediction has the rest).

    One target per sample.
    """

    name: str = "predsim"

    def check(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> ObjectivePlan:
        """Cost of head and map. Raises InvalidInput."""
        head, _ = self._read(config)
        if target.shape != ():
            raise InvalidInput(f"{self.name}: needs one target per sample", code="bad_config", field="target")
        plan = head.plan(self.name, output, target, num_classes)
        width, taps = output.shape[0], 9 if len(output.shape) == 3 else 1
        area = output.num_elements // width
        return ObjectivePlan(
            plan.num_parameters + taps * width * width,
            plan.forward_flops + 2 * taps * width * width * area,
            plan.activation_bytes + output.bytes_per_sample,
            SIMILARITY_BYTES,
        )

    def _read(self, config: Config) -> tuple[Head, float]:
        with Fields(config, self.name) as f:
            return Head.read(f), f.number("similarity", 0.5, low=0.0, high=1.0)

    def checks(self, config: Config) -> CheckPlan:
        """Only a ReLU in the head has a kink."""
        return CheckPlan(smooth=self._read(config)[0].activation != "relu")

    def build(self, config: Config, output: TensorSpec, target: TensorSpec, num_classes: int) -> Any:
        """A `vnode.torch_objective.LocalObjective`."""
        from vnode.torch_objective import SimilarityObjective

        head, weight = self._read(config)
        return SimilarityObjective(head.build(output, num_classes), output.shape, num_classes, weight)


SPEC = PredSim()
