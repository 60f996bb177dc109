"""Goal: what a PNode was writing when it died is gone after its next start, and nothing that is still needed is."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from dcnr import limits
from dcnr.errors import Refused
from dcnr.ids import digest_of
from dcnr.v1 import common_pb2, local_pb2, model_pb2
from pnode.home import Home
from pnode.snapshots import Shelf
from trust.identity import NodeKey


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
    drafts = [
        home.root / ".incarnation.12.tmp", home.root / ".key.pem.ab", home.root / ".desired-m.x.pb.7.tmp", home.root / ".nodes.json.x_9z",
        home.cache / ".0123.part", home.snapshots / ".x.tmp",
    ]  # fmt: skip
    kept = [
        home.root / "incarnation", home.cache / "0123", home.snapshots / "x.snapshot", home.log / ".hidden", home.root / ".bashrc",
        home.root / ".key.pem", home.root / ".env.12.tmp",
    ]  # fmt: skip
    for path in (*drafts, *kept[1:]):
        path.write_bytes(b"1")
    home.open()
    assert [path for path in drafts if path.exists()] == []
    assert [path for path in kept if not path.exists()] == []
    home.close()


@pytest.mark.parametrize(
    "held",
    [
        (".bashrc", "work/a/b"), (".bashrc",), ("pictures/a",), ("work/a",), (".key.pem",),
        *(("key.pem", f"{name}/a") for name in ("work", "cache", "audits", "evidence", "snapshots")),
    ],
)  # fmt: skip
def test_a_directory_in_which_somebody_keeps_other_things_is_no_home(tmp_path: Path, held: tuple[str, ...]) -> None:
    for name in held:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"theirs")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(Refused, match="holds other things") as refused:
        Home(tmp_path).open()
    assert (refused.value.code, "--home" in refused.value.remedy) == ("directory_in_use", True)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("mark", ["key.pem", "owner.pb", "config.toml", "run.lock", "network.pb", "incarnation"])
def test_a_home_may_hold_what_its_owner_and_the_commands_put_there(tmp_path: Path, mark: str) -> None:
    (tmp_path / mark).write_bytes(b"")
    (tmp_path / "parts").mkdir()
    (tmp_path / ".env").write_bytes(b"mine")
    home = Home(tmp_path)
    home.open()
    home.close()
    assert (tmp_path / ".env").read_bytes() == b"mine"


def test_a_first_start_that_ended_early_a_new_disk_and_plain_files_are_no_hindrance(tmp_path: Path) -> None:
    (tmp_path / "lost+found").mkdir()
    for name in ("network.json", "pnode.log", ".key.pem.0123456789abcdef", ".DS_Store"):
        (tmp_path / name).write_bytes(b"")
    home = Home(tmp_path)
    for _ in range(2):
        home.open()
        NodeKey.load_or_create(home.key)
        home.close()
    assert (tmp_path / ".DS_Store").exists(), "it is its owner's"
    (home.work / "left").write_bytes(b"ours")
    home.next_incarnation(1.0)
    home.open()
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
        ready.work_digest = name
        asyncio.run(shelf.add(ready))
    found = asyncio.run(shelf.candidates("m", "", "a"))
    assert [(state.path.name, len(state.lineage), state.work_digest) for state in found] == [("good", limits.MAX_INTERVALS, "good")]
