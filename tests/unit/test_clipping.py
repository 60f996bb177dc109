"""Goal: one bad delta of four hardly moves the weights, honest ones count nearly in full, and a restored primary merges to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_torch_compute import REGISTRY, fresh, learned
from test_torch_merging import STAGE, contributor
from torch import Tensor

from dcnr.errors import Corrupt
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share
from vnode import merge_events as mev
from vnode.checks.residuals import state_residuals
from vnode.clipping import MAX_MOVE, MIN_KNOWN, Centre, begun, bounded, clipped
from vnode.merging import MIN_CONTRIBUTORS, Merging, counts_of
from vnode.state import DISTANCES, NUM_DISTANCES, anchor_schema, for_new_job, parse
from vnode.state_scan import HEAD_BYTES, StateScan, schema_in
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues
from vnode.torch_stage import schema_of
from vnode.vocabulary import Peer

SIZE, BATCHES, ROUNDS = 400, 50, 40
SCHEMA = schema_of(STAGE, REGISTRY)
SCHEMA_OF_ANCHORS = anchor_schema(SCHEMA)
Bad = Callable[[Tensor], Tensor]


def taken_and_honest(bad: Bad | None, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """What four replicas bring in the later rounds, the last of them bad: what of it counts, and the mean of the honest ones."""
    rng = torch.Generator().manual_seed(seed)
    goal = torch.randn(SIZE, generator=rng)
    centre = begun({"w": goal})
    taken, honest = torch.zeros(SIZE), torch.zeros(SIZE)
    for number in range(ROUNDS):
        moved = [BATCHES * (goal + noise * torch.randn(SIZE, generator=rng)) for _ in range(4)]
        mean = torch.stack(moved[:3] if bad else moved).mean(0)
        for at, value in enumerate(moved):
            counts, centre = clipped({"w": bad(value) if bad and at == 3 else value}, BATCHES, centre)
            if number >= ROUNDS // 2:
                taken += counts["w"] / 4
        honest += mean if number >= ROUNDS // 2 else 0
    return taken, honest


def test_whether_a_delta_lies_on_the_centre_to_the_last_bit_decides_nothing() -> None:
    """Machines part in the last bits of a centre that has moved. One delta that lies on it as a primary has it counted for nothing there, and the next
    was taken whole: whoever audited that primary had it clipped to a thousandth, and accused it.
    """
    rng = torch.Generator().manual_seed(0)
    known = torch.zeros(NUM_DISTANCES)
    known[:MIN_KNOWN] = 0.02
    begin = Centre({"w": 1e-3 * torch.randn(SIZE, generator=rng)}, known)
    _, here = clipped({"w": BATCHES * 1e-3 * torch.randn(SIZE, generator=rng)}, BATCHES, begin)
    there = replace(here, moved={"w": torch.nextafter(here.moved["w"], torch.tensor(1.0))})
    on_it, far = {"w": 64 * here.moved["w"]}, {"w": 64 * torch.randn(SIZE, generator=rng)}
    counts: list[Tensor] = []
    for centre in (here, there):
        _, after = clipped(on_it, 64, centre)
        counts.append(clipped(far, 64, after)[0]["w"])
    assert float((counts[0] - counts[1]).norm()) <= 1e-3 * float(counts[1].norm())


@pytest.mark.parametrize("noise", [0.1, 0.5, 1.0])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_without_an_attacker_the_sum_is_nearly_the_mean(noise: float, seed: int) -> None:
    taken, honest = taken_and_honest(None, noise, seed)
    assert float((taken - honest).norm()) <= 0.1 * float(honest.norm())


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(
    "bad",
    [lambda value: -3 * value, lambda value: 100 * value, lambda value: 0 * value, lambda value: 1e6 * torch.ones_like(value)],
    ids=["-3x", "100x", "nothing", "far away"],
)
def test_one_of_four_moves_the_sum_by_little_more_than_the_others_differ(bad: Bad, seed: int) -> None:
    taken, honest = taken_and_honest(bad, 0.3, seed)
    assert float((taken - honest).norm()) <= 0.25 * float(honest.norm())


def test_no_displacement_is_longer_than_the_weights() -> None:
    weights = {"a": torch.ones(3), "b": torch.zeros(2)}
    near = {"a": torch.full((3,), 0.5), "b": torch.ones(2) * 0.1}
    assert bounded(near, weights) is near
    far = bounded({name: 1e6 * value for name, value in near.items()}, weights)
    length = float(torch.cat(list(far.values())).norm())
    assert length == pytest.approx(MAX_MOVE * 3**0.5, rel=1e-5)


def deltas(count: int) -> list[DeltaValues]:
    found = []
    for number in range(count):
        compute, info = contributor()
        begun = compute.anchor(info)
        learned(compute, STAGE, range(2 * number, 2 * number + 2))
        found.append(compute.check_delta(compute.delta("raw", begun), "raw"))
    return found


def bad(delta: DeltaValues, factor: float) -> DeltaValues:
    return DeltaValues({name: np.float32(factor) * value for name, value in delta.weights.items()}, delta.buffers)


def merge(compute: TorchCompute, found: list[DeltaValues], *, centred: bool = True) -> None:
    compute.merge(found, [2] * len(found), [0.2] * len(found), centred=centred)


def test_a_primary_that_was_restored_in_between_merges_to_the_same_bits() -> None:
    found = deltas(8)
    through, info = fresh(STAGE)
    merge(through, found[:5])
    state = through.snapshot(info)
    again, _ = fresh(STAGE)
    again.restore(state)
    assert again.snapshot(info) == state
    for compute in (through, again):
        merge(compute, [*found[5:], bad(found[0], -3.0)])
        learned(compute, STAGE, range(40, 42))
    assert through.snapshot(info) == again.snapshot(info)
    forgetful, _ = fresh(STAGE)
    forgetful.restore(for_new_job(state, SCHEMA, num_batches=info.num_batches, seed=info.seed, graph=info.graph, parent=""))
    merge(forgetful, [*found[5:], bad(found[0], -3.0)])
    learned(forgetful, STAGE, range(40, 42))
    assert through.anchor(info) != forgetful.anchor(info)


def test_a_bad_delta_of_torch_is_clipped_where_a_mean_would_take_it() -> None:
    found = deltas(8)
    wrong = [*found[:7], bad(found[7], -30.0)]

    def distance(given: list[DeltaValues], *, centred: bool) -> float:
        states = []
        for each in (given, found):
            compute, info = fresh(STAGE)
            merge(compute, each, centred=centred)
            states.append(parse(compute.anchor(info), SCHEMA_OF_ANCHORS)[1])
        return float(sum(np.square(states[0][name] - states[1][name]).sum() for name in states[0] if name.startswith("w/"))) ** 0.5

    assert distance(wrong, centred=True) < 0.2 * distance(wrong, centred=False)


def test_the_centre_is_in_the_state_all_of_it_or_nothing_and_leaves_with_the_job_or_the_rule() -> None:
    compute, info = fresh(STAGE)
    plain = compute.snapshot(info)
    assert not any(name.startswith("m/") for name in parse(plain, SCHEMA)[1])
    merge(compute, deltas(2))
    held = compute.snapshot(info)
    names = {name for name in parse(held, SCHEMA)[1] if name.startswith("m/")}
    assert names == {DISTANCES, *(f"m/{name[2:]}" for name in SCHEMA.tensors if name.startswith("w/"))}
    for good in (plain, held):  # whichever of the two an orchestrator has seen before
        for data in (plain, held):
            scan = StateScan(schema_in(STAGE.id, good[:HEAD_BYTES]), data)
            assert scan.taken == scan.size_bytes
    with pytest.raises(Corrupt):
        parse(held.replace(b"m/distances", b"m/distancez"), SCHEMA)
    assert "m/" not in for_new_job(held, SCHEMA, num_batches=9, seed=1, graph="", parent="").decode("latin1")
    merge(compute, deltas(1), centred=False)
    assert not any(name.startswith("m/") for name in parse(compute.snapshot(info), SCHEMA)[1])


def test_a_centre_that_is_claimed_and_does_not_follow_is_seen() -> None:
    compute, info = fresh(STAGE)
    plain = parse(compute.snapshot(info), SCHEMA)[1]
    merge(compute, deltas(2))
    held = parse(compute.snapshot(info), SCHEMA)[1]
    assert max(item.residual for item in state_residuals(held, held, held, 1)) == 0
    shifted = {name: array + np.float32(0.01) * array if name.startswith("m/") else array for name, array in held.items()}
    found = {item.name: item.residual for item in state_residuals(held, shifted, held, 1)}
    assert all((residual > 1e-3) == name.startswith("m/") for name, residual in found.items() if held[name].any())
    for claimed, other in ((plain, held), (held, plain)):
        assert any(item.residual == float("inf") for item in state_residuals(other, claimed, other, 1))


@pytest.mark.parametrize(("contributors", "centred"), [(MIN_CONTRIBUTORS - 1, False), (MIN_CONTRIBUTORS, True)])
def test_from_four_contributors_on_merges_are_centred_and_standbys_do_not_count(contributors: int, *, centred: bool) -> None:
    replicas = [ReplicaId(f"here.{number}") for number in range(contributors + 3)]
    learning = [Share(replica, 1.0) for replica in replicas[: contributors + 1]]
    core = Merging(100)
    core.plan([*learning, *(Share(replica, 0.0) for replica in replicas[contributors + 1 :])])
    core.asked(mev.MergeAsked(0.0, 1, Peer(replicas[1], 1), 1, IntervalSet.span(0, 2), "delta"))
    found = core.computation(IntervalSet.empty())
    assert isinstance(found, mev.MergeDeltas)
    assert counts_of(found.num_learning) == (1 / (contributors + 1), centred)


def test_who_brings_a_delta_and_owns_nothing_any_more_still_counts_as_one_of_two() -> None:
    replicas = [ReplicaId(f"here.{number}") for number in range(2)]
    core = Merging(100)
    core.plan([Share(replicas[0], 1.0), Share(replicas[1], 0.0)])
    core.asked(mev.MergeAsked(0.0, 1, Peer(replicas[1], 1), 1, IntervalSet.span(0, 2), "delta"))
    found = core.computation(IntervalSet.empty())
    assert isinstance(found, mev.MergeDeltas)
    assert found.num_learning == 2
