"""Messages as they arrive: now and then one byte inside a signed envelope is another, and nothing may follow from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dcnr.v1 import data_pb2, identity_pb2, orchestrator_pb2

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld


class Tamperer:
    """Remembers what it changed."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._rng = world.kernel.rng("tamper")
        self._changed: set[bytes] = set()

    def send(self, message: Any) -> bytes:
        """The bytes that arrive."""
        if not self._world.is_unsafe or self._rng.random() >= self._world.knobs.tamper_rate:
            data: bytes = message.SerializeToString()
            return data
        copy = type(message)()
        copy.CopyFrom(message)
        envelope = _envelope_in(copy)
        if envelope is not None:
            part = bytearray(envelope.payload if self._rng.random() < 0.7 else envelope.signatures[0].signature)
            if not part:
                data = message.SerializeToString()
                return data
            index = self._rng.randrange(len(part))
            part[index] ^= 1 << self._rng.randrange(8)
            if len(part) == len(envelope.payload):
                envelope.payload = bytes(part)
            else:
                envelope.signatures[0].signature = bytes(part)
        data = copy.SerializeToString()
        if envelope is not None:
            self._changed.add(data)
        return data

    def was_changed(self, data: bytes) -> bool:
        """Whether those bytes were tampered with."""
        return data in self._changed


def _envelope_in(message: Any) -> identity_pb2.Envelope | None:
    """The envelope that a message carries, if any."""
    match message:
        case orchestrator_pb2.OrchestratorMessage():
            kind = message.WhichOneof("kind")
            if kind == "desired":
                return message.desired
            return message.head.head if kind == "head" else None
        case orchestrator_pb2.PNodeMessage():
            return message.hello.advert if message.WhichOneof("kind") == "hello" else None
        case data_pb2.RecordCheckpointRequest():
            return message.commit
        case orchestrator_pb2.PauseJobRequest():
            return message.pause
    return None
