"""How often a living PNode is taken for gone, and how soon a dead one is: days of beats over home links, judged by the real inventory, in virtual time.

A beat is a small write on a TCP stream over a home's line (`simulation.home_line`).
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass

from dcnr import limits
from dcnr.v1 import membership_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from simulation.home_line import Home, HomeLink
from simulation.kernel import Kernel

DAY_S = 86_400.0
LOOK_S = 1.0
"""How often the inventory is judged here; the service looks several times as often."""
OFFLINE, SUSPECT = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_SUSPECT


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
    home = Home(link, kernel.rng(f"link/{name}"))
    sent_s = arrived_s = 0.0
    while sent_s < end_s:
        arrived_s = home.arrival_s(sent_s, arrived_s)
        if arrived_s < end_s:
            yield arrived_s, name
        sent_s += limits.HEARTBEAT_S * home.rng.uniform(0.8, 1.0)
