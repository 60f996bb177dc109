"""Signed envelopes: a payload is believed only with valid signatures of that domain, in the one encoding it was made in.

The signed bytes are ``b"dcnr/v1\\0"``, the domain's number (4 bytes) and the payload behind its length (8 bytes), so one kind of statement never
passes for another. Every bound is checked before anything is parsed or verified.
"""

from __future__ import annotations

import base64
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from google.protobuf.message import DecodeError, Message

from dcnr.errors import Corrupt, InvalidInput
from dcnr.ids import Digest, NodeId, digest_of, node_id_of
from dcnr.limits import MAX_ENVELOPE_BYTES
from dcnr.v1 import identity_pb2
from trust.identity import NodeKey, verify_signature

MAX_SIGNATURES: Final = 32
_PREFIX: Final = b"dcnr/v1\0"
_Parsed = TypeVar("_Parsed", bound=Message)


@dataclass(frozen=True, slots=True)
class Signer:
    """Who signed."""

    public_der: bytes
    node_id: NodeId


@dataclass(frozen=True, slots=True)
class Opened:
    """A payload whose signatures are all valid; each key is named once, in the order in which they were looked at."""

    payload: bytes
    signers: tuple[Signer, ...]

    @property
    def keys(self) -> frozenset[bytes]:
        """Of its signers."""
        return frozenset(one.public_der for one in self.signers)


def seal(domain: identity_pb2.Domain.ValueType, payload: bytes | Message, *keys: NodeKey) -> identity_pb2.Envelope:
    """The payload signed by each of ``keys`` (1 to 32, distinct). Raises InvalidInput."""
    distinct = {key.public_der: key for key in keys}
    if not 0 < len(distinct) <= MAX_SIGNATURES or domain == identity_pb2.DOMAIN_UNSPECIFIED:
        raise InvalidInput(f"an envelope has a domain and 1 to {MAX_SIGNATURES} signatures", code="bad_envelope")
    data = payload.SerializeToString(deterministic=True) if isinstance(payload, Message) else payload
    signed = _signed_bytes(domain, data)
    signatures = [identity_pb2.Signature(public_key=key.public_der, signature=key.sign(signed)) for key in distinct.values()]
    return identity_pb2.Envelope(domain=domain, payload=data, signatures=signatures)


def sign_apart(domain: identity_pb2.Domain.ValueType, payload: bytes, key: NodeKey) -> bytes:
    """The signature alone that `seal` would put beside ``payload``: for a statement that its reader can write down itself."""
    return key.sign(_signed_bytes(domain, payload))


def check_signature(domain: identity_pb2.Domain.ValueType, payload: bytes, public_der: bytes, signature: bytes) -> None:
    """Returns only if that key made ``signature`` with `sign_apart`. Raises Corrupt."""
    if not verify_signature(public_der, _signed_bytes(domain, payload), signature):
        raise Corrupt("a signature does not belong to key and payload", code="bad_signature")


def merge_signatures(envelopes: Sequence[identity_pb2.Envelope]) -> identity_pb2.Envelope:
    """One envelope with the signatures of all of ``envelopes``, which hold the same payload. Raises InvalidInput.

    For maintainers who sign one after the other, each on their own machine.
    """
    if len({(e.domain, e.payload) for e in envelopes}) != 1:
        raise InvalidInput("signatures can be put together only over one and the same payload", code="bad_envelope")
    merged = {s.public_key: s for envelope in envelopes for s in envelope.signatures}
    first = envelopes[0]
    return identity_pb2.Envelope(domain=first.domain, payload=first.payload, signatures=list(merged.values())[:MAX_SIGNATURES])


