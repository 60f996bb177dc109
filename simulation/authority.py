"""What orchestrators and the store do for the data plane: plans that reach everyone late, checkpoints that are named late or never.

A manifest never replaces a checkpoint by an older one of the same incarnation, and records of anybody but the plan's primary are refused.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dcnr.ids import ReplicaId
from simulation.arithmetic import State, initial_state
from vnode import events as ev

if TYPE_CHECKING:
    from simulation.replica_shell import ReplicaShell
    from simulation.world import Simulation


class Authority:
    """Names primaries and checkpoints."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._rng = world.kernel.rng("authority")
        self.primary: dict[str, tuple[ReplicaId, int]] = {}
        self.named: dict[str, State] = {vnode: initial_state(vnode) for vnode in world.topology.inputs}
        self._named_by: dict[str, int] = {}
        self._count: dict[str, int] = {}
        self._incarnations = 0
        self.changed_s = 0.0
        """Until when incarnations, plans or ways may be in motion."""
        self.store_away_until_s = 0.0
        self.heads_silent_until_s = 0.0

    def start(self) -> None:
        """Places everything; the head is seen every two seconds."""
        for vnode in self._world.topology.inputs:
            self._place(vnode, new_replica=True)
        self.spread()
        self._see_head()

    def _see_head(self) -> None:
        if self._world.kernel.now_s >= self.heads_silent_until_s:
            for shell in self._world.shells:
                shell.process.post(lambda shell=shell: shell.feed(ev.HeadSeen(shell.now_s)))  # type: ignore[misc]
        self._world.kernel.after(2.0, self._see_head)

    def _place(self, vnode: str, *, new_replica: bool) -> None:
        """A new incarnation of the primary, restored from the newest named checkpoint."""
        self._incarnations += 1
        if new_replica:
            self._count[vnode] = self._count.get(vnode, -1) + 1
        replica = ReplicaId(f"{vnode}.{self._count[vnode]}")
        self.primary[vnode] = (replica, self._incarnations)
        self._world.add_shell(vnode, replica, self._incarnations, self.named[vnode])

    def replace(self, vnode: str) -> None:
        """The primary is thought dead: another replica, or the same one with a higher incarnation, takes over."""
        self._place(vnode, new_replica=self._rng.random() < 0.6)
        self.spread()

    def spread(self) -> None:
        """Sends the newest plan to every process, each at its own time; who is not in it stops when it hears."""
        self.disturbed(3.0)
        for shell in list(self._world.shells):
            shell.process.after(self._rng.uniform(0.05, 3.0), lambda shell=shell: self._tell(shell))  # type: ignore[misc]

    def _tell(self, shell: ReplicaShell) -> None:
        """What the plan says now; a paused process hears it when it wakes."""
        if self.primary[shell.vnode] != (shell.replica, shell.incarnation):
            shell.process.after(self._rng.uniform(0.0, 2.0), shell.stop)
            return
        self.disturbed(0.0)
        topology = self._world.topology
        inputs = enumerate(topology.inputs[shell.vnode])
        predecessors = {edge: self.primary[read][0] for edge, read in inputs if read in self.primary}
        successors = frozenset(self.primary[other][0] for other in topology.successors(shell.vnode))
        shell.new_plan(predecessors, successors)

    def disturbed(self, for_s: float) -> None:
        """Who lives, who knows it, or who can reach whom may change for so long."""
        self.changed_s = max(self.changed_s, self._world.kernel.now_s + for_s)

    def upload(self, shell: ReplicaShell, state: State) -> None:
        """A snapshot travels to the store and into a manifest; uploads may overtake each other."""
        delay_s = self._rng.uniform(0.2, 3.0) + max(0.0, self.store_away_until_s - self._world.kernel.now_s)
        self._world.kernel.after(delay_s, lambda: self._record(shell, state))

    def _record(self, shell: ReplicaShell, state: State) -> None:
        is_primary = self.primary[shell.vnode] == (shell.replica, shell.incarnation)
        if is_primary and self._rng.random() < self._world.knobs.condemned_probability:
            shell.process.post(lambda: shell.feed(ev.CheckpointLost(shell.now_s, "condemned")))
        elif is_primary and self.may_replace(shell, state):
            self._world.checkers.named(shell, self.named[shell.vnode], state, self._named_by.get(shell.vnode))
            self.named[shell.vnode] = state
            self._named_by[shell.vnode] = shell.incarnation
            shell.process.after(self._rng.uniform(0.1, 1.0), lambda: self._answer(shell))

    def may_replace(self, shell: ReplicaShell, state: State) -> bool:
        """Whether ``state`` may replace the checkpoint that is named."""
        is_same = self._named_by.get(shell.vnode) == shell.incarnation
        return not is_same or not (self.named[shell.vnode].lineage - state.lineage)

    def _answer(self, shell: ReplicaShell) -> None:
        shell.feed(ev.CheckpointNamed(shell.now_s, self.named[shell.vnode].lineage))
