"""Goal: everyone who knows the same shares finds the same owners; shares follow the weights; few units move."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvalidInput
from dcnr.ids import ReplicaId
from dcnr.intervals import IntervalSet
from dcnr.units import Share, _draws, owned, owner_of, split


def shares(*weights: float) -> list[Share]:
    return [Share(ReplicaId(f"a.{number}"), weight) for number, weight in enumerate(weights)]


def test_the_owners_are_fixed_for_ever() -> None:
    found = [owner_of(unit, shares(1.0, 1.0, 2.0)) for unit in range(12)]
    assert "".join(str(replica)[-1] for replica in found) == "022020220002"


@given(st.lists(st.sampled_from([0.0, 0.5, 1.0, 3.0]), min_size=1, max_size=5), st.integers(0, 60), st.integers(1, 9), st.randoms())
def test_every_batch_has_one_owner_whatever_the_order(weights: list[float], num_batches: int, unit: int, rng: object) -> None:
    everyone = shares(*weights)
    found = split(everyone, num_batches, unit)
    shuffled = list(everyone)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    assert split(shuffled, num_batches, unit) == found
    assert sum(map(len, found.values())) == (num_batches if any(weights) else 0)
    together = IntervalSet.empty()
    for share in everyone:
        assert owned(share.replica, everyone, num_batches, unit) == found[share.replica]
        assert share.weight or not found[share.replica]
        together |= found[share.replica]
    assert together == (IntervalSet.span(0, num_batches) if any(weights) else IntervalSet.empty())


def test_shares_follow_the_weights() -> None:
    found = split(shares(1.0, 1.0, 2.0, 0.0), 20_000, 5)
    parts = [len(part) / 20_000 for part in found.values()]
    assert parts == pytest.approx([0.25, 0.25, 0.5, 0.0], abs=0.03)


def test_only_units_from_or_to_who_changes_move() -> None:
    before, after = split(shares(1.0, 1.0, 1.0), 3000, 10), split(shares(1.0, 1.0, 1.0, 1.0), 3000, 10)
    for replica, part in before.items():
        assert after[replica] - part == IntervalSet.empty()
    lighter = split(shares(1.0, 0.5, 1.0), 3000, 10)
    assert lighter[ReplicaId("a.1")] - before[ReplicaId("a.1")] == IntervalSet.empty()
    assert before[ReplicaId("a.0")] - lighter[ReplicaId("a.0")] == IntervalSet.empty()


def test_what_is_shared_out_at_once_is_what_the_owner_of_each_unit_has() -> None:
    everyone = shares(0.5, 0.0, 3.0, 1.0)
    found = split(everyone, 100, 3)
    for batch in range(100):
        owner = owner_of(batch // 3, everyone)
        assert owner is not None
        assert batch in found[owner]


def test_a_plan_in_which_somebody_leaves_or_gets_another_weight_draws_nothing_anew() -> None:
    """Else every replica would stop for it, at the same moment: it is the hashing that takes long."""
    split(shares(1.0, 1.0, 1.0), 4000, 4)
    drawn = _draws.cache_info().misses
    split(shares(1.0, 1.0), 4000, 4)
    split(shares(1.0, 2.0, 1.0), 4000, 4)
    assert _draws.cache_info().misses == drawn


def test_who_is_not_named_owns_nothing_and_one_alone_everything() -> None:
    assert owned(ReplicaId("b.0"), shares(1.0), 10, 3) == IntervalSet.empty()
    assert owned(ReplicaId("a.0"), shares(0.1, 0.0), 10, 3) == IntervalSet.span(0, 10)
    assert owner_of(3, []) is None


@pytest.mark.parametrize("weight", [-1.0, math.inf, math.nan])
def test_a_weight_that_is_none_is_refused(weight: float) -> None:
    with pytest.raises(InvalidInput):
        Share(ReplicaId("a.0"), weight)


def test_a_unit_without_batches_is_refused() -> None:
    with pytest.raises(InvalidInput):
        split(shares(1.0), 10, 0)
