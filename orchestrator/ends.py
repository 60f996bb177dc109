"""Repeats what an acknowledged head has decided in the `end` objects of jobs. One per model; only the holder asks it.

An end that can neither be written nor read keeps its place in the head, and holds up nothing else: it is tried again, ever more rarely.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dataservice import keys
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, Unavailable
from dcnr.ports import Clock, ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.documents import open_end, put_once, sealed
from orchestrator.history import History
from orchestrator.jobbook import JobBook
from orchestrator.jobs import ends_to_write
from orchestrator.view import ModelView
from trust.identity import NodeKey
from trust.network import NetworkPolicy

FIRST_PAUSE_S: Final = 0.25
LONGEST_PAUSE_S: Final = 60.0


class Ends:
    """See the module."""

    def __init__(
        self, store: ObjectStore, key: NodeKey, clock: Clock, policy: Callable[[], NetworkPolicy], jobs: JobBook, history: History
    ) -> None:
        self._store, self._key, self._clock, self._policy = store, key, clock, policy
        self._jobs, self._history = jobs, history
        self._epoch, self._seen = 0, set[str]()
        """Jobs of this term's `decided` of which the end is there, though no record says so."""
        self._waits: dict[str, tuple[float, float]] = {}
        """Jobs whose end could not be written: when it is tried again, and how long that was put off."""
        self.trouble = ""

    async def write(self, view: ModelView) -> None:
        """Writes what is decided and not written yet; another content there is an alarm, told once in a term. After one failure no other is tried in this
        round. Each term looks anew: the store may have gone back before it.
        """
        self._seen = {one.job_id for one in view.head.decided if one.job_id in self._seen and view.head.epoch == self._epoch}
        self._epoch = view.head.epoch
        owed = [outcome for outcome in ends_to_write(view.head, self._jobs.records) if outcome.job_id not in self._seen]
        self._waits = {one.job_id: self._waits[one.job_id] for one in owed if one.job_id in self._waits}
        self.trouble = self.trouble if self._waits else ""
        for outcome in owed:
            due_at, pause_s = self._waits.get(outcome.job_id, (0.0, FIRST_PAUSE_S / 2))
            if self._clock.monotonic() < due_at:
                continue
            try:
                await self._write(view.model, outcome)
            except Unavailable as error:
                pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)
                self._waits[outcome.job_id] = (self._clock.monotonic() + pause_s, pause_s)
                self.trouble = f"the end of job {outcome.job_id} is decided and not written: {error.message}"
                return

    async def _write(self, model: str, outcome: model_pb2.Outcome) -> None:
        end = model_pb2.JobEnd(outcome=outcome, network_id=self._policy().network_id, model=model)
        mine = sealed(identity_pb2.DOMAIN_JOB_END, end, self._key)
        found = await put_once(self._store, keys.job_end(model, outcome.job_id), mine.data)
        reached("end.created")
        if found == mine.data or self._repeats(model, found, outcome):
            self._jobs.ended(outcome)
            if outcome.job_id not in self._jobs.records:
                self._seen.add(outcome.job_id)
        else:
            self._seen.add(outcome.job_id)
            self._history.say("end_differs", outcome.job_id, "the job's end object tells another outcome than the head")

    def _repeats(self, model: str, found: bytes, outcome: model_pb2.Outcome) -> bool:
        try:
            return open_end(found, self._policy(), model, outcome.job_id)[0] == outcome
        except Corrupt:
            return False
