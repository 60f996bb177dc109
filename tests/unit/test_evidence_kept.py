"""Goal: evidence is kept until its verdict, found again after a death, and bounded: a replica with too much of it, or too much undecided, learns no more."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from evidence_rig import INFO, NAMES, STANDING, Rig, closed_in, run

from dcnr.errors import InvariantBroken, Unavailable
from dcnr.ids import ReplicaId, digest_of
from dcnr.system import SystemClock
from dcnr.tensor import encode
from dcnr.v1 import identity_pb2, model_pb2
from pnode.arrivals import Arrival
from pnode.books import MAX_BACKLOG
from pnode.evidence import EvidenceFolder, forget
from pnode.gathering import Means, gather
from pnode.pace import Pace
from pnode.spool import Frame
from pnode.verdicts import LONGEST_KEPT_S, decided_of, sweep
from vnode.bundle import read_bundle
from vnode.compute import StepResult
from vnode.signed_frames import FrameNumber
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

INPUT, OUTPUT, STATE = model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT, model_pb2.EVIDENCE_KIND_STATE


def part(entry: int) -> model_pb2.EvidencePart:
    return model_pb2.EvidencePart(kind=INPUT, entry=entry)


def test_whole_intervals_are_found_again_and_others_are_not(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path / "a.1")
    folder.load()
    first = folder.open(b"order")
    folder.add(part(0), memoryview(b"input"))
    folder.closed(first, NAMES[0])
    folder.open(b"order")
    folder.add(part(0), memoryview(b"never signed"))
    folder.close()
    again = EvidenceFolder(tmp_path / "a.1")
    again.load()
    assert list(closed_in(tmp_path / "a.1")) == [NAMES[0]]
    assert again.num_bytes == sum(path.stat().st_size for path in first.path.iterdir())
    with read_bundle(first.path / "parts") as parts:
        assert bytes(parts.data(INPUT)) == b"input"
    later = again.open(b"order")
    assert later.path.name > first.path.name
    again.decided([NAMES[0], NAMES[1]])
    assert not first.path.exists()
    assert later.path.exists()
    again.close()


def test_what_goes_where_no_replica_runs_is_only_what_was_named(tmp_path: Path) -> None:
    folder = EvidenceFolder(tmp_path)
    folder.load()
    first, second = folder.open(b""), folder.open(b"")
    folder.closed(first, NAMES[0])
    forget(tmp_path, NAMES)
    assert list(tmp_path.iterdir()) == [second.path]
    folder.close()


@pytest.mark.parametrize(
    ("known", "decided"),
    [
        ({}, []),
        ({0: "open"}, []),
        ({0: "passed", 1: "open"}, [0]),
        ({1: "open"}, [0]),
        ({0: "open", 2: "spared"}, [1, 2]),
        ({3: "failed"}, [0, 1, 2, 3]),
    ],
)
def test_what_is_decided_or_was_passed_over_goes(known: dict[int, str], decided: list[int]) -> None:
    found = decided_of(NAMES[:4], {NAMES[at]: verdict for at, verdict in known.items()})
    assert found == [NAMES[at] for at in decided]


def test_what_nobody_asked_for_in_a_week_goes_at_the_next_start(tmp_path: Path) -> None:
    for name in ("a.1/00000001", "a.1/00000002"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "unfinished.bundle").write_bytes(b"x")
    os.utime(tmp_path / "a.1" / "00000001", (0, 0))
    sweep(tmp_path, now_wall=(tmp_path / "a.1" / "00000002").stat().st_mtime + LONGEST_KEPT_S / 2)
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("**/*")) == ["a.1", "a.1/00000002"]


def test_a_log_names_what_was_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2)
        for batch in range(5):
            await rig.learn(batch)
        log = await rig.end(NAMES[0])
        kept = closed_in(rig.folder)[NAMES[0]]
        assert [step.batch for step in log.steps] == list(range(5))
        assert [bool(step.state_digest) for step in log.steps] == [False, True, False, True, False]
        assert [len(info.lineage) for info in rig.captured] == [2, 4]
        assert digest_of((kept / "steps-0").read_bytes()) == digest_of(log.SerializeToString(deterministic=True))
        assert ((kept / "begin").read_bytes(), (kept / "end").read_bytes()) == (b"begin", b"end")
        with read_bundle(kept / "parts") as parts:
            for entry, step in enumerate(log.steps):
                assert blake3(parts.data(INPUT, entry=entry, batch=step.batch)).digest() == step.inputs[0]
        await rig.learn(5)
        following = await rig.end(NAMES[1])
        assert [step.batch for step in following.steps] == [5]
        assert (closed_in(rig.folder)[NAMES[1]] / "begin").read_bytes() == b"end"
        rig.books.close()

    run(scenario)


@pytest.mark.parametrize("state", [b"state", b"state" * 200])
def test_small_states_in_between_are_kept_and_handed_over_and_large_ones_are_made_again(tmp_path: Path, state: bytes) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2, state=state)
        for batch in range(5):
            await rig.learn(batch, 1024)
        await rig.end(NAMES[0])
        means = Means(_computes, _computes, Pace(SystemClock(), lambda: 0.0))
        if len(state) > 100:
            with pytest.raises(Unavailable, match="it computes"):
                await gather(rig.folder, "a.1", NAMES[0], tmp_path / "bundle", means)
        else:
            await gather(rig.folder, "a.1", NAMES[0], tmp_path / "bundle", means)
            with read_bundle(tmp_path / "bundle") as bundle:
                assert [bytes(bundle.data(STATE, entry=entry)) for entry in (0, 2, 4, 5)] == [b"begin", b"state", b"state", b"end"]
        rig.books.close()

    run(scenario)


def test_a_state_is_named_every_few_entries_also_behind_one_that_learned_nothing(tmp_path: Path) -> None:
    """A replay starts anew from one after so many entries, whatever they were: where one is not named, honest work cannot be verified."""

    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2)
        tensor = np.zeros(16, np.float32)
        await rig.learn(5)
        await rig.books.forwarded(1, [tensor], tensor, 1, None)
        await rig.learn(6)
        await rig.books.forwarded(2, [tensor], tensor, 2, None)
        await rig.books.forwarded(3, [tensor], tensor, 2, None)
        log = await rig.end(NAMES[0])
        assert [bool(step.state_digest) for step in log.steps] == [False, True, False, True, False]
        assert [len(info.lineage) for info in rig.captured] == [1, 2]
        rig.books.close()

    run(scenario)


def test_no_state_is_captured_with_which_an_interval_ends_anyway(tmp_path: Path) -> None:
    """Its statement names that one; captured and digested once more it would be the dearest entry of all."""

    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2)
        for batch in range(4):
            await rig.learn(batch)
        log = await rig.end(NAMES[0])
        assert [bool(step.state_digest) for step in log.steps] == [False, True, False, False]
        for batch in (4, 5):
            await rig.learn(batch)
        assert [len(info.lineage) for info in rig.captured] == [2]
        await rig.again(6)
        assert [len(info.lineage) for info in rig.captured] == [2, 2], (
            "its lineage is of the interval's first state and what was learned since"
        )
        assert [bool(step.state_digest) for step in (await rig.end(NAMES[1])).steps] == [False, True, False]
        rig.books.close()

    run(scenario)


def test_a_state_that_was_to_be_captured_is_not_learned_over(tmp_path: Path) -> None:
    """Who forgot to ask would name the state one batch later, and be accused of it."""

    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=1)
        tensor = np.zeros(16, np.float32)
        await rig.learn(0)
        with pytest.raises(InvariantBroken, match="was to be captured"):
            await rig.books.learned(1, [tensor], StepResult(tensor, 0.5, 1, 1, 1, 0.1), 1, None)
        await rig.learn(1)
        assert [len(info.lineage) for info in rig.captured] == [1]
        rig.books.close()

    run(scenario)


def test_a_state_in_between_that_the_disk_has_damaged_is_made_again(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path, span_steps=2)
        for batch in range(3):
            await rig.learn(batch, 1024)
        await rig.end(NAMES[0])
        (closed_in(rig.folder)[NAMES[0]] / "state-2").write_bytes(b"stale")
        with pytest.raises(Unavailable, match="it computes"):
            await gather(
                rig.folder, "a.1", NAMES[0], tmp_path / "bundle", Means(_computes, _computes, Pace(SystemClock(), lambda: 0.0))
            )
        rig.books.close()

    run(scenario)


def _computes(_: object) -> Any:
    raise Unavailable("it computes", code="computes")


@pytest.mark.parametrize("is_read", [True, False])
def test_what_others_read_is_stated_and_kept_also_where_nobody_wants_it_now(tmp_path: Path, *, is_read: bool) -> None:
    """A batch that is learned again may be durable with everybody behind: an auditor asks what came out of it all the same."""

    async def scenario() -> None:
        rig = Rig(tmp_path, is_read=is_read)
        rig.wanted.add(1)
        for batch in range(2):
            await rig.learn(batch)
        tensor = np.full(16, 2, np.float32)
        await rig.books.forwarded(2, [tensor], tensor + 1, 2, await rig.frame(2))
        log = await rig.end(NAMES[0])
        codecs = [[output.codec for output in step.outputs] for step in log.steps]
        assert codecs == ([["raw"], ["int8"], ["raw"]] if is_read else [[], ["int8"], []])
        with read_bundle(closed_in(rig.folder)[NAMES[0]] / "parts") as parts:
            for entry, step in enumerate(log.steps):
                for output in step.outputs:
                    payload = parts.data(OUTPUT, entry=entry, batch=step.batch)
                    assert blake3(payload).digest() == output.digest
                    assert output.codec != "raw" or np.frombuffer(payload, np.float32).tolist() == [step.batch + 1.0] * 16
        rig.books.close()

    run(scenario)


def test_inputs_are_kept_in_their_order_while_an_output_is_not_encoded_yet(tmp_path: Path) -> None:
    """Whose key signed stands with a sender's first entry: a later one must not come before it."""

    async def scenario() -> None:
        rig = Rig(tmp_path, is_read=True)
        late: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        tensor = np.zeros(16, np.float32)
        await rig.books.learned(0, [tensor], StepResult(tensor + 1, 0.5, 1, 1, 1, 0.1), 0, late)
        await rig.learn(1)
        while len(rig.books._tasks) > 1:
            await asyncio.wait(rig.books._tasks, timeout=0.05, return_when=asyncio.FIRST_COMPLETED)
        late.set_result(Frame(encode(np.full(16, 1, np.float32), "int8"), 0))
        log = await rig.end(NAMES[0])
        assert [(len(step.inputs), len(step.outputs)) for step in log.steps] == [(1, 1), (1, 1)]
        with read_bundle(closed_in(rig.folder)[NAMES[0]] / "parts") as parts:
            assert [key[:2] for key in parts._parts] == [(INPUT, 0), (INPUT, 1), (OUTPUT, 1), (OUTPUT, 0)]
        rig.books.close()

    run(scenario)


