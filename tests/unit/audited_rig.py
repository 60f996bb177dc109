"""A job of two VNodes, a and behind it b, whose manifests are made and read as in a network where audits are in force."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from dataservice.manifest_form import Contribution, Manifest, from_proto, to_proto
from dataservice.manifests import Outcome, Rules, StoredState
from dcnr.ids import Digest, digest_of
from dcnr.intervals import IntervalSet
from dcnr.v1 import common_pb2, model_pb2
from orchestrator.audit_events import Decision
from orchestrator.audited import Draw, audited_manifest
from orchestrator.chain import Chain, ChainReader
from orchestrator.checkpoints import Judged
from orchestrator.verdicts import Taken, news, take
from trust.folding import chronicle_of
from trust.ledger import Verdict

NOW_MS, JOB = 1_800_000_000_000, "job"
NODES = {letter: digest_of(letter.encode())[:40] for letter in "xyz"}
BEHIND = {"a": frozenset("b"), "b": frozenset[str]()}


def name_of(text: str) -> Digest:
    """A digest for a readable name."""
    return digest_of(text.encode())


def spans(*pairs: tuple[int, int]) -> common_pb2.IntervalSet:
    return common_pb2.IntervalSet(intervals=[common_pb2.Interval(first=first, end=end) for first, end in pairs])


def piece(name: str, first: int, end: int, node: str = "x", replica: str = "") -> Contribution:
    """An interval that somebody learned; ``name`` begins with its VNode."""
    return Contribution(name[0], replica or f"{name[0]}.0", NODES[node], IntervalSet.span(first, end), interval=name_of(name))


def judged(
    name: str, base: str, *pieces: Contribution, held: Sequence[tuple[int, int]], replica: str = "", node: str = "x"
) -> Judged:
    """A checkpoint ``name`` of the VNode that its name begins with, made on that node, followed from ``base``."""
    step = sum(end - first for first, end in held)
    checkpoint = model_pb2.Checkpoint(
        vnode=name[0], digest=name_of(name), size_bytes=9, lineage=spans(*held), replica=replica or f"{name[0]}.0", pnode_id=NODES[node],
        incarnation=1, step=step, parent_digest=name_of(base), commit_digest=name_of("commit of " + name), job_id=JOB,
    )  # fmt: skip
    return Judged(checkpoint, pieces, name_of(base))


class Job:
    """The chain in the making. Every manifest is read back by who knows the chain so far, and by who reads it anew; both must find the same."""

    def __init__(self) -> None:
        first = model_pb2.Manifest(network_id="n", model="m", audits="none")
        for vnode in "ab":
            zero = model_pb2.Checkpoint(vnode=vnode, digest=name_of(f"{vnode}0"), size_bytes=9)
            first.entries.add(vnode=vnode, working=[zero], cleared=zero)
        self.manifests = [first]
        self.reader, self.next_replica = ChainReader(), 7
        self.primaries = {"a": "a.0", "b": "b.0"}
        self.lost: frozenset[Digest] = frozenset()
        self.missing: set[Digest] = set()
        self.now_ms = NOW_MS

    @property
    def newest(self) -> Manifest:
        return from_proto(self.manifests[-1])

    def digest(self, at: int) -> str:
        return digest_of(self.manifests[at].SerializeToString(deterministic=True))

    def chain(self) -> Chain:
        by_digest = {self.digest(at): manifest for at, manifest in enumerate(self.manifests)}

        async def read(digest: str) -> model_pb2.Manifest:
            return by_digest[digest]

        async def chains() -> list[Chain | None]:
            return [await reader.chain(self.digest(-1), self.digest(0), read) for reader in (self.reader, ChainReader())]

        known, anew = asyncio.run(chains())
        assert known == anew
        assert known is not None
        check_counts(known)
        assert known.chronicle == chronicle_of(self.manifests, {one.digest for line in known.ledger.lines.values() for one in line})
        return known

    def named(self, *records: Judged, decisions: Sequence[Decision] = (), draw: Draw = lambda *_: Verdict.SPARED) -> Outcome:
        """The next manifest, if there is anything to say."""
        self.now_ms += 1000
        chain, digest = self.chain(), self.digest(-1)
        kept = frozenset(str(one.digest) for line in chain.ledger.lines.values() for one in line) - set(map(str, self.missing))
        new = news(chain, decisions)
        taken = take(chain.ledger, new, BEHIND, kept, self.now_ms) if new else Taken()
        stored = [StoredState(one.checkpoint.vnode, Digest(one.checkpoint.digest), 9, self.now_ms) for one in records]
        rules = Rules(
            JOB, 1, "h" * 40, "g" * 64, self.primaries, [one for one in stored if one.digest not in self.missing], self.now_ms, 3_600_000,
            lost=self.lost, first={vnode: entry.working[0] for vnode, entry in from_proto(self.manifests[0]).entries.items()},
        )  # fmt: skip
        outcome = audited_manifest(chain, self.newest, digest, records, taken, rules, draw, self.next_replica)
        if outcome.manifest is not None:
            message = to_proto(outcome.manifest)
            assert from_proto(message) == outcome.manifest
            self.manifests.append(message)
            self.chain()
        return outcome

    def line(self, vnode: str) -> list[str]:
        return [one.digest for one in self.chain().ledger.lines[vnode]]

    def cleared(self, vnode: str) -> str:
        entry = self.newest.entries[vnode]
        assert entry.cleared is not None
        return entry.cleared.digest

    def working(self, vnode: str) -> list[str]:
        return [one.digest for one in self.newest.entries[vnode].working]


def check_counts(chain: Chain) -> None:
    """What was counted manifest by manifest is what the whole ledger says."""
    plain = replace(chain, chronicle=replace(chain.chronicle, open=None), _open=[])
    assert chain.open_intervals() == plain.open_intervals()
    assert (chain.left_open(), chain.audited()) == (plain.left_open(), plain.audited())
    assert chain.chronicle.cleared == {vnode: chain.ledger.num_cleared(vnode) for vnode in chain.ledger.lines}
    assert chain.checkpoints.keys() == {one.digest for line in chain.ledger.lines.values() for one in line}


def drawn(*names: str) -> Draw:
    """Draws these intervals and no others."""
    digests = {name_of(name) for name in names}
    return lambda one, _: Verdict.OPEN if one.interval in digests else Verdict.SPARED
