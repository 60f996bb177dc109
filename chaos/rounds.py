"""One round per crash point: what has to be driven so that a process gets there, and at which passing it dies. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Where(StrEnum):
    """Whose point it is: which processes are set to die there, of which the first to get there does."""

    PNODE = "pnode"
    """Daemons and their workers."""
    AUDITED = "pnode that is audited"
    GIVEN = "pnode that is given a state"
    ORCHESTRATOR = "orchestrator"
    START = "orchestrator's start"
    SWEEP = "orchestrator that deletes"
    CANCEL = "orchestrator that is told to cancel"
    PAUSE = "orchestrator that is told to pause"
    RELEASE = "orchestrator that is told to release"
    INDEX = "orchestrator that takes a data set"
    STRAY = "orchestrator that empties a PNode"
    AUDITING = "orchestrator that audits"
    HEARING = "orchestrator that hears auditors"
    BLAMING = "orchestrator that finds a cheat"
    FORGETTING = "orchestrator that deletes evidence"
    PASSING = "orchestrator that passes bytes on"
    STORE = "orchestrator with its own store"
    KEY = "orchestrator key"
    STAGE = "dcnr data stage"
    SUBMIT = "dcnr model submit"
    DRAFT = "dcnr model submit --save-draft"
    EXPORT = "dcnr model export"
    IMPORT = "dcnr model import"
    API_KEY = "dcnr gateway key add"
    DEMO = "dcnr demo"


@dataclass(frozen=True, slots=True)
class Round:
    """``times``: the passing at which it happens."""

    point: str
    where: Where
    times: int = 1


_IN_PNODES: Final = {
    "network.drafted": 1, "network.renamed": 1, "contacts.drafted": 1, "contacts.renamed": 1, "home.drafted": 3, "home.renamed": 2,
    "incarnation.taken": 2, "desired.accepted": 1, "desired.persisted": 1, "note.kept": 1, "note.removed": 1, "commit.uploaded": 1,
    "state.uploaded": 1, "checkpoint.named": 1, "object.drafted": 1, "download.drafted": 1, "upload.sent": 2, "cache.fetched": 1,
    "cache.renamed": 1, "snapshot.captured": 2, "snapshot.drafted": 1, "snapshot.renamed": 1, "spool.opened": 1, "spool.written": 20,
}  # fmt: skip
_IN_ORCHESTRATORS: Final = {
    "index.stored": 1, "request.stored": 1, "plan.stored": 1, "desired.stored": 1, "plan.named": 1, "head.composed": 5, "head.written": 6,
    "manifest.stored": 2, "manifest.named": 1, "job.moved": 4, "end.created": 1, "history.written": 3, "history.committed": 2,
}  # fmt: skip
_ELSEWHERE: Final = {
    "running.drafted": (Where.START, 1), "condemned.chosen": (Where.SWEEP, 1), "condemned.deleted": (Where.SWEEP, 2),
    "cancel.stored": (Where.CANCEL, 1), "proxy.collected": (Where.PASSING, 1), "proxy.stored": (Where.PASSING, 1),
    "store.drafted": (Where.STORE, 2), "store.kept": (Where.STORE, 1), "store.noted": (Where.STORE, 1),
    "key.drafted": (Where.KEY, 1), "key.linked": (Where.KEY, 1), "shard.staged": (Where.STAGE, 2), "dataset.staged": (Where.STAGE, 1),
    "graph.stored": (Where.SUBMIT, 1), "checkpoint0.made": (Where.SUBMIT, 1), "checkpoint0.stored": (Where.SUBMIT, 2),
    "manifest0.stored": (Where.SUBMIT, 1), "draft.drafted": (Where.DRAFT, 1), "export.written": (Where.EXPORT, 2),
    "demo.emptied": (Where.DEMO, 1), "demo.marked": (Where.DEMO, 1), "secret.drafted": (Where.STORE, 1), "secret.linked": (Where.STORE, 1),
    "import.drafted": (Where.IMPORT, 2), "apikey.written": (Where.API_KEY, 1), "apikey.committed": (Where.API_KEY, 1),
    "pause.stored": (Where.PAUSE, 1), "release.stored": (Where.RELEASE, 1),
    "dataset.indexed": (Where.INDEX, 1), "stray.stored": (Where.STRAY, 1), "donation.received": (Where.GIVEN, 1),
    "evidence.added": (Where.AUDITED, 5), "evidence.drafted": (Where.AUDITED, 3), "evidence.renamed": (Where.AUDITED, 3),
    "evidence.taken": (Where.AUDITED, 2), "evidence.unnamed": (Where.AUDITED, 1), "bundle.written": (Where.AUDITED, 1),
    "bundle.renamed": (Where.AUDITED, 1), "laid.drafted": (Where.AUDITING, 1), "laid.renamed": (Where.AUDITING, 1),
    "memory.stored": (Where.HEARING, 1), "fault.stored": (Where.BLAMING, 1), "evidence.doomed": (Where.FORGETTING, 1),
    "evidence.deleted": (Where.FORGETTING, 2),
}  # fmt: skip
ROUNDS: Final = (
    *(Round(point, Where.PNODE, times) for point, times in _IN_PNODES.items()),
    *(Round(point, Where.ORCHESTRATOR, times) for point, times in _IN_ORCHESTRATORS.items()),
    *(Round(point, where, times) for point, (where, times) in _ELSEWHERE.items()),
)
"""Every point of `dcnr.crashpoints.POINTS` once: a test holds them against each other."""
