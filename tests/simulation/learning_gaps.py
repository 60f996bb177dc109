"""How long a VNode went without learning: noted from outside, at every step that a replica takes."""

from __future__ import annotations

from itertools import pairwise

from simulation.world import Simulation
from vnode.events import Learn


class LearningGaps:
    """Notes when replicas of each VNode of ``world`` learn, from here on."""

    def __init__(self, world: Simulation) -> None:
        self._kernel = world.kernel
        self._moments: dict[str, list[float]] = {vnode: [] for vnode in world.topology.inputs}
        learning = world.checkers.learning

        def noted(shell: object, learn: Learn) -> None:
            self._moments[shell.vnode].append(world.kernel.now_s)  # type: ignore[attr-defined]
            learning(shell, learn)  # type: ignore[arg-type]

        world.checkers.learning = noted  # type: ignore[method-assign]

    def longest_s(self, since_s: float) -> float:
        """The longest time, over by now and not before ``since_s``, in which no replica of some VNode learned."""
        rows = ([*row, self._kernel.now_s] for row in self._moments.values())
        return max(later - earlier for row in rows for earlier, later in pairwise(row) if later > since_s)
