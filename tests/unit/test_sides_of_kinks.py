"""Goal: an honest machine whose last bits put a value on the other side of a kink is accused by no sketch and no replay, and nobody chooses sides elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dcnr.specs import Config, TensorSpec
from dcnr.stages import Stage, VNodeSpec, stages_of
from examples.byzantine.behaviours import BEHAVIOURS, Behaviour
from examples.byzantine.worker import CheatingCompute
from trust.comparison import Comparison, judge
from trust.overturned import Finding
from vnode.checks.claims import Anchored, Claim, ClaimedStep, MapClaim
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay, replay_in_pieces
from vnode.checks.residuals import state_residuals
from vnode.checks.sides import MAX_TRIES, MIN_GROUP, Side, window
from vnode.checks.torch_record import Entry, as_array, record
from vnode.checks.torch_sides import TwoSidedCompute
from vnode.checks.torch_sketch import Sketch
from vnode.compute import StepResult
from vnode.registry import default_registry
from vnode.state import Array, StateInfo, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_stage import initial_state, schema_of
from vnode.vocabulary import Mode

REGISTRY = default_registry()
NUM_STEPS = 8
NUM_BATCHES = 64
SGD: Config = {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4}
LAST_BITS = 3e-7
"""As far as two machines part in a norm, whose values are around one."""
NORM = "component.norm"


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def stage_with(given: Config, head: Config | None = None) -> Stage:
    config = {"out_channels": 6, **given}
    vnode = VNodeSpec("v", "conv_block", config, ("input",), "local_ce", head or {}, "sgd", SGD)
    return stages_of([vnode], REGISTRY, TensorSpec("float32", (3, 6, 6)), TensorSpec("int64", ()), 5)[0]


POOLED = stage_with({"pool": 2})
SCHEMA = schema_of(POOLED, REGISTRY)


class Machine(TorchCompute):
    """Rounds some values of the first step's norm higher than others do."""

    def __init__(self, higher: dict[tuple[int, ...], float]) -> None:
        super().__init__(POOLED, REGISTRY, num_batches=NUM_BATCHES, seed=0)
        self._higher = higher
        self.norms: list[Tensor] = []

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        info = super().restore(state)
        self.part(NORM).register_forward_hook(lambda _, __, made: self._rounded(made))
        return info

    def _rounded(self, made: Tensor) -> Tensor:
        self.norms.append(made.detach())
        offset = torch.zeros_like(made)
        for where, by in self._higher.items() if len(self.norms) == 1 else ():
            offset[where] = by
        return made + offset


def entries(pixel: tuple[int, ...] = (0, 0, 0, 0), brighter: float = 0.0, num_steps: int = NUM_STEPS) -> list[Entry]:
    """Noise; one pixel of the first batch may be brighter."""
    rng = np.random.default_rng(0)
    found = [
        Entry(number, Mode.TRAIN, (rng.standard_normal((8, 3, 6, 6), dtype=np.float32),), rng.integers(0, 5, 8))
        for number in range(num_steps)
    ]
    found[0].inputs[0][pixel] += np.float32(brighter)
    return found


def first_state(stage: Stage = POOLED) -> bytes:
    return initial_state(stage, REGISTRY, seed=0, model="m", graph="", num_batches=NUM_BATCHES)


def changed(state: bytes, arrays: dict[str, Array]) -> bytes:
    info, before = parse(state, SCHEMA)
    return serialise(SCHEMA, info, {**before, **arrays})


@dataclass(frozen=True)
class Kink:
    """Where the first step comes so near to a kink that last bits decide: which values one machine rounds higher, and which another one."""

    first: bytes
    entries: list[Entry]
    sides: tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float]]

    def claim(self, side: int) -> Claim:
        return record(Machine(self.sides[side]), self.first, self.entries, sketched=checks_of_stage(POOLED, REGISTRY))


def sketched(claim: Claim, secret: bytes | None = b"secret") -> list[Comparison]:
    checks = checks_of_stage(POOLED, REGISTRY)
    return list(Sketch(POOLED, REGISTRY, checks, secret=secret, num_batches=NUM_BATCHES, seed=0).check(claim, checks.sketch()))


