"""Tells the books of every job that has ended: whatever process dies in between, the next one finds its outcome under the head, or in its `end` in the store.

A head keeps its last outcomes only, and books may be away for longer. Requests, ends and last manifests are kept for ever, so what a job used can always be
said: where one of them is not found the store reads late or has lost it, and the job waits, since books take each job once. Books that keep no account with us
hear of a job again from every process that begins to charge.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.v1 import identity_pb2, ledger_pb2, model_pb2
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.usage import Books, answered, job_usage
from trust.envelope import parse_envelope, seal

RETRY_S: Final = 10.0
"""A document that could not be read, or books that took nothing, are tried again."""
MAX_PER_LOOK: Final = 16
"""Jobs charged in one look."""


class Charging:
    """The holder of a model's head charges; `look` does what is due."""

    def __init__(self, shared: Shared, models: Mapping[str, ModelRuntime], books: Books) -> None:
        self._shared, self._models, self._books = shared, models, books
        self._charged: set[tuple[str, str]] = set()
        """Never more than there are jobs; also of those that are not read yet in this life."""
        self._retry_at: dict[str, float] = {}
        self._told: dict[tuple[str, str], str] = {}
        """Why a job is not charged yet: told once."""
        self._unread: Counter[tuple[str, str]] = Counter()
        """How often the documents of a job could not be read."""

    async def begin(self) -> None:
        """Takes up which jobs the history has."""
        self._charged = await self._shared.history.used_subjects(ledger_pb2.UsageKind.Name(ledger_pb2.USAGE_KIND_JOB))

    async def look(self) -> None:
        """Charges what was decided and not charged yet."""
        now = self._shared.clock.monotonic()
        for model, runtime in list(self._models.items()):
            view = runtime.view
            if view is None or not runtime.is_holder or now < self._retry_at.get(model, 0.0):
                continue
            ended = _ended(runtime, view.head)
            due = [outcome for job_id, outcome in ended.items() if (model, job_id) not in self._charged]
            due.sort(key=lambda outcome: self._unread[model, outcome.job_id])  # what cannot be read keeps no other waiting
            if not await self._charge_all(runtime, due[:MAX_PER_LOOK]):
                self._retry_at[model] = now + RETRY_S

    async def _charge_all(self, runtime: ModelRuntime, due: Iterable[model_pb2.Outcome]) -> bool:
        """False where something has to be tried again. Books that take nothing are asked for one job only."""
        is_done = True
        for outcome in due:
            job = (runtime.model, outcome.job_id)
            try:
                said = await self._statement(runtime, outcome)
            except DcnrError as error:
                self._tell(job, error)
                self._unread[job] += 1
                is_done = False
                continue
            try:
                await answered(self._books.record_usage(seal(identity_pb2.DOMAIN_USAGE, said, self._shared.key)))
            except DcnrError as error:
                self._tell(job, error)
                return False
            self._charged.add(job)
            self._told.pop(job, None)
            del self._unread[job]
            self._shared.history.say(
                "usage_recorded", outcome.job_id, f"{said.vnode_batches} batches of VNodes", cleared=said.cleared
            )
        return is_done

    def _tell(self, job: tuple[str, str], error: DcnrError) -> None:
        if self._told.get(job) != error.code:
            self._told[job] = error.code
            self._shared.history.say("usage_not_recorded", job[1], error.message, code=error.code)

    async def _statement(self, runtime: ModelRuntime, outcome: model_pb2.Outcome) -> ledger_pb2.UsageStatement:
        shared, model = self._shared, runtime.model
        stored = await shared.store.get(keys.job_request(model, outcome.job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
        manifest = (await runtime.loader.manifest(model, outcome.manifest_digest))[0] if outcome.manifest_digest else None
        return job_usage(
            outcome, parse_envelope(stored.data), manifest, network_id=shared.policy.network_id, model=model,
            orchestrator=shared.key.node_id, issued_unix_ms=int(shared.clock.wall() * 1000),
        )  # fmt: skip


def _ended(runtime: ModelRuntime, head: model_pb2.Head) -> dict[str, model_pb2.Outcome]:
    """By job, how it ended: as the head says, else its `end`."""
    ended = {job_id: record.end for job_id, record in runtime.jobs.records.items() if record.end is not None}
    return ended | {outcome.job_id: outcome for outcome in head.decided}
