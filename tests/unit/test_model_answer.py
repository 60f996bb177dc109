"""Goal: what is known of a model always fits a message, however large the model is."""

from __future__ import annotations

import pytest

from dcnr import limits
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.releases import Said
from orchestrator.rpc import model_answer
from orchestrator.view import ModelView


def envelope(size_bytes: int) -> bytes:
    """The bytes of an envelope of about that size, which it does not exceed."""
    return identity_pb2.Envelope(payload=b"x" * (size_bytes - 64)).SerializeToString()


@pytest.mark.parametrize(("manifest_bytes", "is_there"), [(limits.MAX_MANIFEST_BYTES, False), (limits.KIB, True)])
def test_every_document_at_its_bound_gives_an_answer(manifest_bytes: int, is_there: bool) -> None:
    view = ModelView(
        "m", model_pb2.Head(manifest_digest="a" * 64), envelope(limits.MAX_HEAD_BYTES),
        plan=model_pb2.Plan(), plan_bytes=envelope(limits.MAX_PLAN_BYTES),
        manifest=model_pb2.Manifest(), manifest_bytes=envelope(manifest_bytes),
    )  # fmt: skip
    said = Said(model_pb2.Release(), identity_pb2.Envelope.FromString(envelope(limits.MAX_ENVELOPE_BYTES)))
    answer = model_answer(view, b"g" * limits.MAX_GRAPH_BYTES, said)
    assert answer.ByteSize() <= limits.MAX_MESSAGE_BYTES
    assert (answer.HasField("manifest"), answer.HasField("plan"), len(answer.graph)) == (is_there, True, limits.MAX_GRAPH_BYTES)
    assert answer.release == said.envelope
    assert answer.manifest_digest == "a" * 64, "by which it can be read"
