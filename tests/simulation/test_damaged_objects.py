"""Goal: objects of the store that stay damaged stop what needs them, and nothing else."""

from __future__ import annotations

from test_useless_places import CALM

from dataservice import keys
from dataservice.memory import Fault, Operation
from dcnr.ports import Random
from simulation.control_identity import MODEL
from simulation.control_knobs import ControlKnobs
from simulation.control_world import ControlWorld


class Damaged:
    """Everything of the first job is answered with 503 from its end on."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self.restarted = False

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        is_damaged = self.restarted and operation is not Operation.LIST and key.startswith(keys.job_prefix(MODEL, "job-0"))
        return Fault.UNAVAILABLE if is_damaged else Fault.NONE

    def look(self) -> None:
        """Once its end is there the only orchestrator begins anew, knowing nothing."""
        world = self._world
        if world.store.store.peek(keys.job_end(MODEL, "job-0")) is None:
            world.kernel.after(0.5, self.look)
            return
        self.restarted = True
        world.orchestrators[0].crash()
        world.kernel.after(0.5, world.orchestrators[0].start)


def test_damaged_objects_of_an_ended_job_stop_no_other_job() -> None:
    world = ControlWorld(3, ControlKnobs(**{**CALM, "jobs": 4, "faults_s": 10.0}))
    damaged = Damaged(world)
    world.store.store.faults = damaged
    world.kernel.after(1.0, damaged.look)
    world.run()  # its checkers require that the second job completes
    assert damaged.restarted
