"""Crash points with real processes: each is reached by what a small network does anyway, its process dies there by SIGKILL, a supervisor starts it
again, and then everything that was accepted must be done: the job completes, every lineage is exact, files and answers are as after a run without it.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from chaos.commands import Drives
from chaos.rounds import ROUNDS, Round, Where
from chaos.stand import Stand, died_at, died_by_kill
from chaos.work import Clouds
from dcnr import crashpoints
from dcnr.audit_lineage import VNodeLineage
from dcnr.children import Starting, executed
from dcnr.errors import DcnrError, NotFound, Unavailable
from dcnr.testing import ORCHESTRATOR, LocalNetwork, LocalPNode
from dcnr.v1 import model_pb2, orchestrator_pb2
from trust.folding import AUDITS_DRAWN

WORK: Final = Clouds("crash", num_vnodes=3, passes=12)
SWEPT: Final = Clouds("crash", num_vnodes=2, passes=150)
"""Long enough for states to be made, condemned and deleted."""
LASTING: Final = Clouds("crash", num_vnodes=2, passes=40)
"""Long enough for a pause to be asked for twice, for a PNode to be taken for gone, and for auditors to be heard and evidence to be deleted."""
AUDITED: Final = Clouds("crash", num_vnodes=2, passes=8)
SHARED: Final = Clouds("crash", num_vnodes=1, passes=30, replicas=2)
"""Two replicas of one VNode: the second begins with what the first one has."""
REACH_S: Final = 120.0
COMPLETE_S: Final = 180.0
TOLD_S: Final = 15.0
"""A death is seen by whoever started the process; a moment after the note, and perhaps after everything else is done."""
PNODES: Final = (LocalPNode("p1", memory_mb=512), LocalPNode("p2", memory_mb=512))
LIAR: Final = LocalPNode("liar", memory_mb=512, flags=("--behaviour", "tenfold"), program=("-m", "examples.byzantine", "pnode"))
WORKS: Final = {Where.PNODE: WORK, Where.AUDITED: AUDITED, Where.GIVEN: SHARED}
"""What the networks learn that are used for several rounds."""
Row = dict[str, Any]
Say = Callable[[str], None]


def run_rounds(
    names: Iterable[str] = (), *, say: Say = lambda text: None, played: Callable[[Row], None] = lambda row: None
) -> list[Row]:
    """One row per round, in the order of `ROUNDS`; ``names`` chooses points. A round that fails tells why and does not spoil the next. ``played`` takes
    each row as soon as it is there, so that an interrupted run keeps what it has.
    """
    wanted = set(names) or set(crashpoints.POINTS)
    chosen = [round_ for round_ in ROUNDS if round_.point in wanted]
    rows: list[Row] = []
    with Networks() as networks:
        for round_ in chosen:
            began = time.monotonic()
            row: Row = {"point": round_.point, "where": str(round_.where), "times": round_.times, "held": False}
            try:
                row |= networks.play(round_) | {"held": True}
            except (DcnrError, OSError) as error:
                row["reason"] = str(error)
                networks.forget(round_)
            row["round_s"] = round(time.monotonic() - began, 1)
            rows.append(row)
            played(row)
            say(f"{round_.point:20} {round_.where:36} {'held' if row['held'] else 'FAILED: ' + row['reason']} ({row['round_s']} s)")
    return rows


class Networks:
    """The networks of the rounds: one for all rounds of PNodes, one for all commands, a new one for each round of orchestrators."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._kept: dict[Where, tuple[Stand, contextlib.ExitStack]] = {}
        self._number = 0

    def __enter__(self) -> Networks:
        return self

    def __exit__(self, *error: object) -> None:
        for where in list(self._kept):
            self._kept.pop(where)[1].close()
        self._stack.close()

    def play(self, round_: Round) -> Row:
        """One round. Raises DcnrError where something was lost."""
        self._number += 1
        match round_.where:
            case Where.PNODE | Where.AUDITED | Where.GIVEN:
                return self._in_pnodes(self._stand(round_.where), round_)
            case Where.AUDITING | Where.HEARING | Where.BLAMING | Where.FORGETTING:
                with contextlib.ExitStack() as stack:
                    return self._in_auditors(stack, round_)
            case (
                Where.ORCHESTRATOR
                | Where.SWEEP
                | Where.CANCEL
                | Where.PAUSE
                | Where.RELEASE
                | Where.INDEX
                | Where.STRAY
                | Where.PASSING
                | Where.START
            ):
                with contextlib.ExitStack() as stack:
                    return self._in_orchestrators(stack, round_)
            case Where.STAGE | Where.SUBMIT | Where.DRAFT | Where.EXPORT:
                return Drives(self._stand(Where.SUBMIT), self._number).play(round_)
            case Where.KEY | Where.STORE | Where.DEMO | Where.IMPORT | Where.API_KEY:
                return Drives(None, self._number).play(round_)

    def forget(self, round_: Round) -> None:
        """The network of a failed round is not used again."""
        kept = self._kept.pop(round_.where if round_.where in WORKS else Where.SUBMIT, None)
        if kept is not None:
            kept[1].close()

    def _stand(self, where: Where) -> Stand:
        if where not in self._kept:
            stack = contextlib.ExitStack()
            stand = new_stand(stack, num_orchestrators=1, pnodes=PNODES, audits=AUDITS_DRAWN if where is Where.AUDITED else "none")
            stand.stage(WORKS.get(where, WORK))
            self._kept[where] = (stand, stack)
        return self._kept[where][0]

    def _in_pnodes(self, stand: Stand, round_: Round) -> Row:
        note = stand.network.directory / f"note-{self._number}"
        pnodes = stand.network.pnodes
        stand.again(pnodes, crashpoints.setting(round_.point, note, times=round_.times))
        codes = len(stand.supervisor.ends)
        stand.until(lambda: _dead(stand, note, round_) or _all_up(stand), REACH_S, "the PNodes are up, or one of them has died")
        work = WORKS[round_.where]
        job_id = stand.submit(work, round_.point)
        return _played(stand, round_, note, codes, lambda: stand.completed(job_id, work.name, COMPLETE_S))

    def _in_orchestrators(self, stack: contextlib.ExitStack, round_: Round) -> Row:
        directory = Path(tempfile.mkdtemp(prefix="dcnr-crash-"))
        stack.callback(shutil.rmtree, directory, ignore_errors=True)
        note = directory / "note"
        setting = crashpoints.setting(round_.point, note, times=round_.times)
        early = {} if round_.where is Where.START else {"o1": setting, "o2": setting}
        brisk = round_.where is Where.SWEEP
        stand = new_stand(stack, num_orchestrators=2, pnodes=PNODES, additions=early, brisk=brisk)
        work = SWEPT if brisk else LASTING if round_.where in (Where.PAUSE, Where.RELEASE, Where.STRAY) else WORK
        stand.stage(work)
        if round_.where is Where.PASSING:
            Drives(stand, self._number).passed_on()
            return _played(stand, round_, note, 0, lambda: None)
        if round_.where is Where.START:
            stand.again(stand.network.orchestrators[1:], setting)
        job_id = stand.submit(work, round_.point, checkpoint_s=1.0)
        if round_.where is Where.CANCEL:
            stand.ask(lambda client: client.cancel(job_id, [stand.key], model=work.name), 60.0, "the cancellation is recorded")
            return _played(stand, round_, note, 0, lambda: _cancelled(stand, job_id))
        if round_.where is Where.PAUSE:
            _paused(stand, job_id)
        if round_.where is Where.RELEASE:
            _released(stand, job_id)
        if round_.where is Where.STRAY:
            _returns_late(stand, job_id, work)
        return _played(stand, round_, note, 0, lambda: stand.completed(job_id, work.name, COMPLETE_S))

    def _in_auditors(self, stack: contextlib.ExitStack, round_: Round) -> Row:
        """Orchestrators that look themselves where there is one PNode, so that nobody else could, and hear auditors where there are two. A cheat is
        barred, and whoever comes then does its work.
        """
        note = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dcnr-crash-"))) / "note"
        setting = crashpoints.setting(round_.point, note, times=round_.times)
        liar, brisk = round_.where is Where.BLAMING, round_.where is Where.FORGETTING
        pnodes = (LIAR,) if liar else PNODES if round_.where is Where.HEARING else PNODES[:1]
        stand = new_stand(
            stack, num_orchestrators=2, pnodes=pnodes, additions={"o1": setting, "o2": setting}, brisk=brisk,
            audits=AUDITS_DRAWN, trusted=[one.name for one in pnodes[1:]],
        )  # fmt: skip
        work = LASTING if round_.where in (Where.HEARING, Where.FORGETTING) else AUDITED
        stand.stage(work)
        job_id = stand.submit(work, round_.point, checkpoint_s=1.0)

        def finish() -> list[VNodeLineage]:
            if liar:
                stand.until(lambda: _barred(stand), COMPLETE_S, "the cheat is barred")
                stand.network.add_pnode(PNODES[1])
            return stand.completed(job_id, work.name, COMPLETE_S)

        return _played(stand, round_, note, 0, finish)


