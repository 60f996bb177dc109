"""Goal: what a contributor did from an anchor to its delta, and what a primary did with merges in between, is run again from their bundles; a lie in either
is seen, and whoever merged a liar's delta is not blamed.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from merged_rig import FIRST_STATE, STAGE, Member, ratio_of, scaled, without_its_beginning
from test_opening import DATA, NUM_BATCHES, REGISTRY, assigned

from dcnr.errors import Corrupt, Refused
from dcnr.ids import digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from pnode.anchors import Anchor
from pnode.evidence import Interval
from trust.envelope import digest_of_envelope
from vnode.bundle import _KINDS, read_bundle
from vnode.checks.claims import Claim, ClaimedStep
from vnode.checks.opening import UNVERIFIABLE, open_claim, read_stated
from vnode.checks.plan import checks_of_stage
from vnode.checks.replay import replay
from vnode.checks.torch_record import as_array
from vnode.state import for_new_job, parse, serialise
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues
from vnode.torch_stage import schema_of
from vnode.vocabulary import Mode

Lie = Callable[[DeltaValues], DeltaValues]


def honest(delta: DeltaValues) -> DeltaValues:
    return delta


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 120))  # type: ignore[arg-type]


async def met(primary: Member, other: Member, codec: str) -> None:
    """One round: an anchor, and what is measured against it."""
    await primary.merge(await other.delta(await primary.merge(), codec), codec=codec)


async def worked(
    root: Path, *, primary_lie: Lie = honest, contributor_lie: Lie = honest, codec: str = "raw"
) -> tuple[Member, Member]:
    """Anchors with and without merges, two of them without a step in between, a batch passed on, and a checkpoint; then an interval of merges alone."""
    primary, other = Member("a.1", root, primary_lie), Member("a.2", root, contributor_lie)
    await other.stand_on(await primary.merge())
    await other.learn(10, 11, 12)
    await primary.learn(0, 1)
    await met(primary, other, codec)
    await other.learn(13)
    await other.forward(10)
    await other.learn(14)
    await met(primary, other, codec)
    await primary.forward(11)
    await primary.learn(2, 3)
    await primary.snapshot()
    await other.learn(15)
    await met(primary, other, codec)
    await primary.snapshot()
    return primary, other


async def joined(tmp_path: Path, span_steps: int = 256) -> tuple[Member, Member]:
    """A primary, and a contributor that has learned two batches on its anchor, as the primary has since."""
    primary, other = Member("a.1", tmp_path), Member("a.2", tmp_path, span_steps=span_steps)
    await other.stand_on(await primary.merge())
    await other.learn(10, 11)
    await primary.learn(0, 1)
    return primary, other


async def lead_with_it(other: Member, anchor: Anchor) -> None:
    """A contributor is made the primary while its delta is open: it merges that first, before its first checkpoint."""
    envelope, data, batches = await other.delta(anchor)
    await other.learn(12)
    await other.take_in(envelope, data, batches)
    other.chain.lead(IntervalSet.span(12, 13))
    other.compute.lead()
    await other.snapshot()


@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_honest_intervals_of_both_are_run_again(tmp_path: Path, codec: str) -> None:
    async def scenario() -> None:
        primary, other = await worked(tmp_path, codec=codec)
        assert (len(primary.named), len(other.named)) == (2, 3)
        for member in (primary, other):
            for name in member.named:
                assert await member.ratio(name) <= 1.0
            member.books.close()

    run(scenario)


@pytest.mark.parametrize("factor", [-3.0, 0.0, 1.01], ids=["turned", "nothing", "a hundredth more"])
@pytest.mark.parametrize("codec", ["raw", "int8"])
def test_a_contributor_that_brings_something_else_than_it_learned_is_seen_and_the_primary_is_not_blamed(
    tmp_path: Path, codec: str, factor: float
) -> None:
    async def scenario() -> None:
        primary, other = await worked(tmp_path, contributor_lie=scaled(factor), codec=codec)
        assert all([await primary.ratio(name) <= 1.0 for name in primary.named])
        if codec == "raw" or factor != 1.01:  # below what int8 can tell apart
            assert all([await other.ratio(name) > 2.0 for name in other.named])
        primary.books.close()
        other.books.close()

    run(scenario)


def test_a_primary_that_merges_something_else_is_seen_and_its_contributor_is_not_blamed(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary, other = await worked(tmp_path, primary_lie=scaled(0.5))
        assert all([await primary.ratio(name) > 2.0 for name in primary.named])
        assert all([await other.ratio(name) <= 1.0 for name in other.named])
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("has_begun_another", [False, True])
def test_a_delta_of_as_many_entries_as_one_replay_goes_over_can_be_checked(tmp_path: Path, has_begun_another: bool) -> None:
    """It ends with what the contributor moved, and with no state: one that its log names, since a batch followed that could not be learned, is in no bundle."""

    async def scenario() -> None:
        primary, other = await joined(tmp_path, span_steps=2)
        if has_begun_another:
            await other.books.before_learning()
        await primary.merge(await other.delta(await primary.merge()))
        assert await other.ratio(other.named[-1]) <= 1.0
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("factor", [1.0, 0.5], ids=["as it was brought", "another part"])
def test_a_contributor_that_leads_merges_its_open_delta_and_both_are_run_again(tmp_path: Path, factor: float) -> None:
    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        other.merge_lie = scaled(factor)
        await lead_with_it(other, await primary.merge())
        delta, first = other.named
        stated, _ = await other.opened(delta)
        assert [step.batch for step in stated.steps] == [10, 11]
        assert await other.ratio(delta) <= 1.0
        stated, _ = await other.opened(first)
        assert [step.batch for step in stated.steps] == [12]
        assert (await other.ratio(first) <= 1.0) is (factor == 1.0)
        await other.learn(13)
        await other.snapshot()
        assert await other.ratio(other.named[-1]) <= 1.0
        primary.books.close()
        other.books.close()

    run(scenario)


def test_who_has_learned_little_adds_what_it_learned_and_that_is_run_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        await primary.merge(await other.delta(await primary.merge(), is_late=True))
        (name,) = other.named
        assert not any((path / "measured").exists() for path in (other.root / "evidence").iterdir())
        assert await other.ratio(name) <= 1.0
        await other.learn(12)
        await primary.merge(await other.delta(await primary.merge()))
        assert await other.ratio(other.named[-1]) <= 1.0
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("is_other", [False, True], ids=["its own", "what it began with"])
def test_what_a_delta_was_measured_against_is_held_against_what_it_names(tmp_path: Path, is_other: bool) -> None:
    """Goal: else a contributor would choose what it says it moved by what it says it was measured against."""

    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        await other.delta(await primary.merge())
        (name,) = other.named
        folder = min(path for path in (other.root / "evidence").iterdir() if (path / "measured").exists())
        assert await other.ratio(name) <= 1.0
        if is_other:
            begun = (folder / "begin").read_bytes()
            (folder / "measured").unlink()
            (folder / "measured").write_bytes(begun)
        else:
            (folder / "measured").unlink()
        with pytest.raises(Refused) as raised:
            await other.opened(name)
        assert raised.value.code == UNVERIFIABLE
        primary.books.close()
        other.books.close()

    run(scenario)


def test_who_knows_nothing_of_what_a_delta_was_measured_against_can_judge_it_neither_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: software of before ignores what a delta names for it, and would replay it from its beginning alone, and accuse. It cannot read the evidence."""

    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        await other.delta(await primary.merge())
        before = await other.gathered(other.named[0])
        monkeypatch.setattr("vnode.bundle._KINDS", _KINDS - {model_pb2.EVIDENCE_KIND_MEASURED})
        with pytest.raises(Corrupt) as raised, read_bundle(before):
            pass
        assert raised.value.code == "bad_bundle"
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("codec", ["raw", "int8"])
@pytest.mark.parametrize("away", [1e3, 1e6, 1e30])
def test_an_anchor_far_away_finds_nobody_guilty_who_measured_against_it(tmp_path: Path, codec: str, away: float) -> None:
    """Goal: what float32 cannot tell of a long displacement is no lie. A primary that lies chooses how long it is, and would have others quarantined."""

    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        anchor = await primary.merge()
        info, tensors = parse(anchor.data, schema_of(STAGE, REGISTRY))
        moved = {name: array + np.float32(away) if name.startswith("w/") else array for name, array in tensors.items()}
        data = serialise(schema_of(STAGE, REGISTRY), info, moved)
        await other.delta(replace(anchor, data=data, digest=digest_of(data)), codec)
        assert await other.ratio(other.named[0]) <= 1.0
        primary.books.close()
        other.books.close()

    run(scenario)


