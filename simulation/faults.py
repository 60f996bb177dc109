"""When things break: crashes with and without state, pauses, broken streams, one-way partitions, outages; all healed at one moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from simulation.replica_shell import ReplicaShell
    from simulation.world import Simulation


class Faults:
    """The schedule of one history's faults."""

    def __init__(self, world: Simulation) -> None:
        self._world = world
        self._rng = world.kernel.rng("faults")

    def plan(self) -> None:
        """Draws all faults inside the fault phase."""
        knobs = self._world.knobs
        for count, fault in (
            (knobs.crashes, self.crash),
            (knobs.pauses, self.pause),
            (knobs.rearrangements, self._rearrange),
            (knobs.breaks, self._break),
            (knobs.partitions, self._partition),
            (knobs.store_outages, self._store_outage),
            (knobs.head_silences, self._head_silence),
        ):
            for _ in range(count):
                self._world.kernel.after(self._rng.uniform(0.5, knobs.faults_s - 0.5), fault)

    def heal(self) -> None:
        """Nothing new goes wrong from here on; whatever is dead was or will be replaced."""

    def _any(self) -> ReplicaShell | None:
        members = self._world.members()
        return self._rng.choice(members) if members else None

    def crash(self) -> None:
        """A replica dies with state and spool; another incarnation follows when it is noticed."""
        primaries = self._world.primaries()
        is_shared = len(primaries) < len(self._world.members())
        shell = self._rng.choice(primaries) if is_shared and primaries and self._rng.random() < 0.5 else self._any()
        if shell is not None:
            self.kill(shell, silently=self._rng.random() < 0.3)
            self._world.kernel.after(self._rng.uniform(0.5, 4.0), lambda: self._world.authority.replace(shell))

    def kill(self, shell: ReplicaShell, *, silently: bool) -> None:
        """It dies now; that its peers notice soon, or late, is all that follows by itself."""
        self._world.num_faults += 1
        self._world.num_lost_states += 1
        self._world.authority.disturbed(8.0)
        shell.process.kill()
        self._world.network.lose(shell.process, silently=silently)

    def pause(self) -> None:
        """A replica stands still; where that is long it is replaced and comes back as one that nobody asked for."""
        shell = self._any()
        if shell is None:
            return
        self._world.num_faults += 1
        for_s = self._rng.uniform(0.5, 12.0)
        self._world.authority.disturbed(for_s)
        shell.process.pause(for_s)
        if for_s > 6.0 and self._world.knobs.crashes:
            self._world.num_lost_states += 1
            self._world.kernel.after(6.0, lambda: self._replace(shell))

    def _replace(self, shell: ReplicaShell) -> None:
        if self._world.authority.names(shell) and shell.process.alive:
            self._world.authority.replace(shell)
            self._world.kernel.after(15.0, lambda: shell.stop() if shell.process.alive else None)

    def _rearrange(self) -> None:
        self._world.num_faults += 1
        self._world.authority.disturbed(8.0)
        self._world.authority.rearrange()

    def _break(self) -> None:
        self._world.num_faults += 1
        self._world.authority.disturbed(6.0)
        self._world.network.break_one()

    def _partition(self) -> None:
        one, other = self._any(), self._any()
        if one is not None and other is not None and one is not other:
            self._world.num_faults += 1
            for_s = self._rng.uniform(1.0, 8.0)
            self._world.authority.disturbed(for_s + 8.0)
            self._world.network.block(one.process.host, other.process.host, for_s)

    def _store_outage(self) -> None:
        self._world.authority.store_away_until_s = self._world.kernel.now_s + self._rng.uniform(2.0, 15.0)

    def _head_silence(self) -> None:
        self._world.authority.heads_silent_until_s = self._world.kernel.now_s + self._rng.uniform(2.0, 12.0)
