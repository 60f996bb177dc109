"""Goal: a disk that stands still holds no loop of the daemon up: beats go on, and what waited for it goes on when the disk does."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from socket import socket

import pytest
from still_disk_rig import StillDisk, standing_still
from test_pnode_defences import FIRST, SECOND, desired, duties, head
from test_uploads import Scene, news, play, states_on_disk, until

from dataservice.datasets import LocalCache
from dcnr.ids import Digest, digest_of
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.authority import Source
from pnode.diary import Diary, Seen, read_week
from pnode.duties import Duties
from pnode.halts import Halts
from pnode.home import Home, read_message
from pnode.pausing import Pausing
from pnode.pipe import LocalPipe
from pnode.supervisor import STOPPED, Supervisor, Worker, WorkerOptions, WorkerProcess
from pnode.telling import Condition


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


@asynccontextmanager
async def told_while_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: list[tuple[str, str, str]]
) -> AsyncIterator[tuple[Duties, asyncio.TaskGroup, asyncio.Task[None]]]:
    """Duties of which the first desired state waits for the disk, and their group, which is over when this is."""
    async with asyncio.TaskGroup() as group:
        mine = duties(tmp_path, said, group)
        await mine.head_received(head(FIRST), Source.OWN_GET)
        with standing_still(monkeypatch, tmp_path / "home" / ".desired", "open") as disk:
            first = group.create_task(mine.desired_received(desired(FIRST, 1)))
            await meets(disk)
            yield mine, group, first


def test_desired_states_wait_for_the_disk_one_after_the_other_and_the_newest_has_the_last_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is obeyed that a restart would not find; meanwhile the daemon's loop goes on."""
    said: list[tuple[str, str, str]] = []

    async def story() -> None:
        async with told_while_it_stands(tmp_path, monkeypatch, said) as (mine, group, first):
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
        async with told_while_it_stands(tmp_path, monkeypatch, said) as (mine, group, _):
            group.create_task(mine.head_received(head(SECOND, epoch=2), Source.OWN_GET))
            await until(lambda: (term := mine.term()[1]) is not None and term.epoch == 2)
        assert mine.term()[2] is None
        assert "plan_accepted" not in [kind for kind, _, _ in said]

    asyncio.run(story())


def test_a_diary_is_looked_into_while_its_disk_stands_still_and_the_newest_page_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the daemon writes when it ends waits for what it wrote before, and not for long."""
    for name, pause_s in (("LOOK_S", 0.001), ("FIRST_SAVE_S", 0.0)):
        monkeypatch.setattr(f"pnode.diary.{name}", pause_s)
    monkeypatch.setattr("dataservice.tidying.TIDY_S", 0.01)
    looks = 0

    def seen() -> Seen:
        nonlocal looks
        looks += 1
        return Seen("idle", looks, 0)

    async def story() -> None:
        with standing_still(monkeypatch, tmp_path, "replace") as disk:
            keeping = asyncio.create_task(Diary(tmp_path / "diary.json", SystemClock(), seen).run())
            await meets(disk)
            before = looks
            await until(lambda: looks > before + 5)
            keeping.cancel()
            await asyncio.wait([keeping])
            assert not (tmp_path / "diary.json").exists()

    asyncio.run(story())  # which ends when its threads have
    week = read_week(tmp_path / "diary.json", SystemClock().wall())
    assert week is not None
    assert week.num_learned == looks


class Halted:
    """A daemon's pauses, without a worker."""

    def __init__(self, path: Path) -> None:
        self.told = list[str]()
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", path.with_name("worker.log"), os.environ)
        self.supervisor = Supervisor(options, next_incarnation=lambda: 1, on_up=nothing, on_message=nothing, on_down=nothing)
        self.pausing = Pausing(path, SystemClock())
        self.halts = Halts(
            self.pausing, self.supervisor, Condition(0.0), hand_over=nothing, tell=lambda kind, reason: self.told.append(kind)
        )


async def nothing(*_: object) -> None:
    return


def test_a_pause_begins_while_the_disk_stands_still_and_its_owner_hears_of_it_when_a_restart_would_keep_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story() -> None:
        mine = Halted(note := tmp_path / "paused.json")
        running = asyncio.create_task(mine.halts.run())
        with standing_still(monkeypatch, tmp_path, "replace") as disk:
            asking = asyncio.create_task(mine.halts.pause(0.0))
            await meets(disk)
            await until(lambda: mine.told == ["paused", "halted"])
            assert not asking.done()
        await asking
        assert Pausing(note, SystemClock()).is_paused
        with standing_still(monkeypatch, tmp_path, "unlink") as disk:
            asking = asyncio.create_task(mine.halts.resume())
            await meets(disk)
            asking.cancel()  # its owner's patience is over
            await asyncio.wait([asking])
            assert mine.pausing.is_paused, "a restart would pause"
        await until(lambda: not mine.supervisor.is_held)
        running.cancel()

    asyncio.run(story())


