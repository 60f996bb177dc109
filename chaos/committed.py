"""Which command makes which committed result: what the page names, and what a test holds the results' settings against."""

from __future__ import annotations

from typing import Final

COMMANDS: Final = {
    "every10_paced": "run --schedule every10 --batches-per-s 1.75 --unit-batches 2 --name every10_paced",
    "every_kind": "run --schedule every_kind --link home --work clouds --vnodes 3 --replicas 2 --cpu-percent 15 --batches-per-s 4 --name every_kind",
    "faults125_paced": "run --schedule faults125 --batches-per-s 3 --name faults125_paced",
    "faults125_wide": "run",
    "faults125_wide_undisturbed": "run --no-faults",
    "faults150_home_paced": (
        "run --schedule faults150 --link home --vnodes 4 --replicas 3 --batches-per-s 1.5 --unit-batches 2 --name faults150_home_paced"
    ),
    "gaps": "run --schedule kills --vnodes 4 --replicas 3 --batches-per-s 8 --cpu-percent 50 --name gaps",
    "gaps_at_five": "run --schedule kills --vnodes 4 --replicas 3 --batches-per-s 5 --cpu-percent 50 --name gaps_at_five",
    "gaps_at_two_and_a_half": "run --schedule kills --vnodes 4 --replicas 3 --cpu-percent 50 --name gaps_at_two_and_a_half",
}
"""By name of the result, the words after ``python -m chaos``."""


def command_of(name: str) -> str:
    """As the page tells it."""
    return f"`python -m chaos {COMMANDS[name]}`."
