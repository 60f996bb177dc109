"""Goal: the store and each manifest hold what somebody may still need: condemned digests that are long gone are forgotten, and so is what old plans told."""

from __future__ import annotations

import asyncio
import random

from releases_rig import CLOCK, JOB, MODEL, ORCHESTRATOR, VNODES, Shelf

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.ids import digest_of
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator.drawing import Drawing
from orchestrator.history import History
from orchestrator.naming import Naming
from orchestrator.releases import ReleaseBook
from orchestrator.told_before import ToldBefore
from orchestrator.view import ModelView

LIFETIME_S, SWEEP_S = 3600, 300.0
OLD, BEFORE, NEWEST = (digest_of(name.encode()) for name in ("old", "before", "newest"))
NODE = "a" * 40


class SetClock(SystemClock):
    """Goes where the test says."""

    now_s = 1000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return 1_800_000_000.0 + self.now_s


def head_of(plan: str, parent: str = "") -> ModelView:
    return ModelView(MODEL, model_pb2.Head(plan_digest=plan), b"", model_pb2.Plan(parent_digest=parent))


def test_what_is_condemned_is_forgotten_when_it_has_been_gone_for_as_long_as_a_grant_lives() -> None:
    """Ten thousand checkpoints, each condemned when nothing names it any more: the list is that of the last hours, not of the job."""
    shelf, clock = Shelf(), SetClock()
    store = MemoryStore(clock, random.Random(1))
    naming = Naming(
        key=ORCHESTRATOR, store=store, clock=clock, loader=shelf.loader, history=History(None, ORCHESTRATOR.node_id, CLOCK),
        drawing=Drawing(None, lambda: shelf.policy, CLOCK, lambda _: False), releases=ReleaseBook(MODEL, store, lambda: shelf.policy),
    )  # fmt: skip
    states = {(vnode, digest_of(f"kept {vnode}".encode())) for vnode in VNODES}
    manifest = model_pb2.Manifest(
        network_id=shelf.policy.network_id, model=MODEL, number=1, job_id=JOB, holder=ORCHESTRATOR.node_id, audits="none"
    )
    for vnode, digest in sorted(states):
        one = model_pb2.Checkpoint(vnode=vnode, digest=digest, size_bytes=1, job_id=JOB)
        manifest.entries.add(vnode=vnode, working=[one], cleared=one)

    async def story() -> tuple[list[int], int]:
        nonlocal manifest
        job = await shelf.loader.job(MODEL, JOB)
        lengths, brought = list[int](), 0
        for vnode, digest in sorted(states):
            await store.put(keys.state(MODEL, vnode, digest), b"1")
        await store.put(keys.desired(MODEL, OLD, NODE), b"1")
        naming.begin(clock.now_s)
        while brought < 10_000:
            for _ in range(100):
                await store.put(keys.state(MODEL, VNODES[0], digest_of(f"state {brought}".encode())), b"1")
                brought += 1
            clock.now_s += SWEEP_S
            head = model_pb2.Head(epoch=1, manifest_digest="d" * 64, active=model_pb2.ActiveJob(job_id=JOB))
            view = ModelView(MODEL, head, b"", model_pb2.Plan(), manifest=manifest, job=job)
            made = await naming.next(view, {}, clock.now_s, sweep_s=SWEEP_S, grant_lifetime_s=LIFETIME_S)
            if made is not None:
                manifest = model_pb2.Manifest.FromString(made.envelope.payload)
                naming.done()
            lengths.append(len(manifest.condemned))
        return lengths, sum("/state/" in key for key in sorted(store.keys()))

    lengths, there = asyncio.run(story())
    assert not told_by(store, OLD), "each sweep looks for that too"
    per_lifetime = 100 * LIFETIME_S / SWEEP_S
    assert 0 < max(lengths) <= 1.5 * per_lifetime
    assert lengths[-1] <= 1.5 * per_lifetime
    assert there <= 1.5 * per_lifetime
    assert {one.digest for entry in manifest.entries for one in entry.working} == {digest for _, digest in states}


def swept(store: MemoryStore, keeper: ToldBefore, view: ModelView, clock: SetClock) -> bool:
    return asyncio.run(keeper.sweep(view, clock.now_s, round(clock.wall() * 1000), LIFETIME_S))


def told_by(store: MemoryStore, plan: str) -> bool:
    return store.peek(keys.desired(MODEL, plan, NODE)) is not None


def plans(clock: SetClock) -> MemoryStore:
    store = MemoryStore(clock, random.Random(1))
    for plan in (OLD, BEFORE, NEWEST):
        asyncio.run(store.put(keys.plan(MODEL, plan), b"1"))
        asyncio.run(store.put(keys.desired(MODEL, plan, NODE), b"1"))
    return store


def test_what_an_old_plan_told_goes_and_plans_stay() -> None:
    clock = SetClock()
    store = plans(clock)
    keeper = ToldBefore(store)
    clock.now_s += 8.0
    keeper.saw(head_of(OLD), clock.now_s, LIFETIME_S)
    clock.now_s += 2.0
    assert not swept(store, keeper, head_of(NEWEST, BEFORE), clock)
    assert told_by(store, OLD), "everything is young"
    clock.now_s += LIFETIME_S - 5.0
    swept(store, keeper, head_of(NEWEST, BEFORE), clock)
    assert told_by(store, OLD), "it was under the head within a grant's lifetime, as this holder saw"
    clock.now_s += 10.0
    swept(store, keeper, head_of(NEWEST, BEFORE), clock)
    assert [told_by(store, plan) for plan in (OLD, BEFORE, NEWEST)] == [False, True, True]
    assert all(store.peek(keys.plan(MODEL, plan)) is not None for plan in (OLD, BEFORE, NEWEST))


def test_whoever_takes_over_leaves_what_the_plan_before_told_and_what_is_young() -> None:
    clock = SetClock()
    store = plans(clock)
    clock.now_s += LIFETIME_S + 1.0
    unnamed = digest_of(b"unnamed")
    asyncio.run(store.put(keys.desired(MODEL, unnamed, NODE), b"1"))
    swept(store, ToldBefore(store), head_of(NEWEST, BEFORE), clock)
    assert [told_by(store, plan) for plan in (OLD, BEFORE, NEWEST, unnamed)] == [False, True, True, True], (
        "the head may name it in a moment"
    )
