"""Certificates that say nothing but a key: whoever pins one talks to the holder of that node key, whatever the address.

The certificate is a function of the key (fixed dates and serial number, deterministic signature): it stays the same over restarts, so a pinned
channel survives them. Its dates are wide because machines with a wrong clock are reported, not locked out; what expires are sessions and delegations.
"""

from __future__ import annotations

import datetime
import hashlib
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import NameOID

from dcnr.errors import Corrupt
from dcnr.ids import NodeId, node_id_of
from trust.identity import NodeKey, check_public_key

MAX_CERTIFICATE_BYTES: Final = 8 * 1024
_NOT_BEFORE: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NOT_AFTER: Final = datetime.datetime(2199, 12, 31, tzinfo=datetime.UTC)


def self_signed_certificate(key: NodeKey) -> bytes:
    """The certificate of ``key`` in PEM: common name and DNS name are its node id."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, key.node_id)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.private_key.public_key())
        .serial_number(int(key.node_id[:30], 16) + 1)
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(key.node_id)]), critical=False)
    )
    return builder.sign(key.private_key, hashes.SHA256(), ecdsa_deterministic=True).public_bytes(Encoding.PEM)


def certificate_public_key(certificate: bytes) -> bytes:
    """SubjectPublicKeyInfo (DER) of a certificate in PEM or DER. Raises Corrupt for anything but a P-256 key."""
    loaded = _load(certificate)
    try:
        public = loaded.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise Corrupt("a certificate of no key that is known here", code="bad_public_key") from error
    return check_public_key(public.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo))


def certificate_id(certificate: bytes) -> NodeId:
    """The node id that belongs to a certificate's key. Raises Corrupt."""
    return node_id_of(certificate_public_key(certificate))


def certificate_sha256(certificate: bytes) -> bytes:
    """SHA-256 of the certificate's DER form. Raises Corrupt."""
    return hashlib.sha256(_load(certificate).public_bytes(Encoding.DER)).digest()


def certificate_pem(certificate: bytes) -> bytes:
    """The certificate in PEM. Raises Corrupt."""
    return _load(certificate).public_bytes(Encoding.PEM)


def _load(certificate: bytes) -> x509.Certificate:
    if len(certificate) > MAX_CERTIFICATE_BYTES:
        raise Corrupt(
            f"a certificate of {len(certificate)} bytes, at most {MAX_CERTIFICATE_BYTES} are allowed", code="bad_certificate"
        )
    try:
        if certificate.startswith(b"-----BEGIN"):
            return x509.load_pem_x509_certificate(certificate)
        return x509.load_der_x509_certificate(certificate)
    except (ValueError, x509.InvalidVersion) as error:
        raise Corrupt("not a certificate", code="bad_certificate") from error
