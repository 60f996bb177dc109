"""How often a living PNode is taken for gone, and how soon a dead one is: days of beats over home links, judged by the real inventory, in virtual time.

A beat is a small write on a TCP stream. It arrives after latency and jitter; when a packet is lost, it and all behind it wait for the retransmission,
whose timer doubles (RFC 6298, least 0.2 s). Loss comes in bursts (Gilbert 1960), and a radio link is away for a few seconds now and then.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterator
from dataclasses import dataclass

from dcnr import limits
from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from simulation.kernel import Kernel

DAY_S = 86_400.0
LOOK_S = 1.0
"""How often the inventory is judged here; the service looks several times as often."""
OFFLINE, SUSPECT = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_SUSPECT


@dataclass(frozen=True, slots=True)
class HomeLink:
    """A wireless home behind a domestic line, on a bad day."""

    latency_s: tuple[float, float] = (0.02, 0.12)
    loss: float = 0.005
    burst_loss: float = 0.4
    burst_s: tuple[float, float] = (0.2, 3.0)
    bursts_per_hour: float = 6.0
    away_s: tuple[float, float] = (0.3, 3.0)
    away_per_hour: float = 1.0
    least_rto_s: float = 0.2


@dataclass(frozen=True, slots=True)
class Tally:
    """What one run showed."""

    node_days: float
    num_false_offline: int
    num_false_suspect: int
    detected_s: tuple[float, ...]
    """Of each real death, the time until the inventory said so."""

    @property
    def false_per_node_day(self) -> float:
        """Living nodes taken for gone, per node and day."""
        return self.num_false_offline / self.node_days


def tally(seed: int, *, num_nodes: int, days: float, link: HomeLink | None = None) -> Tally:
    """Runs so many nodes for so many days; each dies (falls silent, as a machine without power) at the very end."""
    kernel = Kernel(seed)
    inventory = Inventory()
    names = [f"{number:040x}" for number in range(num_nodes)]
    end_s = days * DAY_S
    arrivals = heapq.merge(*(_arrivals(kernel, name, link or HomeLink(), end_s) for name in names))
    beat = orchestrator_pb2.Beat(worker_alive=True, capability=membership_pb2.Capability(accepts_work=True))
    for name in names:
        inventory.attached(name, 0.0)
        inventory.beat(name, 0.0, beat, limits.HEARTBEAT_S)
    counts = {OFFLINE: 0, SUSPECT: 0}
    died: dict[str, float] = {}
    last_s = dict.fromkeys(names, 0.0)
    now_s = 0.0
    for at_s, name in [*arrivals, (end_s + 60.0, "")]:
        while now_s + LOOK_S <= at_s:
            now_s += LOOK_S
            for change in inventory.tick(now_s):
                if now_s <= end_s:
                    counts[change.after] = counts.get(change.after, 0) + 1
                elif change.after == OFFLINE:
                    died[change.node_id] = now_s - last_s[change.node_id]
        if name:
            inventory.beat(name, at_s, beat, limits.HEARTBEAT_S)
            last_s[name] = at_s
    return Tally(num_nodes * days, counts[OFFLINE], counts[SUSPECT], tuple(died.get(name, float("inf")) for name in names))


def _arrivals(kernel: Kernel, name: str, link: HomeLink, end_s: float) -> Iterator[tuple[float, str]]:
    """When the beats of one node arrive, in order."""
    rng = kernel.rng(f"link/{name}")
    bursts = _spells(rng, link.bursts_per_hour, link.burst_s, end_s)
    aways = _spells(rng, link.away_per_hour, link.away_s, end_s)
    sent_s = arrived_s = 0.0
    while sent_s < end_s:
        at_s, rto_s = sent_s, link.least_rto_s
        while _within(aways, at_s) or rng.random() < (link.burst_loss if _within(bursts, at_s) else link.loss):
            at_s += rto_s
            rto_s *= 2
        arrived_s = max(arrived_s, at_s + rng.uniform(*link.latency_s))
        if arrived_s < end_s:
            yield arrived_s, name
        sent_s += limits.HEARTBEAT_S * rng.uniform(0.8, 1.0)


def _spells(rng: random.Random, per_hour: float, length_s: tuple[float, float], end_s: float) -> list[tuple[float, float]]:
    """Begin and end of spells, the next one last."""
    spells: list[tuple[float, float]] = []
    at_s = 0.0
    while at_s < end_s:
        at_s += rng.expovariate(per_hour / 3600.0)
        spells.append((at_s, at_s + rng.uniform(*length_s)))
    return spells[::-1]


def _within(spells: list[tuple[float, float]], at_s: float) -> bool:
    """Whether that moment lies in one; spells that are over are dropped."""
    while spells and spells[-1][1] < at_s - 60.0:
        spells.pop()
    return any(first <= at_s < end for first, end in spells[-3:])