def new_stand(
    stack: contextlib.ExitStack, *, num_orchestrators: int, pnodes: Sequence[LocalPNode], additions: Any = None, brisk: bool = False,
    audits: str = "none", trusted: Sequence[str] = (), starting: Starting = executed,
) -> Stand:  # fmt: skip
    """A network whose PNodes are attached; it ends with the stack."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-chaos-"))
    stack.callback(shutil.rmtree, directory, ignore_errors=True)
    network = LocalNetwork(
        directory / "n", num_orchestrators=num_orchestrators, pnodes=pnodes, name="chaos", additions=additions,
        orchestrator_module="chaos.brisk" if brisk else ORCHESTRATOR, starting=starting,
        audits=audits, trusted=trusted,
    )  # fmt: skip
    stand = Stand(stack.enter_context(network))
    stand.attached()
    return stand


def _played(stand: Stand, round_: Round, note: Path, ends: int, finish: Callable[[], Any]) -> Row:
    """Waits for the death, then for everything that must follow."""
    began = time.monotonic()
    stand.until(lambda: died_at(note, round_.point) is not None, REACH_S, f"a process dies at {round_.point}")
    died_s = time.monotonic()
    pid = died_at(note, round_.point)
    assert pid is not None
    result = finish()
    stand.until(
        lambda: died_by_kill(stand, pid, {end.pid: end.code for end in stand.supervisor.ends[ends:]}),
        TOLD_S, f"process {pid} is known to have ended by SIGKILL",
    )  # fmt: skip
    return {
        "reached_s": round(died_s - began, 2),
        "complete_s": round(time.monotonic() - died_s, 2),
        "lineages_exact": len(result) if isinstance(result, list) else None,
    }


def _dead(stand: Stand, note: Path, round_: Round) -> bool:
    return died_at(note, round_.point) is not None


def _all_up(stand: Stand) -> bool:
    with contextlib.suppress(DcnrError), stand.client() as client:
        nodes = {node.node_id for node in client.nodes() if node.attached and node.capability.gflops > 0}
        return {process.node_id for process in stand.network.pnodes} <= nodes
    return False


def _cancelled(stand: Stand, job_id: str) -> None:
    """The job ends once, as what its end says; the next one completes."""
    view = stand.ended(job_id, WORK.name, COMPLETE_S)
    if view.state not in (model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_COMPLETED):
        raise Unavailable(f"{job_id} ended as {model_pb2.JobState.Name(view.state)}", code="job_lost")
    after = stand.submit(WORK, "after")
    stand.completed(after, WORK.name, COMPLETE_S)


def _paused(stand: Stand, job_id: str) -> None:
    """A pause whose answer got lost is repeated, and counts once; then the job goes on."""

    def said() -> tuple[int, bool]:
        view = stand.job(job_id, WORK.name)
        return (int(view.pause.number), view.pause.paused) if view is not None else (0, False)

    stand.ask(lambda client: client.pause(job_id, [stand.key], model=WORK.name), 60.0, "the pause is recorded")
    stand.ask(lambda client: client.resume(job_id, [stand.key], model=WORK.name), 60.0, "that it goes on is recorded")
    stand.until(lambda: said() == (2, False), 60.0, "the second of two statements counts")


def _released(stand: Stand, job_id: str) -> None:
    """A release whose answer got lost is repeated, and counts once; then training is followed again."""

    named: list[str] = []

    def released() -> bool:
        view = stand.job(job_id, WORK.name)
        named.extend([view.manifest_digest] if view is not None and view.manifest_digest and not named else ())
        with contextlib.suppress(DcnrError), stand.client() as client:
            try:
                return bool(named) and client.release(WORK.name, [stand.key], manifest=named[0]).number == 1
            except NotFound:
                named.clear()  # not every VNode has learned something in it
        return False

    stand.until(released, REACH_S, "a release is recorded")
    found = stand.ask(
        lambda client: client.release(WORK.name, [stand.key], manifest=""), 60.0, "that training is followed is recorded"
    )
    if found.number != 2:
        raise Unavailable(f"release {found.number} is in force after two", code="release_lost")


def _returns_late(stand: Stand, job_id: str, work: Clouds) -> None:
    """A PNode stands still until others have what it hosts, and comes back with it."""

    def places() -> dict[str, str]:
        view = stand.job(job_id, work.name)
        found = (
            {item.vnode: item.assignment.pnode_id for item in view.vnodes if item.report.num_learned} if view is not None else {}
        )
        return found if set(found) == set(work.vnodes) else {}

    stand.until(lambda: bool(places()), REACH_S, "every VNode learns")
    away = places().get(work.vnodes[0], "")
    process = next(one for one in stand.network.pnodes if one.node_id == away)
    daemon = psutil.Process(process.pid)
    family = [daemon, *daemon.children(recursive=True)]
    for one in family:
        one.suspend()
    try:
        stand.until(lambda: bool(places()) and away not in places().values(), REACH_S, "others have what it hosts")
    finally:
        for one in family:
            one.resume()


def _barred(stand: Stand) -> bool:
    """Whether an orchestrator has verified the evidence against a PNode."""
    with contextlib.suppress(DcnrError), stand.client() as client:
        return any(node.state == orchestrator_pb2.NODE_STATE_QUARANTINED and node.evidence for node in client.nodes())
    return False


def table(rows: Sequence[Row]) -> str:
    """For people."""
    lines = [f"{'point':20} {'where':36} {'passing':>7} {'reached s':>9} {'complete s':>10}  held"]
    for row in rows:
        end = "yes" if row["held"] else "NO: " + str(row.get("reason", "")).splitlines()[0]
        lines.append(
            f"{row['point']:20} {row['where']:36} {row['times']:>7} {row.get('reached_s', '-'):>9} {row.get('complete_s', '-'):>10}  {end}"
        )
    return "\n".join(lines)