def test_each_sender_of_one_worker_says_whose_key_signed(tmp_path: Path) -> None:
    """Two replicas before this one on one machine have one delegation: an auditor looks for it with the first frame of either."""

    async def scenario() -> None:
        rig = Rig(tmp_path, inputs=(0, 1))
        tensor, delegation = np.zeros(16, np.float32), identity_pb2.Envelope(payload=b"of their worker")
        for batch in range(2):
            number, senders = FrameNumber(TRAIN_LANE, batch, Mode.TRAIN), [Peer(ReplicaId(name), 4) for name in ("b.1", "c.1")]
            frames = [
                Arrival(tensor, encode(tensor, "raw"), number, sender, STANDING.peer, 0, b"s", delegation) for sender in senders
            ]
            await rig.books.learned(batch, frames, StepResult(tensor, 0.5, 1, 1, 1, 0.1), batch, None)
        await rig.end(NAMES[0])
        with read_bundle(closed_in(rig.folder)[NAMES[0]] / "parts") as parts:
            told = {
                key[1:]: parts.part(*key[:1], entry=key[1], batch=key[2], port=key[3]).frame.HasField("delegation")
                for key in parts._parts
            }
        assert told == {(0, 0, 0): True, (0, 0, 1): True, (1, 1, 0): False, (1, 1, 1): False}
        rig.books.close()

    run(scenario)


