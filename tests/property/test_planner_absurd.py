"""Goal: whatever a volunteer says of its machine, the planner places everything on those that can take it."""

from __future__ import annotations

import math
from itertools import product

from planner_rig import ACTIVE, MIB, POLICY, request, stage

from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator.inventory import Inventory
from orchestrator.planner import check_plan, make_plan

NUMBERS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 5e-324, 1e308)
BYTES = (0, (1 << 63) - 1, (1 << 64) - 1)
STAGES = [stage(0, 2), stage(1, 1), stage(2, 3, gflop=5.0)]


def beat(gflops: float, memory_bytes: int, uplink_mbit: float, step_s: float) -> orchestrator_pb2.Beat:
    capability = membership_pb2.Capability(
        accepts_work=True, cores=1, gflops=gflops, memory_bytes=memory_bytes, disk_bytes=memory_bytes, uplink_mbit=uplink_mbit
    )
    reports = [orchestrator_pb2.ReplicaReport(vnode=one.vnode, step_s=step_s, num_learned=100) for one in STAGES]
    return orchestrator_pb2.Beat(worker_alive=True, capability=capability, replicas=reports)


SANE = beat(10.0, 4096 * MIB, 100.0, 0.1)


def plans(*told: orchestrator_pb2.Beat) -> list[model_pb2.Plan]:
    """One after the other, with a machine more that says the like."""
    inventory, made = Inventory(), list[model_pb2.Plan]()
    for index, said in enumerate(told):
        name = f"{index:040x}"
        inventory.attached(name, 0.0)
        inventory.beat(name, 0.0, said, 2.0)
        inventory.tick(0.0)
        assert inventory.judgement(name).state == ACTIVE
        made.append(make_plan(request(STAGES, list(inventory.offers(0.0)), made[-1] if made else None), POLICY))
        check_plan(made[-1], STAGES)
    return made


def test_absurd_machines_stop_no_plan() -> None:
    for number, (gflops, memory_bytes, step_s) in enumerate(product(NUMBERS, BYTES, (math.inf, 5e-324))):
        absurd = beat(gflops, memory_bytes, NUMBERS[number % len(NUMBERS)], step_s)
        assert not plans(SANE, absurd, SANE)[-1].waiting
