"""Goal: the volunteer's limits hold on the volunteer's machine: what does not fit is refused with the numbers, whatever is asked in whatever order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr import limits
from dcnr.errors import Refused
from pnode.budget import CACHE, DAEMON_BYTES, Budget, Limits, Reservation

MIB = limits.MIB
ALLOWED = Limits(cores=2.0, memory_bytes=DAEMON_BYTES + 100 * MIB, disk_bytes=200 * MIB, min_free_disk_bytes=50 * MIB)
FREE = 1000 * MIB


@pytest.mark.parametrize(
    ("wanted", "free_disk_bytes", "code"),
    [
        (Reservation(101 * MIB, 0), FREE, "too_little_memory"),
        (Reservation(0, 201 * MIB), FREE, "too_little_disk"),
        (Reservation(0, 60 * MIB), 100 * MIB, "too_little_disk"),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers_and_remedy(wanted: Reservation, free_disk_bytes: int, code: str) -> None:
    budget = Budget(ALLOWED)
    with pytest.raises(Refused) as refused:
        budget.admit("conv1.0", wanted, free_disk_bytes=free_disk_bytes)
    assert refused.value.code == code
    assert refused.value.remedy
    assert int(refused.value.details["needed_bytes"]) > int(refused.value.details["free_bytes"])
    assert budget.reserved == {}


def test_what_was_promised_to_others_and_is_not_used_yet_is_not_free() -> None:
    """With the defaults and 5 GiB of disk free: twenty GB of promises would be given out, and the disk be full below them."""
    free, wanted = 5 * 1024 * MIB, Reservation(0, 2200 * MIB)
    budget = Budget(Limits(2.0, DAEMON_BYTES, 15_000 * MIB, 1000 * MIB))
    budget.admit("a.1", wanted, free_disk_bytes=free)
    with pytest.raises(Refused, match=r"b\.1 needs 2200 MiB of disk, 1920 MiB are free"):
        budget.admit("b.1", wanted, free_disk_bytes=free)
    budget.admit("a.1", wanted, free_disk_bytes=free - 2200 * MIB, used_disk_bytes={"a.1": 2200 * MIB})
    with pytest.raises(Refused, match=r"b\.1 needs 2200 MiB of disk, 1920 MiB are free"):
        budget.admit("b.1", wanted, free_disk_bytes=free - 2200 * MIB, used_disk_bytes={"a.1": 2200 * MIB})
    budget.found("evidence", Reservation(0, 1000 * MIB))
    budget.admit("b.1", Reservation(0, 1920 * MIB), free_disk_bytes=free, used_disk_bytes={})


def test_what_the_cache_may_still_take_is_not_free() -> None:
    budget = Budget(Limits(2.0, DAEMON_BYTES, 300 * MIB, 50 * MIB, cache_bytes=100 * MIB))
    with pytest.raises(Refused, match=r"190 MiB of disk, 180 MiB are free"):
        budget.admit("a.1", Reservation(0, 190 * MIB), free_disk_bytes=300 * MIB, used_disk_bytes={CACHE: 30 * MIB, "b.1": 9 * MIB})
    budget.admit("a.1", Reservation(0, 190 * MIB), free_disk_bytes=300 * MIB, used_disk_bytes={CACHE: 40 * MIB})


def test_admitting_again_counts_once_and_releasing_gives_back() -> None:
    budget = Budget(ALLOWED)
    for _ in range(3):
        budget.admit("conv1.0", Reservation(80 * MIB, 100 * MIB), free_disk_bytes=FREE)
    assert budget.free_memory_bytes == 20 * MIB
    with pytest.raises(Refused, match=r"conv2\.0 needs 30 MiB of memory, 20 of 100 MiB are free"):
        budget.admit("conv2.0", Reservation(30 * MIB, 0), free_disk_bytes=FREE)
    budget.release("conv1.0")
    budget.admit("conv2.0", Reservation(30 * MIB, 0), free_disk_bytes=FREE)


def test_what_is_in_use_already_counts_also_where_it_does_not_fit() -> None:
    budget = Budget(ALLOWED)
    budget.found("evidence", Reservation(0, 300 * MIB))
    with pytest.raises(Refused, match=r"conv1\.0 needs 1 MiB of disk, 0 MiB are free"):
        budget.admit("conv1.0", Reservation(0, MIB), free_disk_bytes=FREE)
    budget.found("evidence", Reservation(0, 150 * MIB))
    budget.admit("conv1.0", Reservation(0, 50 * MIB), free_disk_bytes=FREE)


@given(
    st.lists(
        st.tuples(
            st.booleans(), st.sampled_from("abcd"), st.integers(0, 150 * MIB), st.integers(0, 300 * MIB), st.integers(0, FREE)
        )
    )
)
def test_any_order_of_requests_stays_within_the_limits(orders: list[tuple[bool, str, int, int, int]]) -> None:
    budget = Budget(ALLOWED)
    for admit, replica, memory, disk, free in orders:
        before = dict(budget.reserved)
        if not admit:
            budget.release(replica)
            continue
        try:
            budget.admit(replica, Reservation(memory, disk), free_disk_bytes=free)
        except Refused:
            assert budget.reserved == before
    held = budget.reserved.values()
    assert sum(item.memory_bytes for item in held) <= budget.usable_memory_bytes
    assert sum(item.disk_bytes for item in held) <= ALLOWED.disk_bytes


def test_an_accelerator_s_memory_bounds_what_is_admitted_and_its_runtime_is_the_machines() -> None:
    budget = Budget(ALLOWED)
    budget.computes_on(accelerator_bytes=0, runtime_bytes=30 * MIB)
    assert budget.usable_memory_bytes == 70 * MIB
    with pytest.raises(Refused, match=r"70 of 70 MiB are free") as refused:
        budget.admit("conv1.0", Reservation(71 * MIB, 0), free_disk_bytes=FREE)
    assert "limits.memory_mb" in refused.value.remedy
    budget.computes_on(accelerator_bytes=50 * MIB, runtime_bytes=30 * MIB)
    with pytest.raises(Refused, match=r"conv1\.0 needs 60 MiB of memory, 50 of 50 MiB are free") as refused:
        budget.admit("conv1.0", Reservation(60 * MIB, 0), free_disk_bytes=FREE)
    assert "the accelerator had 50 MiB free" in refused.value.remedy
    budget.computes_on(accelerator_bytes=0, runtime_bytes=0)
    assert budget.usable_memory_bytes == 100 * MIB, "a worker that begins anew on a processor has what it had"
