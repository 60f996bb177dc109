"""One ECDSA P-256 key per node: its id, its signatures, and a key file that only its owner can read.

Public keys have exactly one accepted encoding (SubjectPublicKeyInfo, DER, uncompressed point), so a key has one node id. Signatures have one too
(strict DER, lower half of ``s``): nobody can turn a signed record into a second one with another digest.
"""

from __future__ import annotations

import os
import secrets
import stat
from functools import lru_cache
from pathlib import Path
from shlex import quote
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, NotFound, Refused
from dcnr.ids import NodeId, node_id_of

MAX_KEY_FILE_BYTES: Final = 16 * 1024
_NO_KEY: Final = "name the file that holds the key, or bring it back from where it was saved"
MAX_SIGNATURE_BYTES: Final = 80
_SPKI_PREFIX: Final = bytes.fromhex("3059301306072a8648ce3d020106082a8648ce3d030107034200")
PUBLIC_KEY_BYTES: Final = len(_SPKI_PREFIX) + 65
_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""Order of P-256 (FIPS 186-4)."""
_ALGORITHM: Final = ec.ECDSA(hashes.SHA256())
_MAX_LOADED_KEYS: Final = 1024
"""Public keys that stay loaded: whoever signs much signs again. What was not loaded is not remembered."""


class NodeKey:
    """A private key and what follows from it. Never shown: ``repr`` names the node id only."""

    __slots__ = ("_key", "node_id", "public_der")

    public_der: bytes
    node_id: NodeId

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        if not isinstance(key.curve, ec.SECP256R1):
            raise Corrupt("a key that is none of ECDSA on P-256", code="bad_key")
        self._key = key
        self.public_der = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        self.node_id = node_id_of(self.public_der)

    def __repr__(self) -> str:
        return f"NodeKey({self.node_id})"

    @classmethod
    def generate(cls) -> NodeKey:
        """A new key from the system's randomness."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def from_pem(cls, pem: bytes) -> NodeKey:
        """The key in ``pem`` (PKCS #8, unencrypted). Raises Corrupt."""
        try:
            key = load_pem_private_key(pem, password=None)
        except (ValueError, TypeError) as error:
            raise Corrupt("no unencrypted private key in PEM", code="bad_key") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise Corrupt("a key that is none of ECDSA on P-256", code="bad_key")
        return cls(key)

    @classmethod
    def load(cls, path: Path) -> NodeKey:
        """The key in a file that only its owner can read. Raises NotFound, Refused (``key_permissions``, ``key_unusable``), Corrupt."""
        try:
            descriptor = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            raise NotFound(
                f"no key file at {path}",
                code="key_missing",
                remedy="check the path; `dcnr network create` makes a maintainer's key, `orchestrator key` an orchestrator's",
            ) from None
        except OSError as error:
            raise _unusable(path, error) from error
        with os.fdopen(descriptor, "rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            if os.name == "posix" and mode & 0o077:
                raise Refused(
                    f"the key file {path} can be read by others (mode {mode:04o})",
                    code="key_permissions",
                    remedy=f"chmod 600 {quote(str(path))}; whoever may have read it can act under this key: see key_permissions in docs/troubleshooting.md",
                )
            pem = file.read(MAX_KEY_FILE_BYTES + 1)
        if len(pem) > MAX_KEY_FILE_BYTES:
            raise Corrupt(f"the key file {path} is larger than {MAX_KEY_FILE_BYTES} bytes", code="bad_key", remedy=_NO_KEY)
        try:
            return cls.from_pem(pem)
        except Corrupt as error:
            raise Corrupt(f"the key file {path} holds {error.message}", code=error.code, remedy=_NO_KEY) from error

    @classmethod
    def load_or_create(cls, path: Path) -> NodeKey:
        """The key at ``path``, made there first if the file is missing. Raises like `load`."""
        try:
            return cls.load(path)
        except NotFound:
            key = cls.generate()
        try:
            key.save(path)
        except Refused as error:
            if error.code != "key_exists":
                raise
            return cls.load(path)  # another process was faster: its key is the key
        return key

    def save(self, path: Path) -> None:
        """Writes the key whole or not at all, mode 0600. Raises Refused (``key_exists``, ``key_unusable``) and leaves an existing file as it is."""
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.private_pem())
                file.flush()
                os.fsync(file.fileno())
            reached("key.drafted")
            os.link(draft, path)  # fails where a file exists; a rename would replace it
            reached("key.linked")
        except FileExistsError:
            raise Refused(f"there is a key file at {path} already", code="key_exists", remedy="move it away first") from None
        except OSError as error:
            raise _unusable(path, error) from error
        finally:
            draft.unlink()

    def sign(self, data: bytes) -> bytes:
        """ECDSA-SHA256 over ``data``, DER, at most `MAX_SIGNATURE_BYTES`."""
        r, s = decode_dss_signature(self._key.sign(data, _ALGORITHM))
        return encode_dss_signature(r, min(s, _ORDER - s))

    def private_pem(self) -> bytes:
        """The private key as PKCS #8 PEM: for the key file and the TLS server only."""
        return self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())

    @property
    def private_key(self) -> ec.EllipticCurvePrivateKey:
        """The key object, for `trust.tls` only."""
        return self._key


def _unusable(path: Path, error: OSError) -> Refused:
    return Refused(
        f"the key file {path} cannot be used: {error.strerror}", code="key_unusable", remedy="mend that, or choose another --home"
    )


def check_public_key(public_der: bytes) -> bytes:
    """``public_der`` if it is a P-256 key in the one accepted encoding. Raises Corrupt."""
    _load_public(public_der)
    return public_der


def verify_signature(public_der: bytes, data: bytes, signature: bytes) -> bool:
    """True only for the signature of exactly ``data`` by that key, in the one accepted encoding. Never raises."""
    if len(signature) > MAX_SIGNATURE_BYTES:
        return False
    try:
        r, s = decode_dss_signature(signature)
        if s > _ORDER // 2 or encode_dss_signature(r, s) != signature:
            return False
        _load_public(public_der).verify(signature, data, _ALGORITHM)
    except (InvalidSignature, ValueError, Corrupt):
        return False
    return True


@lru_cache(maxsize=_MAX_LOADED_KEYS)
def _load_public(public_der: bytes) -> ec.EllipticCurvePublicKey:
    if len(public_der) != PUBLIC_KEY_BYTES or not public_der.startswith(_SPKI_PREFIX + b"\x04"):
        raise Corrupt("a public key is a P-256 SubjectPublicKeyInfo in DER with an uncompressed point", code="bad_public_key")
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), public_der[len(_SPKI_PREFIX) :])
    except ValueError as error:
        raise Corrupt("the public key is no point of P-256", code="bad_public_key") from error
