"""Goal: whoever leaves politely costs nobody a batch; pauses, sleeps and closed terminals do what their owner expects; who comes back is welcome."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from network_rig import BATCH_SIZE, MODEL, SAMPLES, Rig, running_network

import dcnr.sdk
from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors
from dcnr.cli.local_door import ask
from dcnr.errors import DcnrError
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalPNode, Process
from dcnr.v1 import local_pb2, model_pb2, orchestrator_pb2
from pnode.home import Home
from pnode.waking import STOOD_S
from trust.network_file import load_policy

PER_PASS = SAMPLES // BATCH_SIZE
PASSES = 5
"""Many times what is learned before something is done to the network."""
CHECKPOINT_S = 2.0
CPU_PERCENT = 10
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", str(CPU_PERCENT))) for number in range(1, 5))
"""Each has room for two VNodes, and computes so little that a job of few batches outlasts what is done to the network."""
GOES_ON = (model_pb2.JOB_STATE_RUNNING, model_pb2.JOB_STATE_SETTLING)
"""On a busy machine leaving takes as long as learning the rest does."""
OFFLINE, ACTIVE = orchestrator_pb2.NODE_STATE_OFFLINE, orchestrator_pb2.NODE_STATE_ACTIVE
IN_TERMINAL = (
    "import fcntl, os, signal, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "signal.signal(signal.SIGHUP, signal.SIG_DFL); "  # tests that nohup started would pass on that it is ignored
    "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2) as running:
        yield running


def node(rig: Rig, process: Process) -> orchestrator_pb2.NodeView:
    """As an orchestrator sees it."""
    return next(item for item in rig.ask(lambda client: client.nodes()) if item.node_id == process.node_id)


def is_active(rig: Rig, process: Process) -> bool:
    with contextlib.suppress(DcnrError, StopIteration):
        return node(rig, process).state == ACTIVE
    return False


def last_learned(rig: Rig, process: Process) -> dict[str, int]:
    """By VNode, the most that this PNode reported until it ended."""
    learned: dict[str, int] = {}
    deadline = time.monotonic() + 60
    while process.alive:
        assert time.monotonic() < deadline, f"{process.name} does not end\n{process.tail()}"
        status = rig.status(process)
        for report in status.replicas if status is not None else ():
            learned[report.vnode] = max(learned.get(report.vnode, 0), int(report.num_learned))
        time.sleep(0.02)
    return learned


def moved_to(rig: Rig, vnode: str, away_from: Process) -> tuple[Process, orchestrator_pb2.ReplicaReport]:
    """Where a VNode is hosted now."""
    rig.until(lambda: vnode in rig.hosts() and rig.hosts()[vnode][0] is not away_from, f"{vnode} is hosted elsewhere", 60)
    return rig.hosts()[vnode]


def restored(rig: Rig, process: Process, replica: str) -> int:
    """With how many batches a replica began."""
    [line] = [line for line in rig.events(process) if line.startswith(f"replica_hosted {replica} ")]
    return int(line.split("restored ")[1].split()[0])


def leaves(rig: Rig, process: Process) -> None:
    """Politely."""
    ask(process.home, "Stop", local_pb2.StopRequest(hand_over=True))
    rig.until(lambda: not process.alive, "it has left", 30)
    rig.network.kill(process)  # this closes what we held of it


def lends(rig: Rig, process: Process, cpu_percent: int) -> None:
    """It comes, and lends so much."""
    process.command[process.command.index("--cpu-percent") + 1] = str(cpu_percent)
    rig.network.restart(process)


def check_halt(rig: Rig, job_id: str) -> None:
    """Nobody learns more than the step that was under way, every replica stays where it is, and it goes on."""

    def learned() -> dict[str, int]:
        return {report.replica: int(report.num_learned) for _, report in rig.hosted(60).values()}

    with rig.client() as client:
        client.pause(job_id, [rig.key], model=MODEL)
        rig.until(
            lambda: all(report.reason.startswith("job_paused") for _, report in rig.hosted(60).values()),
            "every replica knows it",
            60,
        )
        rig.until(lambda: client.job(job_id, MODEL).state == model_pb2.JOB_STATE_PAUSED, "every orchestrator knows it", 60)
        stood, job = learned(), client.job(job_id, MODEL)
        rig.until(lambda: client.job(job_id, MODEL).as_of_unix_ms > job.as_of_unix_ms + 2000, "two seconds go by", 60)
        later = learned()
        stayed = later.keys() & stood.keys()
        assert stayed
        assert all(stood[name] <= later[name] <= stood[name] + 1 for name in stayed), (stood, later)
        rig.until(lambda: client.job(job_id, MODEL).running_s == job.running_s, "whoever is asked, no time was used", 60)
        client.resume(job_id, [rig.key], model=MODEL)
    rig.until(lambda: all(count > later.get(name, 0) + 1 for name, count in learned().items()), "every replica learns again", 60)


def test_no_batch_is_run_again_when_a_pnode_is_told_to_end(rig: Rig) -> None:
    """Goal: after SIGTERM what the only replica of a VNode learned is in its successor's first state, and its successors have every frame, so nothing is
    learned or computed twice; and whoever submitted the job by that very PNode, as its owner would, has it and sees it go on.
    """
    job_id = rig.submit("finish", passes=PASSES, checkpoint_s=CHECKPOINT_S)
    hosts = rig.learning(job_id, 20, 90)
    leaving = hosts["b"][0]
    there = sorted(vnode for vnode, (process, _) in hosts.items() if process is leaving)
    incarnation = rig.told(leaving).incarnation
    forwarded = {vnode: int(report.num_forwarded) for vnode, (_, report) in rig.hosts().items()}
    own = f"{leaving.node_id}@{rig.told(leaving).control_address}"
    options = JobOptions(idempotency_key="finish", checkpoint_s=CHECKPOINT_S, unit_batches=8, lead_batches=512)
    with dcnr.sdk.connect([own], network=rig.network.network_file, key=rig.key) as owner:
        assert owner.submit(rig.graph(PASSES), [rig.key], options).job_id == job_id
        leaving.send(signal.SIGTERM)
        learned = last_learned(rig, leaving)
        assert owner.job(job_id, MODEL).state in GOES_ON
    assert leaving.popen is not None
    assert leaving.popen.returncode == 0
    assert sorted(learned) == there
    for vnode in there:
        process, report = moved_to(rig, vnode, leaving)
        assert restored(rig, process, report.replica) >= learned[vnode], f"batches of {vnode} are learned again"
    rig.until(lambda: node(rig, leaving).state == OFFLINE, "it is known to be away", 30)
    assert "politely" in node(rig, leaving).reason
    rig.network.kill(leaving)  # it is gone: this closes what we held of it
    rig.network.restart(leaving)
    rig.until(lambda: is_active(rig, leaving), "it is back", 90)
    assert rig.told(leaving).incarnation > incarnation
    rig.ended(job_id, 180)
    for vnode, (process, report) in rig.hosts().items():
        before = 0 if vnode in there else forwarded[vnode]
        assert report.num_forwarded == before, f"{vnode} on {process.name} computed batches again"
    for item in rig.audit():
        assert item.exact, (item.vnode, item.reason)
        assert item.num_batches == PASSES * PER_PASS


def test_no_batch_is_learned_again_when_a_vnode_moves_to_a_machine_that_has_nothing(rig: Rig) -> None:
    """Two machines have three VNodes, and a third one comes. No checkpoint is due for minutes: what moves begins with what was handed over.

    It lends twice what the others do: a move has to be worth it, which it is of one that seems two thirds as fast as they are, and on a busy computer the
    probe of an equal one has found half.
    """
    job_id = rig.submit("moves", passes=8 * PASSES, checkpoint_s=300.0)
    hosts = rig.learning(job_id, 5, 90)
    busy = [process for process, _ in hosts.values()]
    idle, victim = next(one for one in rig.network.pnodes if one not in busy), hosts["c"][0]
    leaves(rig, idle)  # a machine that was lost a moment ago has to be worth more
    rig.network.kill(victim)
    moved_to(rig, "c", victim)
    before = rig.learning(job_id, 20, 120)
    newest = {vnode: {report.replica: int(report.num_learned)} for vnode, (_, report) in before.items()}
    lends(rig, idle, 20)

    def has_moved() -> bool:
        for vnode, (process, report) in rig.hosts().items():
            newest[vnode][report.replica] = int(report.num_learned)
            if process is idle:
                return True
        return False

    rig.until(has_moved, "it takes something over", 120, pause_s=0.02)
    [(vnode, report)] = [(vnode, report) for vnode, (process, report) in rig.hosts().items() if process is idle]
    learned = [count for replica, count in newest[vnode].items() if replica != report.replica]
    rig.until(lambda: any(report.replica in line for line in rig.events(idle) if line.startswith("replica_hosted")), "it began", 30)
    assert restored(rig, idle, report.replica) >= max(learned) > 0, f"batches of {vnode} are learned again"
    with rig.client() as client:
        client.cancel(job_id, [rig.key], model=MODEL)
    rig.network.restart(victim)
    leaves(rig, idle)
    lends(rig, idle, CPU_PERCENT)
    rig.until(lambda: is_active(rig, victim) and is_active(rig, idle), "both are back", 90)


def test_a_pause_frees_the_machine_within_seconds_and_lasts_over_a_restart(rig: Rig) -> None:
    """Of a machine by its owner; and before that of the whole job by its maintainers, through which every replica stays and learns nothing."""
    job_id = rig.submit("pause", passes=PASSES, checkpoint_s=CHECKPOINT_S)
    hosts = rig.learning(job_id, 10, 90)
    check_halt(rig, job_id)
    paused = hosts["b"][0]
    worker = psutil.Process(rig.told(paused).worker_pid)
    ask(paused.home, "Pause", local_pb2.PauseRequest())
    assert rig.until(lambda: not worker.is_running(), "its worker has ended", 30, pause_s=0.02) < 5.0
    told = rig.told(paused)
    assert (told.state, told.worker_pid, told.capability.accepts_work) == ("paused", 0, False)
    [why, *_] = ask(paused.home, "Why", local_pb2.WhyRequest()).lines
    assert why.code == "paused"
    moved_to(rig, "b", paused)
    rig.until(lambda: node(rig, paused).state != ACTIVE and "paused" in node(rig, paused).reason, "its state has the reason", 30)
    rig.network.kill(paused)
    rig.network.restart(paused)
    rig.until(lambda: rig.status(paused) is not None, "it is back", 60)
    assert rig.told(paused).state == "paused"
    ask(paused.home, "Resume", local_pb2.ResumeRequest())
    rig.until(lambda: bool(rig.told(paused).worker_pid) and is_active(rig, paused), "it works again", 60)
    rig.ended(job_id, 180)
    assert all(item.exact for item in rig.audit())


def test_a_machine_that_slept_notices_it_and_drops_what_was_given_to_others(rig: Rig) -> None:
    job_id = rig.submit("sleep", passes=PASSES, checkpoint_s=CHECKPOINT_S)
    hosts = rig.learning(job_id, 20, 90)
    asleep, before = hosts["b"]
    pids = (asleep.pid, rig.told(asleep).worker_pid)
    rig.silent.add(asleep.name)
    fell_asleep_s = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        process, _ = moved_to(rig, "b", asleep)
        assert process is not asleep
        rig.until(lambda: node(rig, asleep).state == OFFLINE, "it is known to be silent", 30)
        rig.until(lambda: time.monotonic() > fell_asleep_s + 2 * STOOD_S, "it sleeps for longer than a hiccup", 30)
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)
        rig.silent.discard(asleep.name)
    rig.until(lambda: any(line.startswith("woke_up") for line in rig.events(asleep)), "it notices that it slept", 30)
    rig.until(lambda: is_active(rig, asleep), "it offers itself again", 30)
    rig.until(lambda: all(item.replica != before.replica for item in rig.told(asleep).replicas), "it has given its replica up", 40)
    rig.ended(job_id, 180)
    assert all(item.exact and item.num_batches == PASSES * PER_PASS for item in rig.audit())


def test_a_closed_terminal_is_a_polite_end(rig: Rig) -> None:
    """Goal: a daemon whose terminal is closed hands over and ends, though nobody reads what it says any more."""
    process = rig.network.pnodes[-1]
    rig.network.kill(process)
    ours, theirs = os.openpty()
    command = [argument for argument in process.command[1:] if argument != "--until-stdin-closes"]
    with subprocess.Popen(
        [sys.executable, "-c", IN_TERMINAL, *command], stdin=theirs, stdout=theirs, stderr=theirs, env=dict(process.environment),
        start_new_session=True,
    ) as daemon:  # fmt: skip
        try:
            os.close(theirs)
            rig.until(lambda: is_active(rig, process) and _pid(process.home) == daemon.pid, "it is attached", 90)
            os.close(ours)  # the kernel sends SIGHUP; writing fails from now on
            assert daemon.wait(90) == 0
        finally:
            daemon.kill()
    rig.until(lambda: node(rig, process).state == OFFLINE, "it is known to be away", 30)
    assert "politely" in node(rig, process).reason


def test_an_orchestrator_that_maintainers_take_out_is_followed_no_longer(rig: Rig) -> None:
    """Goal: daemons that run and learn take over a newer network document: the other orchestrator decides from then on, and no batch is lost by that."""
    job_id = rig.submit("amended", passes=PASSES, checkpoint_s=CHECKPOINT_S)
    rig.learning(job_id, 20, 90)
    holders: list[Process] = []

    def is_decided() -> bool:
        holder = rig.holder(job_id)
        holders.extend(process for process in rig.network.orchestrators if process.node_id == holder)
        return bool(holders)

    rig.until(is_decided, "somebody decides", 60)
    removed = holders[0]
    [stays] = [process for process in rig.network.orchestrators if process is not removed]
    living = [process for process in rig.network.pnodes if process.alive]
    lives = [rig.told(process).pid for process in living]
    file, home = rig.network.network_file, ["--home", str(rig.network.maintainer_home)]
    told = next(entry for entry in rig.network.bootstrap if entry.startswith(stays.node_id))

    def succeeds(*command: str) -> bool:
        return errors.exit_code(maintainer.app, "dcnr", ["network", *command, *home]) == 0

    assert succeeds("amend", str(file), "--remove-orchestrator", removed.node_id)
    rig.until(lambda: succeeds("publish", str(file), "--bootstrap", told), "it is handed in", 60, pause_s=1.0)

    def follows(process: Process) -> bool:
        status = rig.status(process)
        return status is not None and [one.node_id for one in status.orchestrators if one.attached] == [stays.node_id]

    rig.until(lambda: all(follows(process) for process in living), "every PNode is attached to the other one alone", 120)
    rig.until(lambda: rig.holder(job_id) == stays.node_id, "the other one decides", 120)
    rig.ended(job_id, 300)
    assert all(item.exact and item.num_batches == PASSES * PER_PASS for item in rig.audit())
    assert [rig.told(process).pid for process in living] == lives, "nobody began anew"
    kept = [process.home / "network.json" for process in (removed, stays)] + [Home(process.home).network for process in living]
    rig.until(lambda: {load_policy(path).document.version for path in kept} == {2}, "the next start of each finds it", 60)


def _pid(home: Path) -> int:
    try:
        return int(ask(home, "Status", local_pb2.StatusRequest()).pid)
    except DcnrError:
        return 0
