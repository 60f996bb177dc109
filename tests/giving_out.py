"""Which test process gets which file: of several, the last one takes only tests that start no network.

Networks mostly wait, so that files given out in one queue leave the processor idle while networks run, and nothing waits when only computing is left. The
last process fills the pauses. It runs at the low priority of workers: a test that computes without a pause takes nothing from a network that needs it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from typing import Final

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

COMPUTING: Final = tuple(f"tests/{level}/" for level in ("unit", "property", "simulation", "tidy"))
NICE: Final = 10
"""As `pnode.worker.NICE`."""


def computes(files: Iterable[str]) -> bool:
    """Whether one of these files, or tests, starts no network."""
    return any(file.startswith(COMPUTING) for file in files)


def fills_pauses(config: pytest.Config) -> bool:
    """Whether this process is the last one of several."""
    given = getattr(config, "workerinput", None)
    return given is not None and given["workercount"] > 1 and given["workerid"] == _last(given["workercount"])


def _last(num_processes: int) -> str:
    return f"gw{num_processes - 1}"


class FillingPauses(LoadFileScheduling):
    """Whole files in their order, as ever; but for the last process, which takes those that compute from the end, and is done when none is left."""

    def _reschedule(self, node: WorkerController) -> None:
        if self._fills(node) and not computes(self.workqueue):
            if not node.shutting_down:
                node.shutdown()
            return
        super()._reschedule(node)

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self._fills(node) and computes(self.workqueue):
            last = next(file for file in reversed(self.workqueue) if computes([file]))
            self.workqueue.move_to_end(last, last=False)
        super()._assign_work_unit(node)

    def _fills(self, node: WorkerController) -> bool:
        return self.numnodes > 1 and node.gateway.id == _last(self.numnodes) and self._some_compute

    @cached_property
    def _some_compute(self) -> bool:
        """Asked when all is collected."""
        return computes(self.collection or ())
