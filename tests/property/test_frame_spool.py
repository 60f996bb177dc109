"""Goal: a frame spool gives back exactly what was put in or nothing, stays inside its bytes, and leaves no file behind."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from dcnr.errors import Corrupt, NotFound, Unavailable
from dcnr.intervals import IntervalSet
from dcnr.tensor import decode, encode
from pnode.spool import Frame, Spool
from vnode.vocabulary import TRAIN_LANE, Lane

MAX_BYTES = 40_000
SEGMENT_BYTES = 8_000
LANES = (TRAIN_LANE, Lane("validation", 1))


def frame(seed: int, values: int) -> Frame:
    array = np.random.Generator(np.random.Philox(key=seed)).standard_normal(values).astype(np.float32)
    return Frame(encode(array, "raw"), seed)


class SpoolModel(RuleBasedStateMachine):
    """The spool beside a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory()
        self.spool = Spool(Path(self.directory.name), max_bytes=MAX_BYTES, segment_bytes=SEGMENT_BYTES)
        self.model: dict[tuple[Lane, int], Frame] = {}

    @rule(lane=st.sampled_from(LANES), batch=st.integers(0, 12), seed=st.integers(0, 1000), values=st.integers(1, 3000))
    def put(self, lane: Lane, batch: int, seed: int, values: int) -> None:
        made = frame(seed, values)
        self.model.pop((lane, batch), None)
        kept = sum(len(other.encoded.payload) for other in self.model.values())
        disk_bytes = self.spool.disk_bytes
        refused = ""
        try:
            self.spool.put(lane, batch, made)
            self.model[lane, batch] = made
        except Unavailable as error:
            refused = error.code
        assert not refused or (refused == "spool_full" and max(kept, disk_bytes) + 4 * values > MAX_BYTES)

    @rule(lane=st.sampled_from(LANES), first=st.integers(0, 12), count=st.integers(0, 12))
    def drop(self, lane: Lane, first: int, count: int) -> None:
        gone = IntervalSet.span(first, first + count)
        self.spool.drop(lane, gone)
        self.model = {key: value for key, value in self.model.items() if key[0] != lane or key[1] not in gone}

    @invariant()
    def gives_back_exactly_what_was_put(self) -> None:
        assert self.spool.num_bytes == sum(len(kept.encoded.payload) for kept in self.model.values()) <= MAX_BYTES
        assert self.spool.disk_bytes <= MAX_BYTES + 4 * SEGMENT_BYTES + 12_000
        for lane in LANES:
            for batch in range(13):
                if (lane, batch) in self.model:
                    found, put = self.spool.get(lane, batch), self.model[lane, batch]
                    assert found.step == put.step
                    assert bytes(found.encoded.payload) == bytes(put.encoded.payload)
                    decode(found.encoded.header, found.encoded.payload)
                else:
                    with pytest.raises(NotFound):
                        self.spool.get(lane, batch)

    def teardown(self) -> None:
        self.spool.close()
        assert os.listdir(self.directory.name) == []
        self.directory.cleanup()


SpoolModel.TestCase.settings = settings(max_examples=25, stateful_step_count=25)
TestSpoolModel = SpoolModel.TestCase


def test_a_damaged_frame_is_reported_and_forgotten(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=MAX_BYTES)
    spool.put(TRAIN_LANE, 1, frame(1, 100))
    (segment,) = tmp_path.glob("*.segment")
    with segment.open("r+b") as file:
        file.seek(40)
        file.write(b"damage")
    with pytest.raises(Corrupt):
        spool.get(TRAIN_LANE, 1)
    with pytest.raises(NotFound):
        spool.get(TRAIN_LANE, 1)
    assert spool.num_bytes == 0
    spool.close()


def test_what_a_crash_left_behind_is_removed_at_the_next_start(tmp_path: Path) -> None:
    crashed = Spool(tmp_path, max_bytes=MAX_BYTES)
    crashed.put(TRAIN_LANE, 1, frame(1, 100))
    spool = Spool(tmp_path, max_bytes=MAX_BYTES)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(NotFound):
        spool.get(TRAIN_LANE, 1)
    crashed.close()
    spool.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_a_typed_error_and_the_spool_lives_on(tmp_path: Path) -> None:
    spool = Spool(tmp_path, max_bytes=MAX_BYTES, segment_bytes=SEGMENT_BYTES)
    (tmp_path / "00000000.segment").symlink_to("/dev/full")  # the first file it would make
    with pytest.raises(Unavailable) as caught:
        spool.put(TRAIN_LANE, 1, frame(1, 100))
    assert caught.value.code == "spool_write"
    (tmp_path / "00000000.segment").unlink()
    spool.put(TRAIN_LANE, 1, frame(1, 100))
    assert spool.get(TRAIN_LANE, 1).step == 1
    spool.close()
