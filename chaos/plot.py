"""A run as a picture: batches learned over time, the windows with faults shaded, each fault a mark. SVG, made of text alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

WIDTH: Final = 960
HEIGHT: Final = 360
LEFT, RIGHT, TOP, BOTTOM = 70, 15, 45, 45
COLOURS: Final = {"kill": "#c0392b", "partition": "#8e44ad", "pause": "#d68910"}
LATER: Final = {"impair": "#16a085", "worker": "#e84393", "holder": "#2c3e50"}
"""Shown where there are some."""
NUM_TICKS: Final = 6
MAX_POINTS: Final = 1000


def svg(document: dict[str, Any]) -> str:
    """The picture of a run's document."""
    points = thinned(document["learned"], MAX_POINTS)
    settings = document["settings"]
    end_s: float = max([point[0] for point in points] + [2 * settings["pairs"] * settings["window_s"]])
    most: float = max([point[1] for point in points] + [1])

    def x(second: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * second / end_s

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * count / most

    colours = COLOURS | {kind: colour for kind, colour in LATER.items() if any(row["kind"] == kind for row in document["faults"])}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18" font-size="14">Batches learned by all VNodes; shaded: windows with faults</text>',
    ]
    for number in range(settings["pairs"]):
        begin = x((2 * number + 1) * settings["window_s"])
        width = x((2 * number + 2) * settings["window_s"]) - begin
        parts.append(f'<rect x="{begin:.1f}" y="{TOP}" width="{width:.1f}" height="{HEIGHT - TOP - BOTTOM}" fill="#eef2f7"/>')
    for number in range(NUM_TICKS + 1):
        second, count = end_s * number / NUM_TICKS, most * number / NUM_TICKS
        parts.append(f'<text x="{x(second):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{second / 60:.1f} min</text>')
        parts.append(f'<text x="{LEFT - 6}" y="{y(count) + 4:.1f}" text-anchor="end">{count:.0f}</text>')
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(count):.1f}" y2="{y(count):.1f}" stroke="#dddddd"/>')
    for row in document["faults"]:
        colour, where = colours[row["kind"]], x(row["at_s"])
        parts.append(
            f'<line x1="{where:.1f}" x2="{where:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}" stroke="{colour}" stroke-width="0.8"/>'
        )
    line = " ".join(f"{x(point[0]):.1f},{y(point[1]):.1f}" for point in points)
    parts.append(f'<polyline points="{line}" fill="none" stroke="#1f618d" stroke-width="1.8"/>')
    for number, (kind, colour) in enumerate(colours.items()):
        left = LEFT + 100 * number
        parts.append(f'<rect x="{left}" y="27" width="10" height="10" fill="{colour}"/><text x="{left + 15}" y="36">{kind}</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def thinned(points: Sequence[Sequence[float]], most: int) -> list[Sequence[float]]:
    """At most about ``most`` of them, the last one included."""
    step = max(1, len(points) // most)
    kept = list(points[::step])
    return kept if not points or kept[-1] is points[-1] else [*kept, points[-1]]
