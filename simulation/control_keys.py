"""The keys of one control world: made from its seed, with public keys and node ids as everywhere, and signatures that cost next to nothing.

A signature is a keyed digest of what was signed, under a secret that only the holder of the key and this keyring know: another payload, another key or
a changed bit fails as it does with ECDSA, whose own tests are `tests/unit/test_identity.py`.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.hazmat.primitives.asymmetric import ec

from trust.identity import NodeKey

_ORDER: Final = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_SIGNATURE_BYTES: Final = 32


class SeededKey(NodeKey):
    """A key whose signatures are a function of key and data."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes) -> None:
        super().__init__(ec.derive_private_key(int.from_bytes(secret, "big") % (_ORDER - 1) + 1, ec.SECP256R1()))
        self.secret = secret

    def sign(self, data: bytes) -> bytes:
        """In place of `NodeKey.sign`."""
        return hashlib.blake2b(data, digest_size=_SIGNATURE_BYTES, key=self.secret).digest()


class Keyring:
    """Makes the keys of a world, and tells their signatures from everything else."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._keys: dict[bytes, SeededKey] = {}

    def key(self, name: str) -> SeededKey:
        """The key of that name in that world."""
        key = SeededKey(hashlib.sha256(f"{self._seed}/{name}".encode()).digest())
        self._keys[key.public_der] = key
        return key

    def verify(self, public_der: bytes, data: bytes, signature: bytes) -> bool:
        """In place of `trust.identity.verify_signature`: True only for the signature of exactly ``data`` by that key."""
        key = self._keys.get(public_der)
        return key is not None and key.sign(data) == signature
