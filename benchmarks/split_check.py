"""What two neighbours of a linear map could see together, without an audit: the one knows its inputs X, the other is sent Z in the place of the activation.

They share secret signs S, follow U = WᵀS from X and the gradient that the second computes from Z, and compare Z·S with X·U at every step (after Freivalds
1977). This measures how much an honest worker and several cheats differ, when Z travels as it is and when it travels in a lossy codec.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.result import Options, Result, Row, Target
from dcnr.tensor import decode, encode

WIDTH: Final = 256
BATCH: Final = 64
NUM_CLASSES: Final = 10
NUM_STEPS: Final = 64
NUM_SIGNS: Final = 4
LR: Final = 0.03
MOMENTUM: Final = 0.9
CODECS: Final = ("raw", "fp16", "bf16", "int8")
LOOKS: Final = (1, 16, 64)
Cheat = Callable[[Tensor], Tensor]
CHEATS: Final[dict[str, Cheat]] = {
    "honest": lambda gradient: gradient,
    "one_percent_more": lambda gradient: gradient * 1.01,
    "skipped": torch.zeros_like,
    "flipped": lambda gradient: -gradient,
    "tenfold": lambda gradient: gradient * 10.0,
}


@dataclass
class Momentum:
    """A weight and its velocity."""

    value: Tensor
    velocity: Tensor

    @classmethod
    def of(cls, value: Tensor) -> Momentum:
        """At rest."""
        return cls(value.clone(), torch.zeros_like(value))

    def step(self, gradient: Tensor) -> None:
        """SGD with momentum."""
        self.velocity.mul_(MOMENTUM).add_(gradient)
        self.value.sub_(self.velocity, alpha=LR)


def run(options: Options) -> Result:
    """``rounds`` seeds of every codec and cheat."""
    torch.set_num_threads(1)
    settings: Row = {
        "width": WIDTH, "batch_size": BATCH, "steps": NUM_STEPS, "signs": NUM_SIGNS, "lr": LR, "momentum": MOMENTUM, "looks": list(LOOKS),
    }  # fmt: skip
    result = Result("split_check", "Two neighbours who check a linear map between them", settings)
    for seed in range(options.rounds):
        result.rounds += [_row(seed, codec, name) for codec in CODECS for name in CHEATS]
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """By codec: the honest residual, and the faintest cheat in units of it."""
    for codec in CODECS:
        for look in LOOKS:
            rows = [row for row in result.rounds if row["codec"] == codec]
            honest = max(row[f"after_{look}"] for row in rows if row["cheat"] == "honest")
            told: Row = {"honest": honest}
            for name in CHEATS:
                if name != "honest":
                    told[name] = round(min(row[f"after_{look}"] for row in rows if row["cheat"] == name) / honest, 3)
            result.medians[f"{codec}_step_{look}"] = told
    for codec in CODECS:
        seen = result.medians[f"{codec}_step_16"]["one_percent_more"]
        what = f"one percent more gradient after 16 steps, {codec}, over the honest residual"
        result.targets.append(Target(what, seen, 2.0, "", at_least=True))
    result.notes.append(
        "Cells of cheats are their smallest residual over the largest honest one: near 1 nothing can be told apart."
    )


def _row(seed: int, codec: str, name: str) -> Row:
    generator = torch.Generator().manual_seed(seed)
    weight, head = _drawn(generator, WIDTH, WIDTH), _drawn(generator, NUM_CLASSES, WIDTH)
    signs = torch.where(torch.rand(WIDTH, NUM_SIGNS, generator=generator) < 0.5, -1.0, 1.0)
    teacher = torch.randn(WIDTH, NUM_CLASSES, generator=generator)
    mine, my_head = Momentum.of(weight), Momentum.of(head)
    followed, their_head = Momentum.of(weight.T @ signs), Momentum.of(head)
    row: Row = {"seed": seed, "codec": codec, "cheat": name}
    for step in range(1, NUM_STEPS + 1):
        x = torch.randn(BATCH, WIDTH, generator=generator)
        y = (x @ teacher).argmax(-1)
        z = x @ mine.value.T
        sent = encode(z.numpy(), codec)
        seen = torch.from_numpy(decode(sent.header, sent.payload).copy())
        residual = (seen @ signs - x @ followed.value).square().mean().sqrt() / (seen.square().mean().sqrt() * WIDTH**0.5)
        if step in LOOKS:
            row[f"after_{step}"] = float(f"{float(residual):.3g}")
        z_gradient, head_gradient = _gradients(z, y, my_head.value)
        mine.step(CHEATS[name](z_gradient).T @ x)
        my_head.step(head_gradient)
        z_gradient, head_gradient = _gradients(seen, y, their_head.value)
        followed.step(x.T @ (z_gradient @ signs))
        their_head.step(head_gradient)
    return row


def _drawn(generator: torch.Generator, rows: int, columns: int) -> Tensor:
    return torch.randn(rows, columns, generator=generator).mul(columns**-0.5)


def _gradients(z: Tensor, y: Tensor, head: Tensor) -> tuple[Tensor, Tensor]:
    """Of the local loss behind a GELU, for Z and for the head."""
    z, head = z.clone().requires_grad_(), head.clone().requires_grad_()
    loss = functional.cross_entropy(functional.linear(functional.gelu(z), head), y)
    first, second = torch.autograd.grad(loss, (z, head))
    return first.detach(), second.detach()
