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


def test_an_anchor_and_a_delta_give_the_contributors_weights() -> None:
    compute, info = contributor()
    before = content(compute, info)
    learned(compute, STAGE, range(4))
    found, after = compute.check_delta(compute.delta("raw"), "raw"), content(compute, info)
    assert {f"w/{name}" for name in found.weights} | {f"b/{name}" for name in found.buffers} == set(after)
    for name, moved in found.weights.items():
        np.testing.assert_allclose(before[f"w/{name}"] + moved, after[f"w/{name}"], rtol=0, atol=1e-6)
    for name, value in found.buffers.items():
        np.testing.assert_array_equal(value, after[f"b/{name}"])


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_what_the_codec_lost_stays_with_what_is_learned_next(codec: str) -> None:
    compute, info = contributor()
    before = content(compute, info)
    parts = []
    for start in range(0, 6, 2):
        learned(compute, STAGE, range(start, start + 2))
        parts.append(compute.check_delta(compute.delta(codec), codec))
    after = content(compute, info)
    for name in parts[0].weights:
        total = before[f"w/{name}"] + sum(part.weights[name] for part in parts)
        lost = float(np.abs(total - after[f"w/{name}"]).max())
        last = float(np.abs(parts[-1].weights[name]).max())
        assert lost <= (1e-6 if codec == "raw" else last / 254 + 1e-6), name  # of the last delta alone, not of all


@pytest.mark.parametrize("name", sorted(STAGES))
def test_rebase_is_the_anchor_and_what_is_kept(name: str) -> None:
    stage = STAGES[name]
    primary, info = fresh(stage)
    learned(primary, stage, range(10, 13))
    anchor = primary.anchor(info)
    base = content(primary, info, stage)

    def parts() -> tuple[TorchCompute, dict[str, Array], dict[str, Array], dict[str, Array]]:
        compute, _ = contributor(stage)
        at_0 = content(compute, info, stage)
        learned(compute, stage, range(2))
        at_1 = content(compute, info, stage)
        compute.delta("raw")
        learned(compute, stage, range(2, 5))
        return compute, at_0, at_1, content(compute, info, stage)

    for keep_open in (False, True):
        for keep_after in (False, True):
            compute, at_0, at_1, at_2 = parts()
            compute.rebase(anchor, keep_open=keep_open, keep_after=keep_after)
            wanted = {key: base[key] + keep_open * (at_1[key] - at_0[key]) + keep_after * (at_2[key] - at_1[key]) for key in base}
            assert_close(content(compute, info, stage), wanted, "w/")
            compute.rebase(anchor, keep_open=keep_open, keep_after=keep_after)
            assert_close(content(compute, info, stage), wanted, "w/")  # twice is once
            compute.rebase(anchor, keep_open=False, keep_after=False)
            assert_close(content(compute, info, stage), base)


def test_optimiser_slots_stay_with_the_contributor() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(3))
    schema = schema_of(STAGE, REGISTRY)
    before = parse(compute.snapshot(info), schema)[1]
    compute.rebase(fresh(STAGE)[0].anchor(info), keep_open=False, keep_after=False)
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
        found.append(primary.check_delta(compute.delta("raw"), "raw"))
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
    primary.merge([primary.check_delta(compute.delta("raw"), "raw")], [2], [0.5])
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
        compute.delta("raw")
    with pytest.raises(InvariantBroken):
        compute.rebase(before, keep_open=False, keep_after=False)


def test_bad_deltas_and_anchors_are_refused_and_change_nothing() -> None:
    compute, info = contributor()
    learned(compute, STAGE, range(2))
    good, before = compute.delta("raw"), compute.anchor(info)
    nan = np.frombuffer(good, np.uint8).copy()
    nan[:4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
    for data, codec in ((good[:-1], "raw"), (good + b"\0", "raw"), (good, "int8"), (b"", "raw"), (nan.tobytes(), "raw")):
        with pytest.raises(Corrupt):
            compute.check_delta(data, codec)
    with pytest.raises(InvalidInput):
        compute.check_delta(good, "fp16")
    for anchor in (b"", before[:-1], compute.snapshot(info), fresh(STAGES["vector"])[0].anchor(fresh(STAGES["vector"])[1])):
        with pytest.raises(Corrupt):
            compute.rebase(anchor, keep_open=True, keep_after=True)
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
    found = primary.check_delta(compute.delta("raw"), "raw")
    huge = DeltaValues({name: np.full_like(value, np.inf) for name, value in found.weights.items()}, found.buffers)
    with pytest.raises(InvariantBroken):
        primary.merge([found, huge], [1, 1], [1.0, 1.0])
    assert primary.anchor(info) == before


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_an_encoding_comes_back(codec: str) -> None:
    schema = schema_of(STAGE, REGISTRY)
    compute, _ = contributor()
    learned(compute, STAGE, range(2))
    found = compute.check_delta(compute.delta("raw"), "raw")
    data = encode(found, codec)
    again = decode(data, codec, schema)
    assert encode(again, codec) == data
    for name, value in found.weights.items():
        bound = 0.0 if codec == "raw" else float(np.abs(value).max()) / 254 + 1e-12
        assert float(np.abs(again.weights[name] - value).max()) <= bound
