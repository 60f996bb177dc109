"""Goal: whatever the recipe, a schedule is made that does not contradict it, the same every time, and survives being written; or it is refused by name."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from chaos.schedule import Kind, Recipe, Schedule, check_schedule, from_json, make_schedule, share_of, to_json
from dcnr.errors import InvalidInput

_SHARES = st.tuples(*[st.integers(0, 10)] * 5, st.integers(1, 10)).map(lambda parts: [part / sum(parts) for part in parts])


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    """Recipes, most of which can be followed."""
    shares = dict(zip(map(share_of, Kind), draw(_SHARES), strict=True))
    shortest = draw(st.floats(0.5, 5))
    longest = shortest + draw(st.floats(0, 10))
    calm = draw(st.floats(0, 10))
    num_victims = draw(st.integers(1, 40))
    return Recipe(
        seed=draw(st.integers(0, 2**32)), num_victims=num_victims, pairs=draw(st.integers(1, 8)),
        window_s=longest + calm + draw(st.floats(1, 200)), faults_per_hour=draw(st.floats(0, 600)), **shares,
        shortest_s=shortest, longest_s=longest, rest_s=draw(st.floats(0, 30)), calm_s=calm,
        max_down=draw(st.integers(0, num_victims)),
    )  # fmt: skip


def made(recipe: Recipe) -> Schedule | None:
    """The schedule, None where it is refused by one of the names for that."""
    try:
        return make_schedule(recipe)
    except InvalidInput as error:
        if error.code not in ("too_many_faults", "bad_recipe"):
            raise
        return None


def accepted(recipe: Recipe) -> Schedule:
    """Its schedule. A recipe that is refused is no example: where most are, the search itself fails."""
    schedule = made(recipe)
    assume(schedule is not None)
    assert schedule is not None
    return schedule


@settings(max_examples=80)
@given(recipe=recipes())
def test_a_schedule_keeps_its_recipe_or_is_refused(recipe: Recipe) -> None:
    schedule = accepted(recipe)
    check_schedule(schedule)
    assert schedule == make_schedule(recipe)
    assert from_json(to_json(schedule)) == schedule
    assert len(schedule.faults) == recipe.num_faults
    kinds = Counter(fault.kind for fault in schedule.faults)
    for kind, share in recipe.shares.items():
        assert abs(kinds[kind] - share * recipe.num_faults) <= 1 + 1e-6


@settings(max_examples=60)
@given(recipe=recipes(), data=st.data())
def test_one_more_fault_on_a_machine_under_a_fault_is_refused(recipe: Recipe, data: st.DataObject) -> None:
    schedule = accepted(recipe)
    lasting = [fault for fault in schedule.faults if fault.duration_s]
    assume(lasting)
    fault = data.draw(st.sampled_from(lasting))
    doubled = tuple(sorted([*schedule.faults, fault], key=lambda item: item.at_s))
    with pytest.raises(InvalidInput) as caught:
        check_schedule(Schedule(recipe, doubled))
    assert caught.value.code in ("overlapping_faults", "too_many_down")
