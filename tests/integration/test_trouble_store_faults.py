"""Goal: whatever the store does to a whole network, nothing accepted is lost: no process ends, the trouble is told once with what to do, and afterwards
every job completes with exact lineages.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import psutil
import pytest
from network_rig import BATCH_SIZE, SAMPLES, Rig, running_network
from store_proxy import Fault, StoreProxy, Trouble, store_proxy

from dataservice import keys
from dcnr import limits
from dcnr.errors import InvalidInput, Unavailable
from dcnr.sdk.submission import JobOptions
from dcnr.testing import LocalPNode, Process
from dcnr.v1 import model_pb2

MODEL = "dots"
PER_PASS = SAMPLES // BATCH_SIZE
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360, ("--cpu-percent", "25")) for number in (1, 2))
"""Each has room for two of the three VNodes."""
PUT, GET = frozenset({"PUT"}), frozenset({"GET"})
STATES = f"models/{MODEL}/state/"
HEAD = keys.head(MODEL)
LONG_S = 240.0
TEMPO = 4.0
"""Batches per second of jobs that must last as long as their trouble: they need not compute all the while."""
MOST_WORDS = 3
"""Events of one trouble at one PNode: it may show in as many ways (a grant, an upload, a record)."""
TEN_MINUTES_S = 600.0
STILL_S = 60.0
"""No VNode of a job with a tempo stands still for longer."""
MAX_GROWTH_BYTES = 48 * limits.MIB
MOST_STATES = 3
"""Of each VNode on one disk: the newest that waits, the one that was named before it, one that is being made."""


@pytest.fixture(scope="module")
def proxy() -> Iterator[StoreProxy]:
    with store_proxy() as made:
        yield made


@pytest.fixture(scope="module")
def rig(proxy: StoreProxy) -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2, way_to_store=proxy.at) as running:
        yield running


@pytest.fixture(autouse=True)
def nobody_ends(rig: Rig, proxy: StoreProxy) -> Iterator[None]:
    """No process ends by itself in any trouble."""
    before = {process.name: process.pid for process in processes(rig)}
    yield
    proxy.heal()
    assert rig.network.trouble() == ""
    assert {process.name: process.pid for process in processes(rig)} == before


def processes(rig: Rig) -> list[Process]:
    return [*rig.network.orchestrators, *rig.network.pnodes]


class Log:
    """What processes have logged since this was made, by kind."""

    def __init__(self, processes: list[Process]) -> None:
        self._marks = {process.name: (process, len(process.log.read_text())) for process in processes}

    def lines(self, *kinds: str) -> dict[str, list[str]]:
        return {
            name: [line for line in process.log.read_text()[mark:].splitlines() if any(f"] {kind} " in line for kind in kinds)]
            for name, (process, mark) in self._marks.items()
        }

    def some(self, kind: str) -> bool:
        return any(self.lines(kind).values())

    def all(self, kind: str) -> bool:
        return all(self.lines(kind).values())


def finished(rig: Rig, job_id: str, passes: int) -> None:
    """The job is completed, and every VNode has learned each batch once."""
    rig.ended(job_id, LONG_S)
    audit = rig.audit()
    assert all(item.exact and item.num_batches == passes * PER_PASS for item in audit), audit


def learned(rig: Rig) -> int:
    return sum(int(report.num_learned) for _, report in rig.hosts().values())


AWAY: dict[str, Callable[[], list[Trouble]]] = {
    "dead": lambda: [Trouble(Fault.DROP)],
    "slow": lambda: [Trouble(Fault.DELAY, seconds=3.0)],
}


@pytest.mark.parametrize("kind", sorted(AWAY))
def test_a_store_that_is_away_costs_no_work_and_is_told_once(rig: Rig, proxy: StoreProxy, kind: str) -> None:
    passes = 3
    job_id = rig.submit(f"away-{kind}", passes=passes, batches_per_s=TEMPO)
    rig.learning(job_id, 10, LONG_S)
    orchestrators, pnodes = Log(rig.network.orchestrators), Log(rig.network.pnodes)
    for trouble in AWAY[kind]():
        proxy.meet(trouble)
    before = learned(rig)
    rig.until(lambda: orchestrators.all("store_away"), "every orchestrator says that the store is away", 60.0)
    rig.until(lambda: learned(rig) > before, "training goes on", 60.0)
    proxy.heal()
    rig.until(lambda: orchestrators.all("store_back"), "every orchestrator says that it is back", LONG_S)
    finished(rig, job_id, passes)
    with rig.client() as client:
        rig.until(lambda: not client.status().store_reason, "no trouble is shown any more", 60.0)
    for name, lines in orchestrators.lines(
        "store_away", "store_back"
    ).items():  # a store on a busy machine may be away once more by itself
        assert all(("store_away" in line) == (place % 2 == 0) for place, line in enumerate(lines)), (name, lines)
        assert all("remedy=" in line for line in lines[::2]), (name, lines)
    for name, lines in pnodes.lines("upload_waits").items():
        assert len(lines) <= MOST_WORDS, (name, lines)


def rss_bytes(process: Process) -> int:
    """What a daemon or orchestrator holds in memory."""
    return int(psutil.Process(process.pid).memory_info().rss)


@pytest.mark.long
def test_ten_minutes_without_a_store_cost_no_batch(rig: Rig, proxy: StoreProxy) -> None:
    """Training goes on all the time, nothing is promoted, memory, disk and logs stay bounded, and afterwards all that was learned counts."""
    passes = 18
    job_id = rig.submit("ten-minutes", passes=passes, batches_per_s=1.0, lead_batches=4096, checkpoint_s=10.0)
    rig.learning(job_id, 5, LONG_S)
    before, log = {process.name: rss_bytes(process) for process in processes(rig)}, Log(processes(rig))
    log_of_orchestrators = Log(rig.network.orchestrators)
    proxy.meet(Trouble(Fault.DROP))
    begun_s = moved_s = time.monotonic()
    most, longest_s = learned(rig), 0.0

    def over() -> bool:
        nonlocal moved_s, most, longest_s
        now_s, now = time.monotonic(), learned(rig)
        if now > most:
            longest_s, moved_s, most = max(longest_s, now_s - moved_s), now_s, now
        return now_s - begun_s >= TEN_MINUTES_S

    rig.until(lambda: log_of_orchestrators.all("store_away"), "every orchestrator says that the store is away", 60.0)
    named = rig.job(job_id).manifest_digest
    rig.until(over, "ten minutes have gone by", TEN_MINUTES_S + LONG_S, pause_s=2.0)
    assert rig.job(job_id).manifest_digest == named, "what no store has kept is promised to nobody"
    assert max(longest_s, time.monotonic() - moved_s) <= STILL_S
    for process in processes(rig):
        assert rss_bytes(process) - before[process.name] <= MAX_GROWTH_BYTES, process.name
    for process in rig.network.pnodes:
        states = list(process.home.rglob("snapshots/*.safetensors"))
        assert len(states) <= MOST_STATES * len(rig.vnodes), f"{process.name} keeps {len(states)} states of a store that is away"
    proxy.heal()
    finished(rig, job_id, passes)
    assert not any(log.lines("node_not_useful", "replica_relocated").values()), "nobody is blamed for the store"
    for name, lines in log.lines("store_away", "upload_waits").items():
        assert len(lines) <= MOST_WORDS, (name, lines)


def test_a_job_handed_in_while_the_store_is_slow_is_lost_by_nobody(rig: Rig, proxy: StoreProxy) -> None:
    """An answer that does not come in time says nothing; asking again with the same key gives the one job."""
    options = JobOptions(idempotency_key="slow hand-in", checkpoint_s=1.0, unit_batches=8)
    with rig.client() as client:
        draft = client.prepare(rig.graph(1), options).sign(client.policy, rig.key)
        proxy.meet(Trouble(Fault.DELAY, seconds=2.0))
        with contextlib.suppress(Unavailable):
            client.submit_draft(draft)
        proxy.heal()
        answers = [client.submit_draft(draft) for _ in range(2)]
    assert len({answer.job_id for answer in answers}) == 1
    assert answers[1].existed
    finished(rig, answers[0].job_id, 1)


def test_every_answer_to_a_write_of_the_head_is_lived_with(rig: Rig, proxy: StoreProxy) -> None:
    passes = 3
    job_id = rig.submit("head", passes=passes, batches_per_s=TEMPO)
    rig.learning(job_id, 5, LONG_S)
    for trouble in (
        Trouble(Fault.REFUSE, PUT, HEAD, 3, status=409, word="ConditionalRequestConflict"),
        Trouble(Fault.REFUSE, PUT, HEAD, 3, status=412, word="PreconditionFailed"),
        Trouble(Fault.REFUSE, PUT, HEAD, 3, status=503, word="SlowDown"),
        Trouble(Fault.TWICE, PUT, HEAD, 3),
        Trouble(Fault.LOSE_ANSWER, PUT, HEAD, 3),
        Trouble(Fault.CUT, PUT, HEAD, 3, num_bytes=50),
        Trouble(Fault.STALE, GET, HEAD, 3),
        Trouble(Fault.CUT, GET, HEAD, 3, num_bytes=50),
    ):
        proxy.meet(trouble)
        rig.until(lambda: trouble.met == trouble.times, f"met: {trouble}", 90.0)  # noqa: B023
    finished(rig, job_id, passes)


def test_uploads_and_restores_that_break_off_are_made_again(rig: Rig, proxy: StoreProxy) -> None:
    """Nothing of a torn upload is ever named: every named state has its digest."""
    passes = 2
    job_id = rig.submit("torn", passes=passes, batches_per_s=TEMPO)  # hands in states as well: those break off for nobody
    torn = proxy.meet(Trouble(Fault.CUT, PUT, STATES, 4, num_bytes=100))
    lost = proxy.meet(Trouble(Fault.LOSE_ANSWER, PUT, STATES, 2))
    rig.until(lambda: torn.met == torn.times and lost.met == lost.times, "uploads broke off", LONG_S)
    rig.until(lambda: any(report.durable.intervals for _, report in rig.hosts().values()), "a checkpoint is durable", LONG_S)
    finished(rig, job_id, passes)


def test_a_full_store_is_told_with_its_remedy(rig: Rig, proxy: StoreProxy) -> None:
    passes = 3
    job_id = rig.submit("full", passes=passes, batches_per_s=TEMPO)
    rig.learning(job_id, 5, LONG_S)
    pnodes, orchestrators = Log(rig.network.pnodes), Log(rig.network.orchestrators)
    proxy.meet(Trouble(Fault.REFUSE, PUT, STATES, status=507, word="InsufficientStorage"))
    rig.until(lambda: pnodes.some("upload_waits"), "a PNode says that its upload waits", 60.0)
    proxy.meet(Trouble(Fault.REFUSE, PUT, HEAD, status=403, word="QuotaExceeded"))
    rig.until(lambda: orchestrators.some("store_away"), "the holder says why it decides nothing", 60.0)
    proxy.heal()
    finished(rig, job_id, passes)
    waits = [line for lines in pnodes.lines("upload_waits").values() for line in lines]
    assert all("store is full" in line and "free space" in line for line in waits), waits
    assert len(waits) <= len(rig.network.pnodes) * MOST_WORDS
    full = {name: [line for line in lines if "store is full" in line] for name, lines in orchestrators.lines("store_away").items()}
    assert any(full.values())
    assert all("raise its quota" in line for lines in full.values() for line in lines), full
    assert all(len(lines) <= 1 for lines in full.values()), full


def test_a_later_job_goes_on_from_a_completed_manifest(rig: Rig) -> None:
    """Other passes, another graph digest, another number of batches: the weights go on, the numbers start anew."""
    first = rig.ended(rig.submit("first", passes=1), LONG_S).outcome
    states = {entry.vnode: entry.working[0].digest for entry in manifest_of(rig, first.manifest_digest).entries}
    job_id = rig.submit("second", passes=2, from_manifest=first.manifest_digest)  # type: ignore[arg-type]
    finished(rig, job_id, 2)
    outcome = rig.job(job_id).outcome
    second = manifest_of(rig, outcome.manifest_digest)
    assert all(entry.working[0].job_id == job_id for entry in second.entries)
    assert {entry.vnode: entry.working[0].digest for entry in second.entries} != states
    losses = [{item.vnode: item.sum_loss / item.count for item in one.exits if item.split == "test"} for one in (first, outcome)]
    assert losses[1]["a"] < losses[0]["a"], "it goes on where the first one ended"
    third = rig.submit("third", passes=1, from_manifest=outcome.manifest_digest)  # type: ignore[arg-type]
    finished(rig, third, 1)


def test_a_job_does_not_go_on_from_states_of_other_shapes(rig: Rig) -> None:
    first = rig.ended(rig.submit("first", passes=1), LONG_S).outcome
    graph = rig.graph(2)
    graph.vnodes[1].optimizer.name = "adamw"
    options = JobOptions(idempotency_key="other", unit_batches=8, from_manifest=first.manifest_digest)
    with rig.client() as client, pytest.raises(InvalidInput) as caught:
        client.submit(graph, [rig.key], options)
    assert caught.value.code == "wrong_manifest"
    assert "b differs in optimizer" in caught.value.message


def manifest_of(rig: Rig, digest: str) -> model_pb2.Manifest:
    with rig.client() as client:
        return client.manifest(MODEL, digest)[1]
