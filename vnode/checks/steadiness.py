"""Whether a span decides anything: from states and inputs that differ in last bits alone the same machine has to come to the same.

Past the edge of stability it does not. There one last bit grows from step to step, most of all where losses rise and values cross their ReLUs: no two machines
stay together, and how far an honest one is off says nothing. So before a span accuses anybody it is run once more from weights that are moved by a unit
in the last place, and where its own steps have then led elsewhere, it accuses nobody. So are its inputs: what a stage normalises before any weight of its own
comes to it may be next to nothing beside its mean, and what is left of it then is how a machine adds up. Torch-free.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np

from trust.comparison import Comparison
from trust.findings import DOUBT_FACTOR
from vnode.checks.tolerances import table
from vnode.state import Array, StateSchema, parse, serialise

FOLLOWED: Final = ("output", "loss", "slots", "buffers")
"""Parts that show where steps have led. Weights are what is moved, and where a learning rate ends they move by no more than that themselves."""


FIRST_STEPS: Final = 2
"""In which hardly anything grows, unless whoever made the state meant it to: they are looked at by themselves."""


def may_have_grown(comparison: Comparison) -> bool:
    """Whether it is a fault that last bits could be the cause of."""
    return comparison.ratio > DOUBT_FACTOR and math.isfinite(comparison.residual)


def shaken(state: bytes, schema: StateSchema, rng: np.random.Generator) -> bytes:
    """The same state, with each weight one unit in the last place up or down. The largest numbers go down. Raises Corrupt.

    ``rng``: nobody may know beforehand what it draws: whoever makes a state could lay it where these bits lead to the same and those of other machines do not.
    """
    info, values = parse(state, schema)
    moved = {
        name: _beside(value, rng) if name.startswith("w/") and value.dtype.kind == "f" else value for name, value in values.items()
    }
    return serialise(schema, info, moved)


def shaken_input(values: Array, rng: np.random.Generator) -> Array:
    """The same input, with each number one unit in the last place up or down. Whole numbers and shorter ones, and zeros and what is next to them, are as they
    are: no machine has them otherwise, a unit of a shorter one is no last bit, and the smallest numbers take processors many times as long.
    """
    if values.dtype != np.float32:
        return values
    moved: Array = np.where(np.abs(values) < np.finfo(values.dtype).tiny, values, _beside(values, rng))
    return moved


def _beside(values: Array, rng: np.random.Generator) -> Array:
    """In little more memory than that of the values: a state may be most of what its auditor lends."""
    up, largest = rng.integers(0, 2, values.shape, dtype=np.uint8), np.finfo(values.dtype).max
    towards = np.where(up, values.dtype.type(math.inf), values.dtype.type(-math.inf))
    towards[np.abs(values) == largest] = 0.0
    beside: Array = np.nextafter(values, towards)
    return beside


def has_led_elsewhere(mine: Comparison, of_shaken: Comparison) -> bool:
    """Whether these, of one claimed figure, are further apart than honest machines were measured to be. What is between two runs of this machine is at least
    the difference of their distances from any third; of a claim that is many times as large as what was found that is as many times larger, for distances are
    told in units of what each run found: a last bit of that unit would do. They have led elsewhere, too, where what is told next of that run is another figure.
    """
    if (mine.step, mine.part, mine.name) != (of_shaken.step, of_shaken.part, of_shaken.name):
        return True
    if mine.part not in FOLLOWED:
        return False
    apart = abs(mine.residual - of_shaken.residual)
    return math.isfinite(apart) and apart * float(table()["margin"]) > mine.tolerance * max(1.0, mine.residual)


def came_to_nothing(comparison: Comparison) -> Comparison:
    """Of a step that gives nothing finite on this machine, though somebody says what it gave: a doubt. Last bits decide that wherever a gradient is as large as
    may be, and how often they do lies with whoever made the state: no second run tells. Where that was done is found as behind any doubt.
    """
    return replace(comparison, residual=DOUBT_FACTOR * comparison.tolerance)


def doubted(comparison: Comparison) -> Comparison:
    """Of a fault a doubt, of anything else itself. What is infinite is no matter of last bits."""
    if comparison.ratio <= DOUBT_FACTOR or not math.isfinite(comparison.residual):
        return comparison
    return replace(comparison, tolerance=comparison.residual / DOUBT_FACTOR)
