"""Goal: an audit takes no more memory where an interval is longer: what a bundle holds is decoded one after the other, and nothing of it is kept."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from dcnr.limits import MAX_OBJECT_BYTES, MIB
from dcnr.specs import TensorSpec
from dcnr.stages import VNodeSpec, stages_of
from dcnr.tensor import Array, decode, encode
from dcnr.v1 import model_pb2
from examples.byzantine.interval import Party, Work, make_interval
from pnode.audit_tasks import DECODED, audit_bytes
from trust.commits import Place
from trust.comparison import judge
from vnode.bundle import read_bundle
from vnode.checks.opening import Assigned, open_claim, read_stated
from vnode.checks.torch_check import Checker
from vnode.checks.torch_record import Entry
from vnode.costs import ReplicaCost, replica_cost
from vnode.registry import default_registry
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

REGISTRY, PLACE = default_registry(), Place("5" * 40, "m", "j", "b")
WIDTH, BATCH_SIZE, NUM_BATCHES, SHORT, LONG = 64, 256, 200, 16, 96
VNODES = [
    VNodeSpec(name, "linear_block", {}, (before,), "local_ce", {}, "sgd", {"lr": 0.02, "momentum": 0.9, "weight_decay": 5e-4})
    for name, before in (("a", "input"), ("b", "a"))
]
STAGE = stages_of(VNODES, REGISTRY, TensorSpec("float32", (WIDTH,)), TensorSpec("int64", ()), 4)[1]


class Targets:
    """The data set, for a stage that is no source."""

    def read_input(self, batch: int) -> Array:
        raise AssertionError("its inputs come from another stage")

    def read_target(self, batch: int) -> Array:
        return np.random.default_rng(batch).integers(0, 4, BATCH_SIZE)


def taken(num_steps: int, path: Path) -> tuple[int, int]:
    """Memory of Python and numpy that one audit takes at most, and the size of its bundle."""
    sent = encode(np.random.default_rng(1).standard_normal((BATCH_SIZE, WIDTH), dtype=np.float32), "int8")
    values = decode(sent.header, sent.payload)
    entries = [Entry(batch, Mode.TRAIN, (values,), Targets().read_target(batch)) for batch in range(num_steps)]
    state = initial_state(STAGE, REGISTRY, seed=7, model="m", graph="", num_batches=NUM_BATCHES)
    work = Work(PLACE, STAGE, REGISTRY, NUM_BATCHES, 7, state, entries, "int8", state_every=8, input_codec="int8")
    make_interval(work, Party(PLACE.network_id), Party(PLACE.network_id)).write(path)
    assigned = Assigned(PLACE, STAGE, BATCH_SIZE, NUM_BATCHES, "int8", is_read=True)
    tracemalloc.start()
    try:
        with read_bundle(path) as bundle:
            opened = open_claim(read_stated(bundle, assigned), bundle, assigned, Targets())
        outcome = judge(Checker(assigned, REGISTRY, 7, "").comparisons(opened.claim, model_pb2.CHECK_KIND_REPLAY, b"s" * 32))
        assert outcome.passed, outcome.first_over
        return tracemalloc.get_traced_memory()[1], path.stat().st_size
    finally:
        tracemalloc.stop()


def test_six_times_the_interval_takes_next_to_no_more_memory(tmp_path: Path) -> None:
    taken(SHORT, tmp_path / "first")  # what is made once for a process counts for neither
    (short, few), (long, many) = taken(SHORT, tmp_path / "short"), taken(LONG, tmp_path / "long")
    assert many > 5 * few > 2 * MIB
    assert long - short < 0.1 * (many - few), f"{short} bytes for {SHORT} steps, {long} for {LONG}"


COSTS = replica_cost(STAGE, REGISTRY, BATCH_SIZE)


@given(st.integers(1, MAX_OBJECT_BYTES), st.integers(0, MAX_OBJECT_BYTES))
def test_whatever_is_put_into_a_bundle_asks_for_no_more_memory_than_its_states_do(size_bytes: int, more_bytes: int) -> None:
    cost: ReplicaCost = COSTS
    needed = audit_bytes(cost, size_bytes)
    assert cost.memory_bytes < needed <= cost.memory_bytes + DECODED * size_bytes
    assert needed <= audit_bytes(cost, size_bytes + more_bytes) < cost.memory_bytes + 256 * MIB
