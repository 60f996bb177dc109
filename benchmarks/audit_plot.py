"""How likely a cheat is found against what audits cost, with the probability p of the draw between them: a table and a picture from two committed results.

Of ``detection.json`` the share d of audited cheats that do not stay in the model, of ``audit_cost.json`` what audits cost where all is drawn (p = 1);
both costs grow with p. A cheat in k intervals is found with probability 1 - (1 - d·p)^k.
"""

from __future__ import annotations

import math
from typing import Any, Final

from trust.draw import FLOOR, LOWEST_FLOOR

NAME: Final = "audits.svg"
RATES: Final = (LOWEST_FLOOR, 0.02, FLOOR, 0.1, 0.2, 0.5, 1.0)
"""The least for whom maintainers trust, the least for anybody, and up to that of probation."""
INTERVALS: Final = (1, 5, 20, 90)
"""Cheated ones: a line of the picture each."""
SURE: Final = 0.99
WIDTH: Final = 960
HEIGHT: Final = 400
LEFT, RIGHT, TOP, BOTTOM = 70, 15, 50, 75
COLOURS: Final = ("#c0392b", "#d68910", "#1f618d", "#117a65")
POINTS: Final = 120


def found(p: float, d: float, num_intervals: int) -> float:
    """Probability that at least one of so many cheated intervals is drawn and seen."""
    return 1.0 - (1.0 - d * p) ** num_intervals


def needed(p: float, d: float) -> int:
    """Cheated intervals after which it is found in 99 of 100 lives."""
    return 1 if d * p >= SURE else math.ceil(math.log(1.0 - SURE) / math.log(1.0 - d * p))


def costs(cost: dict[str, Any], p: float) -> tuple[float, float]:
    """Of audits at this rate: processor time and bytes of both directions, against learning."""
    row = cost["ratios"]["after_0_passes"]
    return p * row["compute"] / row["rate"], p * row["bytes"] / row["rate"]


def table(cost: dict[str, Any], detection: dict[str, Any]) -> str:
    """Costs and probabilities by p."""
    d = detection["ratios"]["detected"]
    head = ["p", "processor time", "bytes, both directions", *(f"found in {k}" for k in INTERVALS), "99 % in"]
    rows = [
        [f"{p:g}", *(f"{100 * share:.3g} %" for share in costs(cost, p)), *(f"{100 * found(p, d, k):.3g} %" for k in INTERVALS), str(needed(p, d))]
        for p in RATES
    ]  # fmt: skip
    lines = [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows)]
    about = (
        f"What is bought with it, by the probability p of the draw ({FLOOR:g} is the floor for anybody, {LOWEST_FLOOR:g} the least for whom maintainers "
        "trust): costs against learning, of the dearest of the stages above, and how likely it is that a cheat in so many intervals is found; where it is "
        f"audited it is found with probability {d:g} (`detection.json`)."
    )
    return "\n".join([about, "", *lines, "", f"![Probability that a cheat is found, against what audits cost](results/{NAME})"])


def svg(cost: dict[str, Any], detection: dict[str, Any]) -> str:
    """The same as a picture: one line for each number of cheated intervals, p along the axis with what it costs."""
    d, least = detection["ratios"]["detected"], math.log(RATES[0])

    def x(p: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (1.0 - math.log(p) / least)

    def y(share: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * share

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Probability that a cheat is found, against what audits cost</text>',
    ]
    for number in range(5):
        share = number / 4
        parts.append(f'<text x="{LEFT - 6}" y="{y(share) + 4:.1f}" text-anchor="end">{100 * share:.0f} %</text>')
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(share):.1f}" y2="{y(share):.1f}" stroke="#dddddd"/>')
    for p in RATES:
        compute, moved = costs(cost, p)
        anchor = "start" if p == RATES[0] else "end" if p == RATES[-1] else "middle"
        parts.append(f'<line x1="{x(p):.1f}" x2="{x(p):.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="#eeeeee"/>')
        for row, text in enumerate((f"p = {p:g}", f"{100 * compute:.3g} % compute", f"{100 * moved:.3g} % bytes")):
            parts.append(f'<text x="{x(p):.1f}" y="{HEIGHT - BOTTOM + 18 + 16 * row}" text-anchor="{anchor}">{text}</text>')
    for number, (k, colour) in enumerate(zip(INTERVALS, COLOURS, strict=True)):
        rates = [math.exp(least * (1 - step / POINTS)) for step in range(POINTS + 1)]
        line = " ".join(f"{x(p):.1f},{y(found(p, d, k)):.1f}" for p in rates)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        left = LEFT + 170 * number
        name = f"{k} cheated interval{'s' * (k > 1)}"
        parts.append(f'<rect x="{left}" y="28" width="10" height="10" fill="{colour}"/><text x="{left + 15}" y="37">{name}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"
