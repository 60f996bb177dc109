"""Goal: what a receiver takes in training is what an auditor of it takes later: whole batches, in what their sender may send."""

from __future__ import annotations

import numpy as np
import pytest

from dcnr.errors import RemoteFault
from dcnr.specs import TensorSpec
from dcnr.tensor import TensorHeader, encode
from dcnr.v1 import vnode_pb2
from pnode.frames import Expected, header_message, header_of
from pnode.spool import Frame
from vnode.signed_frames import FrameNumber
from vnode.vocabulary import TRAIN_LANE, Lane, Mode

ROWS, WIDTH = 8, 12
EXPECTED = Expected(TensorSpec("float32", (WIDTH,)), ROWS)
TRAINING = [(TRAIN_LANE, Mode.TRAIN), (TRAIN_LANE, Mode.FORWARD_ONLY)]
EVALUATIONS = [(Lane("validation", 1), Mode.EVAL), (Lane("test"), Mode.EVAL)]


def arriving(lane: Lane, mode: Mode, rows: int = ROWS, codec: str = "raw") -> vnode_pb2.FrameHeader:
    """The beginning of a frame of so many samples."""
    return header_message(FrameNumber(lane, 3, mode), Frame(encode(np.ones((rows, WIDTH), np.float32), codec), 1), b"s")


def taken(message: vnode_pb2.FrameHeader, expected: Expected = EXPECTED) -> TensorHeader:
    return header_of(message, expected)[1]


@pytest.mark.parametrize(("lane", "mode"), TRAINING)
@pytest.mark.parametrize("rows", [1, ROWS - 1, ROWS + 1])
def test_a_frame_of_training_holds_a_whole_batch(lane: Lane, mode: Mode, rows: int) -> None:
    """A shorter one would be learned from or passed through, and no auditor would take it as evidence."""
    assert taken(arriving(lane, mode)).shape == (ROWS, WIDTH)
    with pytest.raises(RemoteFault) as caught:
        taken(arriving(lane, mode, rows))
    assert caught.value.code == "bad_frame"


@pytest.mark.parametrize(("lane", "mode"), EVALUATIONS)
def test_the_last_batch_of_an_evaluation_may_be_smaller(lane: Lane, mode: Mode) -> None:
    for rows in (1, ROWS - 1, ROWS):
        assert taken(arriving(lane, mode, rows)).shape == (rows, WIDTH)
    with pytest.raises(RemoteFault) as caught:
        taken(arriving(lane, mode, ROWS + 1))
    assert caught.value.code == "bad_frame"
