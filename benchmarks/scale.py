"""What ten thousand PNodes cost one orchestrator: first plans, the plan after a loss, an entry of the inventory, and a beat; pure cores, no network.

Times are CPU seconds of this process, so a busy machine counts less than on a clock. Machines are unlike, as volunteers' are; stages too. What gRPC, TLS and
the store take comes on top.
"""

from __future__ import annotations

import gc
import random
import time
import tracemalloc
from dataclasses import dataclass, replace
from itertools import count
from typing import Final

from benchmarks.result import Options, Result, Row, Target, largest, median_of, rounded
from dcnr import limits
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.attach import BEATS_PER_S
from orchestrator.costs import StageCost
from orchestrator.inventory import Inventory
from orchestrator.offers import NodeOffer, PlanPolicy, PlanRequest
from orchestrator.planner import Planner

SEED: Final = 20
NUM_NODES: Final = 10_000
NUM_REPLICAS: Final = (1_000, 3_000, 10_000)
PER_VNODE: Final = 4
LOSSES: Final = 20
"""Nodes that are lost one after the other, each answered by a plan."""
TICK_S: Final = 0.25
"""The service judges the nodes this often."""
BEATING_S: Final = 10.0
"""So long every node beats, after a first round."""
QUICK_NODES: Final = 200
QUICK_REPLICAS: Final = (20, 60, 200)
ACTIVE: Final = orchestrator_pb2.NODE_STATE_ACTIVE
OFFLINE: Final = orchestrator_pb2.NODE_STATE_OFFLINE
GIB: Final = 1024 * limits.MIB


def run(options: Options) -> Result:
    """One row of all figures per round."""
    num_nodes, sizes = (QUICK_NODES, QUICK_REPLICAS) if options.quick else (NUM_NODES, NUM_REPLICAS)
    settings: Row = {
        "num_nodes": num_nodes, "num_replicas": list(sizes), "replicas_per_vnode": PER_VNODE, "losses": LOSSES, "beating_s": BEATING_S,
        "tick_s": TICK_S, "told_interval_s": told_interval_s(num_nodes), "seed": SEED,
    }  # fmt: skip
    result = Result("scale", "Ten thousand PNodes at one orchestrator: planner and inventory, CPU seconds, no network", settings)
    for number in range(options.rounds):
        row: Row = {"round": number}
        town = Town(num_nodes, SEED + number)
        for size in sizes:
            row |= _plans(town, size)
        row |= _beats(town)
        result.rounds.append(row)
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """Medians and targets from the rounds alone."""
    rows, most = result.rounds, max(result.settings["num_replicas"])
    names = dict.fromkeys(name for row in rows for name in row if name != "round")
    result.medians = {name: rounded(median_of(rows, name), 4) for name in names}
    result.medians["slowest_replan_ms"] = rounded(largest(row[f"slowest_replan_of_{most}_ms"] for row in rows))
    result.targets = [
        Target(f"first plan of {most} replicas", median_of(rows, f"first_plan_of_{most}_s"), 1.0, "s", at_least=False),
        Target("plan after one loss", median_of(rows, f"replan_of_{most}_ms"), 20.0, "ms", at_least=False),
        Target("an entry of the inventory", median_of(rows, "entry_kib"), 10.0, "KiB", at_least=False),
        Target("beats of all nodes at the told interval", median_of(rows, "beats_core_share"), 0.5, "of a core", at_least=False),
    ]
    result.notes = [
        "A plan after a loss looks only at what the loss touches; one in which everybody's measurements changed, or a new holder's first, is made from "
        "scratch. The share of a core is what inventory and judgement take of beats at the told interval; receiving and answering them over gRPC comes on top."
    ]


def told_interval_s(num_nodes: int) -> float:
    """What `orchestrator.attach.AttachService` tells so many PNodes."""
    return max(limits.HEARTBEAT_S, num_nodes / BEATS_PER_S)


