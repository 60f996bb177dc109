"""Several head writers over one faulty store, in every order a seed can make: one decider per sequence, nothing decided is lost or done twice.

Each request to the store is a coroutine that is stepped by hand, so requests overlap, answers come late or not at all, and processes
crash with requests in flight. After the faults end, somebody must hold the head and decide.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Awaitable, Coroutine, Generator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, NoFaults, RandomFaults
from dcnr.errors import DcnrError, NotFound, Stale
from dcnr.v1 import model_pb2
from orchestrator.changes import Activate, Decide, NamePlan
from orchestrator.head import HeadCore
from orchestrator.head_events import Get, GetAbsent, GetAnswered, GetFailed, HeadEvent, Landed, Put, PutAnswered, PutUnknown, Tick

KEY = keys.head("m")
FAULTS = {
    Fault.CONFLICT: 0.06,
    Fault.PRECONDITION: 0.06,
    Fault.UNAVAILABLE: 0.06,
    Fault.TIMEOUT_BEFORE: 0.06,
    Fault.TIMEOUT_AFTER: 0.08,
    Fault.TORN: 0.03,
    Fault.STALE_READ: 0.06,
}


class _Pause:
    def __await__(self) -> Generator[None, None, None]:
        yield


def _pause() -> Awaitable[None]:
    return _Pause()


class World:
    """Virtual time, one store, a history of what was ever written."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.now = 0.0
        self.store = MemoryStore(self, random.Random(seed + 1), faults=RandomFaults(FAULTS), delay=_pause)
        self.history: list[model_pb2.Head] = []
        self.landed: dict[int, str] = {}
        self.names = itertools.count(1)
        self.serial = itertools.count(1)

    def monotonic(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now

    def observe(self) -> None:
        """Checks each write as it becomes visible."""
        data = self.store.peek(KEY)
        if data is None:
            return
        head = model_pb2.Head.FromString(data)
        if self.history and self.history[-1] == head:
            return
        if self.history:
            self._check_step(self.history[-1], head)
        self.history.append(head)

    def _check_step(self, old: model_pb2.Head, new: model_pb2.Head) -> None:
        assert new.sequence > old.sequence
        if (new.epoch, new.holder) != (old.epoch, old.holder):
            assert new.epoch == old.epoch + 1
            copy = model_pb2.Head()
            copy.CopyFrom(old)
            copy.epoch, copy.holder, copy.sequence = new.epoch, new.holder, new.sequence
            assert copy == new, "a takeover changed something else"
        assert [item.job_id for item in new.decided][: len(old.decided)] == [item.job_id for item in old.decided]
        ended = [item.job_id for item in new.decided]
        assert len(ended) == len(set(ended))
        assert new.active.job_id not in ended
        if old.plan_digest != new.plan_digest:
            assert int(new.plan_digest.partition("<")[2] or 0) == int(old.plan_digest.partition("<")[0] or 0), (
                "a plan skipped its parent"
            )


class Process:
    """One orchestrator: a core and at most one request under way."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.orphans: list[Coroutine[Any, Any, HeadEvent]] = []
        self.start()

    def start(self) -> None:
        self.core = HeadCore(
            "n" * 40, "m", self.name, lambda head: head.SerializeToString(deterministic=True), model_pb2.Head.FromString
        )
        self.request: Coroutine[Any, Any, HeadEvent] | None = None
        self.number = 0

    def crash(self) -> None:
        """Forgets everything; a request in flight may still reach the store."""
        if self.request is not None:
            self.orphans.append(self.request)
        self.start()

    def tick(self) -> None:
        self._run(Tick(self.world.now, next(self.world.serial)))

    def _run(self, event: HeadEvent) -> None:
        for item in self.core.step(event):
            if isinstance(item, Get | Put):
                assert self.request is None
                self.request = self._ask(item)
                self.request.send(None)  # on its way: even a crash does not call it back
            elif isinstance(item, Landed):
                assert item.head in self.world.history, "acknowledged, but never in the store"
                assert self.world.landed.setdefault(item.head.sequence, self.name) == self.name, "two deciders of one sequence"

    async def _ask(self, request: Get | Put) -> HeadEvent:
        store, world = self.world.store, self.world
        try:
            if isinstance(request, Get):
                found = await store.get(KEY, max_bytes=1 << 20)
                return GetAnswered(world.now, found.data, found.etag)
            etag = await store.put(KEY, request.data, if_match=request.if_match, if_none_match=request.if_match is None)
            return PutAnswered(world.now, etag)
        except NotFound:
            return GetAbsent(world.now)
        except DcnrError as error:
            return GetFailed(world.now, str(error)) if isinstance(request, Get) else PutUnknown(world.now, str(error))

    def advance(self) -> None:
        """Moves the request (or an orphan) one step on."""
        if self.orphans and self.world.random.random() < 0.5:
            orphan = self.world.random.choice(self.orphans)
            try:
                orphan.send(None)
            except StopIteration:
                self.orphans.remove(orphan)
        elif self.request is not None:
            try:
                self.request.send(None)
            except StopIteration as done:
                self.request = None
                self.world.observe()
                self._run(done.value)
        self.world.observe()

    def propose(self) -> None:
        known = self.core.known
        if known is None:
            return
        head, now = known.head, self.world.now
        change: Activate | Decide | NamePlan
        if not head.active.job_id:
            if len(head.decided) >= 12:
                return
            change = Activate(f"j{next(self.world.names)}", "", "")
        elif self.world.random.random() < 0.3:
            outcome = model_pb2.Outcome(job_id=head.active.job_id, state=model_pb2.JOB_STATE_COMPLETED)
            change = Decide(outcome.SerializeToString())
        else:
            parent = head.plan_digest.partition("<")[0]
            plan = f"{next(self.world.serial)}<{parent}"
            change = NamePlan(head.active.job_id, head.plan_digest, plan, head.sequence + 8)
        try:
            self.core.propose(change, now)
        except Stale:
            return


def run(seed: int, steps: int) -> World:
    world = World(seed)
    processes = [Process(world, letter * 40) for letter in "abc"]
    for _ in range(steps):
        process = world.random.choice(processes)
        draw = world.random.random()
        if draw < 0.45:
            process.advance()
        elif draw < 0.80:
            process.tick()
        elif draw < 0.92:
            world.now += world.random.choice((0.05, 0.3, 1.0, 2.0))
        elif draw < 0.99:
            process.propose()
        elif draw < 0.993:
            process.crash()
        elif draw < 0.995:
            world.now += 12.0
    _healed(world, processes)
    for process in processes:
        for left in [*process.orphans, *([process.request] if process.request else [])]:
            left.close()
    return world


def _healed(world: World, processes: list[Process]) -> None:
    """Without faults somebody decides within a few terms."""
    world.store.faults = NoFaults()
    before = len(world.landed)
    for _ in range(400):
        world.now += 0.25
        for process in processes:
            process.tick()
            for _ in range(8):
                process.advance()
        for process in processes:
            if process.core.is_holder(world.now):
                process.propose()
        if len(world.landed) > before or len(world.history[-1].decided) >= 12:
            break
    else:
        pytest.fail("nobody decides although the store works")
    holders = [process.name for process in processes if process.core.is_holder(world.now)]
    assert len(holders) <= 1


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(0, 2**32))
def test_one_decider_and_nothing_lost(seed: int) -> None:
    run(seed, 1500)


def test_the_model_reaches_the_interesting_states() -> None:
    worlds = [run(seed, 3000) for seed in range(6)]
    epochs = max(head.epoch for world in worlds for head in world.history)
    assert epochs >= 3
    assert sum(len(world.landed) for world in worlds) >= 20
    assert any(world.history[-1].decided for world in worlds)
