"""Goal: evidence that an accused names and does not bring is evidence that is missing: nobody is sent for it, and its time goes on."""

from __future__ import annotations

import asyncio
import random

import pytest
from audited_rig import NODES, Job, drawn, judged, name_of, piece
from test_audit_memory import BUNDLE, CLOCK, FIRST, Holder, store

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.ids import Digest
from dcnr.ports import ObjectInfo
from dcnr.v1 import model_pb2
from trust.identity import NodeKey
from trust.ledger import Verdict

INTERVAL, ACCUSED = name_of("a-1"), NODES["x"]


async def audited(place: MemoryStore) -> Holder:
    """A holder that has asked for the evidence of one interval."""
    job = Job()
    await asyncio.to_thread(lambda: job.named(judged("a1", "a0", piece("a-1", 0, 4), held=[(0, 4)]), draw=drawn("a-1")))
    holder = Holder(FIRST, place, job)
    await holder.looks()
    await holder.until(lambda: bool(holder.auditing.waits()), "a desk is there")
    return holder


def told(holder: Holder, kind: str) -> list[str]:
    return [one.reason for one in holder.shared.history.since(0, 64) if one.kind == kind]


@pytest.mark.parametrize("data", [None, b"other"], ids=["nothing", "of another size"])
def test_nobody_is_sent_for_what_is_not_there_and_it_is_awaited_as_before(data: bytes | None) -> None:
    """One auditor after the other refused what it could not read, for ever: the interval was never judged, and nothing of its VNode cleared again."""

    async def scenario() -> None:
        place = store()
        if data is not None:
            await place.put(keys.evidence("m", "a", Digest(BUNDLE.digest)), data)
        holder = await audited(place)
        holder.auditing.answered(ACCUSED, model_pb2.Evidence(interval=INTERVAL), BUNDLE)
        await holder.until(lambda: len(told(holder, "evidence_missing")) == 1, "it is told")
        holder.auditing.answered(ACCUSED, model_pb2.Evidence(interval=INTERVAL), BUNDLE)
        await holder.until(lambda: len(told(holder, "evidence_missing")) == 2, "it is looked for each time")
        assert [one.owner for one in holder.auditing.waits()] == [ACCUSED]
        assert holder.tasks == []
        await holder.brings(ACCUSED, INTERVAL)
        await holder.until(lambda: bool(holder.tasks), "it has come, and is audited")
        await holder.dies()

    asyncio.run(scenario())


class Forgetful(MemoryStore):
    """Which lets evidence go as soon as somebody has seen it."""

    async def head(self, key: str) -> ObjectInfo:
        found = await super().head(key)
        self.rewind(key, None)
        return found


def test_where_it_is_gone_since_nobody_is_sent_for_it_and_the_interval_is_unverifiable() -> None:
    """The store has lost it, or lets an old object go by whose name the accused went."""

    async def scenario() -> None:
        holder = await audited(Forgetful(CLOCK, random.Random(1)))
        holder.joins(NodeKey.generate().node_id)
        await holder.brings(ACCUSED, INTERVAL)
        await holder.until(lambda: bool(holder.auditing.decisions(holder.view)), "it is decided")
        assert [one.verdict for one in holder.auditing.decisions(holder.view)] == [Verdict.UNVERIFIABLE]
        assert holder.tasks == []
        await holder.dies()

    asyncio.run(scenario())
