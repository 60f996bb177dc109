"""Goal: where a unit in the last place leads elsewhere nobody is accused, and everywhere else everybody who cheats is."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.detection import CASES
from benchmarks.tolerance_cases import REGISTRY, Case
from dcnr.errors import Corrupt
from dcnr.intervals import IntervalSet
from trust.comparison import Comparison, judge
from trust.overturned import Finding
from vnode.checks.claims import Anchored, Claim
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.steadiness import FIRST_STEPS, doubted, has_led_elsewhere, may_have_grown, shaken, shaken_input
from vnode.checks.torch_record import Entry, as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.state import StateSchema, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import schema_of

NUM_STEPS = 8
[CASE] = [replace(case, num_steps=NUM_STEPS) for case in CASES if (case.name, case.optimizer) == ("conv_block", "sgd")]
SCHEMA = schema_of(CASE.stage(), REGISTRY)
NORMALISED = Case("linear_block", "linear_block", {}, (64,), "sgd", 64, num_steps=NUM_STEPS)
"""It normalises its inputs before any weight comes to them."""
SCALE, SHIFT = "w/component.norm.weight", "w/component.norm.bias"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


LONG, PLACE = 200, 50
"""Batches of a job, and one near the middle of it, where it learns at full rates."""


def beginning(*, at_the_kink: bool, place: int = 0, num_batches: int = NUM_STEPS, num_channels: int = 2) -> bytes:
    """All values of some channels may lie at their ReLU, to the last bit of what scales them."""
    info, values = parse(CASE.first(), SCHEMA)
    learned = IntervalSet.of((0, place)) if place else IntervalSet.empty()
    info = replace(info, num_batches=num_batches, lineage=learned, updates=place, step=place)
    scale = values[SCALE].copy()
    if at_the_kink:
        scale[:num_channels] = 0.0
    return serialise(SCHEMA, info, {**values, SCALE: scale})


def moved(state: bytes, seed: int = 0) -> bytes:
    return shaken(state, SCHEMA, np.random.default_rng(seed))


def done(first: bytes, entries: Sequence[Entry] | None = None, *, num_batches: int = NUM_STEPS) -> Claim:
    compute = TorchCompute(CASE.stage(), REGISTRY, num_batches=num_batches, seed=CASE.seed)
    return record(compute, first, CASE.entries() if entries is None else entries)


def on_another_machine(first: bytes, entries: Sequence[Entry] | None = None, *, num_batches: int = NUM_STEPS) -> Claim:
    """What an honest worker says whose last bits are others."""
    info, values = parse(first, SCHEMA)
    rng = np.random.default_rng(7)
    weights = {name: value for name, value in values.items() if name.startswith("w/")}
    up = {name: np.where(rng.integers(0, 2, value.shape), np.inf, -np.inf).astype(np.float32) for name, value in weights.items()}
    moved = {**values, **{name: np.nextafter(value, up[name]) for name, value in weights.items()}}
    claim = done(serialise(SCHEMA, info, moved), entries, num_batches=num_batches)
    return replace(claim, states={**claim.states, 0: first})


def claimed(first: bytes, *, wrong_at: int, factor: float = 1.1) -> Claim:
    """What an honest worker says, but for the loss of one step: as far off as only a fault is."""
    steps = list((claim := done(first)).steps)
    steps[wrong_at] = replace(steps[wrong_at], loss=steps[wrong_at].loss * factor)
    return replace(claim, steps=tuple(steps))


def compared(claim: Claim, *, num_batches: int = NUM_STEPS, seed: int | None = 0) -> list[Comparison]:
    """``seed``: of how last bits are moved; None: as auditors do it."""
    compute = TwoSidedCompute(CASE.stage(), REGISTRY, num_batches=num_batches, seed=CASE.seed)
    limits = checks_of_stage(CASE.stage(), REGISTRY).replay()
    rng = None if seed is None else np.random.default_rng(seed)
    return list(replay(compute, SCHEMA, claim, limits, as_array=as_array, rng=rng))


@pytest.mark.parametrize(
    ("at_the_kink", "wrong_at", "wanted"),
    [
        (True, NUM_STEPS - 1, Finding.DOUBT),
        (True, FIRST_STEPS - 1, Finding.FAULT),
        (False, NUM_STEPS - 1, Finding.FAULT),
    ],
)
def test_a_span_accuses_only_where_last_bits_lead_to_the_same(at_the_kink: bool, wrong_at: int, wanted: Finding) -> None:
    claim = claimed(beginning(at_the_kink=at_the_kink), wrong_at=wrong_at)
    found = compared(claim)
    outcome = judge(found, to_the_end=True)
    assert outcome.finding is wanted
    assert outcome.first_over is not None
    assert (outcome.first_over.step, outcome.first_over.part) == (wrong_at, "loss")
    assert [(one.step, one.part, one.name) for one in found] == [
        (one.step, one.part, one.name) for one in compared(claimed(claim.states[0], wrong_at=0))
    ]


@pytest.mark.parametrize(("wrong_at", "factor"), [(FIRST_STEPS, 1e4), (5, 1e3), (5, 1e30), (5, 1e300)])
def test_whoever_claims_what_is_many_times_too_large_makes_no_span_grow(wrong_at: int, factor: float) -> None:
    """A residual is told in units of what a run found: of one a thousand times that a last bit of this unit is as much as two machines are apart."""
    outcome = judge(compared(claimed(beginning(at_the_kink=False), wrong_at=wrong_at, factor=factor)), to_the_end=True)
    assert outcome.finding is Finding.FAULT


def test_what_cannot_be_read_at_the_end_of_a_span_hides_no_fault_in_it() -> None:
    """Whoever cheats would name a state that is none behind it, and show evidence that proves nothing."""
    claim = claimed(beginning(at_the_kink=False), wrong_at=5)
    unread = replace(claim, states={0: claim.states[0], NUM_STEPS: b"no state"})
    compute = TwoSidedCompute(CASE.stage(), REGISTRY, num_batches=NUM_STEPS, seed=CASE.seed)
    limits = checks_of_stage(CASE.stage(), REGISTRY).replay()
    outcome = judge(replay(compute, SCHEMA, unread, limits, as_array=as_array, rng=np.random.default_rng(0)))
    assert outcome.finding is Finding.FAULT
    with pytest.raises(Corrupt):
        judge(replay(compute, SCHEMA, replace(unread, steps=done(claim.states[0]).steps), limits, as_array=as_array))


def test_outputs_many_times_too_large_make_no_span_grow_either() -> None:
    steps = list((claim := done(beginning(at_the_kink=False))).steps)
    steps[5] = replace(steps[5], output=as_array(steps[5].output) * np.float32(1e5))
    assert judge(compared(replace(claim, steps=tuple(steps))), to_the_end=True).finding is Finding.FAULT


def test_an_honest_primary_whose_last_bits_grow_up_to_what_a_statement_names_is_not_accused() -> None:
    """Its steps lead to a state that is named behind what it took in, and compared there."""
    claim = on_another_machine(first := beginning(at_the_kink=True))
    named = replace(claim, states={0: first}, anchored={NUM_STEPS: (Anchored((), claim.states[NUM_STEPS]),)})
    for one in (claim, named):
        found = compared(one)
        assert judge(found, to_the_end=True).finding is Finding.DOUBT
        assert any(other.is_over and other.part == "weights" for other in found)
    steady = done(beginning(at_the_kink=False))
    wrong = replace(steady, states={0: steady.states[0]}, anchored={NUM_STEPS: (Anchored((), claim.states[NUM_STEPS]),)})
    assert judge(compared(wrong), to_the_end=True).finding is Finding.FAULT


def normalised(mean: float, seed: int, *, factor: float = 1.0) -> Finding:
    """Of an honest worker whose last bits are others, where inputs are 1e-6 of their mean apart; ``factor``: or of one that tells other losses."""
    stage, schema = NORMALISED.stage(), schema_of(NORMALISED.stage(), REGISTRY)
    size, spread = np.float32(mean), np.float32(mean * 1e-6 or 1.0)
    sent = [replace(one, inputs=(size + spread * one.inputs[0],)) for one in NORMALISED.entries()]
    rng = np.random.default_rng(seed)
    elsewhere = [replace(one, inputs=(shaken_input(one.inputs[0], rng),)) for one in sent]
    first = NORMALISED.first()
    own = record(TorchCompute(stage, REGISTRY, num_batches=NUM_STEPS, seed=NORMALISED.seed), first, sent)
    theirs = record(TorchCompute(stage, REGISTRY, num_batches=NUM_STEPS, seed=NORMALISED.seed), first, elsewhere)
    steps = tuple(
        replace(one, inputs=mine.inputs, loss=one.loss * factor) for one, mine in zip(theirs.steps, own.steps, strict=True)
    )
    compute = TwoSidedCompute(stage, REGISTRY, num_batches=NUM_STEPS, seed=NORMALISED.seed)
    limits = checks_of_stage(stage, REGISTRY).replay()
    rng = np.random.default_rng(seed + 1)
    return judge(replay(compute, schema, replace(theirs, steps=steps), limits, as_array=as_array, rng=rng), to_the_end=True).finding


def test_who_is_sent_inputs_of_which_normalisation_leaves_last_bits_is_not_accused() -> None:
    """Whoever computes the VNode before it chooses what it sends, and could have anybody behind it accused whose machine adds up otherwise."""
    assert {normalised(1e3, seed) for seed in range(5)} == {Finding.DOUBT}
    assert normalised(0.0, 0) is Finding.PASS
    assert normalised(0.0, 0, factor=1.1) is Finding.FAULT


def test_whole_numbers_and_zeros_of_inputs_are_no_last_bits() -> None:
    values = np.array([0.0, -0.0, 1e-40, 1.0, -3.0, np.finfo(np.float32).max], np.float32)
    found = shaken_input(values, np.random.default_rng(0))
    assert np.array_equal(found[:3], values[:3])
    assert found.dtype == values.dtype
    assert np.isfinite(found).all()
    assert (found[3:5] != values[3:5]).all()
    assert np.abs(found[3:5] / values[3:5] - 1.0).max() < 2e-7
    for exact in (np.arange(4, dtype=np.int64), np.ones(4, np.float16)):
        assert shaken_input(exact, np.random.default_rng(0)) is exact


def test_who_goes_on_from_a_state_that_somebody_has_laid_on_kinks_is_not_accused_in_its_first_steps() -> None:
    """At the rates that the job has in its middle, one step is enough there."""
    entries = [replace(one, batch=one.batch + PLACE) for one in CASE.entries()]
    first = beginning(at_the_kink=True, place=PLACE, num_batches=LONG, num_channels=6)
    found = compared(on_another_machine(first, entries, num_batches=LONG), num_batches=LONG)
    outcome = judge(found, to_the_end=True)
    assert outcome.first_over is not None
    assert outcome.first_over.step < FIRST_STEPS
    assert outcome.finding is Finding.DOUBT
    untold = compared(done(first, entries, num_batches=LONG), num_batches=LONG)
    assert [(one.step, one.part, one.name) for one in found] == [(one.step, one.part, one.name) for one in untold]


def test_nobody_lays_a_state_where_known_last_bits_lead_to_the_same_and_those_of_others_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever goes on from it would be accused by everybody who moves it in the way that its maker knows: here, what is added to a channel's values goes
    down, and holds all of them below their ReLU.
    """
    info, values = parse(beginning(at_the_kink=False, place=PLACE, num_batches=LONG), SCHEMA)
    scale, shift = values[SCALE].copy(), values[SHIFT].copy()
    zeros = serialise(SCHEMA, info, {**values, SCALE: np.zeros_like(scale), SHIFT: np.zeros_like(shift)})
    down = parse(moved(zeros), SCHEMA)[1][SHIFT] < 0
    scale[down], shift[down] = 0.0, -3 * np.finfo(np.float32).smallest_subnormal
    first = serialise(SCHEMA, info, {**values, SCALE: scale, SHIFT: shift})
    entries = [replace(one, batch=one.batch + PLACE) for one in CASE.entries()]
    claim, made = on_another_machine(first, entries, num_batches=LONG), list[bytes]()

    def finding(seed: int) -> Finding:
        return judge(compared(claim, num_batches=LONG, seed=seed), to_the_end=True).finding

    def noted(state: bytes, schema: StateSchema, rng: np.random.Generator) -> bytes:
        made.append(shaken(state, schema, rng))
        return made[-1]

    assert (finding(0), finding(1)) == (Finding.FAULT, Finding.DOUBT), "as its maker knew them, and others"
    monkeypatch.setattr("vnode.checks.replay.shaken", noted)
    for _ in range(2):
        compared(claim, num_batches=LONG, seed=None)
    assert len(set(made)) == len(made) > 1, "nobody knows them"


