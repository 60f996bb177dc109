"""An audit desk for the control world: it knows which intervals are wrong, since the world does, and decides each some seconds after it was opened.

What is met as it is: the draw, the manifests that its decisions go into, the way back, and everybody who follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dcnr.ids import digest_of
from orchestrator.audit_events import Decision
from orchestrator.audit_people import people_of
from orchestrator.runtime import Shared
from orchestrator.view import ModelView
from trust.folding import Told
from trust.going_back import Cause
from trust.late_draw import drawn_late, drawn_of_the_found_out
from trust.ledger import Interval, Ledger, Verdict
from trust.standing import Standing, State, begun
from vnode.checks.claims import MAX_STEPS

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld

PASSES: Final = 60.0
"""Audits that everybody has passed already, of intervals of any size: about a third of what is learned is drawn."""
AUDIT_S: Final = (1.0, 8.0)
UNVERIFIABLE_RATE: Final = 0.04


@dataclass(slots=True)
class KnowingDesk:
    """One life of an orchestrator."""

    world: ControlWorld
    shared: Shared
    _due_s: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """It asks nobody."""

    def verdicts(self, view: ModelView) -> Iterable[Decision]:
        """What is decided by now."""
        now = self.world.kernel.now_s
        for one in view.chain.to_judge() if view.chain is not None else ():
            due_s = self._due_s.setdefault(one.name, now + _share(one, "when") * (AUDIT_S[1] - AUDIT_S[0]) + AUDIT_S[0])
            if now >= due_s:
                yield self._decision(one)
        if view.chain is not None and self.world.cheats:
            self._stand(view.head.model, view.chain.told)
            yield from self._late(view, view.chain.ledger)

    def _stand(self, model: str, told: tuple[Told, ...]) -> None:
        """The chain's faults are believed: there are no records to verify here."""
        self.shared.standings.chain(model, told)
        for _, one in self.shared.standings.unverified():
            self.shared.standings.verified(one.proof)

    def _late(self, view: ModelView, ledger: Ledger) -> Iterable[Decision]:
        people = people_of(view, self.shared)
        for name in drawn_of_the_found_out(ledger, people.left):
            self.world.num_late_found_out += 1
            yield Decision(name, Verdict.OPEN, "its PNode was found out since")
        for vnode, state in sorted(people.broken.items()):
            for name in drawn_late(ledger, (vnode, *people.ahead.get(vnode, ())), state, people.recent):
                self.world.num_late += 1
                yield Decision(name, Verdict.OPEN, "nothing can be learned from its state")

    def standing(self, _view: ModelView, _pnode_id: str) -> Standing:
        """Everybody is known well enough to be spared now and then."""
        fresh = begun(self.world.true_clock().wall())
        passes, batches = fresh.passes.plus(PASSES, fresh.since_s), fresh.batches.plus(PASSES * MAX_STEPS, fresh.since_s)
        return replace(fresh, state=State.ACTIVE, passes=passes, batches=batches)

    def _decision(self, one: Interval) -> Decision:
        if one.name in self.world.cheats:
            return Decision(one.name, Verdict.FAILED, "it is wrong", Cause.FAULT, digest_of(one.name.encode()))
        if self.world.is_unsafe and _share(one, "inputs") < UNVERIFIABLE_RATE:
            return Decision(one.name, Verdict.UNVERIFIABLE, "nobody has its inputs", Cause.UNVERIFIABLE)
        return Decision(one.name, Verdict.PASSED, "nothing was found")


def _share(one: Interval, what: str) -> float:
    """A number in [0, 1) that follows from the interval, so that every orchestrator finds the same."""
    return int(digest_of(f"{what} {one.name}".encode())[:8], 16) / 2.0**32
