"""The plain head behind every shipped objective: optional activation, pool or normalisation, one linear map to class scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dcnr.errors import InvalidInput
from dcnr.specs import Config, Fields, ObjectivePlan, TensorSpec

ACTIVATIONS = ("none", "relu", "gelu")
MAX_POOL = 4


@dataclass(frozen=True, slots=True)
class Head:
    """Images [C, H, W]: average pool to at most pool × pool, linear.

    Vectors [d]: linear. Text [T, d]: LayerNorm, own unembedding per position.
    """

    pool: int
    activation: str

    @classmethod
    def read(cls, fields: Fields) -> Head:
        """Reads ``pool`` (1 to 4, default 4; images only) and ``activation`` (default none). Raises InvalidInput."""
        return cls(
            fields.integer("pool", MAX_POOL, low=1, high=MAX_POOL),
            fields.choice("activation", "none", options=ACTIVATIONS),
        )

    def plan(self, owner: str, output: TensorSpec, target: TensorSpec, num_classes: int) -> ObjectivePlan:
        """Cost per sample. Raises InvalidInput unless the output can be scored against the target."""
        text = len(output.shape) == 2
        wanted = output.shape[:1] if text else ()
        if output.dtype != "float32" or len(output.shape) not in (1, 2, 3) or target.shape != wanted:
            raise InvalidInput(
                f"{owner}: cannot score {output.dtype} {list(output.shape)} against a target of shape {list(target.shape)}",
                code="bad_config",
                field="objective",
            )
        if target.dtype not in ("int64", "uint8") or num_classes < 2:
            raise InvalidInput(f"{owner}: the target must be class numbers (int64 or uint8)", code="bad_config", field="target")
        features = output.shape[1] if text else self.num_features(output)
        positions = output.shape[0] if text else 1
        parameters = features * num_classes + (2 * features if text else num_classes)
        return ObjectivePlan(
            parameters, 2 * positions * features * num_classes + output.num_elements, 4 * positions * (features + num_classes)
        )

    def sides(self, output: TensorSpec) -> tuple[int, int]:
        """Height and width after the pool."""
        return min(self.pool, output.shape[1]), min(self.pool, output.shape[2])

    def num_features(self, output: TensorSpec) -> int:
        """Inputs of the linear map."""
        if len(output.shape) < 3:
            return output.shape[-1]
        height, width = self.sides(output)
        return output.shape[0] * height * width

    def build(self, output: TensorSpec, num_classes: int) -> Any:
        """The head as a torch module from features to logits."""
        from torch import nn

        from vnode.torch_pools import AveragePool

        module = nn.Sequential()
        if self.activation != "none":
            module.add_module("activation", nn.ReLU() if self.activation == "relu" else nn.GELU())
        if len(output.shape) == 2:
            module.add_module("norm", nn.LayerNorm(output.shape[1]))
            module.add_module("scores", nn.Linear(output.shape[1], num_classes, bias=False))
            return module
        if len(output.shape) == 3:
            module.add_module("pool", AveragePool(self.sides(output)))
            module.add_module("flatten", nn.Flatten())
        module.add_module("scores", nn.Linear(self.num_features(output), num_classes))
        return module


def read_head(config: Config, owner: str) -> Head:
    """The head of an objective that has no other fields."""
    with Fields(config, owner) as f:
        return Head.read(f)