def test_an_interval_begins_with_the_state_before_it_however_late_that_is_written(tmp_path: Path) -> None:
    """Snapshots are written beside learning: the next interval may have ended by then."""

    async def scenario() -> None:
        rig = Rig(tmp_path)
        ended = []
        for at in range(3):
            await rig.learn(at)
            log = await rig.books.log("begin")
            ended.append(rig.books.ended(identity_pb2.Envelope(payload=b"statement"), log, INFO))
            (tmp_path / f"{at}.state").write_bytes(b"state %d" % at)
        for at in (1, 0, 2):
            await rig.books.keep(ended[at], NAMES[at], tmp_path / f"{at}.state")
        kept = closed_in(rig.folder)
        assert [(kept[NAMES[at]] / "begin").read_bytes() for at in range(3)] == [b"begin", b"state 0", b"state 1"]
        assert [(kept[NAMES[at]] / "end").read_bytes() for at in range(3)] == [b"state 0", b"state 1", b"state 2"]
        rig.books.close()

    run(scenario)


def test_a_full_disk_quota_holds_learning_until_evidence_may_go(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path, max_bytes=100_000)
        await rig.learn(0, 30_000)
        await rig.learn(1, 8)
        await rig.learn(2, 8)
        assert await rig.end(NAMES[0])
        assert rig.crowded  # a quarter of the room is one interval's
        assert not rig.held
        await rig.learn(3, 80_000)
        await rig.end(NAMES[1])
        assert rig.held[-1].startswith("waiting_for_audit")
        await rig.books.decided([NAMES[1]], num_open=1)
        assert rig.held[-1] == ""
        assert list(closed_in(rig.folder)) == [NAMES[0]]
        rig.books.close()

    run(scenario)


