"""The few models that one PNode works for: what is known of each, and which is forgotten when another one comes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Final

from dcnr.errors import Refused, Unavailable
from dcnr.ids import NodeId, check_name
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Authority, place_of
from trust.network import NetworkPolicy
from vnode.costs import ReplicaCost

MAX_MODELS: Final = 2
"""The model that is served and its successor."""
MAX_HEAD_WAITS: Final = 4
"""For the head that names its plan a new replica waits so often, then it begins with what the newest known one names: seven seconds in all."""
MAX_ENVELOPES: Final = 16
"""Desired states of one model, as signed, that may still be accepted."""


@dataclass(slots=True)
class Hosted:
    """One replica as the daemon sees it."""

    assignment: model_pb2.DesiredAssignment
    model: str
    state: orchestrator_pb2.AssignmentState.ValueType = orchestrator_pb2.ASSIGNMENT_STATE_REQUESTED
    reason: str = ""
    task: asyncio.Task[None] | None = None
    num_batches: int = 0
    """Of the job; 0 before it is known."""
    is_ordered: bool = False
    """The worker was told to host it."""
    is_seen: bool = False
    """It has reported on it since."""
    num_waits: int = 0
    """How often it waited for the head that names its plan."""
    cost: ReplicaCost | None = None
    """Once its job is known."""
    awaits_room: bool = False
    """It is not hosted yet since others still have the memory that it will have."""
    lacks_bytes: int = 0
    """Of memory, without which it works alone though the plan gives it siblings."""

    def await_head(self, head: model_pb2.Head | None, desired: model_pb2.DesiredState, policy: NetworkPolicy) -> None:
        """Where audits are in force: raises Unavailable (``head_awaited``) a few times while ``head`` is older than the plan, since its manifest may not say
        yet what was taken back.
        """
        if policy.audits_drawn and self.num_waits < MAX_HEAD_WAITS and (head is None or place_of(head) < place_of(desired)):
            self.num_waits += 1
            raise Unavailable("the head that names this plan is not here yet", code="head_awaited")


@dataclass(slots=True)
class Model:
    """What is known of one model."""

    authority: Authority
    desired: model_pb2.DesiredState | None = None
    confirming: asyncio.Task[None] | None = None
    unwritten: model_pb2.DesiredState | None = None
    """Accepted, but the disk did not take it yet."""
    writing: asyncio.Task[None] | None = None
    news: tuple[int, int] = (0, 0)
    """Epoch and sequence of the newest head that counted as news: the same one told again, by whomever, renews no horizon."""
    shown: tuple[int, int] = (0, 0)
    """Epoch and sequence of the newest head of a confirmed term that was told: whoever attaches shows it."""
    kept: tuple[int, int] = (0, 0)
    """Of the newest desired state that the head on the disk is not older than, as far as it is known."""
    hosted: dict[str, Hosted] = field(default_factory=dict)
    envelopes: dict[tuple[str, int, int], identity_pb2.Envelope] = field(default_factory=dict)
    """The newest desired states as they were signed: what is accepted later is persisted in its own words."""

    def keep(self, desired: model_pb2.DesiredState, envelope: identity_pb2.Envelope) -> None:
        """Keeps an envelope for when its desired state is accepted."""
        self.envelopes[order_of(desired)] = envelope
        while len(self.envelopes) > MAX_ENVELOPES:
            del self.envelopes[next(iter(self.envelopes))]

    @property
    def epoch(self) -> int:
        """Of the confirmed term; -1 without one."""
        term = self.authority.term
        return term.epoch if term is not None else -1

    @property
    def worth(self) -> int:
        """0: nothing is known to be true of it; 1: nothing is to be done for it here; 2: its newest head names no job; 3: it has work here."""
        if self.authority.term is None:
            return 0
        if self.desired is None or not self.desired.assignments:
            return 1
        head = self.authority.head
        return 2 if head is not None and not head.active.job_id else 3


def order_of(desired: model_pb2.DesiredState) -> tuple[str, int, int]:
    """What tells desired states of one model apart."""
    return desired.holder, int(desired.epoch), int(desired.sequence)


class Models:
    """By name, the longest unheard first. ``forgotten`` is called with each one that makes room for another."""

    def __init__(self, node_id: NodeId, policy: Callable[[], NetworkPolicy], forgotten: Callable[[str, Model], None]) -> None:
        self._node_id, self._policy, self._forgotten = node_id, policy, forgotten
        self._models: dict[str, Model] = {}

    def __iter__(self) -> Iterator[Model]:
        return iter(list(self._models.values()))

    def items(self) -> list[tuple[str, Model]]:
        """Names and models, by name."""
        return sorted(self._models.items())

    def get(self, name: str) -> Model | None:
        """A known model."""
        return self._models.get(name)

    def entry(self, name: str, *, with_work: bool) -> Model:
        """The model of that name, which was heard of now. Who comes without work takes the place of none but an unproven one.

        Raises InvalidInput for a name that is none, Refused where there is no place.
        """
        found = self._models.pop(name, None)
        if found is None:
            check_name(name)
            if len(self._models) >= MAX_MODELS:
                self._make_room(below=3 if with_work else 1)
            network_id = self._policy().network_id
            found = Model(Authority(network_id=network_id, pnode_id=self._node_id, model=name, orchestrators=self._listed))
        self._models[name] = found
        return found

    def _listed(self) -> Collection[str]:
        return self._policy().orchestrator_ids

    def _make_room(self, *, below: int) -> None:
        name = min(self._models, key=lambda name: self._models[name].worth)
        if self._models[name].worth >= below:
            raise Refused(
                f"this PNode works for {MAX_MODELS} models already",
                code="too_many_models",
                remedy="wait until one of their jobs has ended",
            )
        self._forgotten(name, self._models.pop(name))
