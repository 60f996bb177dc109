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