def test_what_was_spared_is_kept_while_there_is_room_for_what_was_not(tmp_path: Path) -> None:
    """Half of the room is the limit; the oldest goes first."""

    async def scenario() -> None:
        rig = Rig(tmp_path, max_bytes=200_000)
        for at in range(3):
            await rig.learn(at, 24_000)
            await rig.end(NAMES[at])
        await rig.books.decided([], num_open=0, spared=NAMES[:3])
        assert list(closed_in(rig.folder)) == NAMES[:3]
        await rig.learn(3, 32_000)
        await rig.end(NAMES[3])
        assert list(closed_in(rig.folder)) == NAMES[1:4]
        assert rig.held in ([], [""])
        await rig.books.decided([], num_open=1, spared=NAMES[2:3])
        await rig.learn(4, 60_000)
        await rig.end(NAMES[4])
        assert list(closed_in(rig.folder)) == [NAMES[1], *NAMES[3:5]], "what is drawn late meanwhile stays"
        rig.books.close()

    run(scenario)


def test_more_than_four_open_intervals_hold_learning(tmp_path: Path) -> None:
    async def scenario() -> None:
        rig = Rig(tmp_path)
        for num_open in (4, 5, 5, 4):
            await rig.books.decided([], num_open)
        assert [bool(why) for why in rig.held] == [True, False]
        rig.books.close()

    run(scenario)


def test_a_disk_that_refuses_costs_the_evidence_and_not_the_log(tmp_path: Path) -> None:
    """Nothing that was sent may be missing in it."""

    async def scenario() -> None:
        (tmp_path / "evidence").write_bytes(b"a file where the directory should be")
        rig = Rig(tmp_path, is_read=True)
        rig.wanted.update(range(0, 3 * MAX_BACKLOG, 2))
        for batch in range(3 * MAX_BACKLOG):
            await rig.learn(batch)
        log = await rig.end(NAMES[0])
        assert [len(step.inputs) for step in log.steps] == [1] * (3 * MAX_BACKLOG)
        assert [step.outputs[0].codec for step in log.steps] == [
            "int8" if batch in rig.wanted else "raw" for batch in range(3 * MAX_BACKLOG)
        ]
        rig.books.close()

    run(scenario)
