"""Goal: what a receiver takes in training is what an auditor of it takes later: whole batches, in what their sender may send."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dcnr.codecs import CODECS, codecs_sent, encoded_bytes
from dcnr.errors import RemoteFault
from dcnr.specs import TensorSpec
from dcnr.tensor import TensorHeader, encode
from dcnr.v1 import vnode_pb2
from pnode.frames import Expected, header_message, header_of
from pnode.spool import Frame
from vnode.signed_frames import FrameNumber
from vnode.vocabulary import TRAIN_LANE, Lane, Mode

ROWS, WIDTH = 8, 12
EXPECTED = Expected(TensorSpec("float32", (WIDTH,)), ROWS, ("raw",))
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


@pytest.mark.parametrize("declared", ["auto", "", *CODECS])
def test_a_frame_of_training_comes_in_the_codec_of_its_edge_or_raw(declared: str) -> None:
    """In another one it would be learned from, and no auditor would take it as evidence."""
    expected = replace(EXPECTED, codecs=codecs_sent(declared))
    for codec in CODECS:
        if codec in ("raw", declared, "int8" if declared in ("auto", "") else ""):
            assert taken(arriving(TRAIN_LANE, Mode.TRAIN, codec=codec), expected).codec == codec
            continue
        for lane, mode in TRAINING:
            with pytest.raises(RemoteFault) as caught:
                taken(arriving(lane, mode, codec=codec), expected)
            assert caught.value.code == "bad_tensor_header"


@pytest.mark.parametrize("declared", ["auto", "", *CODECS])
def test_the_bytes_of_an_edge_are_one_array_whoever_says_in_which_codec_they_are(declared: str) -> None:
    for num_values in range(1, 4000):
        sizes = [encoded_bytes(codec, "float32", num_values) for codec in codecs_sent(declared)]
        assert len(set(sizes)) == len(sizes)
