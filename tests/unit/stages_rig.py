"""Small graphs as stages, for tests of serving."""

from __future__ import annotations

from dcnr.specs import TensorSpec
from dcnr.stages import INPUT, Stage, StageInput

SPEC = TensorSpec("float32", (4,))


def stage(name: str, *inputs: str) -> Stage:
    """One that reads ``inputs``, or the batch."""
    reads = inputs or (INPUT,)
    return Stage(
        name, "linear", {}, reads, tuple(SPEC for _ in reads), (), tuple(StageInput(item, SPEC) for item in reads), "cross_entropy", {}, "sgd",
        {}, SPEC, SPEC, 4,
    )  # fmt: skip


LINE = (stage("a"), stage("b", "a"), stage("c", "b"))
FORK = (stage("a"), stage("b"), stage("c", "a", "b"))
"""Two sources that read the batch."""
