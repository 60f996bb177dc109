"""Goal: an auditor holds of the data set what the entry needs that it looks at, of however many, and blames nobody for a shard that it cannot read."""

from __future__ import annotations

import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dcnr.errors import Corrupt, DcnrError, NotFound, Unavailable
from dcnr.specs import TensorSpec
from dcnr.stages import VNodeSpec, stages_of
from dcnr.tensor import Array
from dcnr.v1 import model_pb2
from examples.byzantine.interval import Party, Work, make_interval
from pnode.auditing import _TrainBatches
from trust.commits import Place
from trust.comparison import judge
from vnode.bundle import read_bundle
from vnode.checks.opening import Assigned, open_claim, read_stated
from vnode.checks.torch_check import Checker
from vnode.checks.torch_record import Entry
from vnode.registry import default_registry
from vnode.torch_stage import initial_state
from vnode.vocabulary import Mode

REGISTRY = default_registry()
NETWORK, NUM_ENTRIES, SPAN, BATCH_SIZE = "5" * 40, 500, 4, 4
STAGE = stages_of(
    [VNodeSpec("a", "linear", {"out_features": 3}, ("input",), "local_ce", {}, "sgd", {"lr": 0.01})],
    REGISTRY, TensorSpec("float32", (6,)), TensorSpec("int64", ()), 4,
)[0]  # fmt: skip
PLACE = Place(NETWORK, "m", "j", "a")


class Data:
    """The data set; ``most`` arrays of it were alive at once."""

    def __init__(self) -> None:
        self.alive = self.most = self.num_reads = 0

    def read_input(self, batch: int) -> Array:
        return self._counted(np.random.default_rng(batch).standard_normal((BATCH_SIZE, 6), dtype=np.float32))

    def read_target(self, batch: int) -> Array:
        return self._counted(np.random.default_rng(1000 + batch).integers(0, 4, BATCH_SIZE))

    def _counted(self, array: Array) -> Array:
        weakref.finalize(array, self._gone)
        self.num_reads += 1
        self.alive += 1
        self.most = max(self.most, self.alive)
        return array

    def _gone(self) -> None:
        self.alive -= 1


def test_a_long_interval_of_a_source_takes_the_memory_of_a_few_batches(tmp_path: Path) -> None:
    made, data = Data(), Data()
    entries = [Entry(batch, Mode.TRAIN, (made.read_input(batch),), made.read_target(batch)) for batch in range(NUM_ENTRIES)]
    state = initial_state(STAGE, REGISTRY, seed=7, model="m", graph="", num_batches=NUM_ENTRIES)
    make_interval(Work(PLACE, STAGE, REGISTRY, NUM_ENTRIES, 7, state, entries, "raw", state_every=SPAN), Party(NETWORK)).write(
        tmp_path / "bundle"
    )
    assigned = Assigned(PLACE, STAGE, BATCH_SIZE, NUM_ENTRIES, "raw", is_read=True)
    with read_bundle(tmp_path / "bundle") as bundle:
        opened = open_claim(read_stated(bundle, assigned), bundle, assigned, data)
    assert data.num_reads == 0, "nothing is held that nobody looks at"
    checker = Checker(assigned, REGISTRY, 7, "")
    outcome = judge(checker.comparisons(opened.claim, model_pb2.CHECK_KIND_REPLAY, b"s" * 32), to_the_end=True)
    assert outcome.worst is not None
    assert outcome.worst.ratio <= 1.0
    assert data.num_reads >= 2 * NUM_ENTRIES
    assert data.most <= 2 * SPAN


@pytest.mark.parametrize(
    ("errors", "brought"),
    [
        ([], 0),
        ([NotFound("a shard has left the cache")], 1),
        ([NotFound("gone")] * 2, 1),
        ([Corrupt("bad shard", code="bad_shard")], 0),
    ],
    ids=["here", "pushed out", "gone again", "damaged"],
)
def test_a_shard_that_left_the_cache_is_brought_again_and_one_that_cannot_be_read_is_nobodys_fault(
    errors: list[DcnrError], brought: int
) -> None:
    left, asked = list(errors), list[int]()

    def read(lane: object, batch: int) -> Array:
        if left:
            raise left.pop(0)
        return np.full(1, batch)

    samples: Any = SimpleNamespace(read_input=read, read_target=read)
    batches = _TrainBatches(samples, asked.append)
    if len(errors) - brought > 0:
        with pytest.raises(Unavailable, match="batch 7 cannot be read"):
            batches.read_input(7)
    else:
        assert batches.read_target(7)[0] == 7
    assert asked == [7] * brought
