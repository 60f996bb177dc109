"""Goal: a move that nobody was forced to make costs no batch: everything is learned once, and whoever dies meanwhile costs what a crash costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from dcnr.intervals import IntervalSet
from orchestrator.board import Board
from orchestrator.loads import Load, Seat
from simulation.control_knobs import ControlKnobs
from simulation.control_pnode import PNodeShell
from simulation.control_world import ControlWorld

JOIN_S, HAND_OVER_S = 1.5, 2.0
"""What fetching a state and a worker that begins take at most in these worlds, and a last state until the manifest names it and a plan follows."""
CALM: dict[str, Any] = {
    "store_fault_rate": 0.0, "slow_store_rate": 0.0, "store_outages": 0, "call_loss_rate": 0.0, "tamper_rate": 0.0, "orchestrator_crashes": 0,
    "orchestrator_pauses": 0, "pnode_crashes": 0, "pnode_losses": 0, "pnode_pauses": 0, "worker_deaths": 0, "leavers": 0, "partitions": 0,
    "stream_breaks": 0, "store_partitions": 0, "skew_s": 0.0,
}  # fmt: skip
KNOBS = ControlKnobs(
    num_orchestrators=1, num_pnodes=2, num_vnodes=4, vnodes_per_node=4, num_batches=300, learn_rate=5.0, checkpoint_s=30.0, jobs=3,
    jobs_every_s=(0.5, 1.0), faults_s=45.0, **CALM,
)  # fmt: skip
LATE_S = 20.0
"""When the second PNode comes: the first has learned for some time, and its next checkpoint is some time ahead."""


@dataclass
class History:
    """What was learned in a world, by whom and when."""

    world: ControlWorld
    again: int = 0
    """Batches that a VNode learned once more."""
    pauses_s: list[float] = field(default_factory=list)
    """Between the last batch that one replica learned and the first of the next one."""
    moves: int = 0
    _learned: dict[tuple[str, str], IntervalSet] = field(default_factory=dict)
    _last: dict[tuple[str, str], tuple[str, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tell, checkers = self.world.checkers.learned, self.world.checkers

        def learned(pnode: PNodeShell, replica: Any, fresh: IntervalSet) -> None:
            tell(pnode, replica, fresh)
            where, now = (replica.job_id, replica.vnode), self.world.kernel.now_s
            before = self._learned.get(where, IntervalSet.empty())
            self.again += len(before & fresh)
            self._learned[where] = before | fresh
            name, at_s = self._last.get(where, (replica.replica, now))
            if name != replica.replica:
                self.moves += 1
                self.pauses_s.append(now - at_s)
            self._last[where] = replica.replica, now

        checkers.learned = learned  # type: ignore[method-assign]


def world_with_a_newcomer(seed: int, num_pnodes: int = 2) -> ControlWorld:
    """All but one PNode come when the first has learned for a while."""
    world = ControlWorld(seed, KNOBS, "--world control")

    def away() -> None:
        for pnode in world.pnodes[1:]:
            pnode.crash(keep_disk=True)
            world.kernel.after(LATE_S - 0.01, pnode.start)

    world.kernel.after(0.01, away)
    return world


def when_it_hands_over(world: ControlWorld, after_s: float, then: Callable[[PNodeShell, PNodeShell], None]) -> None:
    """Once, so long after the plan under the head says that a replica moves: its PNode, and the one to which it moves."""

    def look() -> None:
        plans = [shell.runtime.view.plan for shell in world.orchestrators if shell.is_holder and shell.runtime.view is not None]
        for item in plans[0].assignments if plans and plans[0] is not None else ():
            old, new = world.pnode(item.pnode_id), world.pnode(item.hands_over_to)
            if old is not None and new is not None:
                return world.kernel.after(after_s, lambda old=old, new=new: then(old, new))  # type: ignore[misc]
        world.kernel.after(0.05, look)

    world.kernel.after(LATE_S, look)


@pytest.mark.parametrize("seed", [1, 5])
def test_a_planned_move_learns_nothing_again_and_pauses_for_no_longer_than_it_takes(seed: int) -> None:
    """Two PNodes, of which one comes later: what moves there has learned many batches since its newest checkpoint."""
    world = world_with_a_newcomer(seed)
    history = History(world)
    world.run()
    assert history.moves > 0
    assert history.again == 0
    assert max(history.pauses_s) < HAND_OVER_S + JOIN_S, history.pauses_s


def test_a_planner_that_waits_for_nobody_costs_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A planted bug: another takes the place of whoever moves at once."""

    def replace_at_once(board: Board, seat: Seat, target: Load, why: str) -> None:
        board.leave(seat)
        board.seat(seat.cost, target, seat.role, why)

    for module in ("growth", "spreading"):
        monkeypatch.setattr(f"orchestrator.{module}.begin_move", replace_at_once)
    world = world_with_a_newcomer(1)
    history = History(world)
    world.run()
    assert history.again > 0


def history_in_which_one_dies(
    seed: int, after_s: float, dies: Callable[[ControlWorld, PNodeShell, PNodeShell], PNodeShell]
) -> History:
    """Of the two between which a replica moves, one loses everything so long after the plan said that it hands over; the job ends all the same."""
    world = world_with_a_newcomer(seed)
    history = History(world)
    struck: list[str] = []

    def strike(old: PNodeShell, new: PNodeShell) -> None:
        pnode = dies(world, old, new)
        struck.append(pnode.host)
        world.faults.shock(pnode)
        pnode.crash(keep_disk=False)

    when_it_hands_over(world, after_s, strike)
    world.run()
    assert struck
    return history


@pytest.mark.parametrize(("seed", "after_s"), [(1, 0.0), (5, 0.5), (1, 1.0), (5, 1.5)])
def test_a_move_whose_newcomer_dies_costs_nothing(seed: int, after_s: float) -> None:
    """Whoever moved learns on, or is followed on its own machine by one that begins with everything."""

    def newcomer(world: ControlWorld, _old: PNodeShell, new: PNodeShell) -> PNodeShell:
        world.kernel.after(60.0, new.start)
        return new

    assert history_in_which_one_dies(seed, after_s, newcomer).again == 0


@pytest.mark.parametrize(("seed", "after_s"), [(1, 0.0), (5, 0.5), (1, 1.5)])
def test_a_move_whose_old_machine_dies_costs_what_a_crash_costs(seed: int, after_s: float) -> None:
    """The newcomer goes on from the newest checkpoints, for all that the machine had, and the job is completed: that is what this world asks for."""
    history = history_in_which_one_dies(seed, after_s, lambda _world, old, _new: old)
    assert history.again > 0, "it died with batches that nobody else had"