def replayed(claim: Claim, kind: type[TorchCompute]) -> Iterator[Comparison]:
    compute = kind(POOLED, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    return replay(compute, SCHEMA, claim, checks_of_stage(POOLED, REGISTRY).replay(), as_array=as_array)


def norms(first: bytes, given: list[Entry]) -> Array:
    """What the first step's norm gives."""
    machine = Machine({})
    record(machine, first, given[:1])
    return machine.norms[0].numpy()


def windows(values: Array) -> Array:
    """[B, C, 3, 3, 4]: by the pool that reads them."""
    return values.reshape(8, 6, 3, 2, 3, 2).transpose(0, 1, 2, 4, 3, 5).reshape(8, 6, 3, 3, 4)


def place(window: tuple[int, ...], inside: int) -> tuple[int, ...]:
    sample, channel, row, column = window
    return (sample, channel, 2 * row + inside // 2, 2 * column + inside % 2)


def nearest_to_relu(found: Array, without: Sequence[int] = ()) -> tuple[int, ...]:
    """The pool whose largest value is nearest to 0, and nothing else in it above."""
    ordered = np.sort(found, axis=-1)
    near = np.where(ordered[..., 3] - ordered[..., 2] > 0.2, np.abs(ordered[..., 3]), np.inf)
    near[:, list(without)] = np.inf
    return tuple(int(at) for at in np.unravel_index(near.argmin(), near.shape))


def at_relu(num_values: int = 1) -> Kink:
    """A value before a ReLU is 0 but for its last bits, and nothing else in its pool is above 0; or several, of a channel each."""
    found = windows(norms(first_state(), entries()))
    _, arrays = parse(first_state(), SCHEMA)
    bias = arrays["w/component.norm.bias"].copy()
    places: list[tuple[int, ...]] = []
    for _ in range(num_values):
        where = nearest_to_relu(found, [channel for _, channel, *_ in places])
        bias[where[1]] -= found[where].max()
        places.append(place(where, int(found[where].argmax())))
    return Kink(
        changed(first_state(), {"w/component.norm.bias": bias}),
        entries(),
        (dict.fromkeys(places, LAST_BITS), dict.fromkeys(places, -LAST_BITS)),
    )


def two_at_relu() -> Kink:
    return at_relu(2)


def at_pool() -> Kink:
    """The two largest values in a pool are the same but for their last bits, and above 0."""
    found = windows(norms(first_state(), entries()))
    ordered = np.sort(found, axis=-1)
    near = np.where(ordered[..., 2] > 0.2, ordered[..., 3] - ordered[..., 2], np.inf)
    window = tuple(int(at) for at in np.unravel_index(near.argmin(), near.shape))
    second, best = (place(window, int(inside)) for inside in found[window].argsort()[2:])
    pixel = (best[0], 0, *best[2:])

    def apart(brighter: float) -> float:
        values = norms(first_state(), entries(pixel, brighter)).astype(np.float64)
        return float(values[best] - values[second])

    before, now = 0.0, 1e-3
    for _ in range(6):  # along the secant to where both are equal
        if apart(now) == apart(before):
            break
        before, now = now, now - apart(now) * (now - before) / (apart(now) - apart(before))
    assert abs(apart(now)) < LAST_BITS / 2
    return Kink(first_state(), entries(pixel, now), ({best: LAST_BITS}, {second: LAST_BITS}))


by_kink = pytest.mark.parametrize("kink", [at_relu, two_at_relu, at_pool])


@pytest.mark.parametrize("secret", [b"secret", None], ids=["secret", "whole"])
@by_kink
def test_both_sides_of_a_kink_pass_a_sketch(kink: Callable[[], Kink], secret: bytes | None) -> None:
    near = kink()
    claims = near.claim(0), near.claim(1)
    (_, before), (_, mine), (_, theirs) = (
        parse(state, SCHEMA) for state in (near.first, *(claim.states[NUM_STEPS] for claim in claims))
    )
    slots = [item.residual for item in state_residuals(before, theirs, mine, NUM_STEPS) if item.part == "slots"]
    tolerance = checks_of_stage(POOLED, REGISTRY).sketch().by_part["slots"]
    assert max(slots) > 2 * tolerance, "the two sides have to end far from each other, or nothing is shown"
    for claim in claims:
        outcome = judge(sketched(claim, secret), to_the_end=True)
        assert outcome.passed, outcome.worst


@by_kink
def test_both_sides_of_a_kink_pass_a_replay(kink: Callable[[], Kink]) -> None:
    near = kink()
    claims = near.claim(0), near.claim(1)
    assert [judge(replayed(claim, TorchCompute)).finding for claim in claims].count(Finding.PASS) == 1, (
        "one of them has to be over for whoever trusts its own last bits, or nothing is shown"
    )
    for claim in (*claims, *map(named, claims)):
        outcome = judge(replayed(claim, TwoSidedCompute), to_the_end=True)
        assert outcome.passed, outcome.worst


def named(claim: Claim) -> Claim:
    """As a primary with contributors tells it: a statement names where its steps lead. Nobody reads its outputs, so nothing shows before."""
    steps = tuple(replace(step, output=None) for step in claim.steps)
    return replace(claim, steps=steps, states={0: claim.states[0]}, anchored={NUM_STEPS: (Anchored((), claim.states[NUM_STEPS]),)})


GROUND = np.float32(0.75)


def on_a_ground(num_steps: int = NUM_STEPS) -> list[Entry]:
    """Images of which most is the same: what a channel makes of it is one value in many places."""
    rng = np.random.default_rng(3)
    found: list[Entry] = []
    for number in range(num_steps):
        x = np.full((8, 3, 6, 6), GROUND)
        x[:, :, :2, :2] = rng.standard_normal((8, 3, 2, 2), dtype=np.float32)
        found.append(Entry(number, Mode.TRAIN, (x,), rng.integers(0, 5, 8)))
    return found


@dataclass(frozen=True)
class Group:
    """A first state with which all values of a channel that come of the ground lie ``at`` the ReLU, and where these are in the first step."""

    first: bytes
    places: list[tuple[int, ...]]

    def rounded(self, offsets: Sequence[float]) -> dict[tuple[int, ...], float]:
        """One after the other, and from the beginning again."""
        return {place: offsets[at % len(offsets)] for at, place in enumerate(self.places)}

    def claim(self, offsets: Sequence[float]) -> Claim:
        """Of a machine that rounds them so."""
        return record(Machine(self.rounded(offsets)), self.first, on_a_ground())


class Auditor(TwoSidedCompute):
    """Rounds some values of the first batch's norm higher than others do."""

    higher: Mapping[tuple[int, ...], float] = {}

    def restore(self, state: bytes | memoryview | Path) -> StateInfo:
        info = super().restore(state)
        self.part(NORM).register_forward_hook(lambda _, __, made: self._rounded(made))
        return info

    def _rounded(self, made: Tensor) -> Tensor:
        offset = torch.zeros_like(made)
        for where, by in self.higher.items() if self._learned == 0 else ():
            offset[where] = by
        return made + offset


def at_relu_together(at: float = 0.0) -> Group:
    """The channel is one whose ground is the largest of its pool, so that its gradient gets through."""
    values = norms(first_state(), on_a_ground())
    channel = int(values[0, :, 4, 4].argmax())
    _, arrays = parse(first_state(), SCHEMA)
    bias = arrays["w/component.norm.bias"].copy()
    bias[channel] += np.float32(at) - values[0, channel, 4, 4]
    first = changed(first_state(), {"w/component.norm.bias": bias})
    values = norms(first, on_a_ground())
    alike = np.argwhere(np.abs(values[:, channel] - at) < 4 * LAST_BITS)
    assert len(alike) > 32
    return Group(first, [(int(sample), channel, int(row), int(column)) for sample, row, column in alike])


ABOVE, BELOW = (LAST_BITS,), (-LAST_BITS,)


@pytest.mark.parametrize("offsets", [ABOVE, BELOW], ids=["above", "below"])
@pytest.mark.parametrize("own", [ABOVE, BELOW, (*ABOVE, *BELOW)], ids=["above", "below", "either"])
def test_values_that_come_of_equal_inputs_change_sides_together(
    offsets: Sequence[float], own: Sequence[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ground of images: an accelerator that had it on the other side in one channel was doubted, since no single value of thousands explains anything."""
    group = at_relu_together()
    monkeypatch.setattr(Auditor, "higher", group.rounded(own))
    claim = group.claim(offsets)
    with monkeypatch.context() as trusting:
        trusting.setattr(Auditor, "near", lambda self: [])
        alone = judge(replayed(claim, Auditor), to_the_end=True)
    assert (alone.finding is Finding.PASS) == (own == offsets), "whoever trusts its own last bits accuses it, or nothing is shown"
    outcome = judge(replayed(claim, Auditor), to_the_end=True)
    assert outcome.passed, outcome.worst


@pytest.mark.parametrize("behaviour", BEHAVIOURS, ids=lambda behaviour: behaviour.name)
def test_no_cheat_hides_behind_a_group_at_a_kink(behaviour: Behaviour) -> None:
    cheat = CheatingCompute(POOLED, REGISTRY, behaviour, num_batches=NUM_BATCHES, seed=0, num_steps=16)
    claim = record(cheat, at_relu_together().first, on_a_ground(16))
    assert judge(replayed(claim, TwoSidedCompute)).first_over is not None


def test_a_group_further_from_the_kink_than_rounding_reaches_changes_no_side() -> None:
    group = at_relu_together(at=4 * window())
    claim = group.claim((-8 * window(),))
    outcome = judge(replayed(claim, TwoSidedCompute), to_the_end=True)
    assert outcome.finding is Finding.FAULT, outcome.worst


def test_a_replay_takes_no_side_of_a_value_that_lies_further_from_the_kink_than_rounding_reaches() -> None:
    found = windows(norms(first_state(), entries()))
    where = nearest_to_relu(found)
    value = float(found[where].max())
    assert 4 * window() < abs(value) < 0.1
    machine = Machine({place(where, int(found[where].argmax())): -2 * value})
    claim = record(machine, first_state(), entries())
    outcome = judge(replayed(claim, TwoSidedCompute), to_the_end=True)
    assert outcome.finding is Finding.FAULT, outcome.worst


class Counting(TwoSidedCompute):
    """Counts what it learns."""

    num_learned = 0

    def learn(self, batch: int, inputs: Sequence[Any], target: Any, num_learned: int) -> StepResult:
        self.num_learned += 1
        return super().learn(batch, inputs, target, num_learned)


def never_explained(num_steps: int, span: int) -> Claim:
    """Each span ends with momenta that are too large, by a doubt, and one channel has all its values next to the kink."""
    _, arrays = parse(first_state(), SCHEMA)
    scale = arrays["w/component.norm.weight"].copy()
    scale[0] = 1e-5
    given, steps, states = (
        entries(num_steps=num_steps),
        list[ClaimedStep](),
        {0: changed(first_state(), {"w/component.norm.weight": scale})},
    )
    for begin in range(0, num_steps, span):
        honest = record(Machine({}), states[begin], given[begin : begin + span])
        steps += honest.steps
        _, arrays = parse(honest.states[span], SCHEMA)
        more = {name: value * np.float32(1.03) for name, value in arrays.items() if name.startswith("o/")}
        states[begin + span] = changed(honest.states[span], more)
    return Claim(tuple(steps), states)


def test_whoever_makes_every_span_hard_to_explain_makes_nobody_compute_more_than_a_few_replays() -> None:
    claim = never_explained(NUM_BATCHES, 8)
    compute = Counting(POOLED, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    found = list(replay(compute, SCHEMA, claim, checks_of_stage(POOLED, REGISTRY).replay(), as_array=as_array))
    assert {item.step for item in found if item.is_over} == set(range(7, NUM_BATCHES, 8)), "or nothing is searched for"
    assert 2 * NUM_BATCHES < compute.num_learned <= 6 * NUM_BATCHES


def test_a_gross_cheat_is_seen_at_the_price_of_a_few_steps() -> None:
    """What it did in one step shows in the next: nothing behind that is computed to find out that no side of a kink explains it."""
    tenfold = next(one for one in BEHAVIOURS if one.name == "tenfold")
    cheat = CheatingCompute(POOLED, REGISTRY, tenfold, num_batches=NUM_BATCHES, seed=0, num_steps=NUM_BATCHES)
    claim = record(cheat, first_state(), entries(num_steps=16))
    compute = Counting(POOLED, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    found = replay(compute, SCHEMA, claim, checks_of_stage(POOLED, REGISTRY).replay(), as_array=as_array)
    over = next(item for item in found if item.is_over)
    assert (over.step, over.part) == (1, "loss")
    assert compute.num_learned <= 2 * (MAX_TRIES + 3), "it as it is, twice; with every side tried; and once more to tell of it"


def test_a_search_for_sides_can_be_left_after_every_step() -> None:
    compute = Counting(POOLED, REGISTRY, num_batches=NUM_BATCHES, seed=0)
    between, before = [], 0
    claim = never_explained(8, 8)
    for _ in replay_in_pieces(compute, SCHEMA, claim, checks_of_stage(POOLED, REGISTRY).replay(), as_array=as_array):
        between.append(compute.num_learned - before)
        before = compute.num_learned
    assert before > 3 * 8, "or nothing is searched for"
    assert max(between) == 1


@pytest.mark.parametrize("wrong", ["one value", "all", "shape", "infinite", "double", "absent"])
def test_what_is_said_before_a_kink_has_to_be_what_comes_before_it(wrong: str) -> None:
    claim = record(Machine({}), first_state(), entries(), sketched=checks_of_stage(POOLED, REGISTRY))
    said = claim.steps[2].maps[NORM].output
    moved = said.copy()
    moved[1, 2, 3, 4] += np.float32(2e-3)
    made_up = {
        "one value": moved, "all": said * np.float32(1.001), "shape": said[:, :3], "infinite": np.full_like(said, np.inf),
        "double": said.astype(np.float64),
    }  # fmt: skip
    maps = {name: item for name, item in claim.steps[2].maps.items() if name != NORM}
    if wrong != "absent":
        maps[NORM] = MapClaim(made_up[wrong])
    steps = (*claim.steps[:2], replace(claim.steps[2], maps=maps), *claim.steps[3:])
    over = judge(sketched(replace(claim, steps=steps))).first_over
    assert over is not None
    assert (over.step, over.part) == (2, "map")


@pytest.mark.parametrize(
    ("given", "head", "wanted"),
    [
        ({"pool": 2}, {}, (NORM,)),
        ({}, {}, (NORM,)),
        ({"norm": "none"}, {}, ()),
        ({"activation": "none", "pool": 2}, {}, (NORM,)),
        ({"activation": "none"}, {"activation": "relu"}, (NORM,)),
        ({"activation": "gelu", "norm": "none", "pool": 2}, {}, ("component.activation",)),
        ({"activation": "gelu"}, {}, ()),
    ],
)
def test_what_rounds_before_a_kink_is_said(given: Config, head: Config, wanted: tuple[str, ...]) -> None:
    assert checks_of_stage(stage_with(given, head), REGISTRY).before_kinks == wanted


@pytest.mark.parametrize("kink", [torch.nn.ReLU(), torch.nn.MaxPool2d(2)], ids=["relu", "pool"])
@pytest.mark.parametrize("size", [1, MIN_GROUP])
def test_values_may_lie_in_memory_as_they_like(kink: torch.nn.Module, size: int) -> None:
    """A component from outside gives them so, or an accelerator: no auditor could look at a kink of its stage, and each refused for ever."""
    compute = TwoSidedCompute(POOLED, REGISTRY, num_batches=8, seed=0)
    compute._learned = 0
    values = torch.arange(-31.0, 33.0).view(1, 4, 4, 4).permute(0, 3, 1, 2).requires_grad_()
    assert not values.is_contiguous()
    compute.take(frozenset((Side(0.0, 0, "kink", 21, is_above=True, size=size),)), looking=True)
    read = compute._before("kink", kink, (values,))
    assert read is not None
    apart = (read[0] - values).detach().reshape(-1)
    assert apart.nonzero().reshape(-1).tolist() == [21]
