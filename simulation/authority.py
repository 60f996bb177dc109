"""What orchestrators and the store do for the data plane: plans that reach everyone late, checkpoints that are named late or never.

A manifest never replaces a checkpoint by an older one of the same incarnation, and records of anybody but the plan's primary are refused.
A lost primary is followed by the live replica of its VNode that has learned most, unless the newest checkpoint holds more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from dcnr.ids import ReplicaId
from dcnr.units import Share
from simulation.arithmetic import State, initial_state
from vnode import events as ev
from vnode.vocabulary import Role

if TYPE_CHECKING:
    from simulation.replica_shell import ReplicaShell
    from simulation.world import Simulation


@dataclass(frozen=True, slots=True)
class Member:
    """A replica of the newest plan."""

    incarnation: int
    weight: float


class Authority:
    """Names replicas, primaries and checkpoints."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._rng = world.kernel.rng("authority")
        self.members: dict[str, dict[ReplicaId, Member]] = {vnode: {} for vnode in world.topology.inputs}
        self.primary: dict[str, ReplicaId] = {}
        self.named: dict[str, State] = {vnode: initial_state(vnode) for vnode in world.topology.inputs}
        self._named_by: dict[str, tuple[ReplicaId, int]] = {}
        self._count: dict[str, int] = {}
        self._incarnations = 0
        self.changed_s = 0.0
        """Until when incarnations, plans or ways may be in motion."""
        self.store_away_until_s = 0.0
        self.heads_silent_until_s = 0.0

    def start(self) -> None:
        """Places everything; the head is seen every two seconds."""
        for vnode, (num_learning, num_standbys) in self._world.num_replicas.items():
            self.primary[vnode] = self._new_id(vnode)
            self._place(vnode, self.primary[vnode], 1.0)
            for weight in [self._weight() for _ in range(num_learning - 1)] + [0.0] * num_standbys:
                self._place(vnode, self._new_id(vnode), weight)
        self.spread()
        self._see_head()

    def _weight(self) -> float:
        return self._rng.choice(self._world.knobs.weights)

    def _see_head(self) -> None:
        if self._world.kernel.now_s >= self.heads_silent_until_s:
            for shell in self._world.shells:
                shell.process.post(lambda shell=shell: shell.feed(ev.HeadSeen(shell.now_s)))  # type: ignore[misc]
        self._world.kernel.after(2.0, self._see_head)

    # ---- who is in the plan ---------------------------------------------------------------------------------------------------

    def names(self, shell: ReplicaShell) -> bool:
        """Whether the newest plan has this incarnation of it."""
        member = self.members[shell.vnode].get(shell.replica)
        return member is not None and member.incarnation == shell.incarnation

    def shares(self, vnode: str) -> tuple[Share, ...]:
        """All replicas of a VNode, its primary first."""
        first = self.primary[vnode]
        ordered = sorted(self.members[vnode].items(), key=lambda item: (item[0] != first, item[0]))
        return tuple(Share(replica, member.weight) for replica, member in ordered)

    def _new_id(self, vnode: str) -> ReplicaId:
        self._count[vnode] = self._count.get(vnode, -1) + 1
        return ReplicaId(f"{vnode}.{self._count[vnode]}")

    def _place(self, vnode: str, replica: ReplicaId, weight: float) -> None:
        """A new incarnation, restored from the newest named checkpoint."""
        self._incarnations += 1
        self.members[vnode][replica] = Member(self._incarnations, weight)
        self._world.add_shell(vnode, replica, self._incarnations, self.named[vnode], self._role(vnode, replica))

    def _role(self, vnode: str, replica: ReplicaId) -> Role:
        if replica == self.primary[vnode]:
            return Role.PRIMARY
        return Role.CONTRIBUTOR if self.members[vnode][replica].weight else Role.STANDBY

    def replace(self, shell: ReplicaShell) -> None:
        """A replica is thought dead: another one, or the same with a higher incarnation, takes its place; a sibling may become primary."""
        if not self.names(shell):
            return
        vnode, weight = shell.vnode, self.members[shell.vnode][shell.replica].weight
        successor = (
            self.successor(shell)
            if self.primary[vnode] == shell.replica and self._rng.random() < self._world.knobs.successions
            else None
        )
        if successor is not None:
            siblings = [other.state for other in self._siblings(shell)]
            self._world.checkers.succeeds(successor.state, siblings, self.named[vnode])
        if successor is None and self._rng.random() < 0.4:
            self._place(vnode, shell.replica, weight)
        else:
            del self.members[vnode][shell.replica]
            fresh = self._new_id(vnode)
            if self.primary[vnode] == shell.replica:
                self.primary[vnode] = successor.replica if successor else fresh
            if successor is not None:
                self._reweigh(vnode, successor.replica, max(1.0, weight))
                weight = self._weight()
            self._place(vnode, fresh, weight)
        self.spread()

    def lose(self, shell: ReplicaShell, newcomer_s: float) -> None:
        """As orchestrators do where a machine is gone: its siblings, of which one lives, owe what it owed from this plan on. A replica with a number
        of its own comes ``newcomer_s`` later, by a plan of its own.
        """
        vnode, successor = shell.vnode, self.successor(shell)
        weight = self.members[vnode].pop(shell.replica).weight
        if self.primary[vnode] == shell.replica and successor is not None:
            self.primary[vnode] = successor.replica

        def another() -> None:
            self._place(vnode, self._new_id(vnode), weight)
            self.spread()

        self.spread()
        self._world.kernel.after(newcomer_s, another)

    def successor(self, dead: ReplicaShell) -> ReplicaShell | None:
        """The live sibling that has learned most; None where the newest checkpoint holds more."""
        best = max(self._siblings(dead), key=lambda shell: (len(shell.state.lineage), shell.replica), default=None)
        return None if best is None or len(best.state.lineage) < len(self.named[dead.vnode].lineage) else best

    def _siblings(self, shell: ReplicaShell) -> list[ReplicaShell]:
        return [other for other in self._world.members() if other.vnode == shell.vnode and other is not shell]

    def _reweigh(self, vnode: str, replica: ReplicaId, weight: float) -> None:
        self.members[vnode][replica] = replace(self.members[vnode][replica], weight=weight)

    def rearrange(self) -> None:
        """A new plan without a fault: a replica's weight changes, one is added or released; units move."""
        vnode = self._rng.choice(sorted(self.members))
        others = sorted(set(self.members[vnode]) - {self.primary[vnode]})
        kind = self._rng.choice(["weight", "add", "release"]) if others else "add"
        if kind == "add" and len(others) < 3:
            self._place(vnode, self._new_id(vnode), self._weight())
        elif kind == "release" and others:
            del self.members[vnode][self._rng.choice(others)]
        elif others:
            self._reweigh(vnode, self._rng.choice(others), self._rng.choice([0.0, 0.5, 1.0, 2.0]))
        self.spread()

    def spread(self) -> None:
        """Sends the newest plan to every process, each at its own time; who is not in it stops when it hears."""
        plan_s = self._world.knobs.plan_s
        self.disturbed(plan_s[1])
        for shell in list(self._world.shells):
            shell.process.after(self._rng.uniform(*plan_s), lambda shell=shell: self._tell(shell))  # type: ignore[misc]

    def _tell(self, shell: ReplicaShell) -> None:
        """What the plan says now; a paused process hears it when it wakes."""
        if not self.names(shell):
            shell.process.after(self._rng.uniform(0.0, 2.0), shell.stop)
            return
        self.disturbed(0.0)
        topology, vnode = self._world.topology, shell.vnode
        shell.new_plan(
            ev.PlanChanged(
                shell.now_s,
                {edge: self.shares(read) for edge, read in enumerate(topology.inputs[vnode]) if read in self.primary},
                frozenset(replica for other in topology.successors(vnode) for replica in self.members[other]),
                self._world.lead_batches,
                self.shares(vnode),
                self._role(vnode, shell.replica),
                self.primary[vnode],
                widest_lead_batches=self._world.widest_lead_batches,
                tempo=self._world.tempo,
            )
        )

    def disturbed(self, for_s: float) -> None:
        """Who lives, who knows it, or who can reach whom may change for so long."""
        self.changed_s = max(self.changed_s, self._world.kernel.now_s + for_s)

    # ---- checkpoints ----------------------------------------------------------------------------------------------------------

    def upload(self, shell: ReplicaShell, state: State) -> None:
        """A snapshot travels to the store and into a manifest; uploads may overtake each other."""
        delay_s = self._rng.uniform(0.2, 3.0) + max(0.0, self.store_away_until_s - self._world.kernel.now_s)
        self._world.kernel.after(delay_s, lambda: self._record(shell, state))

    def _record(self, shell: ReplicaShell, state: State) -> None:
        may_record = self.may_record(shell)
        if may_record and self._rng.random() < self._world.knobs.condemned_probability:
            shell.process.post(lambda: shell.feed(ev.CheckpointLost(shell.now_s, "condemned")))
        elif may_record and self.may_replace(shell, state):
            self._world.checkers.named(shell, self.named[shell.vnode], state, self._named_by.get(shell.vnode))
            self.named[shell.vnode] = state
            self._named_by[shell.vnode] = (shell.replica, shell.incarnation)
            for other in self._world.shells:
                if other.vnode == shell.vnode:
                    other.process.after(self._rng.uniform(0.1, 1.0), lambda other=other: self._answer(other))  # type: ignore[misc]

    def may_record(self, shell: ReplicaShell) -> bool:
        """Whether its checkpoints enter manifests."""
        return self.names(shell) and self.primary[shell.vnode] == shell.replica

    def may_replace(self, shell: ReplicaShell, state: State) -> bool:
        """Whether ``state`` may replace the checkpoint that is named."""
        is_same = self._named_by.get(shell.vnode) == (shell.replica, shell.incarnation)
        return not is_same or not (self.named[shell.vnode].lineage - state.lineage)

    def _answer(self, shell: ReplicaShell) -> None:
        shell.feed(ev.CheckpointNamed(shell.now_s, self.named[shell.vnode].lineage))
