"""Goal: a checkpoint is named only as the state that its own signed commit names, by its whole description."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checkpoint_rig import MODEL, SPAN, World, refused, run, state

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2


def another_state(world: World, checkpoint: model_pb2.Checkpoint) -> None:
    """As good as the signed one, and in the store under its own digest."""
    data = state(SPAN(0, 1), checkpoint.parent_digest, mark=1.0)
    world.store.rewind(keys.state(MODEL, "a", digest_of(data)), data)
    checkpoint.digest, checkpoint.size_bytes = digest_of(data), len(data)


def another_commit(world: World, checkpoint: model_pb2.Checkpoint) -> None:
    checkpoint.commit_digest = "c" * 64


def another_parent(world: World, checkpoint: model_pb2.Checkpoint) -> None:
    checkpoint.parent_digest = "e" * 64


def another_incarnation(world: World, checkpoint: model_pb2.Checkpoint) -> None:
    checkpoint.incarnation += 1


@pytest.mark.parametrize("changed", [another_state, another_commit, another_parent, another_incarnation])
def test_a_checkpoint_that_says_other_than_its_commit_is_not_named(changed: Callable[[World, model_pb2.Checkpoint], None]) -> None:
    async def story(world: World) -> None:
        checkpoint, commit = world.checkpoint(SPAN(0, 1), [0])
        as_signed = model_pb2.Checkpoint()
        as_signed.CopyFrom(checkpoint)
        changed(world, checkpoint)
        assert await refused(world, (checkpoint, commit)) == "wrong_commit"
        await world.learned((as_signed, commit))

    run(story)
