"""Goal: a job that its maintainers pause stands still and costs nobody else anything; going on, it ends as it would have ended; each rule of this is needed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from dataservice import keys
from dataservice.memory import Fault, Operation
from dcnr.ports import Random
from dcnr.v1 import model_pb2
from simulation.control_identity import MODEL, job_cancel, job_pause
from simulation.control_knobs import ControlKnobs
from simulation.control_world import ControlWorld, with_knobs
from simulation.world import Violation
from tests.simulation import control_planted_pauses as planted
from tests.simulation.control_planted import Plant
from tests.simulation.reddening import first_red

LOOK_S = 0.1
CALM: dict[str, Any] = {
    "num_orchestrators": 2, "num_pnodes": 3, "num_vnodes": 3, "num_batches": 40, "jobs": 2, "skew_s": 0.0, "store_fault_rate": 0.0, "slow_store_rate": 0.0,
    "store_outages": 0, "call_loss_rate": 0.0, "tamper_rate": 0.0, "orchestrator_crashes": 0, "orchestrator_pauses": 0, "pnode_crashes": 0,
    "pnode_losses": 0, "pnode_pauses": 0, "worker_deaths": 0, "leavers": 0, "partitions": 0, "stream_breaks": 0, "store_partitions": 0,
}  # fmt: skip
SMALL: dict[str, Any] = {
    **CALM, "num_orchestrators": 3, "num_pnodes": 4, "vnodes_per_node": 3, "jobs": 3, "orchestrator_crashes": 2, "faults_s": 50.0, "replicas": (1,),
    "job_pauses": 3, "rests": False, "liar": False, "lying_pnodes": 0, "blackout_s": 0.0, "full_disks": 0, "short_jobs": 0, "strange_jobs": 0,
}  # fmt: skip
RESTS = {**SMALL, "job_pauses": 0, "rests": True, "orchestrator_crashes": 0, "faults_s": 20.0}
STALE = {**SMALL, "store_fault_rate": 0.6, "job_pauses": 8}

PLANTED = [
    (planted.old_pauses_are_obeyed, SMALL, 3, {"statements"}),
    (planted.what_seems_in_force_is_not_recorded, STALE, 5, {"recorded"}),
    (planted.workers_are_not_told_to_halt, SMALL, 6, {"halted"}),
    (planted.halted_plans_stay_halted, SMALL, 3, {"pause_followed"}),
    (planted.clocks_run_while_it_is_paused, SMALL, 0, {"time_used"}),
    (planted.it_always_goes_on_by_placing, SMALL, 3, {"state_back"}),
    (planted.paused_jobs_expire, SMALL, 0, {"ends_paused"}),
    (planted.what_is_paused_keeps_nothing, RESTS, 0, {"rests"}),
]


class Story:
    """Takes steps in a world, each as soon as it is time for it, one after the other."""

    def __init__(self, world: ControlWorld) -> None:
        self.world = world
        self._steps: deque[tuple[Callable[[], bool], Callable[[], None]]] = deque()
        world.kernel.after(LOOK_S, self._look)

    def when(self, is_time: Callable[[], bool], step: Callable[[], None]) -> None:
        """After the steps before."""
        self._steps.append((is_time, step))

    def after(self, wait_s: float, step: Callable[[], None]) -> None:
        """So long after the step before."""
        due: list[float] = []

        def is_time() -> bool:
            due[:] = due or [self.world.kernel.now_s + wait_s]
            return self.world.kernel.now_s >= due[0]

        self.when(is_time, step)

    def run(self) -> None:
        """The whole history, in which every step was taken."""
        self.world.run()
        assert not self._steps, f"{len(self._steps)} steps were never taken"

    def _look(self) -> None:
        if self._steps and self._steps[0][0]():
            self._steps.popleft()[1]()
        self.world.kernel.after(LOOK_S, self._look)

    def says(self, job_id: str, number: int, *, paused: bool) -> None:
        """A statement of the maintainers is in the store."""
        store = self.world.store.store
        store.rewind(keys.job_pause(MODEL, job_id, number), job_pause(self.world.community, job_id, number, paused=paused))
        for shell in self.world.honest():
            shell.runtime.refresh_jobs.fire()

    def state(self, job_id: str) -> model_pb2.JobState.ValueType:
        """As the head says; of a job that is not the active one nothing is known."""
        head = self.world.head()
        return head.active.state if head is not None and head.active.job_id == job_id else model_pb2.JOB_STATE_UNSPECIFIED

    def learned(self, vnode: str) -> int:
        """What its only replica holds, wherever it is."""
        return max(
            (len(one.lineage) for pnode in self.world.pnodes for one in pnode.worker.replicas.values() if one.vnode == vnode),
            default=0,
        )


def test_a_job_that_goes_on_where_room_is_lacking_settles_and_expires() -> None:
    """A machine goes while the job is paused, and nobody has room for its VNode. Nothing would end the job in placing; settling has a deadline."""
    knobs = ControlKnobs(**CALM, vnodes_per_node=1, jobs_every_s=(120.0, 120.0), settling_deadline_s=15.0, faults_s=125.0)
    story = Story(world := ControlWorld(5, knobs))

    def goes() -> None:
        pnode = next(one for one in world.pnodes if any(replica.vnode == "v2" for replica in one.worker.replicas.values()))
        world.faults.shock(pnode)
        pnode.crash(keep_disk=True)

    story.when(lambda: story.learned("v0") > 5, lambda: story.says("job-0", 1, paused=True))
    story.when(lambda: story.state("job-0") == model_pb2.JOB_STATE_PAUSED, goes)
    story.after(10.0, lambda: story.says("job-0", 2, paused=False))
    story.when(lambda: story.state("job-0") == model_pb2.JOB_STATE_SETTLING, lambda: None)
    story.run()
    outcome = world.checkers._decided["job-0"]
    assert outcome.state == model_pb2.JOB_STATE_EXPIRED
    assert "v2 lacks" in outcome.reason
    assert world.checkers._decided["job-1"].state == model_pb2.JOB_STATE_COMPLETED, "the machine came back"


def test_what_was_called_off_is_released_though_the_next_job_is_paused_before_it_is_placed() -> None:
    """Machines come and go, so that the next job's plan waits; nobody goes on learning for the one before meanwhile."""
    knobs = ControlKnobs(**CALM, vnodes_per_node=3, jobs_every_s=(1.0, 1.0), faults_s=40.0)
    story = Story(world := ControlWorld(5, knobs))

    def restless() -> bool:
        for shell in world.honest():
            shell.shared.nodes_changed.fire()
        return story.state("job-1") == model_pb2.JOB_STATE_PLACING

    def calls_off() -> None:
        world.store.store.rewind(keys.job_cancel(MODEL, "job-0"), job_cancel(world.community, "job-0"))

    def nothing_is_hosted() -> None:
        assert story.state("job-1") == model_pb2.JOB_STATE_PAUSED
        assert not any(pnode.worker.replicas for pnode in world.pnodes)

    story.when(lambda: story.learned("v2") > 5, calls_off)
    story.when(restless, lambda: story.says("job-1", 1, paused=True))
    story.after(6.0, nothing_is_hosted)
    story.after(0.0, lambda: story.says("job-1", 2, paused=False))
    story.run()
    ends = {name: outcome.state for name, outcome in world.checkers._decided.items()}
    assert ends == {"job-0": model_pb2.JOB_STATE_CANCELLED, "job-1": model_pb2.JOB_STATE_COMPLETED}


