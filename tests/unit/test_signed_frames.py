"""Goal: a frame's signature covers each thing that its reader goes by: who sends to whom, which tensor, and how its bytes are read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dcnr.ids import ReplicaId
from dcnr.tensor import TensorHeader
from vnode.signed_frames import FrameNumber, statement
from vnode.vocabulary import Lane, Mode, Peer

SAID: dict[str, Any] = {
    "source": Peer(ReplicaId("a.1"), 3), "target": ReplicaId("b.1"), "number": FrameNumber(Lane("train", 1), 9, Mode.TRAIN),
    "header": TensorHeader("float32", (4, 6), "raw", 96, "d" * 64), "step": 7,
}  # fmt: skip


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("source", {"replica": "a.2"}), ("source", {"incarnation": 4}), ("target", ReplicaId("b.2")), ("number", {"lane": Lane("validation", 1)}),
        ("number", {"lane": Lane("train", 2)}), ("number", {"batch": 10}), ("number", {"mode": Mode.FORWARD_ONLY}), ("header", {"dtype": "int32"}),
        ("header", {"shape": (6, 4)}), ("header", {"shape": (24,)}), ("header", {"codec": "bf16"}), ("header", {"encoded_bytes": 97}),
        ("header", {"digest": "e" * 64}), ("step", 8),
    ],
)  # fmt: skip
def test_what_differs_in_one_thing_is_signed_in_other_bytes(part: str, changes: Any) -> None:
    other = replace(SAID[part], **changes) if isinstance(changes, dict) else changes
    assert statement(**SAID | {part: other}) != statement(**SAID)


def test_what_is_the_same_is_signed_in_the_same_bytes() -> None:
    assert statement(**SAID) == statement(**dict(SAID))