def open_envelope(
    envelope: identity_pb2.Envelope,
    domain: identity_pb2.Domain.ValueType,
    *,
    max_bytes: int = MAX_ENVELOPE_BYTES,
    wanted: Collection[bytes] = (),
) -> Opened:
    """Payload and distinct signers of an envelope of ``domain`` in which every signature is valid. Raises Corrupt.

    Signatures by ``wanted`` keys are looked at first: whoever has none of these keys has one signature looked at, however many it brings.
    """
    if envelope.ByteSize() > max_bytes:
        raise Corrupt(f"an envelope of {envelope.ByteSize()} bytes, at most {max_bytes} are allowed", code="envelope_too_large")
    if domain == identity_pb2.DOMAIN_UNSPECIFIED or envelope.domain != domain:
        raise Corrupt(f"an envelope of domain {envelope.domain} instead of {domain}", code="wrong_domain")
    if not 0 < len(envelope.signatures) <= MAX_SIGNATURES:
        raise Corrupt(f"{len(envelope.signatures)} signatures, 1 to {MAX_SIGNATURES} are allowed", code="bad_signature")
    if _known_fields(envelope).SerializeToString() != envelope.SerializeToString():
        raise Corrupt("an envelope with fields that nobody signed", code="not_canonical")
    signed = _signed_bytes(envelope.domain, envelope.payload)
    signers: dict[bytes, Signer] = {}
    for signature in sorted(envelope.signatures, key=lambda one: one.public_key not in wanted):
        if not verify_signature(signature.public_key, signed, signature.signature):
            raise Corrupt("a signature does not belong to key and payload", code="bad_signature")
        signers.setdefault(signature.public_key, Signer(signature.public_key, node_id_of(signature.public_key)))
    return Opened(envelope.payload, tuple(signers.values()))


def open_single(
    envelope: identity_pb2.Envelope, domain: identity_pb2.Domain.ValueType, *, max_bytes: int = MAX_ENVELOPE_BYTES
) -> tuple[bytes, Signer]:
    """Payload and signer of an envelope with exactly one signature. Raises Corrupt."""
    if len(envelope.signatures) != 1:
        raise Corrupt("exactly one signature is allowed here", code="bad_signature")
    opened = open_envelope(envelope, domain, max_bytes=max_bytes)
    return opened.payload, opened.signers[0]


def parse(message_cls: type[_Parsed], data: bytes, max_bytes: int = MAX_ENVELOPE_BYTES) -> _Parsed:
    """``data`` as a message, its size checked first. Raises Corrupt."""
    if len(data) > max_bytes:
        raise Corrupt(
            f"{len(data)} bytes of {message_cls.DESCRIPTOR.name}, at most {max_bytes} are allowed", code="message_too_large"
        )
    try:
        return message_cls.FromString(data)
    except DecodeError as error:
        raise Corrupt(f"not a {message_cls.DESCRIPTOR.name}", code="malformed_message") from error


def parse_envelope(data: bytes, max_bytes: int = MAX_ENVELOPE_BYTES) -> identity_pb2.Envelope:
    """``data`` as an envelope in its one encoding: equal envelopes have equal bytes, thus equal digests. Raises Corrupt."""
    envelope = parse(identity_pb2.Envelope, data, max_bytes)
    if _known_fields(envelope).SerializeToString() != data:
        raise Corrupt("an envelope that is not in its canonical encoding", code="not_canonical")
    return envelope


def text_of_envelope(envelope: identity_pb2.Envelope) -> str:
    """For files of JSON: its bytes in base64."""
    return base64.b64encode(envelope.SerializeToString(deterministic=True)).decode()


def envelope_in_text(text: Any, max_bytes: int = MAX_ENVELOPE_BYTES) -> identity_pb2.Envelope:
    """What `text_of_envelope` wrote. Raises Corrupt, also for what is no text."""
    try:
        data = base64.b64decode(text, validate=True)
    except (TypeError, ValueError) as error:
        raise Corrupt("an envelope that is not base64", code="malformed_message") from error
    return parse_envelope(data, max_bytes)


def digest_of_envelope(envelope: identity_pb2.Envelope) -> Digest:
    """SHA-256 over the whole serialised envelope: the name of plans, manifests and everything else that is stored signed."""
    return digest_of(envelope.SerializeToString(deterministic=True))


def _signed_bytes(domain: int, payload: bytes) -> bytes:
    return b"".join((_PREFIX, (domain & 0xFFFFFFFF).to_bytes(4), len(payload).to_bytes(8), payload))


def _known_fields(envelope: identity_pb2.Envelope) -> identity_pb2.Envelope:
    """The envelope rebuilt from what the contract names: unknown fields, which no signature covers, are left out."""
    signatures = [identity_pb2.Signature(public_key=s.public_key, signature=s.signature) for s in envelope.signatures]
    return identity_pb2.Envelope(domain=envelope.domain, payload=envelope.payload, signatures=signatures)
