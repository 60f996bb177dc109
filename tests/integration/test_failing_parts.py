"""Goal: what fails for a moment in one part of a model's runtime costs no term; and one that did end leaves nothing of itself in what all models share."""

from __future__ import annotations

import asyncio

import pytest
from runtime_rig import MODEL, World, until, world

from dataservice import keys
from dataservice.memory import Fault, Operation, PlannedFaults
from dcnr.errors import InvariantBroken
from dcnr.ids import digest_of
from orchestrator import decider, naming, service
from orchestrator.head_loop import HeadLoop
from orchestrator.service import ModelTable


@pytest.mark.parametrize("fault", [Fault.UNAVAILABLE, Fault.DENIED, Fault.CONFLICT, Fault.TIMEOUT_BEFORE])
def test_evidence_that_cannot_be_deleted_costs_no_term_and_goes_later(monkeypatch: pytest.MonkeyPatch, fault: Fault) -> None:
    monkeypatch.setattr(decider, "SWEEP_S", 0.1)
    monkeypatch.setattr(decider, "GRANT_LIFETIME_S", 0)
    monkeypatch.setattr(naming, "SWEEP_AGAIN_S", 0.1)
    evidence = [keys.evidence(MODEL, "first", digest_of(bytes([number]))) for number in range(12)]

    async def story() -> None:
        async with world(audits="drawn") as made:
            await made.submit()
            holder = await made.running()
            runtime, head = holder.runtime, holder.runtime.head
            assert head is not None
            assert runtime.view is not None
            assert runtime.view.chain is not None
            made.store.faults = faults = PlannedFaults([(Operation.DELETE, key, fault) for key in evidence for _ in range(2)])
            for key in evidence:
                made.store.rewind(key, b"of what is decided")

            def are_gone() -> bool:
                assert not holder.tasks[0].done(), "the runtime has ended"
                return all(made.store.peek(key) is None for key in evidence)

            await until(are_gone, "all evidence is gone")
            assert faults.plan == []
            assert runtime.is_holder
            assert (runtime.head.epoch, holder.runtime) == (head.epoch, runtime)  # type: ignore[union-attr]

    asyncio.run(story())


def test_a_runtime_that_ends_is_told_no_news_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each that is made anew would be kept, and woken, as long as the process lives."""
    monkeypatch.setattr(service, "RESTART_S", 0.0)

    async def broken(self: HeadLoop) -> None:
        raise InvariantBroken("planted", code="planted")

    monkeypatch.setattr(HeadLoop, "run", broken)

    async def story() -> None:
        shared = World(orchestrators=1, workers=0).orchestrators[0].shared
        async with asyncio.TaskGroup() as group:
            table = ModelTable(shared, group)
            table.runtime(MODEL)

            def failures() -> int:
                return sum(event.kind == "runtime_failed" for event in shared.history.since(0, 1000))

            await until(lambda: failures() >= 5, "it was made anew five times")
            assert shared.nodes_changed.num_others <= 1
            table.close()
        assert shared.nodes_changed.num_others == 0

    asyncio.run(story())
