"""Machines that join all at once while a job runs: how soon each is of use, and what their coming costs those that were there."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Final

from benchmarks import machine
from benchmarks.meter import Meter
from chaos.figures import Points, rate, rounded
from chaos.run import POLL_S, TRAINING_S, VIEW_S, Row, Say
from chaos.stand import Stand
from chaos.targets import JOINERS_RATE, of_joining
from chaos.track import copies_of
from chaos.work import Work
from dcnr.errors import DcnrError, TimedOut
from dcnr.testing import LocalNetwork, LocalPNode, Process
from dcnr.v1 import orchestrator_pb2

FORMAT: Final = "dcnr-chaos-joining-1"
SPAN_S: Final = 10.0
"""Rates are those of so many seconds: deltas are merged every few of them."""
STEP_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Joining:
    """What runs."""

    work: Work
    num_pnodes: int = 8
    num_joiners: int = 4
    num_orchestrators: int = 2
    cpu_percent: float = 9.0
    memory_mb: int = 768
    checkpoint_s: float = 15.0
    before_s: float = 60.0
    after_s: float = 90.0


@dataclass(slots=True)
class _Comer:
    """One machine that joins."""

    process: Process
    began_s: float
    first: dict[tuple[str, str, int], int] = field(default_factory=dict)
    contributed_s: float | None = None

    def seen(self, now_s: float, job: orchestrator_pb2.JobView) -> None:
        """It contributes when a replica on it has learned more than it had when it was first seen at work."""
        mine = [copy for copy in copies_of(job) if copy.pnode_id == self.process.node_id and copy.works]
        if self.contributed_s is None and any(copy.progress > self.first.setdefault(copy.life, copy.progress) for copy in mine):
            self.contributed_s = now_s - self.began_s


def run(joining: Joining, *, say: Say = lambda text: None) -> Row:
    """The document of one round. Raises DcnrError where the network did not come up."""
    facts = machine.describe()
    flags = ("--cpu-percent", f"{joining.cpu_percent:g}")
    specs = [
        LocalPNode(f"p{number + 1}", memory_mb=joining.memory_mb, flags=flags)
        for number in range(joining.num_pnodes + joining.num_joiners)
    ]
    with contextlib.ExitStack() as stack:
        directory = Path(tempfile.mkdtemp(prefix="dcnr-chaos-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        network = LocalNetwork(
            directory / "n", num_orchestrators=joining.num_orchestrators, pnodes=specs[: joining.num_pnodes], name="chaos"
        )
        stand = Stand(stack.enter_context(network))
        say(f"all attached after {stand.attached():.1f} s")
        stand.stage(joining.work)
        job_id = stand.submit(joining.work, "joining", checkpoint_s=joining.checkpoint_s)
        measured = _watched(joining, stand, job_id, specs[joining.num_pnodes :], say)
    settings = {
        **asdict(joining), "work": type(joining.work).__name__.lower(), "num_vnodes": joining.work.num_vnodes,
        "replicas_per_vnode": joining.work.replicas, "batch_size": joining.work.batch_size,
    }  # fmt: skip
    document = {"format": FORMAT, "machine": facts, "settings": settings, **measured}
    return {**document, "figures": conclude(document)}


def _watched(joining: Joining, stand: Stand, job_id: str, specs: list[LocalPNode], say: Say) -> Row:
    """Follows the job: until every VNode learns, a while without joiners, a while with them. Raises TimedOut where it takes much longer."""
    meter, comers, learned = Meter(joining.work.num_batches, joining.work.vnodes), list[_Comer](), list[list[float]]()
    submitted_s, steady_s = time.monotonic(), None
    while time.monotonic() < submitted_s + 2 * TRAINING_S + joining.before_s + joining.after_s:
        with contextlib.suppress(DcnrError), stand.client() as client:
            for view in client.watch(job_id, model=joining.work.name, interval_s=VIEW_S):
                now = time.monotonic()
                meter.seen(now, view.job.vnodes)
                for comer in comers:
                    comer.seen(now, view.job)
                if meter.began_s is None:
                    if now - submitted_s > TRAINING_S:
                        raise TimedOut("not every VNode learns", code="chaos_timeout")
                    continue
                steady_s = steady_s or now
                learned.append([now, sum(meter.learned(vnode) for vnode in meter.vnodes)])
                if not comers and now >= steady_s + joining.before_s:
                    say(f"{len(specs)} PNodes join")
                    for spec in specs:
                        comers.append(_Comer(stand.network.add_pnode(spec), time.monotonic()))
                elif comers and now >= comers[0].began_s + joining.after_s:
                    zero_s = comers[0].began_s
                    return {
                        "learned": [[round(at_s - zero_s, 2), count] for at_s, count in learned],
                        "contributed_s": [rounded(comer.contributed_s, 2) for comer in comers],
                    }
        time.sleep(POLL_S)
    raise TimedOut("no orchestrator told of the job for long enough", code="chaos_timeout")


def conclude(document: Row) -> Row:
    """The figures, from the rows alone: moments count from the start of the first joiner."""
    settings, points = document["settings"], document["learned"]
    before = rate(points, -settings["before_s"], 0.0)
    after = rate(points, settings["after_s"] / 2, settings["after_s"])
    times = document["contributed_s"]
    figures: Row = {
        "rate_before": rounded(before, 2),
        "rate_after": rounded(after, 2),
        "all_contribute": None not in times,
        "contributed_max_s": max((time_s for time_s in times if time_s is not None), default=None),
        "below_s": rounded(_below_s(points, JOINERS_RATE * before, settings["after_s"]), 1),
        "kept_least": rounded(_least(points, settings["after_s"]) / before, 4) if before else None,
    }
    return {**figures, "targets": of_joining(document, figures)}


def _least(points: Points, until_s: float) -> float:
    """The least rate of any `SPAN_S` seconds that end after they began to come."""
    steps = int(until_s / STEP_S)
    return min(rate(points, step * STEP_S - SPAN_S, step * STEP_S) for step in range(steps + 1))


def _below_s(points: Points, least: float, until_s: float) -> float:
    """The longest time on end in which the rate of the last `SPAN_S` seconds was less."""
    longest = below = 0.0
    at_s = 0.0
    while at_s <= until_s:
        below = below + STEP_S if rate(points, at_s - SPAN_S, at_s) < least else 0.0
        longest, at_s = max(longest, below), at_s + STEP_S
    return longest
