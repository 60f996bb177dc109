"""Which test process gets which file: of several, the last one begins at the other end.

The files that come first start networks, which mostly wait; those at the end compute without a pause. In one queue the processor would be idle first, and
short of time at the end.
"""

from __future__ import annotations

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController


def last_of(count: int) -> str:
    """The name of the last of several test processes."""
    return f"gw{count - 1}"


class FromBothEnds(LoadFileScheduling):
    """Whole files in their order; to the last process in the opposite one."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        if self.numnodes > 1 and node.gateway.id == last_of(self.numnodes):
            self.workqueue.move_to_end(next(reversed(self.workqueue)), last=False)
        super()._assign_work_unit(node)

    def schedule(self) -> None:
        """As `LoadFileScheduling`; who takes the place of a test process that died gets two tests at once as well: one alone would not be begun, since a test
        is begun when the next one is known, and everybody would wait for it without end.
        """
        super().schedule()
        for node in self.registered_collections:
            while (
                node in self.assigned_work
                and self.workqueue
                and not node.shutting_down
                and self._pending_of(self.assigned_work[node]) < 2
            ):
                self._assign_work_unit(node)
