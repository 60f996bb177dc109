"""Whether faults cost anything of what was learned: the loss at the end of a run with faults beside those of runs without, of several seeds. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from dcnr.errors import InvalidInput

MIN_CALM: Final = 2
"""Fewer have no spread."""
SAME: Final = (
    "num_pnodes", "num_vnodes", "replicas_per_vnode", "num_batches", "batch_size", "width", "work", "batches_per_s", "unit_batches", "link",
)  # fmt: skip
"""What runs that are compared have in common."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One run: its name, how many faults it had, what it was, and the loss of its last exit."""

    name: str
    num_faults: int
    settings: tuple[Any, ...]
    seed: int
    loss: float


@dataclass(frozen=True, slots=True)
class Noise:
    """``difference``: the loss with faults less the mean without; ``spread``: the standard deviation of those without, over their seeds."""

    difference: float
    mean: float
    spread: float
    lowest: float
    highest: float

    @property
    def is_within(self) -> bool:
        """Whether the run with faults is no worse than the worst without, or than two standard deviations above their mean."""
        return self.mean + self.difference <= max(self.highest, self.mean + 2 * self.spread)


def named(name: str, document: dict[str, Any]) -> Ended:
    """What of a result counts here. Raises InvalidInput (``no_loss``) where it tells no loss."""
    losses = list(document["outcome"]["loss"].values())
    if not losses or losses[-1] is None:
        raise InvalidInput(
            f"{name} tells no loss of its last exit", code="no_loss", remedy="name the result of a run that was finished"
        )
    settings = document["settings"]
    return Ended(
        name, len(document["faults"]), tuple(settings.get(key) for key in SAME), settings.get("model_seed", 1), float(losses[-1])
    )


def noise_of(faulty: Ended, calm: Sequence[Ended]) -> Noise:
    """Raises InvalidInput (``not_comparable``): too few without faults, or of one seed, or of another setting, or such that had faults."""
    problems = {
        f"{len(calm)} runs without faults have no spread: {MIN_CALM} are the least": len(calm) < MIN_CALM,
        "the runs without faults have one seed: what differs is not all that chance does": len({run.seed for run in calm})
        < len(calm),
        f"{faulty.name} had no faults": not faulty.num_faults,
        "a run to compare with had faults": any(run.num_faults for run in calm),
        "the runs have different settings": any(run.settings != faulty.settings for run in calm),
    }
    for problem, holds in problems.items():
        if holds:
            raise InvalidInput(problem, code="not_comparable", remedy="python -m chaos run --no-faults --seed N, several times")
    losses = [run.loss for run in calm]
    mean = statistics.fmean(losses)
    return Noise(faulty.loss - mean, mean, statistics.stdev(losses), min(losses), max(losses))


def compared(faulty: Ended, *calm: Ended) -> str:
    """In a sentence."""
    found = noise_of(faulty, calm)
    return (
        f"last exit: {faulty.loss:.4f} with {faulty.num_faults} faults, {found.mean:.4f} without (standard deviation {found.spread:.4f}, "
        f"{found.lowest:.4f} to {found.highest:.4f}, {len(calm)} seeds): {found.difference:+.4f}, "
        f"{'within' if found.is_within else 'beyond'} what chance does"
    )
