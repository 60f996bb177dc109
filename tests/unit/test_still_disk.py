"""Goal: a disk that stands still holds no loop of the daemon up: beats go on, and what waited for it goes on when the disk does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from still_disk_rig import StillDisk, standing_still
from test_pnode_defences import FIRST, SECOND, desired, duties, head
from test_uploads import Scene, news, play, states_on_disk, until

from dataservice.datasets import LocalCache
from dcnr.ids import Digest, digest_of
from dcnr.v1 import identity_pb2, model_pb2
from pnode.authority import Source
from pnode.home import read_message


async def meets(disk: StillDisk) -> None:
    """Until something waits for the disk: in this loop, which goes on meanwhile."""
    await until(disk.waiting.is_set)


def test_snapshots_that_are_replaced_wait_for_the_disk_and_the_loop_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(scene: Scene) -> None:
        await scene.uploads.added(scene.snapshot(1))
        await until(lambda: scene.uploads.num_pending == 0)
        with standing_still(monkeypatch, tmp_path, "unlink") as disk:
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
        with standing_still(monkeypatch, tmp_path, "unlink") as disk:
            await scene.uploads.heard(news("m", named))
            await meets(disk)
        await until(lambda: states_on_disk(scene) == [])
        scene.shelf.places("m", "j", ["v.1"])
        await scene.uploads.added(scene.snapshot(2))
        await until(lambda: scene.uploads.num_pending == 0)
        with standing_still(monkeypatch, tmp_path, "stat") as disk:
            hearing = asyncio.create_task(scene.uploads.heard(news("m", named)))
            await meets(disk)
            assert not hearing.done()
        await hearing

    play(tmp_path, story)


@pytest.mark.parametrize("call", ["stat", "utime", "listdir", "replace", "unlink"])
def test_a_cache_whose_disk_stands_still_is_waited_for_beside_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """A file that is there, one that comes, and one that goes for it."""
    contents = {digest_of(bytes([number]) * 100): bytes([number]) * 100 for number in range(3)}
    first, second, third = contents

    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        await asyncio.to_thread(path.write_bytes, contents[digest])

    async def story() -> None:
        cache = LocalCache(tmp_path / "c", 250, fetch)
        await cache.path(first)
        await cache.path(second)
        with standing_still(monkeypatch, tmp_path, call) as disk:
            asking = asyncio.gather(cache.path(second), cache.path(third))
            await meets(disk)
            assert not asking.done()
        assert [path.name for path in await asking] == [second, third]
        assert {path.name for path in (tmp_path / "c").iterdir()} == {second, third}

    asyncio.run(story())


def test_what_is_asked_for_while_it_goes_comes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks for a file that the disk is about to remove is not given what is gone a moment later."""
    contents = {digest_of(bytes([number]) * 100): bytes([number]) * 100 for number in range(3)}
    first, second, third = contents
    fetched: list[Digest] = []

    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        fetched.append(digest)
        await asyncio.to_thread(path.write_bytes, contents[digest])

    async def story() -> None:
        cache = LocalCache(tmp_path / "c", 250, fetch)
        await cache.path(first)
        await cache.path(second)
        with standing_still(monkeypatch, tmp_path / "c" / first, "unlink") as disk:
            coming = asyncio.create_task(cache.path(third))
            await meets(disk)
            asking = asyncio.create_task(cache.path(first))
        await coming
        assert (await asking).read_bytes() == contents[first]
        assert fetched == [first, second, third, first]

    asyncio.run(story())


def test_desired_states_wait_for_the_disk_one_after_the_other_and_the_newest_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is obeyed that a restart would not find; meanwhile the daemon's loop goes on."""
    said: list[tuple[str, str, str]] = []

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, said, group)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            with standing_still(monkeypatch, tmp_path / "home" / ".desired", "open") as disk:
                first = group.create_task(mine.desired_received(desired(FIRST, 1)))
                await meets(disk)
                for later in (newest := desired(FIRST, 3), desired(FIRST, 2)):
                    group.create_task(mine.desired_received(later))
                    await asyncio.sleep(0)
                assert len(mine.heads_seen()) == 1, "what a control stream begins with waits for no disk"
                assert mine.term()[2] is None
                assert not first.done()
        in_force = mine.term()[2]
        assert in_force is not None
        assert in_force.sequence == 3
        kept = read_message(tmp_path / "home" / "desired-m.pb", identity_pb2.Envelope)
        assert kept == newest
        assert [kind for kind, _, _ in said].count("plan_accepted") == 2, (
            "the one that was overtaken is not obeyed for a moment either"
        )

    asyncio.run(story())


def test_a_desired_state_whose_term_ends_while_it_waits_for_the_disk_is_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str, str]] = []

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, said, group)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            with standing_still(monkeypatch, tmp_path / "home" / ".desired", "open") as disk:
                group.create_task(mine.desired_received(desired(FIRST, 1)))
                await meets(disk)
                group.create_task(mine.head_received(head(SECOND, epoch=2), Source.OWN_GET))
                await until(lambda: (term := mine.term()[1]) is not None and term.epoch == 2)
        assert mine.term()[2] is None
        assert "plan_accepted" not in [kind for kind, _, _ in said]

    asyncio.run(story())