@pytest.mark.parametrize("seed", range(3))
def test_what_was_called_off_ends_everywhere_though_whoever_recorded_it_is_gone(seed: int) -> None:
    """The holder dies in the moment in which the store has the cancellation, and the only other orchestrator has slept through it; a PNode hears nobody while
    the job ends.
    """
    knobs = ControlKnobs(**CALM, vnodes_per_node=3, jobs_every_s=(1.0, 1.0), faults_s=60.0)
    story = Story(world := ControlWorld(seed, knobs))
    away = list[str]()

    def calls_off() -> None:
        deaf = next(pnode for pnode in world.pnodes if any(one.job_id == "job-0" for one in pnode.worker.replicas.values()))
        world.faults.shock(deaf)
        for shell in world.orchestrators:
            world.network.block(shell.host, deaf.host, 25.0)
            world.network.block(deaf.host, shell.host, 25.0)
            shell.crash()
        away.append(deaf.node_id)
        world.store.store.rewind(keys.job_cancel(MODEL, "job-0"), job_cancel(world.community, "job-0"))

    def other_begins() -> None:
        assert any(one.job_id == "job-0" for pnode in world.pnodes for one in pnode.worker.replicas.values())
        world.orchestrators[1].start()

    def is_over() -> bool:
        return world.store.store.peek(keys.job_end(MODEL, "job-0")) is not None

    def only_the_deaf_go_on() -> None:
        hosts = {pnode.node_id for pnode in world.pnodes if any(one.job_id == "job-0" for one in pnode.worker.replicas.values())}
        assert hosts == set(away)

    def nobody_goes_on() -> bool:
        return not any(one.job_id == "job-0" for pnode in world.pnodes for one in pnode.worker.replicas.values())

    story.when(lambda: story.learned("v2") > 5, calls_off)
    story.after(1.0, other_begins)
    story.when(is_over, lambda: None)
    story.after(3.0, only_the_deaf_go_on)
    story.when(nobody_goes_on, lambda: None)
    story.run()
    ends = {name: outcome.state for name, outcome in world.checkers._decided.items()}
    assert ends == {"job-0": model_pb2.JOB_STATE_CANCELLED, "job-1": model_pb2.JOB_STATE_COMPLETED}
    for shell in world.honest():
        assert shell.runtime.jobs.records["job-0"].end is not None


