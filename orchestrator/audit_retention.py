"""What audits keep in the store and what they leave to go: states that a way back may end at, and evidence that somebody may still want to look at."""

from __future__ import annotations

from collections import OrderedDict
from itertools import groupby
from typing import Final

from dataservice import keys
from dcnr.crashpoints import reached
from dcnr.errors import DcnrError, NotFound
from dcnr.ids import Digest
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.chain import Chain
from orchestrator.retention import MAX_LISTED, deleted
from trust.envelope import parse
from trust.evidence import MAX_RECORD_BYTES
from trust.ledger import Ledger, Verdict

MAX_RECORDS: Final = 4096
"""Fault records of which the bundle is remembered."""


def kept_for_return(ledger: Ledger) -> frozenset[Digest]:
    """Of each VNode what its job began with, the states in which open intervals begin, the newest cleared one, and cleared ones before it at distances that
    double: a way back of any length costs at most twice the work that it has to.
    """
    kept: set[Digest] = set()
    for vnode, line in ledger.lines.items():
        cleared = ledger.num_cleared(vnode)
        places = {0, cleared - 1}
        places |= {
            at - 1 for at, one in enumerate(line) if any(ledger.intervals[name].verdict is Verdict.OPEN for name in one.intervals)
        }
        distance = 1
        while distance < cleared:
            places.add(cleared - 1 - distance)
            distance *= 2
        kept.update(Digest(line[at].digest) for at in places if at >= 0)
    return frozenset(kept)


class EvidenceKeeper:
    """Deletes bundles of what is decided. Fault records that a manifest names stay, also one of an earlier job, with the bundles from which they are
    measured again: an orchestrator that has just started believes in a fault, and bars who committed it, once it has verified that itself.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._bundles: OrderedDict[str, str] = OrderedDict()
        """Of each fault record the bundle that it names."""
        self._after = ""
        """Where looking at what is there goes on."""

    async def sweep(self, model: str, chain: Chain, now_unix_ms: int, lifetime_ms: int) -> bool:
        """Deletes evidence that nobody needs, whatever VNode it is about: one of an earlier graph, or one that never was. Whether some is left that could go,
        or was not looked at: what has to stay, however much somebody brings, keeps nothing behind it from going. What was written less than ``lifetime_ms``
        ago stays, and what may be of an interval that is open.

        Raises Unavailable where it cannot be read what is there.
        """
        records = {(chain.ledger.intervals[one.interval].vnode, one.evidence) for one in chain.chronicle.told if one.evidence}
        earlier = {one.evidence for one in chain.earlier if one.evidence}
        opened: dict[str, int] = {}
        for one in chain.to_judge():
            since_ms = int(chain.committed_s(one.name) * 1000)
            opened[one.vnode] = min(since_ms, opened.get(one.vnode, since_ms))
        doomed: list[str] = []
        listed = await self._store.list(keys.all_evidence_prefix(model), max_keys=MAX_LISTED, after=self._after)
        for prefix, found in groupby(listed, key=lambda row: row.key.rpartition("/")[0] + "/"):
            vnode, rows = prefix.removeprefix(keys.all_evidence_prefix(model)).removesuffix("/"), list(found)
            kept = {digest for owner, digest in records if owner == vnode}
            kept |= earlier & {row.key.removeprefix(prefix) for row in rows}  # of which VNode they are, earlier verdicts do not say
            kept |= {await self._bundle(model, vnode, digest) for digest in sorted(kept)}
            before_ms = min(now_unix_ms, opened.get(vnode, now_unix_ms)) - lifetime_ms
            doomed += [row.key for row in rows if row.last_modified * 1000 < before_ms and row.key.removeprefix(prefix) not in kept]

        async def delete(key: str) -> None:
            reached("evidence.doomed")
            await self._store.delete(key)
            reached("evidence.deleted")

        left = await deleted(doomed, delete)
        if not left:
            self._after = listed[-1].key if len(listed) == MAX_LISTED else ""
        return left or bool(self._after)

    async def _bundle(self, model: str, vnode: str, record: str) -> str:
        """The bundle that a fault record names; empty where the record is gone or names none."""
        if record not in self._bundles:
            try:
                data = (await self._store.get(keys.evidence(model, vnode, record), max_bytes=MAX_RECORD_BYTES)).data
                self._bundles[record] = parse(model_pb2.FaultRecord, data, MAX_RECORD_BYTES).bundle_digest
            except NotFound:
                self._bundles[record] = ""
            except DcnrError as error:
                if error.grpc_status in ("UNAVAILABLE", "DEADLINE_EXCEEDED"):
                    raise
                self._bundles[record] = ""
            while len(self._bundles) > MAX_RECORDS:
                self._bundles.popitem(last=False)
        return self._bundles[record]