@dataclass(frozen=True, slots=True)
class Machine:
    """One volunteer's machine."""

    node_id: str
    gflops: float
    memory_bytes: int
    disk_bytes: int
    subnet: str


class Town:
    """Unlike machines in many subnets."""

    def __init__(self, num_nodes: int, seed: int) -> None:
        self.rng = random.Random(seed)
        self.machines = [
            Machine(
                node_id=f"{self.rng.getrandbits(160):040x}",
                gflops=round(10.0 ** self.rng.uniform(0.7, 2.7), 1),
                memory_bytes=self.rng.choice((2, 4, 4, 8, 8, 16, 32)) * GIB,
                disk_bytes=self.rng.choice((20, 50, 100, 200)) * GIB,
                subnet=f"10.{self.rng.randrange(16)}.{self.rng.randrange(num_nodes // 16)}.0/24",
            )
            for _ in range(num_nodes)
        ]

    def offers(self) -> tuple[NodeOffer, ...]:
        """All of them, active and idle."""
        return tuple(
            NodeOffer(
                item.node_id, ACTIVE, "beats, and its worker lives", item.gflops, item.memory_bytes, item.disk_bytes,
                accepts_work=True, subnet=item.subnet, uplink_mbit=40.0,
            )
            for item in self.machines
        )  # fmt: skip


