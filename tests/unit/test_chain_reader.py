"""Goal: whoever begins anew reads a chain of any length, from a store that fails now and then, in bounded memory; each earlier job counts once."""

from __future__ import annotations

import asyncio

import pytest
from audited_rig import NODES, name_of, spans

from dcnr.errors import Corrupt, Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2
from orchestrator import chain as chain_module
from orchestrator.chain import Chain, ChainReader
from trust.ledger import Verdict

OPEN, PASSED = "open", "passed"


class Store:
    """Manifests of a VNode a, one after the other, and a reader; every ``fails``-th read does."""

    def __init__(self, fails: int = 0) -> None:
        self.digests, self.by_digest = list[str](), dict[str, model_pb2.Manifest]()
        self.fails, self.num_reads, self.num_errors = fails, 0, 0
        self.reader, self.most_held = ChainReader(), 0
        self.adds("", "a0", audits="none")

    def adds(self, job: str, state: str, *told: tuple[str, str], audits: str = "drawn") -> None:
        made = model_pb2.Manifest(
            number=len(self.digests), job_id=job, audits=audits, parent_digest=self.digests[-1] if self.digests else ""
        )
        made.entries.add(vnode="a", working=[model_pb2.Checkpoint(vnode="a", digest=name_of(state))])
        for name, verdict in told:
            made.contributions.add(
                vnode="a", replica="a.0", pnode_id=NODES["x"], interval=name_of(name), verdict=verdict, batches=spans((0, 4)), decided_unix_ms=1000
            )  # fmt: skip
        self.digests.append(digest_of(made.SerializeToString(deterministic=True)))
        self.by_digest[self.digests[-1]] = made

    def grows(self, job: str, count: int) -> None:
        for number in range(len(self.digests), len(self.digests) + count):
            self.adds(job, f"a{number}", (f"i{number}", OPEN))

    async def read(self, digest: str) -> model_pb2.Manifest:
        self.num_reads += 1
        self.most_held = max(self.most_held, self.reader._held_bytes)
        if self.fails and self.num_reads % self.fails == 0:
            self.num_errors += 1
            raise Unavailable("the store is away")
        return self.by_digest[digest]

    def look(self, newest: int = -1, beginning: int = 0) -> Chain:
        found = asyncio.run(self.reader.chain(self.digests[newest], self.digests[beginning], self.read))
        assert found is not None
        return found

    def anew(self, newest: int = -1, beginning: int = 0) -> Chain:
        """As who reads it in one go."""
        fails, self.fails, reader, self.reader = self.fails, 0, self.reader, ChainReader()
        found = self.look(newest, beginning)
        self.fails, self.reader = fails, reader
        return found


def test_what_was_read_before_an_error_is_not_read_again() -> None:
    """A chain of days is longer than a store answers without an error: read from its newest manifest each time, it was never read."""
    store = Store(fails=10)
    store.grows("A", 200)
    for _ in range(60):
        try:
            found = store.look()
        except Unavailable:
            store.grows("A", 1)  # training goes on meanwhile
        else:
            break
    assert found == store.anew()
    assert store.num_errors > 10
    assert len(found.ledger.intervals) == len(store.digests) - 1


def test_only_so_many_manifests_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.grows("A", 100)
    whole = store.look()
    assert store.num_reads == 101, "what is held is read once"
    size = max(one.ByteSize() for one in store.by_digest.values())
    monkeypatch.setattr(chain_module, "MAX_HELD_BYTES", 5 * size)
    again = Store(fails=30)
    again.grows("A", 100)
    for _ in range(40):
        try:
            assert again.look() == whole
        except Unavailable:
            continue
        break
    else:
        raise AssertionError("it is never read")
    assert 0 < again.most_held <= 5 * size
    assert (again.reader._held_bytes, len(again.reader._ways)) == (0, 0)


def test_a_chain_that_contradicts_itself_is_refused_each_time_and_leaves_nothing() -> None:
    store = Store()
    store.grows("A", 5)
    assert store.look() == store.anew()
    store.adds("A", "a5", ("i5", OPEN))
    for _ in range(2):
        with pytest.raises(Corrupt, match="twice"):
            store.look()
    assert store.look(-2) == store.anew(-2)


def test_each_earlier_job_counts_once_however_many_there_were() -> None:
    """What a job ended with is what the next one began with. Read as a part of both, the third job of a model could be read by nobody."""
    store = Store(fails=4)
    told: list[tuple[str, Verdict]] = []
    for job in "ABCD":
        begun = len(store.digests) - 1
        store.adds(job, f"{job}1", (f"of {job}", OPEN))
        store.adds(job, f"{job}1", (f"of {job}", PASSED))
        told += [(name_of(f"of {job}"), Verdict.OPEN), (name_of(f"of {job}"), Verdict.PASSED)]
        for _ in range(20):
            try:
                found = store.look(beginning=begun)
            except Unavailable:
                continue
            break
        assert [(one.interval, one.verdict) for one in found.told] == told
        assert list(found.ledger.intervals) == [name_of(f"of {job}")]
