"""Goal: orchestrators that stand still, lose their memory or have no disk left cost nothing: one decides at a time, every accepted job ends once, and
each says what happened to it. No PNode is needed for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest
from network_rig import Rig, running_network

from dataservice import keys
from dataservice.s3 import S3Store
from dcnr import limits
from dcnr.errors import DcnrError, NotFound
from dcnr.sdk.submission import JobOptions
from dcnr.testing import Process
from dcnr.v1 import identity_pb2, model_pb2

MODEL = "dots"
LONG_S = 120.0


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network((), num_orchestrators=2) as running:
        yield running


@pytest.fixture(scope="module")
def head(rig: Rig) -> Iterator[Head]:
    store = S3Store(rig.network.store.file.address())
    yield Head(store)
    store.close()


@dataclass(frozen=True, slots=True)
class Head:
    """The head as it lies in the store, read past every orchestrator."""

    store: S3Store

    def read(self) -> model_pb2.Head:
        """As it is; empty before the first one is written, which follows the first job that is accepted."""
        try:
            found = asyncio.run(self.store.get(keys.head(MODEL), max_bytes=limits.MAX_HEAD_BYTES))
        except NotFound:
            return model_pb2.Head()
        return model_pb2.Head.FromString(identity_pb2.Envelope.FromString(found.data).payload)


def process_of(rig: Rig, node_id: str) -> Process:
    found = rig.network.process_of(node_id)
    assert found is not None
    return found


def logged(process: Process, mark: int, kind: str) -> bool:
    return f"] {kind} " in process.log.read_text()[mark:]


def submitted(rig: Rig, key: str) -> str:
    """A job that is accepted: asked until yes is heard; asking again under one key makes no second job."""
    accepted: list[str] = []
    options = JobOptions(idempotency_key=key, unit_batches=8)

    def asked() -> bool:
        with contextlib.suppress(DcnrError), rig.client() as client:
            accepted.append(client.submit(rig.graph(1), [rig.key], options).job_id)
        return bool(accepted)

    rig.until(asked, f"{key} is accepted", LONG_S, pause_s=0.5)
    return accepted[0]


def called_off(rig: Rig, head: Head, job_id: str) -> None:
    """The job ends as its maintainer says, once."""

    def asked() -> bool:
        with contextlib.suppress(DcnrError), rig.client() as client:
            client.cancel(job_id, [rig.key], model=MODEL)
            return True
        return False

    def ended() -> bool:
        with contextlib.suppress(DcnrError):
            return rig.job(job_id).state == model_pb2.JOB_STATE_CANCELLED
        return False

    rig.until(asked, f"{job_id} is called off", LONG_S, pause_s=0.5)
    rig.until(ended, f"{job_id} has ended", LONG_S, pause_s=0.5)
    assert [item.job_id for item in head.read().decided].count(job_id) == 1


def said(rig: Rig, job_id: str, *, paused: bool) -> None:
    """The maintainer has said it; saying it again changes nothing."""

    def asked() -> bool:
        with contextlib.suppress(DcnrError), rig.client() as client:
            answer = (client.pause if paused else client.resume)(job_id, [rig.key], model=MODEL)
            return answer.recorded and answer.paused == paused
        return False

    rig.until(asked, f"{job_id} is {'paused' if paused else 'resumed'}", LONG_S, pause_s=0.5)


def told(rig: Rig) -> list[str]:
    """Kinds of the newest events of an orchestrator that answers."""
    with contextlib.suppress(DcnrError), rig.client() as client:
        return [event.kind for event in client.status().events]
    return []


@contextlib.contextmanager
def stopped(process: Process) -> Iterator[None]:
    """Stands still, as a machine that sleeps does, and goes on afterwards whatever happened."""
    os.kill(process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process.pid, signal.SIGCONT)


def test_a_holder_that_stood_still_for_longer_than_its_term_writes_nothing_more(rig: Rig, head: Head) -> None:
    """What its maintainers said lasts over the change: the job that was paused before is paused after it, until it is resumed."""
    job_id = submitted(rig, "paused")
    rig.until(lambda: head.read().active.job_id == job_id, "the job is active", LONG_S, pause_s=0.5)
    said(rig, job_id, paused=True)
    rig.until(lambda: head.read().active.state == model_pb2.JOB_STATE_PAUSED, "the job is paused", LONG_S, pause_s=0.5)
    before = head.read()
    holder = process_of(rig, before.holder)
    mark = len(holder.log.read_text())
    with stopped(holder):
        rig.until(lambda: head.read().epoch > before.epoch, "another orchestrator has taken over", LONG_S, pause_s=0.5)
        after = head.read()
        assert after.holder != before.holder
        assert after.active == before.active, "a takeover changes the term and nothing else"
    rig.until(lambda: logged(holder, mark, "term_lost"), "the old holder notices", LONG_S)
    seen = head.read()
    assert seen.epoch > after.epoch or seen.holder == after.holder, "whoever comes back writes nothing in a term that is over"
    assert rig.job(job_id).state == model_pb2.JOB_STATE_PAUSED
    said(rig, job_id, paused=False)
    rig.until(lambda: head.read().active.state == model_pb2.JOB_STATE_PLACING, "the job goes on", LONG_S, pause_s=0.5)
    called_off(rig, head, job_id)


@pytest.mark.parametrize("how", ["damaged", "deleted"])
def test_an_orchestrator_whose_history_is_gone_begins_it_anew_and_says_so(rig: Rig, head: Head, how: str) -> None:
    process = rig.network.orchestrators[1]
    path = process.home / "history.db"
    rig.network.kill(process)
    mark = len(process.log.read_text())
    for found in process.home.glob("history.db*"):  # its log too: it would hide the damage
        found.unlink()
    if how == "damaged":
        path.write_bytes(b"no database at all " * 500)
    rig.network.restart(process)
    rig.until(lambda: logged(process, mark, "orchestrator_started"), "it serves again", LONG_S)
    assert logged(process, mark, "history_damaged") == (how == "damaged")

    def kept() -> bool:
        with contextlib.suppress(sqlite3.Error), contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return bool(database.execute("SELECT COUNT(*) FROM events").fetchone()[0])
        return False

    rig.until(kept, "events are kept again", LONG_S)
    called_off(rig, head, submitted(rig, f"history-{how}"))


def test_orchestrators_without_disk_serve_and_decide_on(rig: Rig, head: Head) -> None:
    """The kernel refuses every byte beyond a few, as a full disk does: only the record of events is lost, and that is told once."""
    members = [psutil.Process(process.pid) for process in rig.network.orchestrators]
    for member in members:
        member.rlimit(psutil.RLIMIT_FSIZE, (64, resource.RLIM_INFINITY))
    try:
        called_off(rig, head, submitted(rig, "no disk"))
        rig.until(lambda: "history_not_written" in told(rig), "it is told that events are not kept", LONG_S)
        called_off(rig, head, submitted(rig, "no disk either"))
        assert told(rig).count("history_not_written") <= 2, "once per kind of trouble"
    finally:
        for member in members:
            member.rlimit(psutil.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert rig.network.trouble() == ""


def test_jobs_handed_in_while_holders_come_and_go_each_end_once(rig: Rig, head: Head) -> None:
    """Whoever heard yes finds the job, whichever process was killed right after, and it ends exactly once."""
    accepted: list[str] = []
    for number in range(3):
        accepted.append(submitted(rig, f"queue-{number}"))
        rig.until(lambda: bool(head.read().holder), "somebody decides", LONG_S)
        holder = process_of(rig, head.read().holder)
        if holder.alive:
            rig.network.kill(holder)
            rig.network.restart(holder)
    assert len(set(accepted)) == 3
    for job_id in accepted:
        called_off(rig, head, job_id)