def stages(num_replicas: int) -> tuple[StageCost, ...]:
    """A chain of unlike VNodes that want `PER_VNODE` replicas each."""
    rng = random.Random(SEED)
    return tuple(
        StageCost(
            vnode=f"v{index}", predecessors=(f"v{index - 1}",) if index else (), hosted=(), is_source=not index, wanted_replicas=PER_VNODE,
            step_flops=rng.uniform(0.5, 20.0) * 1e9, state_bytes=rng.randrange(4, 64) * limits.MIB, memory_bytes=rng.randrange(64, 1024) * limits.MIB,
            output_bytes=limits.MIB, sharing_bytes=64 * limits.MIB,
        )
        for index in range(num_replicas // PER_VNODE)
    )  # fmt: skip


def _request(
    costs: tuple[StageCost, ...], nodes: tuple[NodeOffer, ...], previous: model_pb2.Plan | None, digest: str
) -> PlanRequest:
    live = dict.fromkeys((item.replica for item in previous.assignments), 100) if previous is not None else {}
    return PlanRequest(
        network_id="n" * 40, model="m", job_id="j", graph_digest="g" * 64, epoch=1, holder="h" * 40, stages=costs, nodes=nodes,
        previous=previous, previous_digest=digest, lead_batches=limits.LEAD_BATCHES, unit_batches=8, since_last_plan_s=1.0, allow_moves=True,
        reason="", live=live, durable=dict.fromkeys((cost.vnode for cost in costs), 50),
    )  # fmt: skip


def _plans(town: Town, num_replicas: int) -> Row:
    """CPU seconds of the first plan and of those after losses, and what must hold of each."""
    costs, nodes, digests = stages(num_replicas), town.offers(), count()
    planner = Planner(PlanPolicy())
    took_s, made = _timed(planner, _request(costs, nodes, None, ""))
    assert len(made.assignments) == num_replicas, "there is room for all"
    row: Row = {
        f"first_plan_of_{num_replicas}_s": round(took_s, 4),
        f"plan_of_{num_replicas}_mib": round(made.ByteSize() / limits.MIB, 3),
    }
    replans_s: list[float] = []
    for _ in range(LOSSES):
        digest = f"{next(digests):064x}"
        planner.named(digest)
        hosting = sorted({item.pnode_id for item in made.assignments})
        gone = town.rng.choice(hosting)
        nodes = tuple(replace(item, state=OFFLINE, reason="silent") if item.node_id == gone else item for item in nodes)
        took_s, made = _timed(planner, _request(costs, nodes, made, digest))
        assert all(item.pnode_id != gone for item in made.assignments), "what was lost is elsewhere"
        replans_s.append(took_s)
    replans_s.sort()
    row[f"replan_of_{num_replicas}_ms"] = round(replans_s[len(replans_s) // 2] * 1e3, 3)
    row[f"slowest_replan_of_{num_replicas}_ms"] = round(replans_s[-1] * 1e3, 3)
    return row


def _timed(planner: Planner, request: PlanRequest) -> tuple[float, model_pb2.Plan]:
    gc.collect()
    began = time.process_time()
    made = planner.make(request)
    return time.process_time() - began, made.plan


def _beats(town: Town) -> Row:
    """Bytes per entry, and the share of a core that beats and looks take."""
    interval_s = told_interval_s(len(town.machines))
    beats = [_beat(item, number) for number, item in enumerate(town.machines)]
    gc.collect()
    tracemalloc.start()
    inventory = Inventory()
    for item in town.machines:
        inventory.attached(item.node_id, 0.0)
    _beat_round(inventory, town, beats, 0.0, interval_s)
    inventory.offers(interval_s)
    entry_bytes = tracemalloc.get_traced_memory()[0] / len(town.machines)
    tracemalloc.stop()
    entry_bytes += sum(len(data) for data in beats) / len(beats)  # what the messages' own allocator holds, about: it does not tell
    began, now = time.process_time(), interval_s
    while now < interval_s + BEATING_S:
        _beat_round(inventory, town, beats, now, interval_s)
        now += interval_s
    share = (time.process_time() - began) / (now - interval_s)
    began = time.process_time()
    offers = inventory.offers(now)
    assert sum(item.state == ACTIVE for item in offers) == len(offers) == len(town.machines)
    return {
        "entry_kib": round(entry_bytes / 1024, 3), "beat_us": round(share * interval_s / len(town.machines) * 1e6, 2),
        "beats_core_share": round(share, 5), "offers_ms": round((time.process_time() - began) * 1e3, 3), "beat_bytes": round(sum(map(len, beats)) / len(beats)),
    }  # fmt: skip


def _beat_round(inventory: Inventory, town: Town, beats: list[bytes], began: float, interval_s: float) -> None:
    """Every node beats once, spread over an interval, and is parsed as the server does; the service looks four times a second."""
    looked = began
    for number, item in enumerate(town.machines):
        now = began + interval_s * number / len(town.machines)
        if now >= looked + TICK_S:
            inventory.tick(now)
            looked = now
        inventory.beat(item.node_id, now, orchestrator_pb2.Beat.FromString(beats[number]), interval_s)
    inventory.tick(began + interval_s)


def _beat(machine: Machine, number: int) -> bytes:
    """What a PNode that trains one replica says."""
    beat = orchestrator_pb2.Beat(
        sequence=1_000, desired_sequence=64, plan_digest="d" * 64, free_memory_bytes=machine.memory_bytes // 2, worker_alive=True,
        incarnation=3,
        capability=membership_pb2.Capability(
            cores=8, memory_bytes=machine.memory_bytes, disk_bytes=machine.disk_bytes, device="cpu", device_name="a processor", gflops=machine.gflops,
            uplink_mbit=40.0, downlink_mbit=200.0, architecture="x86_64", system="linux", accepts_work=True,
        ),
    )  # fmt: skip
    report = beat.replicas.add(
        replica=f"v{number}.{number}", vnode=f"v{number}", incarnation=3, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, num_learned=640,
        step_s=0.2, rate=5.0, floor=600, loss=1.5, role=model_pb2.ROLE_PRIMARY,
    )  # fmt: skip
    report.lineage.intervals.add(first=0, end=640)
    report.durable.intervals.add(first=0, end=512)
    report.needs.add(from_replica=f"v{number - 1}.{number - 1}", since_s=0.1, why="it comes").batches.intervals.add(
        first=640, end=648
    )
    return beat.SerializeToString()
