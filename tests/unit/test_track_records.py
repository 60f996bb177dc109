"""Goal: what is heard becomes results, results become scores, lateness costs reliability only; a history can be lost, read again and rebuilt."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dcnr.system import SystemClock
from dcnr.v1 import membership_pb2, model_pb2, orchestrator_pb2
from orchestrator import history as history_module
from orchestrator.costs import StageCost
from orchestrator.history import History
from orchestrator.inventory import Inventory
from orchestrator.lending import MEASURED_BATCHES
from orchestrator.observing import FIRST_PAUSE_S, NEVER_S, Observer
from orchestrator.rebuilding import results_of_chain
from orchestrator.results import Kind, Result, device_class_of
from orchestrator.track import MAX_PER_NODE, NodeScore, TrackRecords
from orchestrator.view import JobFacts, ModelView
from trust.decay import DAY_S
from trust.scores import credibility

NODE, OTHER = "a" * 40, "b" * 40
WALL_S = 1_700_000_000.0
REQUESTED, PROVISIONING = orchestrator_pb2.ASSIGNMENT_STATE_REQUESTED, orchestrator_pb2.ASSIGNMENT_STATE_PROVISIONING
ACTIVE, FAILED = orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, orchestrator_pb2.ASSIGNMENT_STATE_FAILED
COST = StageCost("v0", (), (), True, 1, 2e9, 4, 4, 4, component="Linear")


def result(number: int, *, on_time: bool = True, kind: Kind = Kind.STEPS, time_s: float = WALL_S, **more: Any) -> Result:
    base = Result(number, time_s, NODE, "m", "j", "v0", "v0.1", "Linear", "cpu/x", kind, on_time, seconds=1.0, gflop=2.0)
    return replace(base, **more)


class Town:
    """One orchestrator with an inventory and an observer; its clock is an argument."""

    def __init__(self) -> None:
        self.inventory, self.observer, self.records = Inventory(), Observer(), TrackRecords()
        self.now = 100.0
        self.placed: dict[str, str] = {}

    def view(self) -> ModelView:
        rows = [model_pb2.Assignment(replica=replica, vnode="v0", pnode_id=pnode) for replica, pnode in self.placed.items()]
        job = JobFacts(model_pb2.JobRequest(job_id="j"), "", model_pb2.ModelGraph(), b"", (), (COST,))
        return ModelView("m", model_pb2.Head(), b"", model_pb2.Plan(job_id="j", assignments=rows), job=job)

    def arrive(self, node_id: str = NODE) -> None:
        self.inventory.attached(node_id, self.now)

    def beat(self, *reports: orchestrator_pb2.ReplicaReport, node_id: str = NODE, **more: Any) -> list[Result]:
        lent = membership_pb2.Capability(device="cpu", device_name="x", gflops=10, accepts_work=True)
        beat = orchestrator_pb2.Beat(replicas=reports, **({"worker_alive": True, "capability": lent} | more))
        self.inventory.beat(node_id, self.now, beat, 2.0)
        return self.look()

    def look(self, *, is_holder: bool = True) -> list[Result]:
        self.inventory.tick(self.now)
        wall_s = WALL_S + self.now
        return self.observer.look(
            self.view(), self.inventory.nodes(), self.now, wall_s, self.records.late_after_s, is_holder=is_holder
        )

    def lose(self, node_id: str = NODE) -> list[Result]:
        self.inventory.detached(node_id, self.now, "the connection broke")
        self.look()
        self.now += 1.5
        return self.look()


def report(
    state: orchestrator_pb2.AssignmentState.ValueType, num_learned: int = 0, step_s: float = 0.0, **more: Any
) -> orchestrator_pb2.ReplicaReport:
    return orchestrator_pb2.ReplicaReport(
        replica="v0.1", vnode="v0", state=state, num_learned=num_learned, step_s=step_s, **({"incarnation": 7} | more)
    )


def kinds(results: Sequence[Result]) -> list[tuple[str, bool]]:
    return [(one.kind.value, one.on_time) for one in results]


@pytest.fixture
def town() -> Town:
    """A PNode is here, and the plan has just named it for the replica."""
    found = Town()
    found.arrive()
    assert found.beat() == []
    found.placed = {"v0.1": NODE}
    assert found.look() == []
    return found


# ---- what is observed -----------------------------------------------------------------------------------------------------------


def test_provisioning_is_timed_from_the_plan_to_the_first_work(town: Town) -> None:
    town.now += 2.0
    assert town.beat(report(REQUESTED)) == []
    town.now += 5.0
    assert town.beat(report(PROVISIONING)) == []
    town.now += 5.0
    (found,) = town.beat(report(ACTIVE))
    assert (found.kind, found.seconds, found.on_time) == (Kind.PROVISIONED, 12.0, True)
    assert (found.component, found.device_class, found.job_id) == ("Linear", "cpu/x", "j")
    assert found.time_s == WALL_S + town.now
    assert town.beat(report(ACTIVE)) == []


def test_what_worked_before_anybody_looked_is_not_timed() -> None:
    """After a restart of the orchestrator nobody knows when a replica was asked for."""
    town = Town()
    town.placed = {"v0.1": NODE}
    town.arrive()
    assert town.beat(report(ACTIVE)) == []


def test_steps_are_written_down_now_and_then_and_only_where_something_was_learned(town: Town) -> None:
    town.beat(report(ACTIVE))
    assert town.beat(report(ACTIVE, MEASURED_BATCHES - 1, 0.5)) == []
    (first,) = town.beat(report(ACTIVE, MEASURED_BATCHES, 0.5))
    assert (first.kind, first.seconds, first.gflop) == (Kind.STEPS, 0.5, 2.0)
    assert town.beat(report(ACTIVE, 10 * MEASURED_BATCHES, 0.5)) == [], "too soon"
    town.now += FIRST_PAUSE_S
    assert len(town.beat(report(ACTIVE, 11 * MEASURED_BATCHES, 0.5))) == 1
    town.now += 10 * FIRST_PAUSE_S
    assert town.beat(report(ACTIVE, 11 * MEASURED_BATCHES, 0.5)) == [], "it waits for others: neither good nor bad"
    assert town.beat(report(ACTIVE, 99 * MEASURED_BATCHES, math.nan)) == []


def test_a_loss_is_the_nodes_own_and_leaving_politely_is_none(town: Town) -> None:
    town.beat(report(ACTIVE))
    assert kinds(town.lose()) == [("lost", False)]
    assert town.look() == [], "once"
    polite = Town()
    polite.arrive()
    polite.beat()
    polite.placed = {"v0.1": NODE}
    polite.beat(report(ACTIVE), draining=True)
    assert polite.lose() == []


def test_only_the_holder_sees_losses(town: Town) -> None:
    """A PNode attaches to a few orchestrators; that it went elsewhere is no loss."""
    town.beat(report(ACTIVE))
    town.inventory.detached(NODE, town.now, "the PNode closed it")
    town.now += 1.5
    assert town.look(is_holder=False) == []
    assert kinds(town.look(is_holder=True)) == [("lost", False)]


def test_a_node_that_was_only_out_of_reach_is_corrected_and_a_new_life_is_not(town: Town) -> None:
    town.beat(report(ACTIVE, 40, 0.5))
    (loss,) = town.lose()
    town.now += 3.0
    town.arrive()
    (correction, *_) = town.beat(report(ACTIVE, 50, 0.5))
    assert (correction.kind, correction.corrects) == (Kind.CORRECTED, loss.number)
    assert correction.number > loss.number
    (loss,) = town.lose()
    town.now += 3.0
    town.arrive()
    assert town.beat(report(PROVISIONING, incarnation=8)) == []
    town.now += 4.0
    (again,) = town.beat(report(ACTIVE, incarnation=8))
    assert (again.kind, again.seconds) == (Kind.PROVISIONED, 4.0)


def test_a_worker_that_its_daemon_starts_again_at_once_is_a_loss_all_the_same(town: Town) -> None:
    town.beat(report(ACTIVE, 40))
    assert kinds(town.beat(report(ACTIVE, 30, incarnation=8))) == [("lost", False)]
    assert town.beat(report(REQUESTED, incarnation=0)) == [], "while none runs"
    assert kinds(town.beat(report(PROVISIONING, incarnation=9))) == [("lost", False)]
    assert kinds(town.beat(report(ACTIVE, 30, incarnation=9))) == [("provisioned", True)]


def test_a_restart_after_a_pause_or_a_polite_exit_is_none(town: Town) -> None:
    town.beat(report(ACTIVE, 40), draining=True)
    assert kinds(town.beat(report(ACTIVE, 40, incarnation=8))) == []
    town.beat(report(ACTIVE, 50, incarnation=8), capability=membership_pb2.Capability(device="cpu", accepts_work=False))
    assert kinds(town.beat(report(ACTIVE, 50, incarnation=9))) == []
    assert kinds(town.beat(report(ACTIVE, 50, incarnation=10))) == [("lost", False)]
    assert not town.look(is_holder=False)


def test_a_node_whose_place_was_taken_is_not_corrected(town: Town) -> None:
    town.beat(report(ACTIVE, 40))
    town.lose()
    town.placed = {"v0.2": OTHER}
    town.look()
    town.arrive()
    assert town.beat(report(ACTIVE, 50)) == []


def test_a_failure_under_a_living_worker_counts_once_and_one_that_never_comes_too(town: Town) -> None:
    assert town.beat(report(FAILED, reason="no memory")) == []
    town.now += 4.0
    (found,) = town.beat(report(FAILED, reason="no memory"))
    assert (found.kind, found.on_time, found.reason) == (Kind.FAILED, False, "no memory")
    town.now += 4.0
    assert town.beat(report(FAILED)) == []
    town.placed = {"v0.2": NODE}
    town.look()
    town.now += NEVER_S
    late = report(PROVISIONING)
    late.replica = "v0.2"
    assert kinds(town.beat(late)) == [("failed", False)]
    assert town.beat(late) == []


def test_who_brings_nothing_is_less_reliable(town: Town) -> None:
    town.beat(report(ACTIVE))
    town.observer.brought_nothing("m", NODE, "v0", "v0.1", "no checkpoint of it for 120 s")
    assert kinds(town.beat(report(ACTIVE))) == [("idle", False)]
    assert town.beat(report(ACTIVE)) == []


def test_who_brings_nothing_is_less_reliable_also_where_its_place_is_gone_at_once(town: Town) -> None:
    """The plan that gives its place to another is made in the moment in which that is found, long before the next look."""
    town.beat(report(ACTIVE))
    town.observer.brought_nothing("m", NODE, "v0", "v0.1", "no checkpoint of it for 120 s")
    town.placed = {"v0.2": OTHER}
    (found,) = town.look()
    assert (found.kind, found.pnode_id, found.replica, found.on_time) == (Kind.IDLE, NODE, "v0.1", False)
    assert town.look() == []


def test_late_is_what_takes_twice_as_long_as_95_of_100_of_its_class(town: Town) -> None:
    town.beat(report(ACTIVE))
    for index in range(3):
        town.records.take(result(index, pnode_id=str(index) * 40, seconds=0.5))
    town.records.refresh()
    (slow,) = town.beat(report(ACTIVE, MEASURED_BATCHES, 1.1))
    assert not slow.on_time
    assert "late from 1 s on" in slow.reason
    town.now += FIRST_PAUSE_S
    (good,) = town.beat(report(ACTIVE, 2 * MEASURED_BATCHES, 0.9))
    assert good.on_time
    assert town.records.late_after_s(Kind.STEPS, "Conv2d", "cpu/x", 2.0) == math.inf


# ---- what is made of it ---------------------------------------------------------------------------------------------------------


def shown(records: TrackRecords, k: float = 0.0) -> NodeScore:
    (found,) = records.scores(lambda node: k)
    return found


def test_the_shown_score_is_credibility_times_reliability_with_its_parts() -> None:
    records = TrackRecords()
    for number in range(4):
        records.take(result(number, on_time=number > 0))
    found = shown(records, k=20.0)
    assert found.score.reliability == 0.75
    assert found.score.credibility == credibility(20.0)
    assert found.score.shown == round(100 * credibility(20.0) * 0.75)
    assert (found.num_results, found.num_on_time, found.score.passes) == (4, 3, 20.0)


def test_reliability_halves_what_is_seven_days_old() -> None:
    records = TrackRecords()
    records.take(result(1, on_time=False))
    records.take(result(2, time_s=WALL_S + 7 * DAY_S))
    assert shown(records).score.reliability == pytest.approx(2 / 3)


def test_a_corrected_entry_does_not_count_and_stays_written() -> None:
    records = TrackRecords()
    for one in (result(1), result(2, on_time=False, kind=Kind.LOST), result(3, kind=Kind.CORRECTED, corrects=2)):
        records.take(one)
    assert shown(records).score.reliability == 1.0
    assert shown(records).num_results == 1


def test_percentiles_are_by_component_and_device_class_and_each_node_has_one_voice() -> None:
    records = TrackRecords()
    for number in range(1, 101):
        records.take(result(number, seconds=float(number)))
    records.take(result(101, kind=Kind.PROVISIONED, seconds=9.0))
    records.take(result(102, component="Conv2d", seconds=5.0, gflop=10.0))
    conv, linear = shown(records).works
    assert linear.step_s is not None
    assert (linear.step_s.p50, linear.step_s.p95, linear.step_s.num) == (50.0, 95.0, 100)
    assert linear.provisioning_s is not None
    assert linear.provisioning_s.p50 == 9.0
    assert conv.s_per_gflop is not None
    assert conv.s_per_gflop.p50 == 0.5
    for node in ("b", "c"):
        records.take(result(200, pnode_id=node * 40, seconds=2.0))
    records.refresh()
    known = records.expected()["Linear", "cpu/x"].s_per_gflop
    assert known is not None
    assert (known.p50, known.num) == (1.0, 3), "the median of three nodes, not of 102 entries"
    assert records.paces()["Linear", "cpu/x"].p50 == 1.0


def test_the_planner_reads_rounded_figures() -> None:
    records = TrackRecords()
    for node, seconds in (("a", 2.0), ("b", 2.0), ("c", 8.0)):
        records.take(result(1, pnode_id=node * 40, seconds=seconds))
    records.take(result(2, kind=Kind.PROVISIONED, seconds=47.0))
    records.refresh()
    tracks = records.tracks(lambda node: 50.0)
    assert tracks[NODE].score == 1.0
    assert tracks[NODE].provision_s == 30.0
    assert (tracks[NODE].pace, tracks["c" * 40].pace) == (1.0, pytest.approx(1.25**6))


def test_memory_is_bounded() -> None:
    records = TrackRecords()
    for number in range(3 * MAX_PER_NODE):
        records.take(result(number))
    assert shown(records).num_results == MAX_PER_NODE


def test_the_device_class_is_bounded_and_printable() -> None:
    said = membership_pb2.Capability(device="cuda", device_name="NVIDIA H200\n\x1b[31m" + "x" * 200)
    found = device_class_of(said)
    assert found.startswith("cuda/NVIDIA H200  [31m")
    assert len(found) == 80
    assert device_class_of(membership_pb2.Capability(architecture="arm64")) == "cpu/arm64"


# ---- what is kept ---------------------------------------------------------------------------------------------------------------


def test_results_are_read_again_as_they_were_written_and_never_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each PNode the newest are kept; what is kept is what was written."""
    monkeypatch.setattr(history_module, "MAX_PER_NODE", 3)
    monkeypatch.setattr(history_module, "PRUNE_EVERY", 2)

    async def story() -> None:
        written = [result(number, pnode_id=NODE if number % 2 else OTHER, reason=f"r{number}") for number in range(1, 11)]
        for part in (written[:5], written[5:]):
            history = History(tmp_path / "history.db", "me", SystemClock())
            await history.open()
            for one in part:
                history.result(one)
                await history.flush()
            await history.close()
        again = History(tmp_path / "history.db", "me", SystemClock())
        await again.open()
        assert await again.results() == written[4:]
        await again.close()

    asyncio.run(story())


