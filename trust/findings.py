"""What a measured residual means. Pure.

The tolerance comes from measurements of honest machines. The smallest cheats that were tried stand well above it (a gradient scaled by 1.01 at five times), so
that a residual between once and twice the tolerance is worth a second opinion, and above that a fault.
"""

from __future__ import annotations

import math
from typing import Final

from dcnr.errors import InvalidInput
from trust.overturned import Finding

DOUBT_FACTOR: Final = 2.0
"""Up to this many times the tolerance a residual is a doubt."""


def finding_of(residual: float, tolerance: float) -> Finding:
    """Pass, doubt or fault. Raises InvalidInput for a residual that is no number from 0 on: whoever measured that has measured nothing."""
    if not (residual >= 0.0 and 0.0 < tolerance < math.inf):
        raise InvalidInput(f"a residual of {residual!r} at a tolerance of {tolerance!r} says nothing", code="bad_residual")
    if residual <= tolerance:
        return Finding.PASS
    return Finding.DOUBT if residual <= DOUBT_FACTOR * tolerance else Finding.FAULT
