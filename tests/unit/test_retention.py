"""Goal: condemned states go as fast as large networks make them, a store that fails is left alone until the next round, and what maintainers
released stays.
"""

from __future__ import annotations

import asyncio
import random

import pytest
from releases_rig import CLOCK, JOB, ORCHESTRATOR, VNODES, Shelf
from releases_rig import MODEL as RELEASED_MODEL

from dataservice import keys
from dataservice.manifests import StoredState
from dataservice.memory import MemoryStore
from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.ids import Digest, digest_of
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2
from orchestrator import retention
from orchestrator.drawing import Drawing
from orchestrator.history import History
from orchestrator.naming import SWEEP_AGAIN_S, Naming
from orchestrator.releases import ReleaseBook
from orchestrator.view import ModelView

MODEL = "m"


class Store(MemoryStore):
    """Counts deletions; they fail from the ``fails_after``-th on."""

    def __init__(self) -> None:
        super().__init__(SystemClock(), random.Random(1))
        self.asked, self.fails_after = 0, 10**9

    async def delete(self, key: str) -> None:
        self.asked += 1
        if self.asked > self.fails_after:
            raise Unavailable("the store is away")
        await super().delete(key)


def states(count: int) -> list[StoredState]:
    return [StoredState("a", digest_of(str(number).encode()), 1, 0) for number in range(count)]


async def stored(store: Store, all_states: list[StoredState]) -> None:
    for state in all_states:
        await store.put(keys.state(MODEL, state.vnode, state.digest), b"1")


def deleted(store: Store, all_states: list[StoredState], manifest: model_pb2.Manifest, kept: set[Digest]) -> tuple[bool, int]:
    async def scenario() -> bool:
        await stored(store, all_states)
        return await retention.delete_condemned(store, MODEL, manifest, all_states, frozenset(kept))

    left = asyncio.run(scenario())
    return left, len(all_states) - len(store.keys())


def test_only_what_is_condemned_and_neither_named_nor_kept_is_deleted() -> None:
    free, condemned, named, kept = all_states = states(4)
    entry = model_pb2.ManifestEntry(vnode="a", working=[model_pb2.Checkpoint(digest=named.digest)])
    manifest = model_pb2.Manifest(entries=[entry], condemned=[condemned.digest, named.digest, kept.digest])
    store = Store()
    assert deleted(store, all_states, manifest, {kept.digest}) == (False, 1)
    assert store.peek(keys.state(MODEL, "a", condemned.digest)) is None
    assert store.peek(keys.state(MODEL, "a", free.digest)) is not None


def test_what_is_too_much_for_one_round_is_said_to_be_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "MAX_DELETED", 20)
    all_states = states(21)
    manifest = model_pb2.Manifest(condemned=[state.digest for state in all_states])
    assert deleted(Store(), all_states, manifest, set()) == (True, 20)
    assert deleted(Store(), all_states[:20], manifest, set()) == (False, 20)


def test_a_store_that_fails_is_asked_no_further() -> None:
    store, all_states = Store(), states(200)
    store.fails_after = 5
    manifest = model_pb2.Manifest(condemned=[state.digest for state in all_states])
    assert deleted(store, all_states, manifest, set()) == (True, 5)
    assert store.asked <= 5 + retention.CALLS_AT_ONCE


def test_a_round_keeps_up_with_the_largest_network() -> None:
    """Each VNode brings a checkpoint a minute; a round that leaves something is followed by another one soon."""
    assert retention.MAX_DELETED / SWEEP_AGAIN_S >= limits.MAX_GRAPH_VNODES / limits.CHECKPOINT_S


class Tomorrow(SystemClock):
    """Every upload is old by then."""

    def wall(self) -> float:
        return super().wall() + 86_400.0


def test_whoever_took_the_head_over_condemns_and_deletes_no_state_of_what_is_released() -> None:
    """It reads what another orchestrator was told before it looks for what may go."""
    shelf = Shelf()
    digests = [shelf.manifest(number) for number in (1, 2, 3, 4)]
    assert shelf.say(1, digests[1])
    assert shelf.say(2, digests[2])
    naming = Naming(
        key=ORCHESTRATOR, store=shelf.store, clock=Tomorrow(), loader=shelf.loader, history=History(None, ORCHESTRATOR.node_id, CLOCK),
        drawing=Drawing(None, lambda: shelf.policy, CLOCK, lambda _: False),
        releases=ReleaseBook(RELEASED_MODEL, shelf.store, lambda: shelf.policy),
    )  # fmt: skip

    async def sweep(digest: str, now: float) -> str:
        manifest, _ = await shelf.loader.manifest(RELEASED_MODEL, digest)
        head = model_pb2.Head(epoch=1, manifest_digest=digest, active=model_pb2.ActiveJob(job_id=JOB))
        job = await shelf.loader.job(RELEASED_MODEL, JOB)
        made = await naming.next(
            ModelView(RELEASED_MODEL, head, b"", model_pb2.Plan(), manifest=manifest, job=job),
            {},
            now,
            sweep_s=1.0,
            grant_lifetime_s=1,
        )
        return made.digest if made is not None else digest

    async def story() -> list[str]:
        naming.begin(0.0)
        condemning = await sweep(digests[3], 1000.0)
        await sweep(condemning, 2000.0)
        manifest, _ = await shelf.loader.manifest(RELEASED_MODEL, condemning)
        return list(manifest.condemned)

    assert sorted(asyncio.run(story())) == sorted(shelf.state(1, vnode) for vnode in VNODES)
    there = [
        n for n in (1, 2, 3, 4) for vnode in VNODES if shelf.store.peek(keys.state(RELEASED_MODEL, vnode, shelf.state(n, vnode)))
    ]
    assert there == [2, 2, 3, 3, 4, 4]