def test_the_largest_numbers_are_moved_to_numbers() -> None:
    """A state that cannot be moved would keep its maker from being accused of anything."""
    info, values = parse(CASE.first(), SCHEMA)
    largest = np.finfo(np.float32).max
    scale = np.resize(np.array([largest, -largest], np.float32), values[SCALE].shape)
    found = parse(moved(serialise(SCHEMA, info, {**values, SCALE: scale})), SCHEMA)[1][SCALE]
    assert (np.abs(found) == np.nextafter(largest, np.float32(0.0))).all()
    assert (np.sign(found) == np.sign(scale)).all()


def test_a_shaken_state_differs_in_last_bits_of_its_weights_alone() -> None:
    first = CASE.first()
    before, after = parse(first, SCHEMA)[1], parse(moved(first), SCHEMA)[1]
    for name, value in before.items():
        if name.startswith("w/"):
            assert (after[name] != value).all()
            assert set(np.sign(after[name] - value).reshape(-1)) <= {-1.0, 1.0}
            assert np.allclose(after[name], value, rtol=2e-7, atol=1e-40)
        else:
            assert np.array_equal(after[name], value)
    assert moved(first) == moved(first) != moved(first, seed=1)


def figure(residual: float, *, step: int = FIRST_STEPS, part: str = "loss") -> Comparison:
    return Comparison(step, part, "", residual, 1e-3)


