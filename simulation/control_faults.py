"""When things break in the control world: crashes with and without disk, pauses, partitions, broken streams, outages, leavers; all healed at one moment."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dataservice import keys
from simulation.control_identity import MODEL
from simulation.control_store import STORE_HOST

if TYPE_CHECKING:
    from simulation.control_orchestrator import OrchestratorShell
    from simulation.control_pnode import PNodeShell
    from simulation.control_world import ControlWorld

RESTORED_S: Final = 25.0
"""So long before the heal the store goes back for the last time: a taker's wait, and another one where PNodes show a newer head."""
WHOLE_SHARE: Final = 0.5
"""So often everything goes back; else the head alone, as where what lies beside it was copied later, if all that is there still."""


class ControlFaults:
    """The schedule of one history's faults."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._rng = world.kernel.rng("faults")
        self._backups = world.kernel.rng("backups")
        self._restored: tuple[bytes, float] = (b"", -RESTORED_S)
        """The head that the store went back to last, and when."""
        self._lost: set[int] = set()
        self.counts: Counter[str] = Counter()
        """How often each kind of fault was met."""
        self.num_shocks = 0
        """VNodes that faults so far may have cost their place."""

    def plan(self) -> None:
        """Draws all faults inside the fault phase."""
        knobs = self._world.knobs
        self.num_shocks += knobs.lying_pnodes * knobs.num_vnodes * knobs.jobs
        for count, fault in (
            (knobs.orchestrator_crashes, self._crash_orchestrator),
            (knobs.orchestrator_pauses, self._pause_orchestrator),
            (knobs.pnode_crashes, self._crash_pnode),
            (knobs.pnode_losses, self._lose_pnode),
            (knobs.pnode_pauses, self._pause_pnode),
            (knobs.worker_deaths, self._kill_worker),
            (knobs.leavers, self._leave),
            (knobs.partitions, self._partition),
            (knobs.store_partitions, self._partition_store),
            (knobs.stream_breaks, self._world.network.break_one),
            (knobs.store_outages, self._outage),
            (knobs.full_disks, self._fill_disk),
        ):
            for _ in range(count):
                self._world.kernel.after(self._rng.uniform(2.0, knobs.faults_s - 1.0), functools.partial(self._strike, fault))
        for _ in range(knobs.restores):
            self._world.kernel.after(self._backups.uniform(4.0, knobs.faults_s - RESTORED_S - 5.0), self._copy_store)
        if knobs.blackout_s:
            when_s = self._rng.uniform(12.0, knobs.faults_s - knobs.blackout_s - 1.0)
            self._world.kernel.after(when_s, lambda: self._strike(self._blackout))

    def _strike(self, fault: Callable[[], None]) -> None:
        name = fault.__name__.removeprefix("_")
        self.counts[name] += 1
        self._world.kernel.note("fault", name)
        fault()

    def heal(self) -> None:
        """Everything lives from here on, and nothing new goes wrong."""
        for orchestrator in self._world.orchestrators:
            if not orchestrator.is_alive:
                orchestrator.start()
        for pnode in self._world.pnodes:
            self._restart(pnode)

    def shock(self, pnode: PNodeShell) -> None:
        """What this PNode hosts may have to move, and may move back."""
        self.num_shocks += 1 + len(pnode.worker.replicas)

    def _for_s(self, wanted_s: float) -> float:
        """Not beyond the fault phase."""
        return max(0.1, min(wanted_s, self._world.knobs.faults_s - self._world.kernel.now_s))

    def _orchestrator(self) -> OrchestratorShell | None:
        """The holder more often than not."""
        living = [shell for shell in self._world.honest() if shell.is_alive]
        holders = [shell for shell in living if shell.is_holder]
        if holders and self._rng.random() < 0.6:
            return holders[0]
        return self._rng.choice(living) if living else None

    def _pnode(self) -> PNodeShell | None:
        """One that hosts something more often than not."""
        living = [pnode for pnode in self._world.pnodes if pnode.process.alive]
        hosting = [pnode for pnode in living if pnode.worker.replicas]
        if hosting and self._rng.random() < 0.7:
            return self._rng.choice(hosting)
        return self._rng.choice(living) if living else None

    def _crash_orchestrator(self) -> None:
        shell = self._orchestrator()
        if shell is not None:
            shell.crash()
            self._world.kernel.after(self._rng.choice([0.5, 3.0, 15.0, 40.0]), lambda: self._revive(shell))

    def _revive(self, shell: OrchestratorShell) -> None:
        if not shell.is_alive:
            shell.start()

    def _pause_orchestrator(self) -> None:
        shell = self._orchestrator()
        if shell is not None:
            self._all_may_move()
            shell.process.pause(self._for_s(self._rng.choice([1.0, 5.0, 9.0, 14.0, 25.0]) * self._rng.uniform(0.8, 1.2)))

    def _all_may_move(self) -> None:
        self.num_shocks += self._world.knobs.num_vnodes

    def _crash_pnode(self) -> None:
        pnode = self._pnode()
        if pnode is not None:
            self.shock(pnode)
            pnode.crash(keep_disk=self._rng.random() < 0.6)
            self._world.kernel.after(self._rng.choice([1.0, 8.0, 40.0]), lambda: self._restart(pnode))

    def _lose_pnode(self) -> None:
        pnode = self._pnode()
        if pnode is not None:
            self.shock(pnode)
            self._lost.add(pnode.index)
            pnode.crash(keep_disk=False)

    def _restart(self, pnode: PNodeShell) -> None:
        if not pnode.process.alive and pnode.index not in self._lost:
            pnode.start()

    def _pause_pnode(self) -> None:
        pnode = self._pnode()
        if pnode is not None:
            self.shock(pnode)
            pnode.process.pause(self._for_s(self._rng.uniform(1.0, 20.0)))

    def _fill_disk(self) -> None:
        """Nothing can be written for a while: neither snapshots nor what it was told to do."""
        pnode = self._pnode()
        if pnode is not None:
            self.shock(pnode)
            for_s = self._for_s(self._rng.uniform(2.0, 30.0))
            self._world.kernel.note("disk full", pnode.host, round(for_s, 3))
            pnode.disk.fill(for_s)

    def _kill_worker(self) -> None:
        pnode = self._pnode()
        if pnode is None or not pnode.worker.alive:
            return
        self.shock(pnode)
        life = pnode.process

        async def revive() -> None:
            if pnode.process is life and life.alive:
                await pnode.worker.start()

        def later() -> None:
            if pnode.process is life and life.alive:
                pnode.loop.spawn(revive())

        life.post(pnode.worker.die)
        life.after(self._rng.choice([0.3, 4.0, 15.0]), later)

    def _leave(self) -> None:
        """A PNode hands over and goes; it comes back later."""
        pnode = self._pnode()
        if pnode is None:
            return
        self.shock(pnode)
        life = pnode.process
        pnode.draining = True
        pnode.tell()

        def gone() -> None:
            if pnode.process is life and life.alive:
                pnode.crash(keep_disk=True)
                self._world.kernel.after(self._rng.uniform(2.0, 20.0), lambda: self._restart(pnode))

        life.after(self._rng.uniform(8.0, 12.0), gone)

    def _partition(self) -> None:
        """Some PNodes lose an orchestrator, or all of them; one way or both."""
        hosts = [shell.host for shell in self._world.orchestrators]
        cut_off = hosts if self._rng.random() < 0.3 else [self._rng.choice(hosts)]
        count = self._rng.choice([1, 3, len(self._world.pnodes) // 2])
        for_s, both = self._for_s(self._rng.uniform(1.0, 20.0)), self._rng.random() < 0.6
        for pnode in self._rng.sample(self._world.pnodes, min(count, len(self._world.pnodes))):
            self.shock(pnode)
            for host in cut_off:
                self._world.network.block(pnode.host, host, for_s)
                if both:
                    self._world.network.block(host, pnode.host, for_s)

    def _partition_store(self) -> None:
        """One orchestrator, or some PNodes, lose the store; one way or both."""
        shell = self._orchestrator()
        hosts = [shell.host] if shell is not None and self._rng.random() < 0.6 else []
        if not hosts:
            hosts = [pnode.host for pnode in self._rng.sample(self._world.pnodes, min(6, len(self._world.pnodes)))]
        for_s, both = self._for_s(self._rng.uniform(2.0, 25.0)), self._rng.random() < 0.5
        for host in hosts:
            self._world.network.block(STORE_HOST, host, for_s)
            if both:
                self._world.network.block(host, STORE_HOST, for_s)

    def _outage(self) -> None:
        self._world.store_away_until_s = self._world.kernel.now_s + self._rng.uniform(2.0, 20.0)

    def _copy_store(self) -> None:
        """A backup of everything, or of the head alone, which takes the place of what is newer some time later."""
        world, key = self._world, keys.head(MODEL)
        copy, whole = world.store.store.dump(), self._backups.random() < WHOLE_SHARE
        if key not in copy:
            return

        def restore_store() -> None:
            self._restored = copy[key], world.kernel.now_s
            self._all_may_move()
            self._all_may_move()
            before = world.store.store.dump()
            is_beside = before.keys() >= copy.keys()  # nothing else has gone back beyond that head
            world.store.store.restore({**before, key: copy[key]} if is_beside and not whole else copy)

        def unless_just_there() -> None:
            """Not the very head that was there a moment ago and that a taker has replaced since: to who read nothing meanwhile it was there all the time."""
            head, at_s = self._restored
            if copy[key] != head or world.kernel.now_s - at_s >= RESTORED_S:
                self._strike(restore_store)

        latest_s = world.knobs.faults_s - RESTORED_S - world.kernel.now_s
        world.kernel.after(self._backups.uniform(0.2, latest_s), unless_just_there)

    def _blackout(self) -> None:
        """All orchestrators die; PNodes work on; fresh ones with empty disks come later."""
        world = self._world
        for shell in world.orchestrators:
            if shell.is_alive:
                shell.crash()
        self._all_may_move()
        world.checkers.blackout_began()

        def over() -> None:
            world.checkers.blackout_over()
            for shell in world.orchestrators:
                self._revive(shell)

        world.kernel.after(world.knobs.blackout_s, over)
