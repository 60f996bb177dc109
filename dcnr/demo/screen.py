"""The live view: a rich screen in a terminal, plain lines when piped. Shows what the network says of itself, nothing else."""

from __future__ import annotations

from collections import deque
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table

from dcnr.demo.shares import Assigned, assigned, num_units
from dcnr.demo.story import Story
from dcnr.sdk.plain import word
from dcnr.sdk.reported import num_durable
from dcnr.sdk.siblings import learned, merging, siblings, standing
from dcnr.v1 import common_pb2, model_pb2, orchestrator_pb2

PLAIN_EVERY_S = 5.0
SHOWN_EVENTS = 10


class Screen:
    """One per demo. Use as a context manager around the live part; `say` works at any time."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live: Live | None = None
        self._events: deque[str] = deque(maxlen=SHOWN_EVENTS)
        self._last_plain_s = -PLAIN_EVERY_S
        self._last_nodes: list[tuple[str, str, str]] = []
        self._names: dict[str, str] = {}

    def name_nodes(self, names: dict[str, str]) -> None:
        """Shows these names instead of node ids."""
        self._names = names

    def say(self, text: str) -> None:
        """One line of the story."""
        self._console.print(text, highlight=False, markup=False)

    def __enter__(self) -> Screen:
        if self._console.is_terminal:
            self._live = Live(console=self._console, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def event(self, event: common_pb2.Event) -> None:
        """An event of the network, with its reason."""
        line = f"{event.kind} {self._name(event.subject)}: {event.reason}"
        self._events.append(line)
        if self._live is None:
            self.say(f"      . {line}")

    def show(self, now_s: float, story: Story, nodes: list[orchestrator_pb2.NodeView]) -> None:
        """The newest view."""
        if self._live is not None:
            self._live.update(Group(self._progress(now_s, story), self._nodes(nodes), "\n".join(self._events)))
            return
        if (hosts := [self._host(node) for node in nodes]) != self._last_nodes:
            self._last_nodes = hosts
            self.say(f"{now_s:6.1f} s nodes: {'; '.join(' '.join(part for part in host if part) for host in hosts)}")
        if now_s - self._last_plain_s >= PLAIN_EVERY_S:
            self._last_plain_s = now_s
            job = story.job
            parts = [
                f"{item.vnode}@{'+'.join(self._places(item))} {item.report.num_learned}/{job.num_batches}{self._units(item, story)}{_exit(item)}"
                for item in job.vnodes
            ]
            self.say(f"{now_s:6.1f} s {word(model_pb2.JobState, job.state)}: {'; '.join(parts)}")

    def _progress(self, now_s: float, story: Story) -> Table:
        job = story.job
        title = f"{job.model}: {word(model_pb2.JobState, job.state)}, {now_s:.0f} s, epoch {job.epoch} of {self._name(job.holder)}, plan {job.plan_number}"
        if story.unit_batches:
            title += f", {num_units(int(job.num_batches), story.unit_batches)} units of {story.unit_batches} batches"
        table = Table(title=title)
        for column in ("VNode", "on", "units", "in work", "learned", "durable", "batches/s", "loss", "validation", "state"):
            table.add_column(column)
        for item in job.vnodes:
            report = item.report
            words = word(orchestrator_pb2.AssignmentState, report.state) if report.replica else "waiting"
            shares = _shares(item, story)
            table.add_row(
                item.vnode, self._name(item.assignment.pnode_id), *_cells(shares.get(item.assignment.replica)),
                f"{report.num_learned}/{job.num_batches}", str(num_durable(report)), f"{report.rate:.1f}",
                f"{report.loss:.3f}", _exit(item).strip(" ()"), words,
            )  # fmt: skip
            for other in siblings(item):
                table.add_row(
                    f"  {other.assignment.replica}", self._name(other.assignment.pnode_id), *_cells(shares.get(other.assignment.replica)),
                    f"{learned(other)}/{job.num_batches}", "-",
                    f"{other.report.rate:.1f}", f"{other.report.loss:.3f}", merging(other), standing(other),
                )  # fmt: skip
        return table

    def _nodes(self, nodes: list[orchestrator_pb2.NodeView]) -> Table:
        table = Table(title="nodes")
        for column in ("node", "state", "cores", "memory MiB", "replicas", "reason"):
            table.add_column(column)
        for node in nodes:
            name, state, replicas = self._host(node)
            capability: Any = node.capability
            table.add_row(
                name, state, f"{capability.cores:g}", str(capability.memory_bytes // 2**20), replicas, node.reason,
            )  # fmt: skip
        return table

    def _host(self, node: orchestrator_pb2.NodeView) -> tuple[str, str, str]:
        """Name, state, and what it holds."""
        state = word(orchestrator_pb2.NodeState, node.state)
        return self._name(node.node_id), f"{state}, decides" if node.holder else state, ", ".join(node.replicas)

    def _units(self, item: orchestrator_pb2.VNodeView, story: Story) -> str:
        """Where each replica is in what it owns; with names where there are several."""
        shares = list(_shares(item, story).values())
        told = [str(one) if len(shares) == 1 else f"{self._name(one.pnode_id)} {one}" for one in shares]
        return f" [{', '.join(told)}]" if told else ""

    def _places(self, item: orchestrator_pb2.VNodeView) -> list[str]:
        """Where its replicas are, the primary first."""
        return [self._name(item.assignment.pnode_id), *(self._name(other.assignment.pnode_id) for other in siblings(item))]

    def _name(self, node_id: str) -> str:
        return self._names.get(node_id, node_id[:8])


def _shares(item: orchestrator_pb2.VNodeView, story: Story) -> dict[str, Assigned]:
    return assigned(item, int(story.job.num_batches), story.unit_batches) if story.unit_batches else {}


def _cells(share: Assigned | None) -> tuple[str, str]:
    if share is None:
        return "", ""
    return str(share.num_units), share.span


def _exit(item: orchestrator_pb2.VNodeView) -> str:
    results = [result for result in item.curve if result.split == "validation" and result.count] or list(item.report.exits)
    if not results or not results[-1].count:
        return ""
    newest = results[-1]
    return f" ({newest.correct / newest.count:.2%}, {newest.sum_loss / newest.count:.3f} nats)"
