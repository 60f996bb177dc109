"""Clocks of the control world: every machine's own, wrong in its own way, and the network time that the machines work out from each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from membership.network_time import NetworkTime
from simulation.control_identity import EPOCH_WALL_S
from simulation.kernel import Kernel

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld

HOURS_S: Final = (-26.0 * 3600, -5.0 * 3600, -900.0, 900.0, 7.0 * 3600, 400.0 * 3600)
"""How wrong a clock is that is wrong by far more than records may be old."""
NUM_HEARD: Final = 25
"""Machines whose clocks a machine learns of through gossip soon after its start."""


@dataclass(frozen=True, slots=True)
class SimClock:
    """A machine's clocks: its monotonic one begins anywhere and runs a little wrong, its wall clock is off."""

    kernel: Kernel
    skew_s: float
    offset_s: float = 0.0
    rate: float = 1.0

    def monotonic(self) -> float:
        """Seconds of this machine."""
        return self.kernel.now_s * self.rate + self.offset_s

    def wall(self) -> float:
        """What this machine believes."""
        return EPOCH_WALL_S + self.kernel.now_s + self.skew_s


class Clocks:
    """How wrong each machine's clocks are: a property of the machine, whatever its lives."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        knobs = world.knobs
        hosts = [f"orchestrator-{index}" for index in range(knobs.num_orchestrators)]
        hosts += [f"pnode-{index}" for index in range(knobs.num_pnodes)]
        rng = world.kernel.rng("clocks")
        wrong = frozenset(rng.sample(hosts, int(knobs.wrong_clocks * len(hosts))))
        self._skew_s = {host: rng.choice(HOURS_S) if host in wrong else rng.uniform(-knobs.skew_s, knobs.skew_s) for host in hosts}
        self._rate = {host: 1.0 + rng.uniform(-knobs.drift, knobs.drift) for host in hosts}
        self._hosts = hosts

    def rate(self, host: str) -> float:
        """How fast its monotonic clock runs."""
        return self._rate[host]

    def begin(self, host: str, offset_s: float) -> NetworkTime:
        """The clocks of a machine that has just started: its own, corrected by what others tell."""
        clock = SimClock(self._world.kernel, self._skew_s[host], offset_s, self._rate[host])
        time = NetworkTime(clock)
        rng = self._world.kernel.rng(f"heard/{host}")
        for other in rng.sample(self._hosts, min(NUM_HEARD, len(self._hosts))):
            time.note(other, self._skew_s[other] - self._skew_s[host] + rng.uniform(-0.05, 0.05))
        return time