class Chain:
    """A model's manifests by digest, as a loader gives them."""

    def __init__(self, *manifests: model_pb2.Manifest) -> None:
        self.manifests = {str(index): manifest for index, manifest in enumerate(manifests, 1)}

    async def manifest(self, model: str, digest: str) -> tuple[model_pb2.Manifest, bytes]:
        return self.manifests[digest], b""


def test_a_lost_history_is_rebuilt_from_what_manifests_name() -> None:
    """Contributions are results in time; verdicts about what was named before, whatever they say, are not: a fault costs no reliability."""

    def contribution(verdict: str, at_s: float, pnode: str = NODE) -> model_pb2.Contribution:
        return model_pb2.Contribution(vnode="v0", replica="v0.1", pnode_id=pnode, verdict=verdict, decided_unix_ms=int(1000 * at_s))

    chain = Chain(
        model_pb2.Manifest(job_id="j", contributions=[contribution("open", WALL_S)]),
        model_pb2.Manifest(
            job_id="j", parent_digest="1", contributions=[contribution("failed", WALL_S + 1), contribution("spared", WALL_S + 2)]
        ),
        model_pb2.Manifest(job_id="k", parent_digest="2", contributions=[contribution("unaudited", 0.0, OTHER)]),
    )
    found = asyncio.run(results_of_chain(chain, "m", "3", {"v0": "Linear"}, WALL_S + 60))  # type: ignore[arg-type]
    assert [(one.pnode_id, one.time_s, one.job_id) for one in found] == [
        (NODE, WALL_S, "j"), (NODE, WALL_S + 2, "j"), (OTHER, WALL_S + 60, "k"),
    ]  # fmt: skip
    assert all(one.kind is Kind.NAMED and one.on_time for one in found)
    observer = Observer(after=5)
    assert [one.number for one in observer.rebuilt(found)] == [6, 7, 8]


@pytest.mark.parametrize("step_s", [5e-324, 1e-300])
def test_a_step_that_took_no_time_at_all_ends_no_reckoning(step_s: float) -> None:
    """Alone in a class of machines of its own making it would be held against itself: nothing divided by nothing."""
    town = Town()
    town.placed = {"v0.1": NODE}
    town.arrive()
    report = orchestrator_pb2.ReplicaReport(replica="v0.1", vnode="v0", incarnation=1, state=ACTIVE, step_s=step_s)
    found = town.beat(report)
    report.num_learned = MEASURED_BATCHES
    found += town.beat(report)
    for one in (*found, result(90, seconds=step_s)):  # the second as a history kept it
        town.records.take(one)
        assert town.records.refresh()
        assert 0.0 < town.records.tracks(lambda _: 0.0)[NODE].pace <= 1.0
        assert all(known.p50 > 0.0 for known in town.records.paces().values())
