"""The jobs of one model as the store has them: each `request`, `cancel`, `pause` and `end` is read once and verified; a job that can never run says why, and
one that cannot be read here says what is lacking.

Jobs are read apart: of one with an object that the store does not give nothing is decided until it does, and no other job waits for it. Only where many fail
in one look the store counts as away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Final

from dataservice import keys
from dataservice.listing import all_below
from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Unavailable
from dcnr.ids import check_name, digest_of
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.documents import open_end
from orchestrator.job_words import JobWords
from orchestrator.jobs import JobRecord
from orchestrator.looks import Looks
from orchestrator.pauses import number_in
from orchestrator.view import LACKING, ViewLoader
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MISSING_LOOKS: Final = 20
"""An object of a listed job that is not found is looked for this often before the job counts as one that can never run: a read may be stale. So may a
listing that lacks what is remembered: after so many in a row it is forgotten.
"""
UNSIGNED_LOOKS: Final = 300
"""A request that too few of the maintainers known here have signed is looked at this often, by a holder for five minutes, before the job counts as one that can
never run: whoever accepted it may know a newer network document, of which this orchestrator hears later. So is one that begins with a manifest that nobody
known here may sign.
"""
UNSIGNED: Final = frozenset(("wrong_signer", "too_few_signatures"))
"""Codes of a manifest that is signed by nobody whom the network document known here lets sign it."""
MAX_UNREAD: Final = 8
"""With more jobs that fail for the first time in one look, it is the store that does not answer."""
MAX_PAUSE_LOOKS: Final = 64
"""A job that could not be read is left out of so many looks at most, after one failure of none and then of twice as many each time."""
LOOK_S: Final = 1.0
"""Whoever asks for a job that nobody knows costs the store no more than one look in this time."""


class JobBook:
    """Refreshed by its owner, and looked into for others; reads only what it has not seen, once at a time."""

    def __init__(self, model: str, store: ObjectStore, policy: Callable[[], NetworkPolicy], loader: ViewLoader) -> None:
        self._model, self._store, self._policy, self._loader = model, store, policy, loader
        self._records: dict[str, JobRecord] = {}
        self._missing: dict[str, int] = {}
        self._doubts: dict[str, int] = {}
        """In how many counted looks in a row the listing lacked what is remembered of a job."""
        self._unsigned: dict[str, int] = {}
        """How often a request was looked at that nobody known here has signed, by the network document of `_read_by`."""
        self._read_by = policy()
        self._unread: dict[str, tuple[str, int, int]] = {}
        """Jobs of which an object cannot be read: why, how often that was so, and how many looks more pass without another try."""
        self._listed: frozenset[str] = frozenset()
        self._tags, self._read_tags = dict[str, str](), dict[str, str]()
        """By job: the store's tag of its request, as it was listed last, and when it was read."""
        self._ended_by_removed: dict[str, str] = {}
        self._needed, self._num_back = "", 0
        self._words = JobWords(model, store, policy)
        """Outlives what is read anew."""
        self._reading, self._looks = asyncio.Lock(), Looks(lambda: self._read("", counts=False), LOOK_S)

    @property
    def records(self) -> Mapping[str, JobRecord]:
        """All jobs by id."""
        return self._records

    @property
    def unread(self) -> Mapping[str, str]:
        """Jobs of which an object of the store could not be read, with the reason: nothing new is decided about them."""
        return {job_id: why for job_id, (why, _, _) in self._unread.items()}

    @property
    def unknown(self) -> frozenset[str]:
        """Jobs that the store lists and of which nothing is known here yet: they are not read, or not readable."""
        return self._listed - self._records.keys()

    def take_ended_by_removed(self) -> Mapping[str, str]:
        """Jobs that were open when their `end` was found, since the last call, each with the orchestrator that signed it and that the network document does not
        list any more: it may have done so before it was removed, or after.
        """
        taken, self._ended_by_removed = self._ended_by_removed, {}
        return taken

    async def refresh(self, needed: str = "", num_back: int = 0) -> None:
        """Lists the jobs to the last one and reads what is new; ``needed``, the active one, is tried in every look. Raises Unavailable where the store as a
        whole does not answer; what of single jobs it does not give is in `unread`. ``num_back``: how often the store went back. With each time everything is
        read anew: jobs and ends that it has no more are none. What maintainers said of a job is stored again.
        """
        if num_back != self._num_back:
            async with self._reading:  # no look that began before puts anything back
                self._num_back = num_back
                self._records.clear()
                self._unread.clear()
        await self._read(needed, counts=True)

    async def look(self) -> None:
        """As `refresh`, in a look that others who ask share and that began after this call; says of no job that it can never run since something is missing."""
        await self._looks.anew()

    async def _read(self, needed: str, *, counts: bool) -> None:
        async with self._reading:
            await self._read_alone(needed, counts)

    async def _read_alone(self, needed: str, counts: bool) -> None:
        self._follow_policy()
        prefix = keys.jobs_prefix(self._model)
        kinds: dict[str, dict[str, float]] = {}
        tags: dict[str, str] = {}
        rows = await all_below(self._store, prefix)
        self._words.begin_look(frozenset(row.key for row in rows))
        for row in rows:
            job_id, _, kind = row.key.removeprefix(prefix).partition("/")
            kinds.setdefault(job_id, {})[kind] = row.last_modified
            if kind == "request":
                tags[job_id] = row.etag
        self._tags, self._read_tags = tags, {job_id: tag for job_id, tag in self._read_tags.items() if job_id in self._records}
        self._listed = frozenset(job_id for job_id, found in kinds.items() if "request" in found and not _bad_name(job_id))
        self._needed = needed if counts else self._needed
        self._unread = {job_id: known for job_id, known in self._unread.items() if job_id in kinds}
        self._doubt(kinds, counts)
        num_failed = 0
        for job_id, found in sorted(kinds.items(), key=lambda item: (self._words.turn(item[0]), item[0])):
            if job_id not in self._listed or (job_id != needed and self._is_left_out(job_id, counts)):
                continue
            if job_id in self._doubts:
                with contextlib.suppress(Unavailable, NotFound, Corrupt):  # in the next look, then
                    await self._repeat_of_doubted(job_id, found)
                continue
            try:
                await self._read_job(job_id, found, counts)
                self._unread.pop(job_id, None)
            except (Unavailable, Refused) as error:
                num_failed += job_id not in self._unread
                self._fails(job_id, error.message, is_ending="end" in found)
                if num_failed > MAX_UNREAD:
                    raise
        is_lost = bool(needed) and needed not in self._listed and needed not in self._records
        if is_lost and counts and not self._may_appear(needed):  # nobody could call it off, and no other job would ever begin
            self._records[needed] = JobRecord(needed, 0.0, None, "", problem="the store has its request no more")

    def _doubt(self, kinds: Mapping[str, Mapping[str, float]], counts: bool) -> None:
        """Holds what is remembered against what the store lists: a store that went back has lost some of it, and nothing else tells that to
        whoever read nothing while its head was the older one.
        """
        doubts, self._doubts = self._doubts, {}
        for job_id, record in list(self._records.items()):
            found = kinds.get(job_id, {})
            goes_on = record.request is None or job_id == self._needed  # without its request too
            is_there = "end" in found if record.end is not None else goes_on or "request" in found
            times = 0 if is_there else doubts.get(job_id, 0) + counts
            if times >= MISSING_LOOKS:
                del self._records[job_id]
            elif not is_there:
                self._doubts[job_id] = times
            if is_there == record.is_doubted and job_id in self._records:
                self._records[job_id] = replace(record, is_doubted=not is_there)

    def _is_left_out(self, job_id: str, counts: bool) -> bool:
        why, times, left = self._unread.get(job_id, ("", 0, 0))
        if left and counts:
            self._unread[job_id] = (why, times, left - 1)
        return left > 0

    def _fails(self, job_id: str, why: str, *, is_ending: bool) -> None:
        times = self._unread.get(job_id, ("", 0, 0))[1]
        self._unread[job_id] = (why, times + 1, min(MAX_PAUSE_LOOKS, (1 << min(times, 16)) - 1))
        record = self._records.get(job_id)
        if is_ending and record is not None and record.end is None:
            del self._records[job_id]  # it has ended, nobody here knows how: it must not begin again

    async def _read_job(self, job_id: str, found: Mapping[str, float], counts: bool) -> None:
        """Raises Unavailable: what is known of the job stays. One that has ended needs nothing but its end to be known as such."""
        record = self._records.get(job_id)
        if record is not None and self._read_tags.get(job_id, self._tags[job_id]) != self._tags[job_id]:
            record = await self._read_anew(record, found["request"], counts)
            if record is None:
                return
        end = record.end if record is not None else None
        if end is None and "end" in found:
            end = await self._read_end(job_id)
            if end is not None and record is not None:
                record = self._records[job_id] = replace(record, end=end)
        if record is None or record.unread:
            if end is not None:
                self._records[job_id] = JobRecord(job_id, found["request"], None, "", end=end, unread="it was not read yet")
            record = await self._read_request(job_id, found["request"], counts)
            if record is None:
                return
            self._read_tags[job_id] = self._tags[job_id]
        there: Collection[str] = found
        if end is None:  # first: what is said again is known in this look, before anything is decided without it
            there, is_otherwise = await self._words.repeat(job_id, record.request_digest, found)
            record = replace(record, pause=None) if is_otherwise else record
        if "cancel" in there and record.cancel_reason is None:
            record = replace(record, cancel_reason=await self._words.cancel_reason(job_id, record.request_digest, record.request))
        said = record.pause.number if record.pause is not None else 0
        if end is None and (newer := [one for kind in there if (one := number_in(kind) or 0) > said]):
            newest = await self._words.newest_pause(job_id, record.request_digest, newer)
            record = replace(record, pause=newest or record.pause)
        self._records[job_id] = replace(record, end=end)

    async def _repeat_of_doubted(self, job_id: str, found: Mapping[str, float]) -> None:
        """Whoever remembers that a job was called off, and ended by it, says the former at once where the store has lost both: who knows neither begins it
        meanwhile. Raises Unavailable, NotFound, Corrupt.
        """
        digest = self._records[job_id].request_digest
        if "end" in found or not digest:
            return
        if self._read_tags.get(job_id) != self._tags[job_id]:
            # another request, or the same one put back, where each write has a tag of its own
            stored = await self._store.get(keys.job_request(self._model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
            if digest_of(stored.data) != digest:
                return
            self._read_tags[job_id] = self._tags[job_id]
        await self._words.repeat(job_id, digest, found)

    async def _read_anew(self, record: JobRecord, requested_at: float, counts: bool) -> JobRecord | None:
        """What is known of a job whose request is listed as another object than was read: a store that went back had lost it, and the name was given anew.
        Whoever slept meanwhile would decide by what it remembers, and store again what maintainers said of the former. None, or Unavailable raised: nobody here
        knows what is asked for now, and only an active job goes on by what is remembered.
        """
        job_id = record.job_id
        other: JobRecord | None = None
        try:
            other = await self._read_request(job_id, requested_at, counts)
        finally:
            if other is None and job_id != self._needed:
                del self._records[job_id]
        if other is None:
            return None
        self._read_tags[job_id] = self._tags[job_id]
        is_another = other.request is not None and other.request_digest != record.request_digest
        return other if is_another else record  # whoever holds the store's keys can put anything there

    async def _read_end(self, job_id: str) -> model_pb2.Outcome | None:
        """The outcome in the job's `end`, which is listed; None where that is the end of no job and the job is the active one, which the head knows not to have
        ended. Raises Unavailable where it is not known how the job ended: it must not begin again.
        """
        try:
            stored = await self._store.get(keys.job_end(self._model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
            outcome, signer = open_end(stored.data, self._policy(), self._model, job_id)
        except NotFound as error:
            raise Unavailable("its end is listed, and was not found", code="jobs_unread") from error
        except Corrupt as error:  # a newer network document may list who signed it
            if job_id == self._needed:
                return None
            raise Unavailable(f"its end cannot be read: {error.message}", code="jobs_unread") from error
        known = self._records.get(job_id)
        if (job_id == self._needed or (known is not None and known.end is None)) and not self._policy().is_orchestrator(signer):
            self._ended_by_removed[job_id] = signer
        return outcome

    def ended(self, outcome: model_pb2.Outcome) -> None:
        """The job's `end` exists and is equal to this outcome."""
        record = self._records.get(outcome.job_id)
        if record is not None:
            self._records[outcome.job_id] = replace(record, end=outcome, is_doubted=False)

    async def _read_request(self, job_id: str, requested_at: float, counts: bool) -> JobRecord | None:
        """None: something of it was not found, or nobody known here has signed it, which may pass."""
        try:
            stored = await self._store.get(keys.job_request(self._model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
            digest = digest_of(stored.data)
            request = self._policy().read_job_request(parse_envelope(stored.data))
            if request.job_id != job_id or request.model != self._model:
                raise Corrupt("the request under this name is for another job", code="wrong_job")
        except Unavailable:
            raise
        except NotFound as error:
            if not counts or self._may_appear(job_id):
                return None
            return JobRecord(job_id, requested_at, None, "", problem=f"its request is not there: {error.message}")
        except (Corrupt, Refused, InvalidInput) as error:
            if error.code == "unsigned_job" and (not counts or self._may_be_signed(job_id)):
                return None
            return JobRecord(job_id, requested_at, None, "", problem=f"its request is not valid: {error.message}")
        problem = lacks = ""
        begins_with = frozenset[str]()
        try:
            facts = await self._loader.job(self._model, job_id, digest)
            if facts.request.initial_manifest_digest:
                manifest, _ = await self._loader.manifest(self._model, facts.request.initial_manifest_digest)
                begins_with = frozenset(entry.working[0].digest for entry in manifest.entries if entry.working)
        except Unavailable as error:
            if error.code != LACKING:
                raise
            lacks = error.message
        except NotFound as error:
            if not counts or self._may_appear(job_id):
                return None
            problem = f"it cannot run: {error.message}"
        except DcnrError as error:
            if error.code in UNSIGNED and (not counts or self._may_be_signed(job_id)):
                return None
            problem = f"it cannot run: {error.message}"
        return JobRecord(job_id, requested_at, request, digest, begins_with, problem=problem, lacks=lacks)

    def _follow_policy(self) -> None:
        """By another network document what was unsigned may be signed."""
        if self._policy() is not self._read_by:
            self._read_by = self._policy()
            self._unread = {job_id: (why, times, 0) for job_id, (why, times, _) in self._unread.items()}
            for job_id in self._unsigned:
                if job_id in self._records and self._records[job_id].end is None:
                    del self._records[job_id]
            self._unsigned.clear()

    def _may_be_signed(self, job_id: str) -> bool:
        self._unsigned[job_id] = self._unsigned.get(job_id, 0) + 1
        return self._unsigned[job_id] < UNSIGNED_LOOKS

    def _may_appear(self, job_id: str) -> bool:
        self._missing[job_id] = self._missing.get(job_id, 0) + 1
        return self._missing[job_id] < MISSING_LOOKS


def _bad_name(job_id: str) -> bool:
    try:
        check_name(job_id)
    except InvalidInput:
        return True
    return False
