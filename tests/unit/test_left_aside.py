"""Goal: what states that were left aside brought in is reckoned in intervals: an audit of a job of any length fits any machine."""

from __future__ import annotations

import tracemalloc

from dcnr.audit_lineage import _Chain
from dcnr.intervals import IntervalSet
from dcnr.limits import MIB

N = 1_000_000
MANY = 200


def test_what_a_state_left_aside_brought_first_is_told_however_long_the_job_is() -> None:
    lineages = [IntervalSet.of((0, N * number // MANY)) for number in range(1, MANY + 1)]
    names = [f"{number:064x}" for number in range(MANY)]
    chain = _Chain(
        {"a": {("a.0", "one"): IntervalSet.of((0, N // 2)), ("a.1", "other"): IntervalSet.of((N // 2, N - 7))}, "b": {}},
        {"a": dict(reversed(list(zip(names, lineages, strict=True))))},
    )
    tracemalloc.start()
    try:
        aside = chain.left_aside("a", frozenset(names) - {names[3], names[-1]})
        assert tracemalloc.get_traced_memory()[1] < MIB
    finally:
        tracemalloc.stop()
    step = N // MANY
    assert aside == IntervalSet.of((3 * step, 4 * step), (N - step, N - 7)), "in no later state that held it too, and credited"
    assert not chain.left_aside("b", frozenset())
    assert not chain.left_aside("a", frozenset(names))
