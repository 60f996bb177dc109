"""What plans told PNodes goes from the store when it is in force no more: each plan tells everybody it names anew, plans stay, and nobody reads it again.

It is read of the plan under the head alone. An orchestrator that sees the head a moment late reads it of a plan before: what was under the head within a
grant's lifetime stays, as far as this holder saw it, and so does what the newest plan follows and whatever was written within that time, by another holder say.
"""

from __future__ import annotations

from typing import Final

from dataservice import keys
from dcnr.ports import ObjectStore
from orchestrator.retention import deleted
from orchestrator.view import ModelView

MAX_PLANS: Final = 4096
"""Plans remembered that were under the head lately."""
AT_ONCE: Final = 20_000
"""Objects listed by one sweep; the next one goes on behind them."""


class ToldBefore:
    """One per model, asked by the holder."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._seen: dict[str, float] = {}
        """Plans that were under the head, with when that was seen last."""
        self._after = ""

    def saw(self, view: ModelView, now: float, lifetime_s: float) -> None:
        """This is under the head now."""
        if view.head.plan_digest not in self._seen:
            self._seen = {digest: at for digest, at in self._seen.items() if now - at < lifetime_s}
        while len(self._seen) >= MAX_PLANS:
            del self._seen[min(self._seen, key=self._seen.__getitem__)]
        self._seen[view.head.plan_digest] = now

    async def sweep(self, view: ModelView, now: float, now_unix_ms: int, lifetime_s: float) -> bool:
        """Deletes what is in force no more. Whether some is left that may go. Raises Unavailable."""
        self.saw(view, now, lifetime_s)
        kept = {digest for digest, at in self._seen.items() if now - at < lifetime_s}
        kept.add(view.plan.parent_digest if view.plan is not None else "")
        prefix, before_s = keys.plans_prefix(view.model), now_unix_ms / 1000 - lifetime_s
        rows = await self._store.list(prefix, max_keys=AT_ONCE, after=self._after)
        doomed: list[str] = []
        for row in rows:
            plan, beneath, _ = row.key.removeprefix(prefix).partition("/desired/")
            if beneath and plan not in kept and row.last_modified < before_s:
                doomed.append(row.key)
        left = await deleted(doomed, self._store.delete)
        if not left:
            self._after = rows[-1].key if len(rows) == AT_ONCE else ""
        return left or bool(self._after)