@dataclass(slots=True)
class LostStatements:
    """Reads of statements find nothing while it is on, as in a store that answers with what was there before."""

    is_on: bool = False

    def pick(self, operation: Operation, key: str, random: Random) -> Fault:
        """For the store."""
        return Fault.STALE_READ if self.is_on and operation is Operation.GET and keys.PAUSE in key else Fault.NONE


def everybody_begins_anew_and_finds_no_statement() -> None:
    """All orchestrators restart while a job is paused, and who takes the head over cannot read why for a while."""
    knobs = ControlKnobs(**CALM, vnodes_per_node=3, jobs_every_s=(90.0, 90.0), faults_s=60.0)
    story = Story(world := ControlWorld(5, knobs))
    world.store.store.faults = lost = LostStatements()

    def begin_anew() -> None:
        lost.is_on = True
        for shell in world.orchestrators:
            shell.crash()
            shell.start()

    def find_again() -> None:
        lost.is_on = False

    story.when(lambda: story.learned("v0") > 5, lambda: story.says("job-0", 1, paused=True))
    story.when(lambda: story.state("job-0") == model_pb2.JOB_STATE_PAUSED, begin_anew)
    story.when(lambda: any(shell.is_holder for shell in world.orchestrators), lambda: None)
    story.after(5.0, find_again)
    story.when(lambda: story.state("job-0") == model_pb2.JOB_STATE_PAUSED, lambda: story.says("job-0", 2, paused=False))
    story.run()
    assert {outcome.state for outcome in world.checkers._decided.values()} == {model_pb2.JOB_STATE_COMPLETED}


def test_who_cannot_read_why_a_job_is_paused_leaves_it_paused() -> None:
    everybody_begins_anew_and_finds_no_statement()


def test_what_is_not_read_was_said_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    planted.what_is_not_read_was_not_said(monkeypatch)
    with pytest.raises(Violation) as red:
        everybody_begins_anew_and_finds_no_statement()
    assert red.value.checker == "statements"


@pytest.mark.parametrize(("plant", "knobs", "hint", "expected"), PLANTED, ids=[row[0].__name__ for row in PLANTED])
def test_a_planted_bug_turns_its_checker_red(
    plant: Plant, knobs: dict[str, Any], hint: int, expected: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert first_red(with_knobs(seed, **knobs) for seed in (hint, *range(4))) in expected
