"""Goal: a manifest names no state that no replica could restore."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from checkpoint_rig import (
    BATCHES,
    MODEL,
    PNODE,
    POLICY,
    SCHEMA,
    SPAN,
    StoppedClock,
    World,
    refused,
    run,
    state,
)

from dataservice import keys
from dcnr.errors import Unavailable
from orchestrator.checkpoints import CheckpointJudge
from vnode.state import StateSchema, TensorSlot


def nan_at_the_end(parent: str) -> bytes:
    data = bytearray(state(SPAN(0, 2), parent))
    data[-4:] = np.array([np.nan], "<f4").tobytes()
    return bytes(data)


@pytest.mark.parametrize(
    "bytes_of",
    [
        lambda parent: b"no state at all",
        lambda parent: b"",
        lambda parent: state(SPAN(0, 2), parent)[:-4],
        lambda parent: state(SPAN(0, 2), parent) + bytes(8),
        lambda parent: state(SPAN(0, 3), parent),
        lambda parent: state(SPAN(0, 2), "e" * 64),
        lambda parent: state(SPAN(0, 2), parent, graph="e" * 64),
        lambda parent: state(SPAN(0, 2), parent, model="other"),
        lambda parent: state(SPAN(0, 2), parent, num_batches=BATCHES + 1),
        lambda parent: state(SPAN(0, 2), parent, seed=6),
        lambda parent: state(SPAN(0, 2), parent, schema=StateSchema("a", {"w/weight": TensorSlot("float32", (2, 3))})),
        lambda parent: state(
            SPAN(0, 2), parent, schema=StateSchema("a", {**SCHEMA.tensors, "w/weight": TensorSlot("float32", (3, 2))})
        ),
        nan_at_the_end,
    ],
)
def test_bytes_that_no_replica_could_restore_are_refused(bytes_of: Callable[[str], bytes]) -> None:
    async def story(world: World) -> None:
        made = world.checkpoint(SPAN(0, 2), [0, 1], data=bytes_of(world.state))
        assert await refused(world, made) in ("bad_state", "bad_lineage")

    run(story)


def test_a_state_that_is_not_there_or_has_other_bytes_is_not_named() -> None:
    async def story(world: World) -> None:
        checkpoint, envelope = world.checkpoint(SPAN(0, 2), [0, 1])
        key = keys.state(MODEL, "a", checkpoint.digest)
        whole = world.store.peek(key)
        assert whole is not None
        world.store.rewind(key, None)
        with pytest.raises(Unavailable):
            await world.judge.judge(world.view(), checkpoint, envelope)
        world.store.rewind(key, state(SPAN(0, 2), checkpoint.parent_digest, mark=1.0))
        assert await refused(world, (checkpoint, envelope)) == "wrong_digest"
        world.store.rewind(key, whole)
        assert await refused(world, (checkpoint, envelope)) == "wrong_digest", "it is not read again at once"
        world.judge = CheckpointJudge(world.store, lambda: POLICY, StoppedClock())
        assert await world.learned((checkpoint, envelope)) == {("a.0", PNODE.node_id): SPAN(0, 2)}

    run(story)
