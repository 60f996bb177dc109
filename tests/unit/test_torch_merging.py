"""Goal: what replicas of one VNode exchange is what they learned, to the bit where nothing is lossy; a bad one changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from test_torch_compute import NUM_BATCHES, REGISTRY, STAGES, fresh, learned

from dcnr.errors import Corrupt, InvalidInput, InvariantBroken
from dcnr.stages import Stage
from vnode.state import Array, StateInfo, anchor_schema, parse
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues, decode, encode
from vnode.torch_stage import schema_of

STAGE = STAGES["image-sgd"]
"""It has running statistics."""
START = (lambda made: made[0].anchor(made[1]))(fresh(STAGE))
"""What everybody begins with."""


def content(compute: TorchCompute, info: StateInfo, stage: Stage = STAGE) -> dict[str, Array]:
    return parse(compute.anchor(info), anchor_schema(schema_of(stage, REGISTRY)))[1]


def contributor(stage: Stage = STAGE) -> tuple[TorchCompute, StateInfo]:
    compute, info = fresh(stage)
    compute.follow()
    return compute, info


def assert_close(left: dict[str, Array], right: dict[str, Array], prefix: str = "", **tolerance: Any) -> None:
    assert left.keys() == right.keys()
    for name in left:
        if name.startswith(prefix):
            np.testing.assert_allclose(left[name], right[name], err_msg=name, **({"rtol": 0, "atol": 1e-6} | tolerance))


def test_an_anchor_is_the_same_bytes_for_the_same_state_and_holds_no_slots() -> None:
    (one, info), (other, _) = fresh(STAGE), fresh(STAGE)
    for compute in (one, other):
        learned(compute, STAGE, range(3))
    assert one.anchor(info) == other.anchor(info)
    assert not any(name.startswith("o/") for name in content(one, info))
    assert one.check_anchor(one.anchor(info)) == info
    other.lead()
    learned(other, STAGE, range(3, 4))
    assert one.anchor(info) != other.anchor(info)


def moved_on(stage: Stage = STAGE) -> tuple[bytes, dict[str, Array]]:
    """The anchor of a primary that has learned on, and what it holds."""
    primary, info = fresh(stage)
    learned(primary, stage, range(10, 13))
    return primary.anchor(info), content(primary, info, stage)


def test_an_anchor_and_a_delta_give_the_contributors_weights_and_it_goes_on_from_the_anchor() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(4))
    own, (anchor, base) = content(compute, info), moved_on()
    found = compute.check_delta(compute.delta("raw", anchor), "raw")
    assert {f"w/{name}" for name in found.weights} | {f"b/{name}" for name in found.buffers} == set(own)
    for name, moved in found.weights.items():
        np.testing.assert_allclose(base[f"w/{name}"] + moved, own[f"w/{name}"], rtol=0, atol=1e-6)
    for name, value in found.buffers.items():
        np.testing.assert_array_equal(value, own[f"b/{name}"])
    after = content(compute, info)
    for name, value in base.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_a_late_delta_is_what_was_learned_and_it_goes_on_from_the_anchor() -> None:
    compute, info = contributor()
    begun, (anchor, base) = content(compute, info), moved_on()
    learned(compute, STAGE, range(4))
    own = content(compute, info)
    for name, part in compute.check_delta(compute.delta("raw", anchor, is_late=True), "raw").weights.items():
        np.testing.assert_array_equal(part, own[f"w/{name}"] - begun[f"w/{name}"])
    assert_close(content(compute, info), base, atol=0)


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_what_the_codec_lost_stays_with_what_is_learned_next(codec: str) -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(4))
    own, (anchor, base) = content(compute, info), moved_on()
    found = compute.check_delta(compute.delta(codec, anchor), codec)
    after = content(compute, info)
    for name, part in found.weights.items():
        np.testing.assert_allclose(after[f"w/{name}"] + part, own[f"w/{name}"], rtol=0, atol=1e-6, err_msg=name)
    is_exact = all(np.array_equal(after[name], base[name]) for name in base if name.startswith("w/"))
    assert is_exact is (codec == "raw")
    again = compute.check_delta(compute.delta("raw", anchor), "raw")
    for name, part in again.weights.items():
        np.testing.assert_allclose(part, after[f"w/{name}"] - base[f"w/{name}"], rtol=0, atol=1e-6)


def test_where_anchors_are_whole_states_nothing_is_on_top_of_one() -> None:
    """Goal: what is learned next is replayed from the bytes of the anchor."""
    compute = TorchCompute(STAGE, REGISTRY, num_batches=NUM_BATCHES, seed=0, whole_anchors=True)
    whole, info = fresh(STAGE)
    compute.restore(whole.snapshot(info))
    compute.follow()
    learned(compute, STAGE, range(4))
    learned(whole, STAGE, range(10, 13))
    anchor = whole.snapshot(info)
    compute.delta("int8", anchor)
    assert compute.snapshot(info) == anchor


@pytest.mark.parametrize("name", sorted(STAGES))
def test_rebase_is_the_anchor_and_what_is_kept(name: str) -> None:
    stage = STAGES[name]
    first, met = moved_on(stage)
    primary, info = fresh(stage)
    learned(primary, stage, range(13, 16))
    anchor, base = primary.anchor(info), content(primary, info, stage)
    for share in (0.0, 0.25):
        for keep_after in (False, True):
            compute, _ = contributor(stage)
            learned(compute, stage, range(2))
            own = content(compute, info, stage)
            delta = compute.check_delta(compute.delta("raw", first), "raw")
            learned(compute, stage, range(2, 5))
            end = content(compute, info, stage)
            compute.rebase(anchor, keep_after=keep_after, taken_back=delta if share else None, share=share)
            wanted = {key: base[key] + share * (own[key] - met[key]) + keep_after * (end[key] - met[key]) for key in base}
            assert_close(content(compute, info, stage), wanted, "w/")
            compute.rebase(anchor, keep_after=True)
            assert_close(content(compute, info, stage), wanted, "w/")  # what was taken back counts as learned after
            compute.rebase(anchor, keep_after=False)
            assert_close(content(compute, info, stage), base)


def test_optimiser_slots_stay_with_the_contributor() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(3))
    schema = schema_of(STAGE, REGISTRY)
    before = parse(compute.snapshot(info), schema)[1]
    compute.delta("raw", fresh(STAGE)[0].anchor(info))
    after = parse(compute.snapshot(info), schema)[1]
    for name in before:
        assert np.array_equal(before[name], after[name]) == name.startswith("o/"), name


def test_a_merge_adds_the_share_of_each_displacement_and_moves_running_statistics_as_far() -> None:
    primary, info = fresh(STAGE)
    learned(primary, STAGE, range(5, 9))
    wanted = content(primary, info)
    found = []
    for start in (0, 20):
        compute, _ = contributor()
        learned(compute, STAGE, range(start, start + 2))
        found.append(primary.check_delta(compute.delta("raw", START), "raw"))
    primary.merge(found, [2, 2], [0.5, 0.25])
    for part, share in zip(found, (0.5, 0.25), strict=True):
        for name, moved in part.weights.items():
            wanted[f"w/{name}"] = wanted[f"w/{name}"] + share * moved
        for name, arrived in part.buffers.items():
            value = wanted[f"b/{name}"]
            wanted[f"b/{name}"] = value + 2 if value.dtype.kind == "i" else value + share * (arrived - value)
    assert_close(content(primary, info), wanted)


def test_the_order_of_slots_and_the_steps_after_a_merge_are_those_of_one_state() -> None:
    primary, info = fresh(STAGE)
    compute, _ = contributor()
    learned(compute, STAGE, range(2))
    primary.merge([primary.check_delta(compute.delta("raw", START), "raw")], [2], [0.5])
    state = primary.snapshot(info)
    again, _ = fresh(STAGE)
    again.restore(state)
    learned(primary, STAGE, range(2, 5))
    learned(again, STAGE, range(2, 5))
    assert primary.snapshot(info) == again.snapshot(info)


def test_one_who_leads_has_no_base_and_keeps_its_state() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(2))
    before = compute.anchor(info)
    compute.lead()
    assert compute.anchor(info) == before
    with pytest.raises(InvariantBroken):
        compute.delta("raw", before)
    with pytest.raises(InvariantBroken):
        compute.rebase(before, keep_after=False)


def test_bad_deltas_and_anchors_are_refused_and_change_nothing() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(2))
    good, before = compute.delta("raw", START), compute.anchor(info)
    nan = np.frombuffer(good, np.uint8).copy()
    nan[:4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    for data, codec in ((good[:-1], "raw"), (good + b"\0", "raw"), (good, "int8"), (b"", "raw"), (nan.tobytes(), "raw")):
        with pytest.raises(Corrupt):
            compute.check_delta(data, codec)
    with pytest.raises(InvalidInput):
        compute.check_delta(good, "fp16")
    for anchor in (b"", before[:-1], compute.snapshot(info), fresh(STAGES["vector"])[0].anchor(fresh(STAGES["vector"])[1])):
        with pytest.raises(Corrupt):
            compute.rebase(anchor, keep_after=True)
        with pytest.raises(Corrupt):
            compute.delta("raw", anchor)
        with pytest.raises(Corrupt):
            compute.check_anchor(anchor)
    assert compute.anchor(info) == before


def test_an_anchor_of_another_job_is_refused() -> None:
    compute, _ = contributor()
    other = TorchCompute(STAGE, REGISTRY, num_batches=NUM_BATCHES + 1, seed=0)
    with pytest.raises(Corrupt):
        other.check_anchor(compute.anchor(fresh(STAGE)[1]))


def test_a_merge_that_would_not_be_finite_changes_nothing() -> None:
    primary, info = fresh(STAGE)
    before = primary.anchor(info)
    compute, _ = contributor()
    learned(compute, STAGE, range(1))
    found = primary.check_delta(compute.delta("raw", START), "raw")
    huge = DeltaValues({name: np.full_like(value, np.inf) for name, value in found.weights.items()}, found.buffers)
    with pytest.raises(InvariantBroken):
        primary.merge([found, huge], [1, 1], [1.0, 1.0])
    assert primary.anchor(info) == before


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_an_encoding_comes_back(codec: str) -> None:
    schema = schema_of(STAGE, REGISTRY)
    compute, _ = contributor()
    learned(compute, STAGE, range(2))
    found = compute.check_delta(compute.delta("raw", START), "raw")
    data = encode(found, codec)
    again = decode(data, codec, schema)
    assert encode(again, codec) == data
    for name, value in found.weights.items():
        bound = 0.0 if codec == "raw" else float(np.abs(value).max()) / 254 + 1e-12
        assert float(np.abs(again.weights[name] - value).max()) <= bound
