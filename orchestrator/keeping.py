"""Keeps the books of one orchestrator: looks at every model's replicas now and then, writes what became of them into the history, and hands the rounded
figures to the inventory, where the planner finds them. Nothing waits for it, and nothing but placement reads it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Final

from dcnr.errors import DcnrError
from orchestrator.charging import Charging
from orchestrator.rebuilding import results_of_chain
from orchestrator.results import Result
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.usage import Books

LOOK_S: Final = 0.5
REFRESH_S: Final = 10.0
"""The planner's figures are made anew this often."""


class Keeper:
    """Call `begin` once, then `run`."""

    def __init__(self, shared: Shared, models: Mapping[str, ModelRuntime], books: Books) -> None:
        self._shared, self._models = shared, models
        self._charging = Charging(shared, models, books)
        self._refreshed_at = float("-inf")
        self._is_new = True
        self._rebuilt: set[str] = set()
        """Models whose chain was read for a history that knows nothing."""

    async def begin(self) -> None:
        """Takes up what the history kept."""
        for result in await self._shared.history.results():
            self._shared.observer.begin(result.number)
            self._shared.records.take(result)
            self._is_new = False
        await self._charging.begin()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if self._is_new:
                await self.rebuild()
            self.look()
            await self._charging.look()
            await asyncio.sleep(LOOK_S)

    async def rebuild(self) -> None:
        """Reads the chains of models that were not read yet, for a history that began empty."""
        shared = self._shared
        for model, runtime in list(self._models.items()):
            view = runtime.view
            if model in self._rebuilt or view is None:
                continue
            costs = view.job.costs if view.job is not None else ()
            components = {cost.vnode: cost.component for cost in costs}
            try:
                found = await results_of_chain(runtime.loader, model, view.head.manifest_digest, components, shared.clock.wall())
            except DcnrError as error:
                shared.history.say("history_not_rebuilt", model, error.message)
                found = []
            self._rebuilt.add(model)
            self._write(shared.observer.rebuilt(found))
            if found:
                shared.history.say("history_rebuilt", model, "what manifests name counts again", results=len(found))

    def look(self) -> None:
        """One look at everything."""
        shared, now = self._shared, self._shared.clock.monotonic()
        nodes = shared.inventory.nodes()
        for runtime in list(self._models.values()):
            if runtime.view is None:
                continue
            found = shared.observer.look(
                runtime.view, nodes, now, shared.clock.wall(), shared.records.late_after_s, is_holder=runtime.is_holder
            )
            self._write(found)
        if now >= self._refreshed_at + REFRESH_S:
            self._refreshed_at = now
            if shared.records.refresh(shared.clock.wall()):
                shared.inventory.track(shared.records.tracks(self.passes))

    def _write(self, results: Iterable[Result]) -> None:
        for result in results:
            self._shared.history.result(result)
            self._shared.records.take(result)

    def passes(self, pnode_id: str) -> float:
        """Audits that a PNode passed and that still count here (k)."""
        now_s = self._shared.clock.wall()
        return self._shared.standings.of(pnode_id, now_s).passes.seen(now_s)
