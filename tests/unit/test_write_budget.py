"""Goal: what a PNode brings into the store in an hour is bounded, also by all keys of one subnet, and trying again costs nothing."""

from __future__ import annotations

import pytest

from dcnr import limits
from dcnr.errors import Unavailable
from orchestrator.write_budget import HOUR_S, WriteBudget

HOURLY = limits.WRITTEN_BYTES_H
MIB = limits.MIB


def written(budget: WriteBudget, now_s: float, node: str = "x") -> int:
    """How many objects of 1 GiB this PNode may write now."""
    for count in range(1000):
        try:
            budget.write(node, f"{node}{now_s}.{count}", 1024 * MIB, HOURLY, now_s)
        except Unavailable:
            return count
    return 1000


def test_half_an_hours_bytes_at_once_and_an_hours_in_an_hour() -> None:
    budget = WriteBudget()
    assert written(budget, 0.0) == HOURLY // (2 * 1024 * MIB)
    assert written(budget, 0.0, "y") == HOURLY // (2 * 1024 * MIB), "another PNode has its own"
    assert written(budget, HOUR_S / 4) == HOURLY // (4 * 1024 * MIB)


def test_the_same_object_tried_again_is_paid_once_an_hour() -> None:
    budget = WriteBudget()
    for now_s in range(100):
        budget.write("x", "key", 4096 * MIB, HOURLY, float(now_s))
    budget.write("x", "other", 4096 * MIB, HOURLY, 100.0)
    with pytest.raises(Unavailable) as refused:
        budget.write("x", "third", 4096 * MIB, HOURLY, 100.0)
    assert refused.value.code == "rate_limited"
    assert refused.value.retry_after_s > 0
    with pytest.raises(Unavailable):
        budget.write("y", "key", 9 * 1024 * MIB, HOURLY, 100.0)


def test_a_hundred_keys_of_one_subnet_bring_no_more_records_than_the_subnet_may() -> None:
    budget, taken = WriteBudget(), 0
    for node in range(100):
        try:
            for number in range(100):
                budget.record(f"node{node}", "subnet", f"{node}.{number}", MIB, 0.0)
                taken += 1
        except Unavailable:
            pass
    assert taken == limits.SUBNET_RECORD_BYTES_H // (2 * MIB)
    budget.record("node", "elsewhere", "key", MIB, 0.0)
