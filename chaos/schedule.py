"""What befalls which machine when: made from a recipe by its seed alone, and refused where it contradicts itself. Pure.

A run is a row of pairs: a window without faults, then one with them, all of the same length. Faults begin only in the second window of a pair and
are over before it ends, so both rates of a pair come from the same minutes of the same run.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, Final

from dcnr.errors import InvalidInput

FORMAT: Final = "dcnr-chaos-schedule-1"
MAX_FAULTS: Final = 10_000
MAX_VICTIMS: Final = 1_000
MAX_FILE_CHARS: Final = 4_000_000
MAX_LENGTH_S: Final = 24 * 3600.0
MAX_NUMBER: Final = 1e18
"""Whatever is said of a recipe can be worked out with numbers up to here."""
CALM_S: Final = 5.0
_DIGITS: Final = 3


class Kind(StrEnum):
    """What befalls a machine."""

    KILL = "kill"
    """SIGKILL to its daemon; a supervisor starts it again."""
    PARTITION = "partition"
    """Its network link is down."""
    PAUSE = "pause"
    """SIGSTOP to all of its processes, later SIGCONT."""
    IMPAIR = "impair"
    """Its link is slow, narrow and loses packets; needs emulated links."""
    WORKER = "worker"
    """SIGKILL to its worker alone; its daemon starts another one."""
    HOLDER = "holder"
    """SIGKILL to the orchestrator that decides, whichever that is then; a supervisor starts it again."""


AT_ONCE: Final = frozenset((Kind.KILL, Kind.WORKER, Kind.HOLDER))
"""They have no duration: whoever starts things again ends them."""
NO_MACHINE: Final = -1
"""The victim of a fault that befalls the orchestrator that decides."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``at_s`` counts from the start of the run; ``duration_s`` is 0 for kills. ``victim``: a machine's number, or `NO_MACHINE`."""

    at_s: float
    kind: Kind
    victim: int
    duration_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a schedule is made from. Shares of the mix sum to 1; durations in seconds."""

    seed: int
    num_victims: int
    pairs: int
    window_s: float
    faults_per_hour: float
    """Of the windows with faults."""
    kill_share: float = 0.62
    partition_share: float = 0.20
    pause_share: float = 0.18
    shortest_s: float = 4.0
    longest_s: float = 12.0
    """Of partitions and pauses."""
    rest_s: float = 20.0
    """A machine is left alone for so long after a fault."""
    calm_s: float = CALM_S
    """The end of each window, in which nothing begins and everything is over, so that what a fault costs and what is caught up on are in one window."""
    max_down: int = 0
    """Machines under a fault at once; 0: a quarter of them, at least one."""
    impair_share: float = 0.0
    worker_share: float = 0.0
    holder_share: float = 0.0

    @property
    def shares(self) -> dict[Kind, float]:
        """The mix."""
        return {kind: getattr(self, share_of(kind)) for kind in Kind}

    @property
    def length_s(self) -> float:
        """Of the whole run."""
        return 2 * self.pairs * self.window_s

    @property
    def num_faults(self) -> int:
        """In all windows together."""
        return round(self.faults_per_hour * self.pairs * self.window_s / 3600)

    @property
    def most_down(self) -> int:
        """`max_down`, resolved."""
        return self.max_down or max(1, self.num_victims // 4)


def share_of(kind: Kind) -> str:
    """The name of its share in a recipe."""
    return f"{kind}_share"


@dataclass(frozen=True, slots=True)
class Schedule:
    """A recipe and the faults made from it, in order of time."""

    recipe: Recipe
    faults: tuple[Fault, ...] = field(default=())


def first_pairs(schedule: Schedule, pairs: int) -> Schedule:
    """The first pairs of windows, as they are. Raises InvalidInput (``bad_recipe``) for none, or more than there are."""
    if not 1 <= pairs <= schedule.recipe.pairs:
        raise InvalidInput(f"the schedule has {schedule.recipe.pairs} pairs of windows, not {pairs}", code="bad_recipe")
    recipe = replace(schedule.recipe, pairs=pairs)
    return Schedule(recipe, tuple(fault for fault in schedule.faults if fault.at_s < recipe.length_s))


def make_schedule(recipe: Recipe) -> Schedule:
    """The schedule of a recipe: the same on every machine. Raises InvalidInput (`check_recipe`; ``too_many_faults`` where they do not fit)."""
    check_recipe(recipe)
    rng = random.Random(recipe.seed)
    faults: list[Fault] = []
    for at_s, kind in zip(_times(recipe, rng), _kinds(recipe, rng), strict=True):
        duration_s = 0.0 if kind in AT_ONCE else round(rng.uniform(recipe.shortest_s, recipe.longest_s), _DIGITS)
        last_s = recipe.window_s * (2 * (at_s // (2 * recipe.window_s)) + 2) - recipe.calm_s
        at_s = round(min(at_s, last_s - duration_s), _DIGITS)
        victims = [NO_MACHINE] if kind is Kind.HOLDER else range(recipe.num_victims)
        down = _down_at_once([*faults, Fault(at_s, kind, victims[0], duration_s)], recipe.rest_s)
        free = [victim for victim in victims if _is_free(victim, at_s, duration_s, faults, recipe)]
        if down > recipe.most_down or not free:
            raise InvalidInput(
                f"no machine is free for a fault at {at_s:.0f} s", code="too_many_faults", remedy="fewer faults, or more machines"
            )
        faults.append(Fault(at_s, kind, rng.choice(free), duration_s))
    schedule = Schedule(recipe, tuple(sorted(faults, key=lambda fault: (fault.at_s, fault.victim))))
    check_schedule(schedule)
    return schedule


def _times(recipe: Recipe, rng: random.Random) -> list[float]:
    """One moment in each of equal slices of the time in which faults may begin, so that the rate holds in every window."""
    open_s = recipe.window_s - recipe.calm_s
    slice_s = open_s * recipe.pairs / max(1, recipe.num_faults)
    times: list[float] = []
    for number in range(recipe.num_faults):
        within, offset_s = divmod((number + rng.random()) * slice_s, open_s)
        pair = min(int(within), recipe.pairs - 1)
        times.append((2 * pair + 1) * recipe.window_s + offset_s)
    return times


def _kinds(recipe: Recipe, rng: random.Random) -> list[Kind]:
    """The mix by largest remainders, shuffled."""
    wanted = {kind: share * recipe.num_faults for kind, share in recipe.shares.items()}
    counts = {kind: math.floor(count) for kind, count in wanted.items()}
    by_rest = sorted(wanted, key=lambda kind: counts[kind] - wanted[kind])
    for kind in by_rest[: recipe.num_faults - sum(counts.values())]:
        counts[kind] += 1
    kinds = [kind for kind, count in counts.items() for _ in range(count)]
    rng.shuffle(kinds)
    return kinds


def _is_free(victim: int, at_s: float, duration_s: float, faults: Sequence[Fault], recipe: Recipe) -> bool:
    rest_s = recipe.rest_s
    mine = [fault for fault in faults if fault.victim == victim]
    return all(at_s >= f.at_s + f.duration_s + rest_s or at_s + duration_s + rest_s <= f.at_s for f in mine)


def _down_at_once(faults: Sequence[Fault], rest_s: float) -> int:
    """The most machines under a fault at one time; a killed one counts until its rest is over."""
    spans = [(f.at_s, f.at_s + (f.duration_s or rest_s)) for f in faults if f.victim != NO_MACHINE]
    return max((sum(begin <= at < end for begin, end in spans) for at, _ in spans), default=0)


def check_recipe(recipe: Recipe) -> None:
    """Raises InvalidInput (``bad_recipe``) for numbers that mean nothing together."""
    numbers = [getattr(recipe, item.name) for item in fields(recipe)]
    if not all(abs(number) <= MAX_NUMBER for number in numbers):
        raise InvalidInput(f"a number is not finite, or beyond {MAX_NUMBER:g}", code="bad_recipe")
    shares = recipe.shares.values()
    problems = {
        "the shares of the mix do not sum to 1": min(shares) < 0 or not math.isclose(sum(shares), 1.0, abs_tol=1e-6),
        "there is nobody to befall": not 1 <= recipe.num_victims <= MAX_VICTIMS,
        "the run has no length, or more than a day": recipe.pairs < 1 or not 0 < recipe.length_s <= MAX_LENGTH_S,
        "the rate is negative": recipe.faults_per_hour < 0,
        "durations are not in order": not 0 < recipe.shortest_s <= recipe.longest_s,
        "rest or calm are negative": recipe.rest_s < 0 or recipe.calm_s < 0,
        "a window is too short for a fault": recipe.longest_s + recipe.calm_s >= recipe.window_s,
        "more machines may be down than there are": not 0 <= recipe.max_down <= recipe.num_victims,
    }
    for problem, holds in problems.items():
        if holds:
            raise InvalidInput(problem, code="bad_recipe")
    if recipe.num_faults > MAX_FAULTS:
        raise InvalidInput(f"{recipe.num_faults} faults are more than {MAX_FAULTS}", code="bad_recipe")


def check_schedule(schedule: Schedule) -> None:
    """Raises InvalidInput with the fault that contradicts the recipe or another fault; ``code`` tells how."""
    recipe, faults = schedule.recipe, schedule.faults
    check_recipe(recipe)
    if len(faults) > MAX_FAULTS:
        raise InvalidInput(f"{len(faults)} faults are more than {MAX_FAULTS}", code="bad_schedule")
    for index, fault in enumerate(faults):
        _check_fault(index, fault, recipe)
        if index and fault.at_s < faults[index - 1].at_s:
            raise _contradiction(index, fault, "unordered_faults", "is earlier than the one before it")
        for other in faults[:index]:
            if other.victim == fault.victim and fault.at_s < other.at_s + other.duration_s + recipe.rest_s:
                raise _contradiction(
                    index, fault, "overlapping_faults", f"befalls a machine that the fault at {other.at_s} s has hit"
                )
    if _down_at_once(faults, recipe.rest_s) > recipe.most_down:
        raise InvalidInput(f"more than {recipe.most_down} machines are down at once", code="too_many_down")


def _check_fault(index: int, fault: Fault, recipe: Recipe) -> None:
    if not (math.isfinite(fault.at_s) and math.isfinite(fault.duration_s)):
        raise _contradiction(index, fault, "bad_schedule", "has a time that is not finite")
    if fault.kind is Kind.HOLDER:
        if fault.victim != NO_MACHINE:
            raise _contradiction(index, fault, "unknown_victim", "befalls the orchestrator that decides, and names a machine")
    elif not 0 <= fault.victim < recipe.num_victims:
        raise _contradiction(index, fault, "unknown_victim", f"befalls a machine that is none of the {recipe.num_victims}")
    if (fault.kind in AT_ONCE) != (fault.duration_s == 0) or fault.duration_s < 0:
        raise _contradiction(index, fault, "wrong_duration", "is a kill that lasts, or another fault that does not")
    window, offset_s = divmod(fault.at_s, recipe.window_s)
    if not 0 <= fault.at_s < recipe.length_s or int(window) % 2 == 0:
        raise _contradiction(index, fault, "fault_outside_window", "does not begin in a window with faults")
    if offset_s + fault.duration_s > recipe.window_s - recipe.calm_s + 10**-_DIGITS:
        raise _contradiction(index, fault, "fault_outlasts_window", "is not over before the calm at the end of its window")


def _contradiction(index: int, fault: Fault, code: str, why: str) -> InvalidInput:
    return InvalidInput(f"fault {index} ({fault.kind} at {fault.at_s} s) {why}", code=code, fault=index)


def to_json(schedule: Schedule) -> str:
    """As it is committed."""
    rows = [f"  [{fault.at_s}, {json.dumps(fault.kind)}, {fault.victim}, {fault.duration_s}]" for fault in schedule.faults]
    recipe = json.dumps(asdict(schedule.recipe))
    return f'{{"format": "{FORMAT}",\n "recipe": {recipe},\n "faults": [\n' + ",\n".join(rows) + "\n ]}\n"


def from_json(text: str) -> Schedule:
    """The schedule in a file, checked. Raises InvalidInput (``bad_schedule`` for another form, else as `check_schedule`)."""
    if len(text) > MAX_FILE_CHARS:
        raise InvalidInput("the file is too large for a schedule", code="bad_schedule")
    try:
        table = json.loads(text)
        if table["format"] != FORMAT or set(table) != {"format", "recipe", "faults"}:
            raise ValueError(f"the format is not {FORMAT}")
        recipe = _recipe(table["recipe"])
        faults = tuple(_fault(row) for row in table["faults"])
    except (ValueError, KeyError, TypeError, RecursionError, OverflowError) as error:
        raise InvalidInput(f"this is no schedule: {error}", code="bad_schedule") from None
    schedule = Schedule(recipe, faults)
    check_schedule(schedule)
    return schedule


def _recipe(table: Any) -> Recipe:
    known = {item.name: item.type for item in fields(Recipe)}
    if not isinstance(table, dict) or set(table) - set(known):
        raise ValueError("the recipe has keys that mean nothing")
    return Recipe(**{name: _number(value, whole=known[name] == "int") for name, value in table.items()})


def _fault(row: Any) -> Fault:
    at_s, kind, victim, duration_s = row
    return Fault(_number(at_s), Kind(kind), int(_number(victim, whole=True)), _number(duration_s))


def _number(value: Any, *, whole: bool = False) -> Any:
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"{value!r:.40} is no {'whole ' if whole else ''}number")
    return value if whole else float(value)
