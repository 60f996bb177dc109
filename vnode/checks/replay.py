"""The base of all checks: another machine runs the interval again from the worker's own state, with any component and optimiser.

Torch-free: the maths is behind `vnode.compute.Compute`. Comparisons come as they are made, so the caller may stop, or give up at its deadline, after any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from dcnr.errors import Corrupt, InvariantBroken
from dcnr.intervals import IntervalSet
from trust.comparison import Comparison
from vnode.checks import residuals
from vnode.checks.claims import Claim, ClaimedStep
from vnode.checks.tolerances import Tolerances
from vnode.compute import Compute, Tensor
from vnode.state import Array, StateInfo, StateSchema, parse
from vnode.vocabulary import Mode


def replay(
    compute: Compute, schema: StateSchema, claim: Claim, tolerances: Tolerances, *, as_array: Callable[[Tensor], Array] = np.asarray
) -> Iterator[Comparison]:
    """Runs each span between two claimed states from the first of them and compares what comes out with what was claimed.

    Raises Corrupt where the claim's form does not hold, a state is none of this stage and job, or its states are further apart than the tolerances
    reach, and RemoteFault for inputs that the stage cannot take: who is to blame for these is decided by whoever built the claim.
    """
    claim.check()
    for start, end in pairwise(sorted(claim.states)):
        if end - start > tolerances.span_steps:
            raise Corrupt(f"{end - start} entries between two states, not {tolerances.span_steps}", code="bad_claim")
        info = compute.restore(claim.states[start])
        if len(info.lineage) != claim.steps[start].num_learned:
            raise Corrupt("a state does not hold as many batches as its entry says", code="bad_claim")
        for index in range(start, end):
            step = claim.steps[index]
            try:
                yield from _entry(compute, index, step, tolerances, as_array)
            except InvariantBroken as error:  # an honest worker would have skipped this batch
                if error.code != "not_finite":
                    raise
                yield tolerances.comparison(index, "loss", math.inf)
                return
        _, first = parse(claim.states[start], schema)
        claimed_info, claimed = parse(claim.states[end], schema)
        _, found = parse(compute.snapshot(info), schema)
        yield tolerances.comparison(end - 1, "lineage", lineage_residual(info, claimed_info, claim.steps[start:end]))
        for item in residuals.state_residuals(first, claimed, found, end - start):
            yield tolerances.comparison(end - 1, item.part, item.residual, item.name)


def lineage_residual(first: StateInfo, claimed: StateInfo, steps: tuple[ClaimedStep, ...]) -> float:
    """0 if the claimed state says that it holds exactly these steps more, else infinite."""
    learned = [step.batch for step in steps if step.mode is Mode.TRAIN]
    lineage = first.lineage | IntervalSet.of(*((batch, batch + 1) for batch in learned))
    grown = len(lineage) == len(first.lineage) + len(learned)
    return 0.0 if grown and claimed.lineage == lineage and claimed.updates == first.updates + len(learned) else math.inf


def _entry(
    compute: Compute, index: int, step: ClaimedStep, tolerances: Tolerances, as_array: Callable[[Tensor], Array]
) -> Iterator[Comparison]:
    if step.mode is Mode.TRAIN:
        result = compute.learn(step.batch, step.inputs, step.target, step.num_learned)
        yield tolerances.comparison(index, "rate", residuals.rate_residual(step.lr, result.lr))
        yield tolerances.comparison(index, "loss", residuals.loss_residual(step.loss, result.loss))
        output = result.output
    else:
        output = compute.forward(step.batch, step.inputs, Mode.FORWARD_ONLY).output
    for sent, codec in step.sent:
        yield tolerances.comparison(index, "output", residuals.output_residual(sent, as_array(output), codec))
