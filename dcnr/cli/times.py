"""Times as people type them: ``45m``, ``2h``, ``1d``; ``07:00`` by the clock on the wall."""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from typing import Final

from dcnr.errors import InvalidInput

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def seconds_for(text: str) -> float:
    """``90s``, ``45m``, ``2h``, ``1.5d`` in seconds. Raises InvalidInput."""
    found = re.fullmatch(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)\s*([smhd])", text.strip().lower())
    seconds = float(found[1]) * _UNITS[found[2]] if found else 0.0
    if seconds <= 0:
        raise InvalidInput(f"{text[:40]!r} is no length of time", code="bad_time", remedy="write 45m, 2h or 1d")
    return seconds


def seconds_until(text: str, now: datetime) -> float:
    """Seconds from ``now``, without a zone as the clock on the wall here shows it, until that clock next shows that hour and minute; where it skips them
    for summer time, until it is so late. Raises InvalidInput.
    """
    found = re.fullmatch(r"([01]?[0-9]|2[0-3]):([0-5][0-9])", text.strip())
    if found is None:
        raise InvalidInput(f"{text[:40]!r} is no time of day", code="bad_time", remedy="write 07:00")
    today, began = now.replace(hour=int(found[1]), minute=int(found[2]), second=0, microsecond=0), now.timestamp()
    moments: list[float] = []
    for chosen in (today, today + timedelta(days=1)):
        first, second = (chosen.replace(fold=fold).timestamp() for fold in (0, 1))
        moments += [first, second] if first <= second else [first]  # a time that is skipped is the later of the two
    return min(moment for moment in moments if moment > began) - began
