"""Which manifests a PNode serves states of: those on the chain under the confirmed head, and the one that k of n maintainers released, wherever it lies."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dcnr import limits
from dcnr.errors import Refused, Unavailable
from dcnr.ids import check_digest
from dcnr.v1 import data_pb2, model_pb2, orchestrator_pb2
from pnode.home import read_whole
from pnode.trail import Fetch
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_CHAIN: Final = 1024
"""Manifests from the head's back to the wished one."""


class SeatManifests:
    """Read as they are needed; where each leads back to is remembered."""

    def __init__(self, policy: Callable[[], NetworkPolicy], fetch: Fetch) -> None:
        self._policy, self._fetch = policy, fetch
        self._parents: dict[str, str] = {}

    async def wished(self, wish: orchestrator_pb2.SeatWish, newest: str) -> tuple[model_pb2.Manifest, frozenset[str]]:
        """The manifest of a wish, and the states that the ``newest`` manifest takes back.

        Raises Refused (``not_released``, ``unsigned_job``, ``wrong_network``), Corrupt, NotFound, Unavailable (``not_on_chain``).
        """
        if wish.HasField("release"):
            self._check_release(wish)
        else:
            await self._check_chain(wish.model, newest, check_digest(wish.manifest_digest))
        manifest = await self._manifest(wish.model, wish.manifest_digest)
        return manifest, frozenset((await self._manifest(wish.model, newest)).retracted)

    def _check_release(self, wish: orchestrator_pb2.SeatWish) -> None:
        release = self._policy().read_release(wish.release)
        if (release.model, release.manifest_digest) != (wish.model, check_digest(wish.manifest_digest)):
            raise Refused("the maintainers' statement releases another manifest", code="not_released")

    async def _check_chain(self, model: str, newest: str, wanted: str) -> None:
        """Raises Unavailable (``not_on_chain``) where no step back from the newest manifest leads to the wanted one."""
        digest = newest
        for _ in range(MAX_CHAIN):
            if digest == wanted:
                return
            if not digest:
                break
            if digest not in self._parents:
                if len(self._parents) >= 4 * MAX_CHAIN:
                    self._parents.clear()
                self._parents[digest] = (await self._manifest(model, digest)).parent_digest
            digest = self._parents[digest]
        raise Unavailable("the head known here does not lead to that manifest", code="not_on_chain")

    async def _manifest(self, model: str, digest: str) -> model_pb2.Manifest:
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_MANIFEST, model=model, digest=digest)
        path = await self._fetch(ref, limits.MAX_MANIFEST_BYTES)
        return self._policy().open_manifest(parse_envelope(read_whole(path), limits.MAX_MANIFEST_BYTES), model)
