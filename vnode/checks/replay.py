"""The base of all checks: another machine runs the interval again from the worker's own state, with any component and optimiser.

Torch-free: the maths is behind `vnode.compute.Compute`. Comparisons come as they are made, so the caller may stop, or give up at its deadline, after any.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import numpy as np

from dcnr.errors import Corrupt, DcnrError, InvariantBroken, RemoteFault
from dcnr.intervals import IntervalSet
from trust.comparison import Comparison
from vnode.checks import residuals
from vnode.checks.claims import Anchored, Claim, ClaimedStep, Displacement, Taken
from vnode.checks.sides import Budget, Ran, Run, Sides, TwoSided, explaining
from vnode.checks.steadiness import FIRST_STEPS, came_to_nothing, doubted, has_led_elsewhere, may_have_grown, shaken, shaken_input
from vnode.checks.tolerances import Tolerances
from vnode.compute import Compute, Tensor
from vnode.merging import counts_of
from vnode.state import NO_VALUES, Array, StateInfo, StateSchema, parse
from vnode.vocabulary import Mode


def replay(
    compute: Compute, schema: StateSchema, claim: Claim, tolerances: Tolerances, *, as_array: Callable[[Tensor], Array] = np.asarray,
    rng: np.random.Generator | None = None,
) -> Iterator[Comparison]:  # fmt: skip
    """Runs each span between two claimed states from the first of them, merges included, and compares what comes out with what was claimed.

    A ``compute`` that is `vnode.checks.sides.TwoSided` does not take its own last bits for the only ones: what is over a tolerance is computed again
    with values next to a kink on their other side, and passes where that explains it. That takes at most `vnode.checks.sides.searched_steps` more steps,
    whatever is claimed.

    A span with a fault is run once more from last bits that are moved, each time others, and where these lead elsewhere on this machine as well its faults
    are doubts (`vnode.checks.steadiness`): each span takes at most two runs more for that. ``rng`` says how they are moved; None: nobody can know. A step that
    gives nothing finite here is a doubt as well.

    Raises Corrupt where the claim's form does not hold, a state is none of this stage and job, or its states are further apart than the tolerances
    reach, and RemoteFault for inputs that the stage cannot take: who is to blame for these is decided by whoever built the claim.
    """
    pieces = replay_in_pieces(compute, schema, claim, tolerances, as_array=as_array, rng=rng)
    return (comparison for comparison in pieces if comparison is not None)


def replay_in_pieces(
    compute: Compute, schema: StateSchema, claim: Claim, tolerances: Tolerances, *, as_array: Callable[[Tensor], Array] = np.asarray,
    rng: np.random.Generator | None = None,
) -> Iterator[Comparison | None]:  # fmt: skip
    """As `replay`. None: nothing is known yet. The caller may do something else, or give up, after each: between two of them one batch is learned at most."""
    claim.check()
    return _Replay(compute, schema, claim, tolerances, as_array, np.random.default_rng() if rng is None else rng).run()


class _Replay:
    def __init__(
        self, compute: Compute, schema: StateSchema, claim: Claim, tolerances: Tolerances, as_array: Callable[[Tensor], Array],
        rng: np.random.Generator,
    ) -> None:  # fmt: skip
        self._compute, self._schema, self._claim = compute, schema, claim
        self._tolerances, self._as_array = tolerances, as_array
        self._has_bulk = "bulk" in tolerances.by_part
        self._rng = rng
        self._budget = Budget(len(claim.steps))
        self._sides: Sides = frozenset()
        """That were taken in the span that is compared."""

    def run(self) -> Iterator[Comparison | None]:
        claim, last = self._claim, len(self._claim.steps)
        base = yield from self._merged(0, claim.states[0])
        for start, end in pairwise(sorted({*claim.states, *claim.anchored, last})):
            if end - start > self._tolerances.span_steps:
                raise Corrupt(f"{end - start} entries between two states, not {self._tolerances.span_steps}", code="bad_claim")
            if not (yield from self._steady(start, end, base)):
                return
            if self._leads_to_anchor(start, end):
                base = yield from self._merged(end, claim.anchored[end][0].state, told=1)
            else:
                base = yield from self._merged(end, claim.states.get(end, base))

    def _leads_to_anchor(self, start: int, end: int) -> bool:
        """Whether what the steps of a span come to is told by what a statement names behind them, and by nothing before that."""
        is_told = end in self._claim.states or end not in self._claim.anchored
        return not is_told and _num_learned(self._claim.steps[start:end]) > 0

    def _steady(self, start: int, end: int, base: bytes) -> Generator[Comparison | None, None, bool]:
        """A span; whether anything can follow. Where last bits lead elsewhere in it its faults are doubts. What its first steps show is held against other last
        bits of these steps alone: whoever cheats grossly is seen at the price of a few. What cannot be read behind a fault is told after it.
        """
        span, told, faults = self._either_side(start, end, base), list[Comparison](), list[Comparison]()
        is_steady: bool | None = None
        unread: DcnrError | None = None
        while True:
            try:
                comparison = next(span)
            except StopIteration as ended:
                goes_on: bool = ended.value
                break
            except (Corrupt, RemoteFault) as error:
                unread = error
                break
            if comparison is not None:
                told.append(comparison)
                if is_steady is None and not faults and may_have_grown(comparison) and comparison.step < start + FIRST_STEPS:
                    is_steady = yield from self._holds(told, start, end, base)
                    span = self._again(len(told), start, end, base)
                if is_steady is False:
                    comparison = doubted(comparison)
                elif is_steady is None and (faults or may_have_grown(comparison)):
                    faults.append(comparison)
                    comparison = None
            yield comparison
        if faults:
            is_steady = yield from self._holds(told, start, end, base)
            yield from faults if is_steady else map(doubted, faults)
        if unread is not None:
            raise unread
        return goes_on

    def _holds(self, told: Sequence[Comparison], start: int, end: int, base: bytes) -> Generator[None, None, bool]:
        """Whether a span comes to what was told of it from other last bits as well: not where these come to an end before that."""
        others = self._taking(start, end, shaken(base, self._schema, self._rng), is_shaken=True)
        for mine in told:
            try:
                other = next(others, None)
            except Corrupt:  # it came to no state, where this machine's own run did
                return False
            if other is None or has_led_elsewhere(mine, other):
                return False
            yield None
        return True

    def _again(self, done: int, start: int, end: int, base: bytes) -> Generator[Comparison | None, None, bool]:
        """What is left of a span after so many comparisons, with the sides that were taken in it."""
        span = self._taking(start, end, base)
        for _ in range(done):
            next(span)
            yield None
        return (yield from span)

    def _taking(self, start: int, end: int, base: bytes, *, is_shaken: bool = False) -> Generator[Comparison, None, bool]:
        if isinstance(self._compute, TwoSided):
            self._compute.take(self._sides, looking=False)
        return self._span(start, end, base, is_shaken=is_shaken)

    def _either_side(self, start: int, end: int, base: bytes) -> Generator[Comparison | None, None, bool]:
        """A span; where it is over a tolerance, with the sides of kinks that explain what is claimed, if any do."""
        self._sides = frozenset()
        compute, span, done = self._compute, self._taking(start, end, base), 0
        while True:
            try:
                comparison = next(span)
            except StopIteration as ended:
                goes_on: bool = ended.value
                return goes_on
            if comparison.is_over and isinstance(compute, TwoSided) and self._budget.take(end - start):
                break
            yield comparison
            done += 1
        sides = yield from explaining(
            lambda sides, last: self._tried(compute, sides, start, last + 1, base), comparison.step, end - 1
        )
        self._sides = sides or frozenset()
        return (yield from self._again(done, start, end, base))  # what was told already is within its tolerances with any sides

    def _tried(self, compute: TwoSided, sides: Sides, start: int, end: int, base: bytes) -> Run:
        """A span, or its first entries, with these sides."""
        if not self._budget.take(end - start):
            return None
        compute.take(sides, looking=True)
        worst, over_at = 0.0, end - 1
        with suppress(Corrupt, RemoteFault):  # told once what is over before it has been
            for comparison in self._span(start, end, base):
                if comparison.is_over:
                    over_at = min(over_at, comparison.step)
                worst = max(worst, comparison.ratio)
                yield None
        return Ran(worst, over_at, compute.near())

    def _span(self, start: int, end: int, base: bytes, *, is_shaken: bool = False) -> Generator[Comparison, None, bool]:
        """From one claimed state to the next, or to what a statement names after the deltas that it took in; whether anything can follow. ``is_shaken``: with
        last bits of inputs moved.
        """
        claim = self._claim
        info = self._compute.restore(base)
        if len(info.lineage) != claim.steps[start].num_learned:
            raise Corrupt("a state does not hold as many batches as its entry says", code="bad_claim")
        for index in range(start, end):
            try:
                yield from self._entry(index, claim.steps[index], is_shaken=is_shaken)
            except InvariantBroken as error:  # an honest worker would have skipped this batch
                if error.code != "not_finite":
                    raise
                yield came_to_nothing(self._tolerances.comparison(index, "loss", math.inf))
                return False
        before, info, first = info, _learned(info, claim.steps[start:end]), self._arrays(base)
        if len(info.lineage) != len(before.lineage) + _num_learned(claim.steps[start:end]):
            yield self._tolerances.comparison(end - 1, "lineage", math.inf)
            return False
        if end in claim.states and not _num_learned(claim.steps[start:end]):
            yield from self._restated(end, info, base, claim.states[end])
        elif end in claim.states:
            yield from self._compared(end, info, first, claim.states[end], end - start)
        elif end == len(claim.steps) and claim.displacement is not None:
            yield from self._moved(info, first, claim.displacement, end - start)
        if self._leads_to_anchor(start, end):
            yield from self._named(end, info, first, claim.anchored[end][0], end - start)
        return True

    def _merged(self, at: int, base: bytes, *, told: int = 0) -> Generator[Comparison, None, bytes]:
        """What statements name after so many entries, but for the first ``told`` of them, from a claimed state; the last one, from which it goes on."""
        for one in self._claim.anchored.get(at, ())[told:]:
            info = self._compute.restore(base)
            if one.taken:
                yield from self._named(at, info, self._arrays(base), one, 1)
            else:
                yield from self._restated(at, info, base, one.state)
            base = one.state
        return base

    def _named(self, at: int, info: StateInfo, first: Mapping[str, Array], named: Anchored, num_steps: int) -> Iterator[Comparison]:
        """What a statement names against what lies in this machine, with the deltas that it took in; ``first``: what that began with."""
        for taken in named.taken:
            info = self._take(info, taken)
        yield from self._compared(at, info, first, named.state, num_steps)

    def _take(self, info: StateInfo, taken: Taken) -> StateInfo:
        """Raises Corrupt for a delta that no primary could take in."""
        if not taken.batches.isdisjoint(info.lineage):
            raise Corrupt("a delta with batches that the state holds", code="bad_claim")
        share, centred = counts_of(taken.num_learning)
        delta = self._compute.check_delta(taken.data, taken.codec)
        try:
            self._compute.merge([delta], [len(taken.batches)], [share], centred=centred)
        except InvariantBroken as error:
            if error.code != "not_finite":
                raise
            raise Corrupt(f"a delta that nobody can take in: {error.message}", code="bad_claim") from error
        return replace(info, lineage=info.lineage | taken.batches)

    def _compared(
        self, at: int, info: StateInfo, first: Mapping[str, Array], claimed_state: bytes, num_steps: int
    ) -> Iterator[Comparison]:
        index = max(0, at - 1)
        claimed_info, claimed = parse(claimed_state, self._schema)
        try:
            found_info, found = parse(self._compute.snapshot(info), self._schema)
        except Corrupt as error:  # an honest worker could not have written this state down
            if error.code != NO_VALUES:
                raise
            yield came_to_nothing(self._tolerances.comparison(index, "lineage", math.inf))
            return
        alike = (claimed_info.lineage, claimed_info.updates) == (info.lineage, found_info.updates)
        yield self._tolerances.comparison(index, "lineage", 0.0 if alike else math.inf)
        for item in residuals.state_residuals(first, claimed, found, num_steps, with_bulk=self._has_bulk):
            yield self._tolerances.comparison(index, item.part, item.residual, item.name)

    def _restated(self, at: int, info: StateInfo, base: bytes, claimed_state: bytes) -> Iterator[Comparison]:
        """A state with nothing between it and ``base`` that anybody learned or merged."""
        index = max(0, at - 1)
        (before, mine), (claimed_info, claimed) = parse(base, self._schema), parse(claimed_state, self._schema)
        alike = (claimed_info.lineage, claimed_info.updates) == (info.lineage, before.updates)
        yield self._tolerances.comparison(index, "lineage", 0.0 if alike else math.inf)
        for item in residuals.restated_residuals(mine, claimed):
            yield self._tolerances.comparison(index, item.part, item.residual, item.name)

    def _moved(
        self, info: StateInfo, first: Mapping[str, Array], claimed: Displacement, num_steps: int
    ) -> Iterator[Comparison]:  # fmt: skip
        """What a contributor brought against how far its steps lead from what it was measured against; the rest of its state goes with it, and nobody takes it
        in. What float32 or the codec cannot tell of it counts for nothing: how long it is lies with the primary, whose anchor may be anywhere.
        """
        index, found = len(self._claim.steps) - 1, self._arrays(self._compute.snapshot(info))
        begun = self._arrays(self._claim.states[0] if claimed.measured is None else bytes(claimed.measured))
        delta = self._compute.check_delta(claimed.data, claimed.codec)
        brought = dict(found)
        for name, moved in delta.weights.items():
            lost = residuals.half_quantum(moved, claimed.codec) + residuals.half_ulp(moved)
            brought[f"w/{name}"] = _explained(begun[f"w/{name}"].astype(np.float64) + moved, found[f"w/{name}"], lost)
        brought.update({f"b/{name}": value for name, value in delta.buffers.items()})
        for item in residuals.state_residuals(first, brought, found, num_steps, with_bulk=self._has_bulk):
            yield self._tolerances.comparison(index, item.part, item.residual, item.name)

    def _arrays(self, state: bytes) -> dict[str, Array]:
        return parse(state, self._schema)[1]

    def _entry(self, index: int, step: ClaimedStep, *, is_shaken: bool) -> Iterator[Comparison]:
        tolerances = self._tolerances
        inputs, target = step.data()
        if is_shaken:
            inputs = tuple(shaken_input(one, self._rng) for one in inputs)
        if step.mode is Mode.TRAIN:
            result = self._compute.learn(step.batch, inputs, target, step.num_learned)
            yield tolerances.comparison(index, "rate", residuals.rate_residual(step.lr, result.lr))
            yield tolerances.comparison(index, "loss", residuals.loss_residual(step.loss, result.loss))
            output = result.output
        else:
            output = self._compute.forward(step.batch, inputs, Mode.FORWARD_ONLY).output
        for sent, codec in step.sent:
            yield tolerances.comparison(index, "output", residuals.output_residual(sent, self._as_array(output), codec))


def lineage_residual(first: StateInfo, claimed: StateInfo, steps: tuple[ClaimedStep, ...]) -> float:
    """0 if the claimed state says that it holds exactly these steps more, else infinite."""
    lineage, num_learned = _learned(first, steps).lineage, _num_learned(steps)
    grown = len(lineage) == len(first.lineage) + num_learned
    return 0.0 if grown and claimed.lineage == lineage and claimed.updates == first.updates + num_learned else math.inf


def _learned(info: StateInfo, steps: tuple[ClaimedStep, ...]) -> StateInfo:
    """What the state says of itself after these entries."""
    learned = [step.batch for step in steps if step.mode is Mode.TRAIN]
    return replace(info, lineage=info.lineage | IntervalSet.of(*((batch, batch + 1) for batch in learned)))


def _num_learned(steps: tuple[ClaimedStep, ...]) -> int:
    return sum(step.mode is Mode.TRAIN for step in steps)


def _explained(claimed: Array, found: Array, slack: Array) -> Array:
    """``claimed``, nearer to ``found`` by what encoding alone can have changed."""
    apart = claimed - found
    kept: Array = found + np.sign(apart) * np.maximum(np.abs(apart) - slack, 0.0)
    return kept