def test_what_is_infinite_or_no_fault_is_as_it_was() -> None:
    assert may_have_grown(figure(0.1))
    assert not may_have_grown(figure(2e-3))
    assert not may_have_grown(figure(math.inf))
    assert doubted(figure(0.1)).ratio == 2.0
    for one in (figure(math.inf), figure(1.5e-3), figure(0.0)):
        assert doubted(one) is one


def test_two_runs_are_apart_by_more_than_honest_machines_are_or_hold_together() -> None:
    assert has_led_elsewhere(figure(0.1), figure(0.1 + 1.1e-4))
    assert has_led_elsewhere(figure(0.1 + 1.1e-4), figure(0.1))
    assert not has_led_elsewhere(figure(0.1), figure(0.1 + 0.9e-4))
    assert not has_led_elsewhere(figure(1e3), figure(1e3 + 0.9e-1)), "of what was found they are as near as before"
    assert has_led_elsewhere(figure(1e3), figure(1e3 + 1.1e-1))
    assert not has_led_elsewhere(figure(0.1, part="weights"), figure(0.2, part="weights")), "these were moved"
    assert not has_led_elsewhere(figure(0.1, part="wander"), figure(0.2, part="wander"))
    assert not has_led_elsewhere(figure(math.inf), figure(math.inf))
    assert not has_led_elsewhere(figure(0.0), figure(math.inf)), "nothing was measured"
