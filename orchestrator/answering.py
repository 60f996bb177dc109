"""Searches a way for one question: where one fails, or takes longer than such ways do, another one is tried at once.

A hop that dies costs the caller a delay, never the answer, as long as somebody else serves its stage; with nobody left the deepest exit before it
answers. The slow are not the dead: a way that is late goes on beside the next one, and whichever answers first counts.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection
from typing import Final

from dcnr.errors import DcnrError, InvalidInput, Unavailable
from dcnr.ports import Random
from orchestrator.answered import Answered
from orchestrator.candidates import Workers
from orchestrator.figures import Figures
from orchestrator.infer_streams import InferStreams
from orchestrator.questions import Question
from orchestrator.routing import Avoid, Load, Table, Way, find_way
from orchestrator.runtime import Shared
from orchestrator.spares import Spares
from orchestrator.trying import Answer, Try, WayFailed
from trust.delegation import VerifiedDelegation

MAX_WAYS: Final = 16
"""Tried for one question, one after the other or side by side,"""
MAX_AT_ONCE: Final = 3
"""and so many of them side by side."""
FIRST_PATIENCE_S: Final = 3.0
"""How long a way may take before another one is tried beside it, while none of its depth was measured."""
MIN_PATIENCE_S: Final = 1.0
PATIENCE_FACTOR: Final = 3.0
"""Times the 95th percentile of what such ways took, or what this one should take."""
RECOVER_S: Final = 5.0
"""A question that lost its way waits so long for a new seat before it is refused."""
LOOK_S: Final = 0.4
BUSY_RETRY_S: Final = 0.5
SMOOTHING: Final = 0.2
MAX_ROUND_TRIPS: Final = 4096

REFUSED_CODES: Final = frozenset(("bad_shape", "bad_question"))
REFUSALS: Final = 2
"""Hops that have to say that the question itself is wrong: it was held against the graph here, and one of them may lie."""

Tables = Callable[[], list[Table]]
"""Who can answer now."""


class Answering:
    """One per process. ``rng`` draws candidates."""

    def __init__(self, shared: Shared, *, streams: InferStreams, workers: Workers, rng: Random, figures: Figures) -> None:
        self._shared, self._streams, self._workers, self._rng, self._figures = shared, streams, workers, rng, figures
        self._round_trips: dict[str, float] = {}
        self._asked: Counter[str] = Counter()
        self._spares = Spares(shared.clock)

    async def answered(
        self, model: str, tables: Tables, question: Question, avoid: Avoid, first: tuple[Way, Question] | None = None
    ) -> Answered:
        """The first answer of the ways that are tried; of those ``first``, which has something left of an earlier pass. The caller bounds the time."""
        clock = self._shared.clock
        banned, faults = set(avoid.banned), Counter(avoid.faults)
        kept: tuple[Collection[str], ...] = ()
        running: dict[asyncio.Task[Answer], Way] = {}
        last: WayFailed | None = None
        num_ways = num_failed = num_refused = 0
        lost_at: float | None = None
        ends_at = clock.monotonic() + question.deadline_s
        try:
            while True:
                way, asked = first or (self._way(tables(), question, Avoid(banned, avoid.owners, faults, kept)), question)
                first = None
                if way is not None and self._is_enough(way, question, running, num_ways):
                    num_ways += 1
                    left_s = max(LOOK_S, ends_at - clock.monotonic())
                    running[self._start(model, asked, way, left_s)] = way
                elif not running:
                    lost_at = clock.monotonic() if lost_at is None else lost_at
                    waits = num_ways > 0 and clock.monotonic() - lost_at < RECOVER_S and num_ways < MAX_WAYS
                    if not waits:
                        raise self._lost(question, way, last)
                    await asyncio.sleep(LOOK_S)
                    banned = set(avoid.banned)
                    continue
                done, _ = await asyncio.wait(running, timeout=self._patience_s(model, running), return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    tried = running.pop(task)
                    failed = task.exception()
                    if failed is None:
                        self._open_early(model, tried)
                        return Answered(tried, task.result(), num_ways)
                    if not isinstance(failed, WayFailed):
                        raise failed
                    num_failed += 1
                    # once only: who breaks one way after the other, and says that others do, does not stay
                    last, kept = failed, (tried.pnodes, self._spares.ready(model, tried.exit)) if num_failed == 1 else ()
                    num_refused += failed.code in REFUSED_CODES
                    if num_refused >= REFUSALS:
                        raise InvalidInput(failed.message, code=failed.code)
                    faults[failed.pnode_id] += failed.code != "no_cache"
                    if failed.is_gone:
                        banned.add(failed.pnode_id)
                if not done:
                    faults.update({pnode_id for tried in running.values() for pnode_id in tried.pnodes})
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.wait(running)

    def _way(self, tables: list[Table], question: Question, avoid: Avoid) -> Way | None:
        return find_way(tables, question.exit, self._rng, self.load(), avoid)

    def _is_enough(self, way: Way, question: Question, running: dict[asyncio.Task[Answer], Way], num_ways: int) -> bool:
        """Whether the way is worth a try now: beside others only one that is as deep; a shallower one where depth is not insisted on."""
        if num_ways >= MAX_WAYS or len(running) >= MAX_AT_ONCE:
            return False
        if running:
            return len(way.hops) >= max(len(other.hops) for other in running.values()) and way.hops not in [
                other.hops for other in running.values()
            ]
        return not (way.missing and question.full_depth)

    def _lost(self, question: Question, way: Way | None, last: WayFailed | None) -> DcnrError:
        why = f"; the last way: {last.message} ({last.code})" if last is not None else ""
        if way is not None and way.missing and question.full_depth:
            return Unavailable(
                f"nobody serves {way.missing} now, so {question.exit} cannot be reached{why}", code="depth_unavailable", retry_after_s=5.0,
                remedy="ask again in a few seconds, or without full depth", deepest=way.exit,
            )  # fmt: skip
        if last is not None and last.code == "busy":
            return Unavailable(f"all that serve the model are busy{why}", code="busy", retry_after_s=BUSY_RETRY_S)
        return Unavailable(f"no way through the model works now{why}", code="no_server", retry_after_s=5.0)

    def _start(self, model: str, question: Question, way: Way, deadline_s: float) -> asyncio.Task[Answer]:
        """Begins a try; those that take part count as asked from now on, so that the next question sees it."""
        self._figures.num_ways += 1
        self._asked.update(way.pnodes)
        task = asyncio.create_task(self._try(model, question, way, deadline_s))
        task.add_done_callback(lambda _: self._over(way))
        return task

    def _over(self, way: Way) -> None:
        self._asked.subtract(way.pnodes)
        self._asked += Counter()

    async def _try(self, model: str, question: Question, way: Way, deadline_s: float) -> Answer:
        clock, began = self._shared.clock, self._shared.clock.monotonic()
        workers = {}
        for pnode_id in way.pnodes:
            worker = self._worker_of(pnode_id)
            if worker is None:
                raise WayFailed("its worker is not known any more", code="unreachable", pnode_id=pnode_id, is_gone=True)
            workers[pnode_id] = worker
        with self._shared.tracer.span("way", exit=way.exit, hops=len(way.hops)):
            answer = await Try(question, way, self._shared.random_bytes(16)).answer(
                self._streams, workers, network_id=self._shared.policy.network_id, model=model, caller=self._shared.key.node_id,
                deadline_s=deadline_s,
            )  # fmt: skip
        took_s = clock.monotonic() - began
        if not question.offset:  # patience is for whole questions: what is left of one takes less
            self._figures.took(model, way.exit, took_s)
        self._note_round_trips(way, max(0.0, took_s - answer.computed_s) / (len(way.pnodes) + 1))
        return answer

    def _worker_of(self, pnode_id: str) -> VerifiedDelegation | None:
        record = self._shared.inventory.nodes().get(pnode_id)
        return self._workers.of(record) if record is not None else None

    def _open_early(self, model: str, way: Way) -> None:
        """So that the next way that is needed goes over connections that are open."""
        plan = self._spares.due(model, way, self.load())
        if plan:
            workers = {pnode_id: worker for pnode_id in plan if (worker := self._worker_of(pnode_id)) is not None}
            self._streams.open_early(
                [(worker, [workers[other] for other in plan[pnode_id] if other in workers]) for pnode_id, worker in workers.items()]
            )

    def _note_round_trips(self, way: Way, seconds: float) -> None:
        for pnode_id in way.pnodes:
            known = self._round_trips.pop(pnode_id, seconds)
            self._round_trips[pnode_id] = known + SMOOTHING * (seconds - known)
        while len(self._round_trips) > MAX_ROUND_TRIPS:
            del self._round_trips[next(iter(self._round_trips))]

    def _patience_s(self, model: str, running: dict[asyncio.Task[Answer], Way]) -> float:
        slowest_s = 0.0
        for way in running.values():
            measured_s = self._figures.p95_s(model, way.exit)
            expected_s = PATIENCE_FACTOR * max(measured_s, way.expected_s(self.load()))
            slowest_s = max(slowest_s, expected_s, MIN_PATIENCE_S if measured_s else FIRST_PATIENCE_S)
        return slowest_s

    def load(self) -> Load:
        """What is known here of PNodes."""
        return Load(self._round_trips, self._asked)
