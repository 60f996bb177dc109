"""Goal: what a PNode was writing when it died is gone after its next start, and nothing that is still needed is."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dcnr import limits
from dcnr.ids import digest_of
from dcnr.v1 import common_pb2, local_pb2, model_pb2
from pnode.home import Home
from pnode.snapshots import Shelf


def snapshot(path: Path, replica: str) -> local_pb2.SnapshotReady:
    """A state on disk and what its worker says of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(replica.encode())
    checkpoint = model_pb2.Checkpoint(vnode="a", digest=digest_of(path.read_bytes()), size_bytes=path.stat().st_size)
    return local_pb2.SnapshotReady(replica=replica, model="m", path=str(path), checkpoint=checkpoint)


def test_drafts_go_at_the_start_and_what_has_a_name_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.open()
    home.next_incarnation(7.0)
    home.close()
    drafts = [home.root / ".incarnation.12.tmp", home.root / ".key.pem.ab", home.cache / ".0123.part", home.snapshots / ".x.tmp"]
    kept = [home.root / "incarnation", home.cache / "0123", home.snapshots / "x.snapshot", home.log / ".hidden"]
    for path in (*drafts, *kept[1:]):
        path.write_bytes(b"1")
    home.open()
    assert [path for path in drafts if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    home.close()


def test_what_a_dead_worker_left_goes_and_states_with_a_note_stay(tmp_path: Path) -> None:
    work, notes = tmp_path / "work", tmp_path / "notes"
    notes.mkdir()
    mine = snapshot(work / "a.1" / "snapshots" / "mine.safetensors", "a.1")
    asyncio.run(Shelf(notes).add(mine))
    lost = snapshot(work / "a.1" / "snapshots" / "lost.safetensors", "a.1")
    for left in ("a.1/snapshots/mine.draft", "b.2/spool/00000000.segment", "b.2/spool/00000001.segment"):
        (work / left).parent.mkdir(parents=True, exist_ok=True)
        (work / left).write_bytes(b"1")
    shelf = Shelf(notes)
    assert shelf.load() == []
    shelf.sweep(work)
    assert sorted(path.relative_to(work).as_posix() for path in work.rglob("*") if path.is_file()) == [
        "a.1/snapshots/mine.safetensors"
    ]
    assert not Path(lost.path).exists()
    assert not (work / "b.2").exists()
    assert [held.ready.replica for held in shelf.pending()] == ["a.1"]


def test_a_sweep_of_nothing_is_fine(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    Shelf(tmp_path).sweep(tmp_path / "work")
    assert (tmp_path / "work").is_dir()


def test_a_snapshot_whose_lineage_cannot_be_read_is_no_candidate_and_hides_no_other(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    for name, count in (("bad", limits.MAX_INTERVALS + 1), ("good", limits.MAX_INTERVALS)):
        ready = snapshot(tmp_path / name, name)
        ready.checkpoint.lineage.intervals.extend(common_pb2.Interval(first=2 * n, end=2 * n + 1) for n in range(count))
        asyncio.run(shelf.add(ready))
    found = asyncio.run(shelf.candidates("m", "", "a"))
    assert [(state.path.name, len(state.lineage)) for state in found] == [("good", limits.MAX_INTERVALS)]
