"""The view of a running job: a live screen in a terminal, plain lines where output is piped, nothing beside ``--json``.

The lines are pure functions of the newest message; only `Live` touches the terminal.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from dcnr.cli.output import duration, short, table
from dcnr.sdk.plain import word
from dcnr.sdk.progress import batches_of
from dcnr.sdk.reported import loss_text, num_durable
from dcnr.sdk.siblings import learned, merging, siblings, standing
from dcnr.v1 import common_pb2, model_pb2, orchestrator_pb2

if TYPE_CHECKING:
    from rich.live import Live

KEPT_EVENTS: Final = 8
PLAIN_EVERY: Final = 5
"""Where output is piped, every so many views give a line; news gives one at once."""


class Watcher(Protocol):
    """Shows messages; a context manager around the live part."""

    def __enter__(self) -> Self: ...
    def __exit__(self, *exception: object) -> None: ...
    def show(self, message: orchestrator_pb2.WatchJobResponse) -> None:
        """Takes in the newest message."""
        ...

    def finish(self) -> None:
        """Prints how it ended."""
        ...


def watcher(*, silent: bool) -> Watcher:
    """The right one for this process."""
    if silent:
        return _Silent()
    return _LiveView() if sys.stdout.isatty() else _Lines()


class _Silent:
    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    def show(self, message: orchestrator_pb2.WatchJobResponse) -> None:
        return

    def finish(self) -> None:
        return


class _Lines(_Silent):
    """One line now and then, one per event, and one per change of state."""

    def __init__(self) -> None:
        self._job = orchestrator_pb2.JobView()
        self._count = 0

    def show(self, message: orchestrator_pb2.WatchJobResponse) -> None:
        for event in own_events(message):
            print(event_line(event), flush=True)  # noqa: T201
        if (message.job.state, message.job.held_up) != (self._job.state, self._job.held_up) or self._count % PLAIN_EVERY == 0:
            print(headline(message.job), flush=True)  # noqa: T201
        self._job = message.job
        self._count += 1

    def finish(self) -> None:
        print(ending(self._job), flush=True)  # noqa: T201


class _LiveView(_Silent):
    """A rich screen that is redrawn in place."""

    def __init__(self) -> None:
        from rich.console import Console

        self._console = Console(no_color=bool(os.environ.get("NO_COLOR")), highlight=False)
        self._events: deque[str] = deque(maxlen=KEPT_EVENTS)
        self._job = orchestrator_pb2.JobView()
        self._live: Live | None = None

    def __enter__(self) -> Self:
        from rich.live import Live

        self._live = Live(console=self._console, refresh_per_second=4, transient=True)
        self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, message: orchestrator_pb2.WatchJobResponse) -> None:
        self._job = message.job
        self._events.extend(event_line(event) for event in own_events(message))
        if self._live is not None:
            self._live.update(self._screen(message))

    def finish(self) -> None:
        self._console.print(ending(self._job), markup=False)

    def _screen(self, message: orchestrator_pb2.WatchJobResponse) -> Any:
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.text import Text

        job = message.job
        done, total = batches_of(job)
        parts: list[Any] = [Text(headline(job), style="bold"), ProgressBar(total=max(total, 1), completed=done, width=60)]
        parts += [Text(f"\n{vnodes_table(job)}"), Text(f"\n{nodes_table(message)}")]
        if self._events:
            parts.append(Text("\n" + "\n".join(self._events), style="dim"))
        return Group(*parts)


def headline(job: orchestrator_pb2.JobView) -> str:
    """State, progress and pace on one line."""
    why = f" ({job.pause.reason})" if job.state == model_pb2.JOB_STATE_PAUSED and job.pause.reason else ""
    parts = [f"{job.model} {word(model_pb2.JobState, job.state)}{why}", _progress(job)]
    parts.append(job.held_up)
    parts.append(f"at most {job.batches_per_s:g} batches/s" if job.batches_per_s else "")
    parts.append(f"plan {job.plan_number}" if job.plan_number else "")
    parts.append(f"epoch {job.epoch} of {short(job.holder)}" if job.epoch else "")
    parts.append(f"running {duration(job.running_s)}" if job.running_s else "")
    parts.append(f"settling {duration(job.settling_s)}" if job.settling_s else "")
    parts.append(f"ETA {duration(job.eta_s)}" if job.eta_s > 0 else "")
    parts.append(f"at most {job.unnoticed_steps / job.cleared_steps:.1%} wrong unnoticed" if job.cleared_steps else "")
    deepest = exits_of(job)
    parts.append(f"{deepest[-1][0]} {deepest[-1][1]}" if deepest else "")
    return ", ".join(part for part in parts if part)


def _progress(job: orchestrator_pb2.JobView) -> str:
    """How far it is; of a job that the plan no longer covers, its size alone."""
    done, total = batches_of(job)
    if not total:
        return ""
    return f"{done}/{total} batches learned by all" if job.vnodes else f"{total} batches"


def vnodes_table(job: orchestrator_pb2.JobView) -> str:
    """Who holds what, and how far it is; below a VNode with several replicas, the others."""
    results = dict(exits_of(job))
    rows: list[tuple[object, ...]] = []
    for item in job.vnodes:
        others = siblings(item)
        notes = [merging(replica) for replica in item.replicas if others and replica.assignment.replica == item.assignment.replica]
        notes += [f"waits for {item.report.held_back_by}"] if item.report.held_back_by else []
        rows.append(
            (
                item.vnode, short(item.assignment.pnode_id), _state(item), f"{item.report.num_learned}/{job.num_batches}",
                num_durable(item.report), *([_cleared(job, item)] if job.audited else []),
                f"{item.report.rate:.1f}", loss_text(item.report),
                results.get(item.vnode, "-"), ", ".join(note for note in notes if note),
            )
        )  # fmt: skip
        rows += [
            (
                f"  {other.assignment.replica}", short(other.assignment.pnode_id), standing(other), f"{learned(other)}/{job.num_batches}",
                "-", *(["-"] if job.audited else []),
                f"{other.report.rate:.1f}", loss_text(other.report), "-", merging(other),
            )
            for other in others
        ]  # fmt: skip
    cleared = ("cleared",) if job.audited else ()
    return table(("vnode", "node", "state", "learned", "durable", *cleared, "batch/s", "loss", "validation", ""), rows)


def nodes_table(message: orchestrator_pb2.WatchJobResponse) -> str:
    """All nodes with the reason of their state."""
    rows = [
        (
            short(node.node_id), word(orchestrator_pb2.NodeState, node.state) + (" (decides)" if node.holder else ""),
            f"{node.capability.cores:g}" if node.capability.cores else "-", f"{node.load.cores:.2f}" if node.HasField("load") else "-",
            ", ".join(node.replicas) or "-", node.reason,
        )
        for node in message.nodes
    ]  # fmt: skip
    return table(("node", "state", "cores", "in use", "replicas", "reason"), rows)


def own_events(message: orchestrator_pb2.WatchJobResponse) -> list[common_pb2.Event]:
    """What happened since the job was accepted: whoever begins to watch is not told what lies before it. All, where that is not known any more."""
    events = list(message.events)
    accepted = [at for at, event in enumerate(events) if event.kind == "job_accepted" and event.subject == message.job.job_id]
    return events[accepted[0] :] if accepted else events


def event_line(event: common_pb2.Event) -> str:
    """What happened to whom and why."""
    subject = short(event.subject) if len(event.subject) == 40 else event.subject
    told_by = f" (says {short(event.reporter)})" if event.reporter and event.reporter != event.subject else ""
    return f"· {event.kind} {subject}: {event.reason}{told_by}"


def ending(job: orchestrator_pb2.JobView) -> str:
    """How the job ended, with the final evaluation by depth."""
    outcome = job.outcome
    lines = [f"job {job.job_id} {word(model_pb2.JobState, job.state)}" + (f": {outcome.reason}" if outcome.reason else "")]
    exits = sorted(outcome.exits, key=lambda result: result.depth)
    if exits:
        rows = [(result.depth, result.vnode, *_figures(result), result.count) for result in exits]
        lines.append(table(("depth", "exit", "test loss", "accuracy", "count"), rows))
    if outcome.manifest_digest:
        lines += [f"manifest {outcome.manifest_digest}", f"next: dcnr model export {job.model} --out {job.model}"]
    return "\n".join(lines)


def exits_of(job: orchestrator_pb2.JobView) -> list[tuple[str, str]]:
    """The newest validation result of each exit, in the order of the graph."""
    found: list[tuple[str, str]] = []
    for item in job.vnodes:
        results = [result for result in (*item.curve, *item.report.exits) if result.split == "validation" and result.count]
        if results:
            newest = max(results, key=lambda result: (result.round, result.count))
            loss, accuracy = _figures(newest)
            found.append((item.vnode, f"{accuracy} (loss {loss})"))
    return found


def _figures(result: model_pb2.ExitResult) -> tuple[str, str]:
    count = max(1, int(result.count))
    return f"{result.sum_loss / count:.3f}", f"{100 * result.correct / count:.2f} %"


def _state(item: orchestrator_pb2.VNodeView) -> str:
    if not item.assignment.pnode_id:
        return "waiting"
    return word(orchestrator_pb2.AssignmentState, item.report.state) if item.report.replica else "placed"


def _cleared(job: orchestrator_pb2.JobView, item: orchestrator_pb2.VNodeView) -> str:
    """Batches that stand on no open audit, and how many audits are open."""
    num_cleared = item.cleared.step if item.cleared.job_id == job.job_id else 0
    return f"{num_cleared}" + (f" ({item.num_open} open)" if item.num_open else "")
