"""What maintainers said of one model's jobs, as the store has it, kept by whoever has read it: a store that goes back may lose it, and they say it once.

A cancellation, or a statement that pauses a job or lets it go on, is stored again for the very request that it was about; a job of the same name that is asked
for anew is another one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
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
"""Of all jobs together, also of those that have ended: those that were read last, and before them what a store has lost."""


class JobWords:
    """Refreshed with the `JobBook` that asks it."""

    def __init__(self, model: str, store: ObjectStore, policy: Callable[[], NetworkPolicy]) -> None:
        self._model, self._store, self._policy = model, store, policy
        self._kept: dict[str, tuple[str, bytes]] = {}
        """By key: the digest of the request that it was about, and what was stored."""
        self._lacking: frozenset[str] = frozenset()
        """Of these, what the store does not list of jobs that it lists and that have not ended."""
        self._takes_nothing = False
        """Whether the store did not take something in this look: one object that hangs is waited for, not all of them."""
        self._num_looks = 0
        self._failed: dict[str, int] = {}
        """By job of which the store did not take something: in which look that was so last."""

    def begin_look(self, listed: Collection[str]) -> None:
        """The store lists these keys of jobs."""
        if not self._takes_nothing:
            self._failed.clear()
        self._takes_nothing, self._num_looks = False, self._num_looks + 1
        self._lacking = frozenset(key for key in self._kept.keys() - listed if self._may_come_back(key, listed))

    def turn(self, job_id: str) -> int:
        """Jobs are read in this order: an object that the store never takes holds up what it has lost of no other job."""
        return self._failed.get(job_id, 0)

    async def cancel_reason(self, job_id: str, request_digest: str, request: model_pb2.JobRequest | None) -> str | None:
        """Why the job was called off, as its `cancel` says, which is listed; None where that is none, or of an earlier one. Raises Unavailable."""
        key = keys.job_cancel(self._model, job_id)
        try:
            stored = await self._store.get(key, max_bytes=limits.MAX_ENVELOPE_BYTES)
            cancel = self._policy().read_cancel(parse_envelope(stored.data))
        except (Corrupt, Refused, InvalidInput, NotFound):
            return None
        if (cancel.model, cancel.job_id) != (self._model, job_id) or (request is not None and is_of_earlier_job(cancel, request)):
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

    async def repeat(self, job_id: str, request_digest: str, found: Collection[str]) -> tuple[frozenset[str], bool]:
        """Of this job, which has not ended, the store lists ``found``: what is known beside that is stored again, in the next look too if that failed. What is
        there now, and whether maintainers have said something else since than what was known.
        """
        there, prefix = set(found), keys.job_prefix(self._model, job_id)
        kept = sorted((key, *one) for key, one in self._kept.items() if key.startswith(prefix))
        for key, digest, _ in kept:
            if digest != request_digest and request_digest:
                del self._kept[key]  # another job of that name
        known = {key.removeprefix(prefix): data for key, digest, data in kept if digest == request_digest}
        if self._takes_nothing or known.keys() <= there:
            return frozenset(there), False
        for kind, data in known.items():
            number = number_in(kind)
            try:
                if kind not in there:
                    await put_once(self._store, prefix + kind, data)
                    there.add(kind)
                if number and await self._is_otherwise(job_id, number, data):
                    self._forget_after(job_id, number - 1)
                    return frozenset(there), True
            except Unavailable:  # reading goes on; what was said later waits for what was said before
                self._takes_nothing = True
                self._failed[job_id] = self._num_looks
                break
        return frozenset(there), False

    async def _is_otherwise(self, job_id: str, number: int, data: bytes) -> bool:
        """Whether maintainers have given that number to something else, not knowing what was said before. Raises Unavailable."""
        stored = await newest_stored(self._store, self._policy(), self._model, job_id, (number,))
        return stored is not None and stored[1] != data

    def _may_come_back(self, key: str, listed: Collection[str]) -> bool:
        job_id, _, _ = key.removeprefix(keys.jobs_prefix(self._model)).partition("/")
        return keys.job_request(self._model, job_id) in listed and keys.job_end(self._model, job_id) not in listed

    def _keep(self, key: str, request_digest: str, data: bytes) -> None:
        self._kept.pop(key, None)
        self._kept[key] = (request_digest, data)
        while len(self._kept) > MAX_KEPT:
            del self._kept[next((one for one in self._kept if one not in self._lacking), key)]

    def _forget_after(self, job_id: str, number: int) -> None:
        """Maintainers have said something else since the store went back, not knowing what was said before: that counts no more."""
        prefix = keys.job_prefix(self._model, job_id)
        for key in list(self._kept):
            if key.startswith(prefix) and (number_in(key.removeprefix(prefix)) or 0) > number:
                del self._kept[key]


def is_of_earlier_job(cancel: model_pb2.JobCancel, request: model_pb2.JobRequest) -> bool:
    """Whether a cancellation was signed before that request was: it called off another one of its name, which the store has lost. Whoever has seen it could
    show it once more. One that does not say when it was signed counts.
    """
    return 0 < cancel.created_unix_ms < request.created_unix_ms
