"""Goal: questions that wait together are computed by one call, each gets its own rows, fails for itself alone, and no call is larger than a batch."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcnr.errors import InvariantBroken, RemoteFault
from dcnr.system import SystemClock
from pnode.infer_places import Wish
from pnode.infer_together import Together, Waiting
from pnode.infer_words import Made

MOST = 8
POISON = 666.0
ANSWERS = Wish(answers=True)


class Doubles:
    """Computes two times what it reads, and remembers its calls; one value breaks a whole call."""

    def __init__(self) -> None:
        self.calls: list[int] = []

    def forward(self, batch: int, inputs: Any, mode: Any) -> Any:
        self.calls.append(len(inputs[0]))
        if any(len(one) != len(inputs[0]) for one in inputs):
            raise RemoteFault("uneven", code="bad_frame")
        if (inputs[0] == POISON).any():
            raise InvariantBroken("the output is not finite", code="not_finite")
        return SimpleNamespace(output=2 * sum(inputs))

    def readout(self, output: Any) -> Any:
        return output + 1


@dataclass(frozen=True)
class Bad(Made):
    """Arrived with a value that is none."""

    def values(self) -> Any:
        raise RemoteFault("a tensor holds NaN or infinity", code="not_finite")


def place() -> tuple[Together, Doubles]:
    compute: Any = Doubles()
    return Together(compute, MOST, SystemClock()), compute


def rows(count: int, first: float = 0.0, width: int = 3) -> Made:
    return Made("a", np.full((count, width), first, np.float32))


def worked(together: Together, waiting: list[Waiting]) -> None:
    while any(one.found is None for one in waiting) and together.work(5):
        pass


def test_one_call_computes_who_waits_and_each_gets_its_rows() -> None:
    together, compute = place()
    waiting = [together.enter([rows(count, float(count))], ANSWERS) for count in (1, 2, 3)]
    worked(together, waiting)
    assert compute.calls == [6]
    for count, one in zip((1, 2, 3), waiting, strict=True):
        found = one.result()
        assert (found.num_together, found.step) == (3, 5)
        np.testing.assert_array_equal(found.output, np.full((count, 3), 2.0 * count, np.float32))
        np.testing.assert_array_equal(found.readout, found.output + 1)


def test_a_call_has_no_more_samples_than_a_batch_and_goes_by_age() -> None:
    together, compute = place()
    waiting = [together.enter([rows(3)], ANSWERS) for _ in range(5)]
    together.work(0)
    assert [one.found is not None for one in waiting] == [True, True, False, False, False]
    worked(together, waiting[1:])
    assert compute.calls == [6, 6, 3]


@pytest.mark.parametrize(
    ("other", "wish"),
    [
        (rows(1, width=4), ANSWERS),
        (Made("a", np.zeros((1, 3), np.int64)), ANSWERS),
        (rows(1), Wish()),
        (Made("a", np.zeros((1, 3), np.uint8)), Wish(answers=True, draft=2)),
    ],
)
def test_what_does_not_fit_is_not_taken_along(other: Made, wish: Wish) -> None:
    together, compute = place()
    together.enter([rows(1)], ANSWERS)
    unlike = together.enter([other], wish)
    together.work(0)
    assert compute.calls == [1]
    assert unlike.found is None


def test_who_breaks_a_call_fails_alone() -> None:
    together, _ = place()
    good, broken, breaks = (
        together.enter([tensor], ANSWERS) for tensor in (rows(2, 1.0), Bad("a", rows(1).tensor), rows(1, POISON))
    )
    together.work(5)
    np.testing.assert_array_equal(good.result().output, np.full((2, 3), 2.0, np.float32))
    with pytest.raises(RemoteFault):
        broken.result()
    with pytest.raises(InvariantBroken) as error:
        breaks.result()
    assert error.value.code == "not_finite"


def test_uneven_tensors_move_nobodys_rows() -> None:
    together, _ = place()
    one, other = (together.enter([rows(left, 1.0), rows(right, 2.0)], ANSWERS) for left, right in ((1, 2), (2, 1)))
    worked(together, [one, other])
    for uneven in (one, other):
        with pytest.raises(RemoteFault):
            uneven.result()


def test_a_tensor_without_samples_harms_nobody() -> None:
    together, compute = place()
    together.enter([Made("a", np.float32(1.0))], ANSWERS)
    one, other = (together.enter([rows(1)], ANSWERS) for _ in range(2))
    worked(together, [one, other])
    assert compute.calls == [2]
    assert other.result().num_together == 2


def test_who_has_left_is_not_computed() -> None:
    together, compute = place()
    one, gone = (together.enter([rows(1)], ANSWERS) for _ in range(2))
    together.leave(gone)
    worked(together, [one, gone])
    assert compute.calls == [1]
    assert gone.found is None


@given(st.lists(st.tuples(st.integers(1, MOST), st.booleans(), st.integers(2, 3), st.floats(-9, 9, width=32)), max_size=12))
def test_any_questions_are_answered_as_if_each_were_alone(questions: list[tuple[int, bool, int, float]]) -> None:
    together, compute = place()
    waiting = [together.enter([rows(count, value, width)], Wish(answers=answers)) for count, answers, width, value in questions]
    worked(together, waiting)
    assert all(samples <= MOST for samples in compute.calls)
    for (count, answers, width, value), one in zip(questions, waiting, strict=True):
        found = one.result()
        np.testing.assert_array_equal(found.output, 2 * np.full((count, width), value, np.float32))
        assert (found.readout is not None) is answers
