"""Chains of manifests as a gateway knows them: a manifest never changes under its digest, so what a chain said is read once and kept as a fold.

Of the manifests themselves those are kept, within a bound, of which receipts are made.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from dcnr import limits
from dcnr.errors import Refused
from dcnr.ledger_check import JobLedger, LedgerFold, read_on
from dcnr.receipts import ReadEnvelope
from dcnr.v1 import identity_pb2, model_pb2

T = TypeVar("T")
MAX_CHAIN: Final = 500
"""Manifests that a gateway reads for the ledger, and puts into a receipt."""
MAX_MODELS: Final = 4
MAX_TOO_LONG: Final = 16
MAX_SIGNED_BYTES: Final = 32 * limits.MIB
"""Of manifests that are kept as they were signed: as much as goes into a receipt."""
ReadSigned = Callable[[str], Awaitable[tuple[identity_pb2.Envelope, model_pb2.Manifest]]]
"""A manifest by its digest, as it was signed, and opened. Raises Corrupt, NotFound, Unavailable."""


class _TooLong(Refused):
    """Said here of a chain, whatever others say of other things."""

    def __init__(self) -> None:
        super().__init__(f"the chain has more than {MAX_CHAIN} manifests", code="ledger_too_long", remedy="dcnr ledger scores")


class Chains:
    """Of the models of one network; whoever asks waits until whoever asked before has read."""

    def __init__(self) -> None:
        self._known: OrderedDict[str, LedgerFold | tuple[str, ...]] = OrderedDict()
        """By model: what its chain says, or where one ends that is too long; not all orchestrators name the same end at once."""
        self._signed: dict[str, identity_pb2.Envelope] = {}
        self._signed_bytes = 0
        self._alone = asyncio.Lock()

    async def ledgers(self, model: str, newest: str, read: ReadSigned) -> tuple[str, list[JobLedger]]:
        """The jobs of the chain that goes on to that digest, or further where that is known, and the digest with which it ends; only what is new is read.

        Raises Refused (``ledger_too_long``) where the chain has more than `MAX_CHAIN`, at once if that is known of it, and what ``read`` raises.
        """
        async with self._alone:
            known, num_read = self._known.get(model, ()), 0
            fold, too_long = (known, ()) if isinstance(known, LedgerFold) else (None, known)

            async def counted(digest: str) -> model_pb2.Manifest:
                nonlocal num_read
                num_read += 1
                if digest in too_long or num_read > MAX_CHAIN:
                    raise _TooLong
                envelope, manifest = await read(digest)
                self._keep(digest, envelope)
                return manifest

            try:
                fold = await read_on(fold, newest, counted)
                if fold.num_manifests > MAX_CHAIN:
                    raise _TooLong
            except _TooLong:
                self._remember(model, tuple(dict.fromkeys((newest, *too_long)))[:MAX_TOO_LONG])
                raise
            self._remember(model, fold)
            return fold.digest, fold.ledgers()

    async def receipt(self, read: ReadSigned, gather: Callable[[ReadEnvelope], Awaitable[T]]) -> T:
        """What is gathered from manifests as they were signed; those of the newest receipt are not read again. Raises what ``gather`` and ``read`` raise."""
        async with self._alone:
            gathered: dict[str, identity_pb2.Envelope] = {}

            async def signed(digest: str) -> identity_pb2.Envelope:
                found = self._signed.get(digest)
                if found is None:
                    found = (await read(digest))[0]
                    self._keep(digest, found)
                gathered[digest] = found
                return found

            made = await gather(signed)
            self._signed, self._signed_bytes = {}, 0
            for digest, envelope in gathered.items():
                self._keep(digest, envelope)
            return made

    def _remember(self, model: str, known: LedgerFold | tuple[str, ...]) -> None:
        self._known[model] = known
        self._known.move_to_end(model)
        while len(self._known) > MAX_MODELS:
            self._known.popitem(last=False)

    def _keep(self, digest: str, envelope: identity_pb2.Envelope) -> None:
        size = envelope.ByteSize()
        if digest not in self._signed and self._signed_bytes + size <= MAX_SIGNED_BYTES:
            self._signed[digest] = envelope
            self._signed_bytes += size
