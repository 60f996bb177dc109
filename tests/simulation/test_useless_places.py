"""Goal: a VNode leaves a PNode that is of no use to it, whatever that reports, where another one fits; and nobody else pays for it."""

from __future__ import annotations

from typing import Any, Final

from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from simulation.control_identity import state_bytes
from simulation.control_knobs import ControlKnobs
from simulation.control_world import ControlWorld

CALM: Final[dict[str, Any]] = {
    "num_orchestrators": 1, "num_pnodes": 4, "num_vnodes": 2, "jobs": 3, "num_batches": 60, "faults_s": 20.0, "settling_deadline_s": 600.0,
    "store_fault_rate": 0.0, "slow_store_rate": 0.0, "store_outages": 0, "call_loss_rate": 0.0, "tamper_rate": 0.0, "orchestrator_crashes": 0,
    "orchestrator_pauses": 0, "pnode_crashes": 0, "pnode_losses": 0, "pnode_pauses": 0, "worker_deaths": 0, "leavers": 0, "partitions": 0,
    "stream_breaks": 0, "store_partitions": 0,
}  # fmt: skip


def told(world: ControlWorld) -> list[tuple[float, str, str]]:
    """What is told from now on: when, of what kind, and of whom."""
    rows: list[tuple[float, str, str]] = []
    tell = world.checkers.said

    def heard(reporter: str, kind: str, subject: str, reason: str, facts: Any) -> None:
        rows.append((world.kernel.now_s, kind, subject))
        tell(reporter, kind, subject, reason, facts)

    world.checkers.said = heard  # type: ignore[method-assign]
    return rows


def test_a_disk_that_stays_full_costs_a_job_minutes() -> None:
    """Its PNode beats and its worker lives, and it never takes up what it was given: others stood idle beside it until the job expired."""
    world = ControlWorld(3, ControlKnobs(**CALM))
    rows = told(world)
    world.kernel.after(0.1, lambda: world.pnodes[0].disk.fill(1e9))
    world.run()  # its checkers require that the job completes
    assert [subject for _, kind, subject in rows if kind == "node_not_useful"] == [world.pnodes[0].node_id]


def astray(world: ControlWorld) -> None:
    """A worker of the first PNode begins anew on a state of its disk that no commit leads to any more."""
    pnode = world.pnodes[0]
    replica = next(one for one in pnode.worker.replicas.values() if one.vnode == "v0")
    held = replica.lineage | IntervalSet.span(0, replica.num_batches // 2)
    data = state_bytes(
        "v0", world.community.graph_digest, replica.job_id, held, num_batches=replica.num_batches, parent="e" * 64, mark="astray"
    )
    pnode.disk[f"home/snapshots/{replica.job_id}/v0/{digest_of(data)}-{'f' * 64}-{replica.replica}"] = data
    pnode.worker.die()
    pnode.loop.spawn(pnode.worker.start())


def test_a_state_that_nobody_can_follow_back_costs_a_job_minutes_where_only_one_machine_fits() -> None:
    """Its commits were answered as missing until the end of time: no plan sent it away, and no fence kept out what lay on its disk."""
    world = ControlWorld(3, ControlKnobs(**{**CALM, "num_pnodes": 1, "num_batches": 200}))
    rows = told(world)
    world.kernel.after(12.0, lambda: astray(world))
    world.run()
    useless = [at_s for at_s, kind, _ in rows if kind == "node_not_useful"]
    assert len(useless) <= 2, "a machine that has not heard of the fence yet goes astray once more"
