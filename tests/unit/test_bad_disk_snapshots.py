"""Goal: snapshots that a disk neither gives nor lets go of now end no upload and no start: the trouble is told, and they go when the disk is back."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from bad_disk_rig import refusing, snapshot, until

from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import data_pb2
from pnode import uploads as uploading
from pnode.home import Home
from pnode.snapshots import Shelf
from pnode.uploads import Uploads

NAMED, REFUSED = data_pb2.RECORD_STATUS_NAMED, data_pb2.RECORD_STATUS_REFUSED


@pytest.mark.parametrize("status", [NAMED, REFUSED])
def test_snapshots_that_cannot_be_removed_go_when_the_disk_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: data_pb2.RecordStatus.ValueType
) -> None:
    """Whichever answer discards them; meanwhile the reason is there for `pnode why`, and the worker hears what is durable."""
    monkeypatch.setattr(uploading, "RETRY_S", 0.001)
    monkeypatch.setattr(uploading, "LONGEST_RETRY_S", 0.002)
    said: list[str] = []
    durable: list[str] = []

    async def write(*arguments: object, **options: object) -> None:
        return None

    async def call(*arguments: object, **options: object) -> data_pb2.RecordCheckpointResponse:
        return data_pb2.RecordCheckpointResponse(status=status)

    async def told(replica: str, lineage: object, digest: str) -> None:
        durable.append(digest)

    async def story() -> None:
        network: Any = SimpleNamespace(write_bytes=write, write_file=write, call=call)
        shelf = Shelf(tmp_path)
        mine = Uploads(
            network_id="n", shelf=shelf, objects=network, orchestrators=network, holder=lambda: None, durable=told, anew=write,
            say=lambda kind, *words: said.append(kind), directory=tmp_path,
        )  # fmt: skip
        first = snapshot(tmp_path, 1)
        await shelf.add(first)
        second = snapshot(tmp_path, 2)
        await shelf.add(second)
        with refusing("unlink") as met:
            running = asyncio.create_task(mine.run())
            await until(lambda: (met and mine.trouble) or running.done())
            assert not running.done(), running
            assert "Read-only" in mine.trouble
            assert "upload_waits" in said
            assert mine.num_pending == 0
            if status == NAMED:
                assert durable == [second.checkpoint.digest]
        left = [path for path in tmp_path.iterdir() if path.name not in ("2.state", f"{second.checkpoint.digest}.snapshot")]
        assert left
        await until(lambda: not mine.trouble or running.done())
        assert not running.done(), running
        kept = {"2.state", f"{second.checkpoint.digest}.snapshot"} if status == NAMED else set[str]()
        assert {path.name for path in tmp_path.iterdir()} == kept
        running.cancel()

    asyncio.run(story())


def test_a_damaged_snapshot_that_cannot_be_removed_is_told_and_ends_no_start(tmp_path: Path) -> None:
    async def kept() -> None:
        for step in (1, 2):
            await Shelf(tmp_path).add(snapshot(tmp_path, step))

    asyncio.run(kept())
    damaged = next(path for path in tmp_path.glob("*.snapshot") if path.stem == digest_of(b"state 1"))
    damaged.write_bytes(b"\xff")
    with refusing("unlink") as met:
        shelf = Shelf(tmp_path)
        assert shelf.load() == [f"snapshot {damaged.stem[:12]} is damaged and cannot be removed: Read-only file system"]
    assert met == ["unlink"]
    assert [int(held.ready.checkpoint.step) for held in shelf.pending()] == [2], "what is whole is taken up"
    assert Shelf(tmp_path).load() == [f"snapshot {damaged.stem[:12]} is damaged and was removed"]
    assert not damaged.exists()


def test_a_snapshot_whose_state_cannot_be_looked_at_ends_no_start(tmp_path: Path) -> None:
    first = snapshot(tmp_path, 1)
    first.path = str(tmp_path / ("x" * 300))  # no name that the disk has an answer about

    async def kept() -> None:
        for ready in (first, snapshot(tmp_path, 2)):
            await Shelf(tmp_path).add(ready)

    asyncio.run(kept())
    assert Shelf(tmp_path).load() == [f"snapshot {first.checkpoint.digest[:12]} is damaged and was removed"]


@pytest.mark.parametrize("unread", ["note", "state"])
def test_a_snapshot_that_the_disk_cannot_read_now_is_not_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unread: str
) -> None:
    """Goal: what was learned is not lost by an error that passes: neither note nor state goes, and what can be read is taken up."""
    work, notes = tmp_path / "work", tmp_path / "notes"
    for path in (work, notes):
        path.mkdir()

    async def kept() -> None:
        for step in (1, 2):
            ready = snapshot(work, step)
            Path(ready.path).rename(where := work / f"{ready.checkpoint.digest}.safetensors")
            ready.path = str(where)
            await Shelf(notes).add(ready)

    asyncio.run(kept())
    sick, read, opened = digest_of(b"state 1"), Path.read_bytes, Path.open

    def failing(path: Path) -> None:
        if path.stem == sick and (path.suffix == ".snapshot") == (unread == "note"):
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "read_bytes", lambda path: failing(path) or read(path))
        patch.setattr(Path, "open", lambda path, *how, **more: failing(path) or opened(path, *how, **more))
        shelf = Shelf(notes)
        remarks = shelf.load()
        shelf.sweep(work)
    assert [int(held.ready.checkpoint.step) for held in shelf.pending()] == ([2] if unread == "note" else [1, 2])
    assert remarks == (
        [f"{sick}.snapshot cannot be read: Input/output error; it is left to the next start"] if unread == "note" else []
    )
    again = Shelf(notes)
    assert again.load() == []
    again.sweep(work)
    assert [int(held.ready.checkpoint.step) for held in again.pending()] == [1, 2]
    assert len(asyncio.run(again.candidates("m", "j", "v"))) == 2


def test_drafts_of_an_earlier_life_that_cannot_be_removed_end_no_start(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.open()
    home.close()
    draft = home.cache / ".left"
    draft.write_bytes(b"half")
    for call in ("unlink", "is_file"):
        with refusing(call) as met:
            home.open()
            home.close()
        assert met
    home.open()
    home.close()
    assert not draft.exists()


def test_a_note_that_could_not_be_removed_is_left_to_a_snapshot_that_has_it_again(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    ready = snapshot(tmp_path, 1)

    async def story() -> None:
        await shelf.add(ready)
        [held] = shelf.pending()
        with refusing("unlink"):
            shelf.discard(held)
            with pytest.raises(Unavailable):
                await shelf.tidy()
        await shelf.add(ready)
        await shelf.tidy()
        assert Path(ready.path).exists()
        assert held.note.exists()

    asyncio.run(story())


def test_notes_that_the_disk_refused_are_written_before_any_later_one(tmp_path: Path) -> None:
    """A restart finds all commits of a chain, or none of those after a gap."""

    async def story() -> None:
        shelf = Shelf(tmp_path)
        with refusing("replace") as met:
            for step in (1, 2):
                with pytest.raises(Unavailable):
                    await shelf.add(snapshot(tmp_path, step))
        assert met == ["replace", "replace"]
        assert list(tmp_path.glob("*.snapshot")) == []
        await shelf.add(snapshot(tmp_path, 3))
        again = Shelf(tmp_path)
        assert again.load() == []
        assert [int(held.ready.checkpoint.step) for held in again.pending()] == [1, 2, 3]

    asyncio.run(story())


def test_a_note_that_the_disk_refused_is_written_while_its_snapshot_waits_for_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploading, "RETRY_S", 0.001)
    monkeypatch.setattr(uploading, "LONGEST_RETRY_S", 0.002)

    async def away(*arguments: object, **options: object) -> None:
        raise Unavailable("the store is away", code="store_unavailable")

    async def story() -> None:
        network: Any = SimpleNamespace(write_bytes=away, write_file=away, call=away)
        mine = Uploads(
            network_id="n", shelf=Shelf(tmp_path), objects=network, orchestrators=network, holder=lambda: None, durable=away, anew=away,
            say=lambda kind, *words: None, directory=tmp_path,
        )  # fmt: skip
        with refusing("replace") as met:
            await mine.added(ready := snapshot(tmp_path, 1))
            running = asyncio.create_task(mine.run())
            await until(lambda: len(met) > 2 or running.done())
            assert mine.trouble == "the store is away"
        note = tmp_path / f"{ready.checkpoint.digest}.snapshot"
        await until(lambda: note.exists() or running.done())
        assert not running.done(), running
        running.cancel()

    asyncio.run(story())
