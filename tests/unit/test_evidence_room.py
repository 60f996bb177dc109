"""Goal: asked again and again, a replica keeps to its room for evidence, makes no checkpoint for each answer, and learns on when verdicts have made room."""

from __future__ import annotations

from pathlib import Path

import pytest
from evidence_rig import INFO, NAMES, Rig, closed_in, run

from dcnr.v1 import model_pb2
from pnode.books import MAX_BACKLOG
from pnode.evidence import EvidenceFolder
from vnode.bundle import read_bundle

ROOM, EACH = 200_000, 2_000
INPUT = model_pb2.EVIDENCE_KIND_INPUT


async def filled(root: Path) -> Rig:
    """A replica whose room is full of what waits for its audit, and that may learn no more."""
    rig = Rig(root, max_bytes=ROOM, is_read=True)
    await rig.learn(0, ROOM // 2)
    await rig.end(NAMES[0])
    assert rig.held[-1].startswith("waiting_for_audit")
    return rig


@pytest.mark.parametrize("had_learned", [False, True])
def test_what_is_asked_again_above_the_room_takes_none_and_forces_no_checkpoints(tmp_path: Path, had_learned: bool) -> None:
    async def scenario() -> None:
        rig = await filled(tmp_path)
        before, full = len(rig.crowded), rig.num_bytes
        if had_learned:
            await rig.learn(1)  # it was under way
        for batch in range(200):
            await rig.again(batch, EACH)
            if len(rig.crowded) > before and rig.interval == 1:
                await rig.end(NAMES[1])
        await rig.books.log("")
        assert len(rig.crowded) - before == int(had_learned), "what was learned is named and judged; nothing else would be"
        assert rig.num_bytes <= full + 4 * MAX_BACKLOG * EACH
        assert len(closed_in(rig.folder)) == 1 + had_learned
        rig.books.close()

    run(scenario)


def test_what_is_learned_after_such_answers_begins_an_interval_of_its_own(tmp_path: Path) -> None:
    """An auditor finds all of it; the log names what was answered all the same."""

    async def scenario() -> None:
        rig = await filled(tmp_path)
        before = len(rig.crowded)
        for batch in range(3):
            await rig.again(batch, EACH)
        await rig.books.log("")
        await rig.books.decided([NAMES[0]], num_open=0)
        assert rig.held[-1].startswith("waiting_for_audit: a checkpoint comes first")
        assert len(rig.crowded) == before + 1
        log = await rig.end(NAMES[1])
        assert [(step.batch, len(step.inputs), len(step.outputs)) for step in log.steps] == [(0, 1, 1), (1, 1, 1), (2, 1, 1)]
        assert rig.held[-1] == ""
        await rig.learn(4)
        await rig.end(NAMES[2])
        kept, name = closed_in(rig.folder), NAMES[2]
        assert set(kept) == {NAMES[1], name}
        assert not any((path / "lost").exists() for path in kept.values()), (
            "of the first, states and words are all that is looked at"
        )
        assert (kept[name] / "begin").read_bytes() == b"end"
        with read_bundle(kept[name] / "parts") as parts:
            assert parts.has(INPUT, entry=0, batch=4)
        rig.books.close()

    run(scenario)


def test_an_interval_in_which_nothing_was_learned_leaves_its_states_and_words_and_the_oldest_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever goes on from its end has to show it. What was computed again in it would fill the room: the replica would never have learned again."""

    async def scenario() -> None:
        rig = Rig(tmp_path, max_bytes=ROOM, is_read=True)
        for at in range(3):
            for batch in range(2):
                await rig.again(batch, ROOM // 8)
            await rig.end(NAMES[at])
            kept = closed_in(rig.folder)
            assert set(kept) == set(NAMES[: at + 1])
            assert {(path / "parts").stat().st_size for path in kept.values()} == {0}
        assert not any(rig.held)
        assert rig.num_bytes < ROOM // 8
        rig.books.close()
        monkeypatch.setattr("pnode.evidence.MAX_IDLE", 2)
        again = EvidenceFolder(rig.folder)
        again.load()
        assert again.num_bytes == 0, "nothing but a verdict on what goes on from there would make that room free"
        again.shed_idle()
        assert set(closed_in(rig.folder)) == set(NAMES[1:3]), "another life of its worker knows which they are"

    run(scenario)


def test_a_contributor_learns_again_as_soon_as_an_anchor_has_ended_such_an_interval(tmp_path: Path) -> None:
    """Nobody may ask it for anything more, and no manifest has news of it: what held it is looked at with the anchor."""

    async def scenario() -> None:
        rig = await filled(tmp_path)
        await rig.again(0, EACH)
        await rig.books.log("")
        await rig.books.decided([NAMES[0]], num_open=0)
        assert rig.held[-1].startswith("waiting_for_audit: a checkpoint comes first")
        await rig.books.rebased(b"anchor", INFO)
        assert rig.held[-1] == ""
        rig.books.close()

    run(scenario)