def test_an_interval_whose_end_the_disk_refused_takes_no_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody can ask for it, so no verdict would ever make that room free."""
    write = Interval.write

    def refusing(self: Interval, name: str, data: bytes) -> None:
        if name == "begin":
            raise OSError(errno.ENOSPC, "no space left on device")
        write(self, name, data)

    async def scenario() -> None:
        primary, other = await joined(tmp_path)
        anchor = await primary.merge()
        before = min((other.root / "evidence").iterdir())
        with monkeypatch.context() as patch:
            patch.setattr(Interval, "write", refusing)
            await other.delta(anchor)
        await other.learn(12)
        await other.delta(await primary.merge())
        assert not before.exists()
        kept = [
            item.stat().st_size
            for path in (other.root / "evidence").iterdir()
            for item in path.iterdir()
            if (path / "name").exists()
        ]
        assert other.books._folder.num_bytes == sum(kept)
        primary.books.close()
        other.books.close()

    run(scenario)


def test_what_is_missing_of_a_merge_makes_it_unverifiable(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary, other = await worked(tmp_path)
        folders = sorted((primary.root / "evidence").iterdir())
        for kept in ("delta-1", "anchor-1"):
            path = folders[0] / kept
            data = path.read_bytes()
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
            with pytest.raises(Refused) as raised:
                await primary.opened(primary.named[0])
            assert raised.value.code == UNVERIFIABLE
            path.write_bytes(data)
        path = next(sorted((other.root / "evidence").iterdir())[0].glob("delta-0"))
        path.write_bytes(path.read_bytes()[::-1])
        with pytest.raises(Refused):
            await other.opened(other.named[0])
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("again", [(), (0, 1)], ids=["no entry", "computed again"])
@pytest.mark.parametrize("is_swapped", [False, True])
def test_a_state_behind_which_nothing_was_learned_is_held_against_the_one_before_it(
    tmp_path: Path, is_swapped: bool, again: tuple[int, ...]
) -> None:
    async def scenario() -> None:
        primary = Member("a.1", tmp_path)
        await primary.learn(0, 1)
        await primary.snapshot()
        for batch in again:
            await primary.forward(batch)
        if is_swapped:
            other = Member("a.3", tmp_path)
            await other.learn(5, 6)
            values = other.compute.snapshot(replace(primary.info, parent=""))
            primary.compute.restore(values)
            other.books.close()
        await primary.snapshot()
        assert (await primary.ratio(primary.named[1]) <= 1.0) is not is_swapped
        primary.books.close()

    run(scenario)


def a_bit_further(state: bytes) -> bytes:
    """Each value of its weights becomes the next one that there is: as little as anybody can change."""
    schema = schema_of(STAGE, REGISTRY)
    info, tensors = parse(state, schema)
    moved = {name: np.nextafter(array, np.float32(np.inf)) if name.startswith("w/") else array for name, array in tensors.items()}
    return serialise(schema, info, moved)


@pytest.mark.parametrize("after", [(), (2, 3)], ids=["nothing learned", "anchors before steps"])
@pytest.mark.parametrize("again", [(), (0, 1)], ids=["no entry", "computed again"])
def test_behind_what_nobody_computed_not_a_bit_is_another(tmp_path: Path, after: tuple[int, ...], again: tuple[int, ...]) -> None:
    """Goal: else whoever makes statements about nothing moves its weights by their last bits with each, in one direction, and every replay passes."""

    async def scenario() -> None:
        primary = Member("a.1", tmp_path)
        await primary.learn(0, 1)
        await primary.snapshot()
        for _ in range(8):
            for batch in again:
                await primary.forward(batch)
            primary.compute.restore(a_bit_further(primary.compute.snapshot(primary.info)))
            await primary.merge()
        await primary.learn(*after)
        await primary.snapshot()
        assert await primary.ratio(primary.named[0]) <= 1.0
        assert await primary.ratio(primary.named[1]) > 2.0
        primary.books.close()

    run(scenario)


@pytest.mark.parametrize("is_moved", [False, True])
def test_a_span_that_only_passes_batches_on_leaves_its_state_as_it_was(is_moved: bool) -> None:
    passed_on = ClaimedStep(0, Mode.FORWARD_ONLY, (DATA.read_input(0),), DATA.read_target(0), 0, None, "raw", 0.0, 0.0)
    claim = Claim((passed_on,), {0: FIRST_STATE, 1: a_bit_further(FIRST_STATE) if is_moved else FIRST_STATE})
    compute = TorchCompute(STAGE, REGISTRY, num_batches=NUM_BATCHES, seed=7)
    found = replay(compute, schema_of(STAGE, REGISTRY), claim, checks_of_stage(STAGE, REGISTRY).replay(), as_array=as_array)
    assert (max(one.ratio for one in found) > 2.0) is is_moved


def test_nobody_begins_the_job_anew_in_its_midst(tmp_path: Path) -> None:
    """Goal: a contributor that says its anchor holds nothing yet would learn at the rates of the beginning, with slots of zero, whenever it likes."""

    async def scenario() -> None:
        primary, other = Member("a.1", tmp_path), Member("a.2", tmp_path)
        await primary.learn(0, 1, 2)
        anchor = await primary.merge()
        await other.stand_on(anchor)
        begun = for_new_job(
            anchor.data, schema_of(STAGE, REGISTRY), num_batches=NUM_BATCHES, seed=7, graph="", parent=anchor.digest
        )
        other.info = other.compute.restore(begun)
        other.compute.follow()
        await other.learn(10, 11)
        await other.delta(anchor)
        with pytest.raises(Refused) as raised:
            await other.ratio(other.named[0])
        assert raised.value.code == UNVERIFIABLE
        primary.books.close()
        other.books.close()

    run(scenario)


@pytest.mark.parametrize("after", [(2, 3), ()], ids=["steps after it", "none at all"])
def test_what_led_to_an_anchor_cannot_be_left_out(tmp_path: Path, after: tuple[int, ...]) -> None:
    """Goal: else an anchor that nothing led to would be where a replay begins, and the batches before it count with no step of them replayed."""

    async def scenario() -> None:
        primary = Member("a.1", tmp_path)
        await primary.learn(0, 1)
        await primary.merge()
        await primary.learn(*after)
        await primary.snapshot()
        whole = await primary.gathered(primary.named[0])
        with read_bundle(whole) as bundle:
            stated = read_stated(bundle, assigned(STAGE))
            first = digest_of_envelope(stated.envelopes[0])
            assert read_stated(bundle, assigned(STAGE), first) == stated
        with read_bundle(without_its_beginning(whole, tmp_path / "short")) as bundle:
            short = read_stated(bundle, assigned(STAGE))
            assert (short.exhibit.interval, short.batches) == (stated.exhibit.interval, after)
            assert ratio_of(open_claim(short, bundle, assigned(STAGE), DATA)) <= 1.0, "in itself all of it is right"
            with pytest.raises(Refused) as raised:
                read_stated(bundle, assigned(STAGE), first)
            assert raised.value.code == UNVERIFIABLE
        primary.books.close()

    run(scenario)


def test_anchors_take_room_like_all_evidence_and_ask_for_a_checkpoint(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary = Member("a.1", tmp_path, max_bytes=6 * len(FIRST_STATE))
        await primary.merge()
        assert not primary.crowded
        await primary.merge()
        assert primary.crowded
        primary.books.close()

    run(scenario)


def test_many_merges_in_a_row_ask_for_a_checkpoint_before_an_auditor_reads_no_more(tmp_path: Path) -> None:
    async def scenario() -> None:
        primary = Member("a.1", tmp_path)
        for _ in range(40):
            await primary.merge()
        assert primary.crowded
        await primary.learn(0)
        await primary.snapshot()
        assert await primary.ratio(primary.named[0]) <= 1.0
        primary.books.close()

    run(scenario)
