"""Tells the books of every job that has ended, once its outcome is under the head: whatever process dies in between, the next one finds it there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError, NotFound
from dcnr.v1 import identity_pb2, ledger_pb2, model_pb2
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.usage import Books, answered, job_usage
from trust.envelope import parse_envelope, seal

RETRY_S: Final = 10.0
"""A document that could not be read, or books that took nothing, are tried again."""


class Charging:
    """The holder of a model's head charges; `look` does what is due."""

    def __init__(self, shared: Shared, models: Mapping[str, ModelRuntime], books: Books) -> None:
        self._shared, self._models, self._books = shared, models, books
        self._charged: set[tuple[str, str]] = set()
        self._retry_at: dict[str, float] = {}
        self._told: dict[tuple[str, str], str] = {}
        """Why a job is not charged yet: told once."""

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
            named = {(model, outcome.job_id) for outcome in view.head.decided}
            self._charged = {one for one in self._charged if one[0] != model or one in named}
            self._told = {one: code for one, code in self._told.items() if one[0] != model or one in named}
            for outcome in view.head.decided:
                job = (model, outcome.job_id)
                if job in self._charged:
                    continue
                try:
                    await self._charge(runtime, outcome)
                except DcnrError as error:
                    self._retry_at[model] = now + RETRY_S
                    self._tell(job, error)
                else:
                    self._charged.add(job)

    def _tell(self, job: tuple[str, str], error: DcnrError) -> None:
        if self._told.get(job) != error.code:
            self._told[job] = error.code
            self._shared.history.say("usage_not_recorded", job[1], error.message, code=error.code)

    async def _charge(self, runtime: ModelRuntime, outcome: model_pb2.Outcome) -> None:
        shared, model = self._shared, runtime.model
        stored = await shared.store.get(keys.job_request(model, outcome.job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
        manifest = None
        if outcome.manifest_digest:
            try:
                manifest, _ = await runtime.loader.manifest(model, outcome.manifest_digest)
            except NotFound:
                manifest = None  # long ended, and thrown away since: nobody can say any more what it used
        said = job_usage(
            outcome, parse_envelope(stored.data), manifest, network_id=shared.policy.network_id, model=model,
            orchestrator=shared.key.node_id, issued_unix_ms=int(shared.clock.wall() * 1000),
        )  # fmt: skip
        await answered(self._books.record_usage(seal(identity_pb2.DOMAIN_USAGE, said, shared.key)))
        shared.history.say("usage_recorded", outcome.job_id, f"{said.vnode_batches} batches of VNodes", cleared=said.cleared)
