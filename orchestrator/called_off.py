"""Cancellations of one model's jobs as the store has them, kept by whoever has read one: a store that goes back may lose it, and maintainers say it once.

It is stored again for the very request that it called off; a job of the same name that is asked for anew is another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Unavailable
from dcnr.ports import ObjectStore
from orchestrator.documents import put_once
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_KEPT: Final = 64
"""Cancellations that are kept, also of jobs that have ended: those that were read last."""


class CalledOff:
    """Refreshed with the `JobBook` that asks it."""

    def __init__(self, model: str, store: ObjectStore, policy: Callable[[], NetworkPolicy]) -> None:
        self._model, self._store, self._policy = model, store, policy
        self._kept: dict[str, tuple[str, bytes]] = {}
        """By job: the digest of its request, and what was stored."""

    async def read(self, job_id: str, request_digest: str) -> str | None:
        """Why the job was called off, as its `cancel` says, which is listed; None where that is none. Raises Unavailable."""
        try:
            stored = await self._store.get(keys.job_cancel(self._model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
            cancel = self._policy().read_cancel(parse_envelope(stored.data))
        except (Corrupt, Refused, InvalidInput, NotFound):
            return None
        if (cancel.model, cancel.job_id) != (self._model, job_id):
            return None
        self._kept.pop(job_id, None)
        self._kept[job_id] = (request_digest, stored.data)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        return cancel.reason or "called off"

    async def repeat(self, job_id: str, request_digest: str) -> None:
        """The store lists no `cancel` of this job, which has not ended: one that is known is stored again, in the next look too if that failed."""
        digest, data = self._kept.get(job_id, ("", b""))
        if data and digest == request_digest:
            with contextlib.suppress(Unavailable):  # a store that takes nothing now keeps nobody from reading it
                await put_once(self._store, keys.job_cancel(self._model, job_id), data)
