"""Which checker notices a planted bug."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from dcnr.errors import DcnrError
from simulation.world import Violation


class Runs(Protocol):
    """A world that is ready to run."""

    def run(self) -> Any:
        """Raises Violation, DcnrError."""
        ...


def first_red(worlds: Iterable[Runs]) -> str:
    """The checker that notices first; empty if all worlds pass."""
    for world in worlds:
        try:
            world.run()
        except Violation as violation:
            return violation.checker
        except DcnrError as error:
            return error.code
    return ""
