"""Goal: a disk that stands still holds no loop of the daemon up: beats go on, and what waited for it goes on when the disk does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from test_uploads import Scene, news, play, states_on_disk, until

from dcnr.v1 import model_pb2

WITHIN_S = 60.0
"""After which a test whose loop the disk holds up fails, instead of hanging."""


class StillDisk:
    """Calls of `os` that wait until the disk goes on."""

    def __init__(self) -> None:
        self.goes_on, self.waiting = threading.Event(), threading.Event()

    def standing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """The same call, on that disk."""

        def stand(*arguments: Any, **options: Any) -> Any:
            self.waiting.set()
            assert threading.current_thread() is not threading.main_thread(), "the loop waits for the disk"
            assert self.goes_on.wait(WITHIN_S)
            return call(*arguments, **options)

        return stand


@contextmanager
def standing_still(monkeypatch: pytest.MonkeyPatch, *calls: str) -> Iterator[StillDisk]:
    """The disk stands still for these calls of `os` until this ends."""
    disk = StillDisk()
    with monkeypatch.context() as patched:
        for name in calls:
            patched.setattr(os, name, disk.standing(getattr(os, name)))
        try:
            yield disk
        finally:
            disk.goes_on.set()


async def meets(disk: StillDisk) -> None:
    """Until something waits for the disk: in this loop, which goes on meanwhile."""
    await until(disk.waiting.is_set)


def test_snapshots_that_are_replaced_wait_for_the_disk_and_the_loop_does_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(scene: Scene) -> None:
        await scene.uploads.added(scene.snapshot(1))
        await until(lambda: scene.uploads.num_pending == 0)
        with standing_still(monkeypatch, "unlink") as disk:
            await scene.uploads.added(scene.snapshot(2))
            await meets(disk)
            assert scene.uploads.num_pending == 0, "what is in the store is said to be"
        await until(lambda: states_on_disk(scene) == ["2.state"])

    play(tmp_path, story)


def test_news_of_a_manifest_wait_for_no_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it replaces goes later, and whether a state is still there is looked at beside the loop."""
    named = model_pb2.Checkpoint(vnode="v", digest="f" * 64, replica="v.2", job_id="j", step=9, incarnation=2)

    async def story(scene: Scene) -> None:
        await scene.uploads.added(scene.snapshot(1))
        await until(lambda: scene.uploads.num_pending == 0)
        scene.shelf.places("m", "j", ["v.2"])
        with standing_still(monkeypatch, "unlink") as disk:
            await scene.uploads.heard(news("m", named))
            await meets(disk)
        await until(lambda: states_on_disk(scene) == [])
        scene.shelf.places("m", "j", ["v.1"])
        await scene.uploads.added(scene.snapshot(2))
        await until(lambda: scene.uploads.num_pending == 0)
        with standing_still(monkeypatch, "stat") as disk:
            hearing = asyncio.create_task(scene.uploads.heard(news("m", named)))
            await meets(disk)
            assert not hearing.done()
        await hearing

    play(tmp_path, story)
