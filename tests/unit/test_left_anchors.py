"""Goal: where another replica goes on as the primary from an anchor, what led to the anchor is an interval: its evidence is shown whatever came after it in the
life that made it, also if that was cut off, and is kept until it is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from pathlib import Path

import pytest
from merged_rig import Member, scaled
from test_merged_intervals import Lie, honest, run

from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from pnode.evidence import EvidenceFolder, forget, left_in, signed_in, told_by
from vnode.bundle import read_bundle


async def left(root: Path, lie: Lie = honest) -> Member:
    """An anchor alone at the very beginning, one alone behind steps, two with merges, of which the second lies directly behind the first, and more steps."""
    primary, other = Member("a.1", root, lie), Member("a.2", root)
    await other.stand_on(await primary.merge())
    await primary.learn(0, 1)
    await primary.forward(0)
    alone = await primary.merge()
    await other.learn(10, 11)
    merged = await primary.merge(await other.delta(alone))
    await other.learn(12)
    await primary.merge(await other.delta(merged))
    await primary.learn(2)
    other.books.close()
    return primary


def closed(primary: Member) -> None:
    """Whatever was signed is on the disk, whenever its replica ends."""
    with contextlib.suppress(RuntimeError):  # once more
        primary.books.close()
    primary.books._thread.shutdown()


@pytest.mark.parametrize("ending", ["goes on", "is ended", "was cut off"])
def test_what_led_to_each_anchor_is_run_again(tmp_path: Path, ending: str) -> None:
    async def scenario() -> None:
        primary = await left(tmp_path)
        folder = tmp_path / "a.1" / "evidence"
        if ending == "is ended":
            await primary.snapshot()
        await primary.books.log("")  # all that was noted is written
        if ending != "goes on":
            closed(primary)
        if ending == "was cut off":
            parts = folder / "00000001" / "parts"
            parts.write_bytes(parts.read_bytes()[:-40])
            EvidenceFolder(folder).load()  # as the next worker does
        assert len(primary.left) == 4
        assert [*signed_in(folder).values()] == [primary.left + primary.named]
        for name in primary.left:
            assert await primary.ratio(name) <= 1.0, name
        with read_bundle(await primary.gathered(primary.left[1])) as bundle:
            assert [part.entry for part in bundle.parts(model_pb2.EVIDENCE_KIND_STATEMENT)] == [0, 1], "those that lead to it"
            assert {part.entry for part in bundle.parts(model_pb2.EVIDENCE_KIND_OUTPUT)} == {0, 1, 2}
            assert not list(bundle.parts(model_pb2.EVIDENCE_KIND_DISPLACEMENT)), "nothing was merged before it"
        closed(primary)

    run(scenario)


def test_who_did_not_merge_what_it_says_is_seen_in_what_led_to_the_anchor(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary = await left(tmp_path, scaled(-3.0))
        assert await primary.ratio(primary.left[1]) <= 1.0, "before the first merge it was honest"
        assert await primary.ratio(primary.left[2]) > 2.0
        closed(primary)

    run(scenario)


def test_such_evidence_goes_when_it_is_decided_and_not_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary = await left(tmp_path)
        closed(primary)
        folder = tmp_path / "a.1" / "evidence"
        found, rest = left_in(folder, before_s=1e18, known={primary.left[2]: "open"})
        assert (list(found), rest) == ([primary.left[2]], 0), "it counts under the name that manifests speak of"
        forget(folder, ["0" * 64])
        assert signed_in(folder)
        forget(folder, [primary.left[2]])
        assert not signed_in(folder)

    run(scenario)


def test_what_is_signed_is_written_although_its_replica_ends_at_once(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary, gate = Member("a.1", tmp_path), threading.Event()
        await primary.learn(0)
        await primary.books.log("")
        primary.books._thread.submit(gate.wait)
        for name in ("anchor-0", "statement-0"):
            primary.books._write(name, b"signed")
        await asyncio.sleep(0)  # they wait for the disk
        primary.books.close()
        for _ in range(8):
            await asyncio.sleep(0)  # whoever waited is cut off
        gate.set()
        primary.books._thread.shutdown()
        assert [*signed_in(tmp_path / "a.1" / "evidence").values()] == [[digest_of(b"signed")]]

    run(scenario)


def test_a_folder_of_which_anything_is_open_counts_as_open() -> None:
    """One that goes on from an anchor and the one that made it may both be named: what is asked for of the one stays though the other is decided."""
    names = ["anchor", "whole"]
    assert told_by(names, {"whole"}, {"anchor", "whole"}) == "whole"
    assert told_by(names, {"anchor"}, {"anchor", "whole"}) == "anchor"
    assert told_by(names, (), {"anchor"}) == "anchor"
    assert told_by(names, (), ()) == "whole"
