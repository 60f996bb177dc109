"""Many PNodes join a network at one moment while a job runs: at what rate batches come to be merged before, meanwhile and afterwards.

Planner, decider, desired states, provisioning, deltas and anchors are those of the control world. What a newcomer restores leaves its primary's line, as do the
anchors for its siblings: one after the other, at no more than the share of the line that bulk may take, as `pnode.uplink` has it. Frames are not modelled
here: that no VNode waits for another is the data plane's world to show.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

from dcnr import limits
from simulation.control_knobs import ControlKnobs
from simulation.control_world import ControlWorld
from simulation.kernel import Kernel

SETTLED_S: Final = 25.0
"""From here on the first PNodes work, and the rate before is measured."""
JOIN_S: Final = 45.0
END_S: Final = 105.0
WINDOW_S: Final = 10
"""The rate of a moment is that of so many seconds before it: a primary with many siblings answers each of them within about that."""
LOWERED: Final = 0.8
"""Of the rate before; below that a network is held up by who joins."""
MAX_LOWERED_S: Final = 30.0


def joining_knobs(seed: int, num_joiners: int = 20) -> ControlKnobs:
    """Twenty PNodes work on a model whose VNodes take as many replicas as there are machines; states of up to 1.5 MiB over lines of 20 Mbit/s."""
    rng = Kernel(seed).rng("joining-knobs")
    delta_bytes = rng.choice([256, 512]) * limits.KIB
    return ControlKnobs(
        num_orchestrators=2, num_pnodes=20 + num_joiners, num_joiners=num_joiners, join_s=JOIN_S, num_vnodes=4,
        replicas=rng.choice([(0,), (8,), (10,)]), vnodes_per_node=1, num_batches=20_000, learn_rate=1.0, checkpoint_s=10.0,
        jobs=3, jobs_every_s=(0.5, 1.0), faults_s=END_S, store_fault_rate=0.0, slow_store_rate=0.0, store_outages=0, call_loss_rate=0.0,
        tamper_rate=0.0, orchestrator_crashes=0, orchestrator_pauses=0, pnode_crashes=0, pnode_losses=0, pnode_pauses=0, worker_deaths=0,
        leavers=0, partitions=0, stream_breaks=0, store_partitions=0, state_bytes=3 * delta_bytes, delta_bytes=delta_bytes,
        bulk_bytes_s=20e6 / 8 * limits.UPLINK_SHARE,
    )  # fmt: skip


class JoiningWorld(ControlWorld):
    """Counts merged batches each second, and ends in the middle of the job."""

    def __init__(self, seed: int, knobs: ControlKnobs | None = None) -> None:
        super().__init__(seed, knobs or joining_knobs(seed), "--world joining")
        self.merged: list[int] = []
        """By second: batches in the lineages of primaries, of all VNodes together."""
        self.num_newcomers = 0
        """PNodes that joined and had work in the end."""

    def _run(self) -> None:
        self._begin()
        self.kernel.after(1.0, self._count)
        self._until(END_S, lambda: False)
        joined = self.pnodes[len(self.pnodes) - self.knobs.num_joiners :]
        self.num_newcomers = sum(bool(pnode.worker.replicas) for pnode in joined)
        self.require(
            self.lowered_s <= MAX_LOWERED_S, "joiners",
            f"{self.knobs.num_joiners} joiners lower a rate of {self.before:.1f} batches/s by more than a fifth for {self.lowered_s:.0f} s",
        )  # fmt: skip

    def _count(self) -> None:
        best: dict[str, int] = {}
        for pnode in self.pnodes:
            for replica in pnode.worker.replicas.values():
                if replica.leads:
                    best[replica.vnode] = max(best.get(replica.vnode, 0), len(replica.lineage))
        self.merged.append(sum(best.values()))
        self.kernel.after(1.0, self._count)

    def rates(self, from_s: float, end_s: float) -> list[float]:
        """By second: batches merged per second in the `WINDOW_S` before."""
        merged = self.merged
        return [(merged[at] - merged[at - WINDOW_S]) / WINDOW_S for at in range(int(from_s), min(int(end_s), len(merged)))]

    @property
    def before(self) -> float:
        """Batches merged per second before anybody joined."""
        return (self.merged[int(JOIN_S) - 1] - self.merged[int(SETTLED_S) - 1]) / (JOIN_S - SETTLED_S)

    @property
    def after(self) -> float:
        """The same in the last `MAX_LOWERED_S`."""
        return (self.merged[-1] - self.merged[-1 - int(MAX_LOWERED_S)]) / MAX_LOWERED_S

    @property
    def lowest(self) -> float:
        """The lowest rate of any `WINDOW_S` after they joined."""
        return min(self.rates(JOIN_S + WINDOW_S, END_S))

    @property
    def lowered_s(self) -> float:
        """For how long in a row the rate was lower than `LOWERED` of that before, at most."""
        well = [at for at, rate in enumerate(self.rates(JOIN_S, END_S)) if rate >= LOWERED * self.before]
        return float(max((later - at - 1 for at, later in pairwise([-1, *well, int(END_S - JOIN_S)])), default=0))
