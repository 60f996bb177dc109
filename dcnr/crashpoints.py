"""Named points at durable writes where a process can be made to die by SIGKILL, to show that what was accepted outlives it.

Inert unless the environment of the process names one point: an entry point calls `arm`, and the process then kills itself the n-th time it gets
there. It first leaves a note; a process that finds the note there is inert too, so whoever is started again with the same environment lives. A
name that is no point, or a value of another form, ends the process at its start. What each point is, and that each is passed in exactly one place
of the code, is held by ``tests/tidy/test_crash_point_names.py``.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from dcnr.errors import InvalidInput

VARIABLE: Final = "DCNR_CRASH_POINT"
"""``NAME:TIMES:NOTE``: a point, at which passing of it the process dies (from 1), and the absolute path of the note."""

POINTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "key.drafted": "a new key is in its draft, under no name yet",
        "key.linked": "a new key has its name, its draft is still there",
        "secret.drafted": "what audits are drawn with is in its draft, under no name yet",
        "secret.linked": "what audits are drawn with has its name, its draft is still there",
        "network.drafted": "the network document is in its draft",
        "network.renamed": "the network document has its name",
        "contacts.drafted": "the nodes met are in their draft",
        "contacts.renamed": "the nodes met have replaced those of earlier",
        "home.drafted": "a small file of the PNode's home is in its draft",
        "home.renamed": "a small file of the PNode's home has its name",
        "incarnation.taken": "a new incarnation is on disk, nobody has heard of it",
        "desired.accepted": "a desired state is accepted, the disk does not know",
        "desired.persisted": "a desired state is on disk, nothing was done for it",
        "note.kept": "the note of a snapshot is on disk, nothing was uploaded",
        "note.removed": "the note of a snapshot is gone, its state is still there",
        "commit.uploaded": "a commit is in the store, its state is not",
        "state.uploaded": "a state is in the store, the holder has not heard of it",
        "checkpoint.named": "a manifest names the checkpoint, this machine does not know",
        "object.drafted": "an object that is small, or that an orchestrator carries, is in its local draft",
        "download.drafted": "a download is whole in its draft",
        "upload.sent": "the store has taken an upload, the sender does not know",
        "cache.fetched": "an object for the cache is verified, under no name yet",
        "cache.renamed": "an object has its name in the cache",
        "snapshot.captured": "a state is captured in memory, no byte of it on disk",
        "snapshot.drafted": "a state is in its draft",
        "snapshot.renamed": "a state is whole on disk, the daemon has not heard of it",
        "evidence.added": "a part of an interval is in its file, whose name nobody has signed",
        "evidence.drafted": "a small file of an interval is in its draft",
        "evidence.renamed": "a small file of an interval has its name",
        "evidence.taken": "a state lies with the interval that begins or ends with it",
        "evidence.unnamed": "an interval that goes has lost its name, its parts are still there",
        "bundle.written": "a bundle of evidence is in its draft",
        "bundle.renamed": "a bundle of evidence has its name, nobody has sent it",
        "donation.received": "a state that another PNode gave is whole in its draft, not compared with its digest",
        "spool.opened": "a new segment of the spool has its file",
        "spool.written": "a frame is in its segment, in no book yet",
        "head.composed": "a head is signed, the store was not asked",
        "head.written": "the store has taken a head, its writer does not know",
        "plan.stored": "a plan is in the store, none of its desired states",
        "desired.stored": "a plan and its desired states are in the store, the head does not name them",
        "plan.named": "the head names a plan, nobody was told",
        "manifest.stored": "a manifest is in the store, the head does not name it",
        "manifest.named": "the head names a manifest, its checkpoints are still pending here",
        "job.moved": "the head tells a job's next state or outcome: no end object, nothing told",
        "end.created": "an end object is in the store, nobody here knows",
        "condemned.chosen": "a condemned state is about to be deleted",
        "condemned.deleted": "a condemned state is deleted",
        "index.stored": "a model is in the index, its job request is not in the store",
        "request.stored": "a job request is in the store, the caller has not heard yes",
        "cancel.stored": "a cancellation is in the store, the caller has not heard",
        "pause.stored": "a pause is in the store, the caller has not heard",
        "release.stored": "a release is in the store, the caller has not heard",
        "stray.stored": "a desired state that empties a PNode of an older plan is in the store, nobody was told",
        "laid.drafted": "what an orchestrator checks itself is in its draft",
        "laid.renamed": "what an orchestrator checks itself lies on its disk",
        "fault.stored": "a fault record is in the store, nobody is accused by it",
        "memory.stored": "what an audit desk heard is in the store",
        "evidence.doomed": "evidence of what is decided is about to be deleted",
        "evidence.deleted": "evidence of what is decided is deleted",
        "history.written": "events are in a transaction of the history",
        "history.committed": "events are in the history",
        "proxy.collected": "bytes for the store have all arrived at an orchestrator",
        "proxy.stored": "the store has taken them, their sender does not know",
        "running.drafted": "what an orchestrator tells of itself is in its draft",
        "store.drafted": "a private file of the embedded store is in its draft",
        "store.kept": "the store's credentials are on disk, no server was started",
        "store.noted": "the store's server runs, its process id is on disk",
        "dataset.indexed": "a data set is in the index, its manifest is not in the store",
        "shard.staged": "a shard is staged, its data set has no manifest",
        "dataset.staged": "a data set is staged, its maintainer does not know",
        "graph.stored": "a graph is in the store, no checkpoint 0",
        "checkpoint0.made": "a first state is on the maintainer's disk",
        "checkpoint0.stored": "a first state is in the store, no manifest names it",
        "manifest0.stored": "manifest 0 is in the store, the job was not submitted",
        "draft.drafted": "what a command leaves for people, such as a job that waits for signatures, is in its draft",
        "import.drafted": "a graph or weights of an imported module are in their draft",
        "apikey.written": "a change of the API keys is in a transaction",
        "apikey.committed": "a change of the API keys is in their file, nobody has seen the key",
        "export.written": "some of an export's files are written",
        "demo.emptied": "an earlier demo's directory is emptied but for its mark",
        "demo.marked": "the demo's directory is its own, and empty",
    }
)
"""Every point, and what is true there."""


class _Trap:
    """One point that is set; passings are counted over all threads."""

    def __init__(self, name: str, times: int, note: Path) -> None:
        self.name, self._left, self._note = name, times, note
        self._lock = threading.Lock()

    def passed(self) -> None:
        with self._lock:
            self._left -= 1
            if self._left == 0 and self._noted():
                os.kill(os.getpid(), signal.SIGKILL)

    def _noted(self) -> bool:
        """Whether the note is ours: of all processes with this point only the first one dies."""
        try:
            descriptor = os.open(self._note, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError:
            return False
        os.write(descriptor, f"{self.name} {os.getpid()}\n".encode())
        os.close(descriptor)
        return True


_trap: _Trap | None = None


def reached(name: str) -> None:
    """Returns at once, or never: if this point is the one that is set, and it is time, the process dies here."""
    trap = _trap
    if trap is not None and trap.name == name:
        trap.passed()


def arm(environment: Mapping[str, str]) -> None:
    """Sets the point that the environment names, or none. For entry points. Raises InvalidInput (``bad_crash_point``)."""
    global _trap
    _trap = None
    value = environment.get(VARIABLE, "")
    if not value:
        return
    name, _, rest = value.partition(":")
    times, _, note = rest.partition(":")
    if name not in POINTS or not times.isdecimal() or not 0 < len(times) < 10 or int(times) < 1 or not note.startswith("/"):
        raise InvalidInput(
            f"{VARIABLE}={value[:80]!r} names no crash point", code="bad_crash_point",
            remedy=f"unset {VARIABLE}: it is for tests that kill processes",
        )  # fmt: skip
    _trap = _Trap(name, int(times), Path(note))


def setting(name: str, note: Path, *, times: int = 1) -> dict[str, str]:
    """The environment that makes a process die at a point. Raises InvalidInput for a name that is none."""
    value = {VARIABLE: f"{name}:{times}:{note.absolute()}"}
    if name not in POINTS or times < 1:
        raise InvalidInput(f"{name!r:.80} at passing {times} is no crash point", code="bad_crash_point")
    return value
