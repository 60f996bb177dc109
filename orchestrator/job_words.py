"""What maintainers said of one model's jobs, as the store has it, kept by whoever has read it: a store that goes back may lose it, and they say it once.

A cancellation, or a statement that pauses a job or lets it go on, is stored again for the very request that it was about; a job of the same name that is asked
for anew is another one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Container, Iterable
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Unavailable
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.documents import put_once
from orchestrator.pauses import newest_stored, number_in
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_KEPT: Final = 64
"""Of all jobs together, also of those that have ended: those that were read last."""


class JobWords:
    """Refreshed with the `JobBook` that asks it."""

    def __init__(self, model: str, store: ObjectStore, policy: Callable[[], NetworkPolicy]) -> None:
        self._model, self._store, self._policy = model, store, policy
        self._kept: dict[str, tuple[str, bytes]] = {}
        """By key: the digest of the request that it was about, and what was stored."""

    async def cancel_reason(self, job_id: str, request_digest: str) -> str | None:
        """Why the job was called off, as its `cancel` says, which is listed; None where that is none. Raises Unavailable."""
        key = keys.job_cancel(self._model, job_id)
        try:
            stored = await self._store.get(key, max_bytes=limits.MAX_ENVELOPE_BYTES)
            cancel = self._policy().read_cancel(parse_envelope(stored.data))
        except (Corrupt, Refused, InvalidInput, NotFound):
            return None
        if (cancel.model, cancel.job_id) != (self._model, job_id):
            return None
        self._keep(key, request_digest, stored.data)
        return cancel.reason or "called off"

    async def newest_pause(self, job_id: str, request_digest: str, numbers: Iterable[int]) -> model_pb2.JobPause | None:
        """Of the statements with these numbers, which are listed, the newest that counts. Raises Unavailable."""
        found = await newest_stored(self._store, self._policy(), self._model, job_id, numbers)
        if found is None:
            return None
        pause, data = found
        key = keys.job_pause(self._model, job_id, pause.number)
        _, known = self._kept.get(key, ("", data))
        if known != data:
            self._forget_after(job_id, pause.number)
        self._keep(key, request_digest, data)
        return pause

    async def repeat(self, job_id: str, request_digest: str, found: Container[str]) -> None:
        """Of this job, which has not ended, the store lists ``found``: what is known beside that is stored again, in the next look too if that failed."""
        prefix = keys.job_prefix(self._model, job_id)
        for key, (digest, data) in sorted(self._kept.items()):
            kind = key.removeprefix(prefix)
            if kind == key or kind in found or digest != request_digest:
                continue
            with contextlib.suppress(Unavailable):  # a store that takes nothing now keeps nobody from reading it
                if await put_once(self._store, key, data) != data and (number := number_in(kind)):
                    self._forget_after(job_id, number - 1)
                    return

    def _keep(self, key: str, request_digest: str, data: bytes) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (request_digest, data)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next(iter(self._kept))]

    def _forget_after(self, job_id: str, number: int) -> None:
        """Maintainers have said something else since the store went back, not knowing what was said before: that counts no more."""
        prefix = keys.job_prefix(self._model, job_id)
        for key in list(self._kept):
            if key.startswith(prefix) and (number_in(key.removeprefix(prefix)) or 0) > number:
                del self._kept[key]
