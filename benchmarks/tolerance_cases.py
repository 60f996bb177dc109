"""What honest machines are compared on: components of the house, two widths, both optimisers, with and without kinks, a problem that can be learned."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from dcnr.specs import Config, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from vnode.checks.torch_record import Entry
from vnode.registry import default_registry
from vnode.state import Array
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

REGISTRY: Final = default_registry()
NUM_CLASSES: Final = 10
NARROW: Final = 64
OPTIMIZERS: Final[dict[str, Config]] = {
    "sgd": {"lr": 0.03, "momentum": 0.9, "weight_decay": 5e-4, "schedule": "one_cycle"},
    "adamw": {"lr": 3e-3, "weight_decay": 0.05, "schedule": "cosine"},
}
WIDE_RATES: Final = {"sgd": 3e-3, "adamw": 3e-4}
"""At width 1024 the rates above are past the edge of stability, where no two machines stay together."""
NOISE: Final = np.float32(0.25)
"""Of images, in units of what tells one class from another."""
FORWARD_ONLY_EVERY: Final = 17
"""Some entries learn nothing."""


@dataclass(frozen=True, slots=True)
class Case:
    """One stage and the interval on which it is looked at. ``referee_steps``: how many of them a referee judges."""

    name: str
    component: str
    config: Config
    shape: tuple[int, ...]
    optimizer: str
    width: int
    objective: str = "local_ce"
    objective_config: Config | None = None
    clip: float = 0.0
    batch_size: int = 16
    num_steps: int = 256
    referee_steps: int = 16
    seed: int = 0
    lr: float = 0.0
    """0: that of its optimiser here."""
    job_batches: int = 0
    """Of the job whose first batches these are, and whose schedule they follow; 0: there are no others."""
    has_background: bool = False
    """Inputs are what a stage of images gives: most places of all samples are the same."""
    is_sketched: bool = True
    """Whether its products are kept for a sketch: large batches have gigabytes of them."""

    @property
    def num_batches(self) -> int:
        """Of its job."""
        return self.job_batches or self.num_steps

    @property
    def is_text(self) -> bool:
        """Whether every position has a target."""
        return len(self.shape) == 2 or self.component == "byte_embedding"

    def stage(self) -> Stage:
        """The only stage."""
        source = TensorSpec("uint8" if self.component == "byte_embedding" else "float32", self.shape)
        target = TensorSpec("int64", self.shape[:1] if self.is_text else ())
        config = {**OPTIMIZERS[self.optimizer], "clip": self.clip}
        if self.width > NARROW:
            config["lr"] = WIDE_RATES[self.optimizer]
        config["lr"] = self.lr or config["lr"]
        vnode = VNodeSpec(
            "v", self.component, self.config, ("input",), self.objective, self.objective_config or {}, self.optimizer, config
        )
        return stages_of([vnode], REGISTRY, source, target, NUM_CLASSES)[0]

    def first(self) -> bytes:
        """Checkpoint 0."""
        return initial_state(self.stage(), REGISTRY, seed=self.seed, model="m", graph="", num_batches=self.num_batches)

    def entries(self, num_steps: int | None = None) -> list[Entry]:
        """The batches, the same on every machine: targets follow from a fixed random map of the inputs."""
        rng = np.random.default_rng(self.seed + 1)
        if self.has_background:
            return [self._entry(number, *self._images(rng)) for number in range(self.num_steps if num_steps is None else num_steps)]
        spec = self.stage().inputs[0].spec
        features = self.shape[-1] if self.is_text and spec.dtype == "float32" else spec.num_elements
        teacher = rng.standard_normal((features, NUM_CLASSES), dtype=np.float32)
        found: list[Entry] = []
        for number in range(self.num_steps if num_steps is None else num_steps):
            size = (self.batch_size, *self.shape)
            if spec.dtype == "uint8":
                letters = rng.integers(0, 256, size, dtype=np.uint8)
                x: Array = letters
                y = letters.astype(np.int64) % NUM_CLASSES
            else:
                x = rng.standard_normal(size, dtype=np.float32)
                y = (x.reshape(self.batch_size, -1, features) @ teacher).argmax(-1)
                y = y if self.is_text else y[:, 0]
            found.append(self._entry(number, x, y))
        return found

    def _entry(self, number: int, x: Array, y: Array) -> Entry:
        mode = Mode.FORWARD_ONLY if number % FORWARD_ONLY_EVERY == FORWARD_ONLY_EVERY - 1 else Mode.TRAIN
        return Entry(number, mode, (x,), y.astype(np.int64))

    def _images(self, rng: np.random.Generator) -> tuple[Array, Array]:
        """A mark for each class somewhere on an even ground, as a stage with a ReLU sends it in bf16: the same bits on every machine."""
        marks = np.random.default_rng(self.seed).standard_normal((NUM_CLASSES + 1, *self.shape), dtype=np.float32)
        channels, height, width = self.shape
        y = rng.integers(0, NUM_CLASSES, self.batch_size)
        x = np.broadcast_to(np.abs(marks[-1, :, :1, :1]), (self.batch_size, *self.shape)).copy()
        high, wide = height // 2, width // 2
        for sample, row, column in zip(
            range(self.batch_size), *rng.integers(0, (height - high, width - wide), (self.batch_size, 2)).T, strict=True
        ):
            noise = NOISE * rng.standard_normal((channels, high, wide), dtype=np.float32)
            x[sample, :, row : row + high, column : column + wide] = np.maximum(marks[y[sample], :, :high, :wide] + noise, 0.0)
        return (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32), y


DEMO: Final = Case(
    "conv2 of the demo", "conv_block", {"out_channels": 64, "kernel": 3, "pool": 2}, (32, 14, 14), "sgd", NARROW, batch_size=128, num_steps=256,
    referee_steps=1, lr=0.1, job_batches=858, has_background=True, is_sketched=False,
)  # fmt: skip
"""The stage of the examples in which honest machines came furthest apart: all places around a digit give a channel one value, which may lie at a kink. It has
the rates of that job, from the first up to the highest. The same rates in a schedule of so few batches are past the edge of stability (ADR 0124)."""


def cases(rounds: int, *, quick: bool = False) -> list[Case]:
    """``rounds`` seeds at width 64, one at width 1024; quick: two seeds and short intervals at width 64 alone."""
    found: list[Case] = []
    for optimizer in OPTIMIZERS:
        for seed in range(2 if quick else rounds):
            narrow = _narrow(optimizer, seed, 16 if quick else 256)
            found += [case for case in narrow if case.name in LONG] if quick else narrow
        found += [] if quick else _wide(optimizer)
    return found if quick else found + [growth(width) for width in (64, 128, 256, 512, 1024)]


def growth(width: int) -> Case:
    """One linear map, for the growth of residuals with the number of inputs."""
    return Case(f"growth {width}", "linear", {"out_features": 64}, (width,), "sgd", width, num_steps=16, referee_steps=1)


LONG: Final = ("linear, ReLU head", "linear_block", "conv_block, ReLU, pool")
"""Followed over 256 steps, with the first seed; the others over 32."""


def _narrow(optimizer: str, seed: int, num_steps: int) -> list[Case]:
    conv: Config = {"out_channels": 64, "kernel": 3}
    small = (4, 6, 6)
    rows: list[tuple[str, str, Config, tuple[int, ...], str, Config, float]] = [
        ("linear, ReLU head", "linear", {"out_features": 64}, (64,), "local_ce", {"activation": "relu"}, 0.0),
        ("linear, GELU head", "linear", {"out_features": 64}, (64,), "local_ce", {"activation": "gelu"}, 0.0),
        ("linear_block", "linear_block", {}, (64,), "local_ce", {}, 0.0),
        ("linear_block, predsim", "linear_block", {}, (64,), "predsim", {}, 0.0),
        ("conv_block, ReLU, pool", "conv_block", {**conv, "pool": 2}, small, "local_ce", {}, 0.0),
        ("conv_block, GELU", "conv_block", {**conv, "activation": "gelu"}, small, "local_ce", {}, 0.0),
        ("conv_block, no norm", "conv_block", {**conv, "norm": "none", "dropout": 0.2}, small, "local_ce", {}, 0.0),
        ("transformer_block", "transformer_block", {"heads": 4}, (8, 64), "local_ce", {}, 1.0),
        ("byte_embedding", "byte_embedding", {"width": 64, "blocks": 1, "heads": 4}, (16,), "local_ce", {}, 1.0),
    ]
    return [
        Case(
            name, component, config, shape, optimizer, 64, objective, given, clip, seed=seed, batch_size=8 if len(shape) > 1 else 16,
            num_steps=num_steps if name in LONG and seed == 0 else min(num_steps, 32), referee_steps=8,
        )
        for name, component, config, shape, objective, given, clip in rows
    ]  # fmt: skip


def _wide(optimizer: str) -> list[Case]:
    wide = 1024
    conv: Config = {"out_channels": wide, "kernel": 3, "pool": 2}
    relu: Config = {"activation": "relu"}
    return [
        Case("linear, ReLU head", "linear", {"out_features": wide}, (wide,), optimizer, wide, objective_config=relu, num_steps=64, referee_steps=4),
        Case("linear_block", "linear_block", {}, (wide,), optimizer, wide, num_steps=16, referee_steps=4),
        Case("conv_block, ReLU, pool", "conv_block", conv, (32, 4, 4), optimizer, wide, num_steps=16, referee_steps=2, batch_size=4),
        Case("transformer_block", "transformer_block", {"heads": 8}, (4, wide), optimizer, wide, num_steps=16, referee_steps=1, batch_size=4),
    ]  # fmt: skip