@pytest.mark.parametrize(("first", "call"), [("pause", "replace"), ("resume", "unlink")])
def test_the_owners_last_word_holds_in_whatever_order_the_disk_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str, call: str
) -> None:
    async def story() -> None:
        mine = Halted(note := tmp_path / "paused.json")
        says = {"pause": lambda: mine.halts.pause(0.0), "resume": mine.halts.resume}
        await mine.halts.pause(60.0)
        with standing_still(monkeypatch, tmp_path, call) as disk:
            asking: list[Awaitable[object]] = [asyncio.create_task(says.pop(first)())]
            await meets(disk)
            [(last, say)] = says.items()
            asking.append(asyncio.create_task(say()))
            await asyncio.sleep(0)
            assert mine.pausing.is_paused, "by the note, or by what was said last"
        await asyncio.gather(*asking)
        assert mine.pausing.is_paused == Pausing(note, SystemClock()).is_paused == (last == "pause")

    asyncio.run(story())


def test_the_note_of_a_pause_whose_time_is_up_goes_without_holding_anything_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dataservice.tidying.TIDY_S", 0.01)

    async def story() -> None:
        (note := tmp_path / "paused.json").write_text('{"until": 1000.0}')
        mine = Halted(note)
        with standing_still(monkeypatch, tmp_path, "unlink") as disk:
            running = asyncio.create_task(mine.halts.run())
            await meets(disk)
            asking = asyncio.create_task(mine.halts.pause(0.0))
            await until(lambda: mine.told == ["paused", "halted"])
        await asking
        assert Pausing(note, SystemClock()).is_paused
        await mine.halts.pause(0.01)
        await until(lambda: not note.exists())
        assert mine.told[-1] == "resumed"
        running.cancel()

    asyncio.run(story())


class Greeting:
    """A worker that says hello, and lives until it is told to end."""

    pid = 1

    def __init__(self, pipe: socket) -> None:
        self._pipe, self._ended = pipe.dup(), asyncio.Event()
        self.returncode: int | None = None

    async def say_hello(self) -> None:
        self.pipe = await LocalPipe.over(self._pipe, local_pb2.ToWorker)
        await self.pipe.send(local_pb2.FromWorker(hello=local_pb2.WorkerHello(data_port=1)))

    async def wait(self) -> int:
        await self._ended.wait()
        return 0

    def send_signal(self, number: int) -> None:
        self.returncode = -number
        self._ended.set()

    async def close(self) -> None:
        await self.pipe.close()


@pytest.mark.parametrize("is_stopped", [False, True])
def test_a_worker_acts_for_nobody_until_the_disk_has_its_number_and_who_is_stopped_waits_for_no_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_stopped: bool
) -> None:
    home, ups, downs, started = Home(tmp_path / "home"), asyncio.Queue[Worker](), list[str](), list[Greeting]()
    home.open()

    async def start(pipe: socket, arguments: Sequence[str], environment: Mapping[str, str], log: int) -> WorkerProcess:
        process = Greeting(pipe)
        await process.say_hello()
        started.append(process)
        return process

    async def down(reason: str) -> None:
        downs.append(reason)

    async def story() -> None:
        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=start)
        mine = Supervisor(
            options, next_incarnation=lambda: home.next_incarnation(7.0), on_up=ups.put, on_message=nothing, on_down=down
        )
        with standing_still(monkeypatch, tmp_path / "home", "replace") as disk:
            running = asyncio.create_task(mine.run())
            await meets(disk)
            assert ups.empty()
            if is_stopped:
                await mine.stop(within_s=0.01)
                await asyncio.wait([running], timeout=20)
                assert downs == [STOPPED]
        if not is_stopped:
            assert (await ups.get()).incarnation == 7
            assert home.next_incarnation(0.0) == 8
            await mine.stop(within_s=0.01)
        await running
        for process in started:
            await process.close()

    asyncio.run(story())
    home.close()


def test_numbers_that_wait_for_the_disk_together_are_not_one_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Home(tmp_path / "home")
    home.open()
    numbers = list[int]()
    threads = [threading.Thread(target=lambda: numbers.append(home.next_incarnation(7.0))) for _ in range(3)]
    with standing_still(monkeypatch, tmp_path / "home", "replace") as disk:
        for thread in threads:
            thread.start()
        assert disk.waiting.wait(20)
    for thread in threads:
        thread.join()
    assert sorted(numbers) == [7, 8, 9]
    home.close()


def test_what_the_disk_does_not_take_is_not_replaced_by_what_is_older(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An orchestrator that is behind tells of the plan before: no stream repeats the newer one, and this PNode would keep to the older until the next."""
    monkeypatch.setattr("pnode.duties.DISK_RETRY_S", 0.0)
    said: list[tuple[str, str, str]] = []

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            mine, full = duties(tmp_path, said, group), [True, True]
            taken = mine._written.desired

            async def tried(model: str, envelope: identity_pb2.Envelope) -> bool:
                return await taken(model, envelope) if not full else full.pop() and False

            monkeypatch.setattr(mine._written, "desired", tried)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            await asyncio.gather(mine.desired_received(desired(FIRST, 2)), mine.desired_received(desired(FIRST, 1)))
            await until(lambda: mine.term()[2] is not None)
            found = mine.term()[2]
            assert found is not None
            assert found.sequence == 2
            mine.stop()

    asyncio.run(story())
