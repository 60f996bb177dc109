"""An audit desk for the control world: it knows which intervals are wrong, since the world does, and decides each some seconds after it was opened.

What is met as it is: the draw, the manifests that its decisions go into, the way back, and everybody who follows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from dcnr.ids import digest_of
from orchestrator.audit_case import Case
from orchestrator.audit_doubters import Doubters
from orchestrator.audit_events import Decision, Report, Word
from orchestrator.audit_people import people_of
from orchestrator.audited_late import FOUND_OUT, opened_late
from orchestrator.chain import Chain
from orchestrator.runtime import Shared
from orchestrator.view import ModelView
from trust.folding import Told
from trust.going_back import Cause
from trust.ledger import Interval, Verdict
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
    _term: tuple[int, str] = (0, "")
    _doubters: Doubters = field(default_factory=Doubters)
    _cases: dict[str, Case] = field(default_factory=dict)
    _due_s: dict[str, float] = field(default_factory=dict)

    async def run(self) -> None:
        """It asks nobody."""

    def verdicts(self, view: ModelView) -> Iterable[Decision]:
        """What is decided by now."""
        if view.chain is None:
            return
        now, ledger = self.world.kernel.now_s, view.chain.ledger
        self._keep(view, view.chain)
        for name, case in self._cases.items():
            if case.decision is None and now >= self._due_s[name]:
                case.decision = self._decision(case)
                self._doubters.decided(case, case.decision, ledger)
        late, has_time = list[Decision](), True
        if self.world.cheats:
            self._stand(view.head.model, view.chain.told)
            people = people_of(view, self.shared, self._doubters)
            late, has_time = list(opened_late(ledger, people, self._doubters.held)), people.has_time
        self.world.num_late_found_out += sum(one.reason == FOUND_OUT for one in late)
        self.world.num_late += sum(one.reason != FOUND_OUT for one in late)
        self._doubters.look(ledger, self._cases, {one.interval for one in late}, now, waits=has_time)
        yield from (found for case in self._cases.values() if (found := self._doubters.let_go(case)) is not None)
        yield from late

    def _keep(self, view: ModelView, chain: Chain) -> None:
        """A case of each open interval. What was doubted an orchestrator knows in the term that heard of it."""
        term, now = (int(view.head.epoch), view.head.active.job_id), self.world.kernel.now_s
        if term != self._term:
            self._term, self._doubters, self._cases = term, Doubters(), {}
        self._cases = {one.name: self._cases.get(one.name) or Case(one, now, now) for one in chain.to_judge()}
        for name, case in self._cases.items():
            self._due_s.setdefault(name, now + _share(case.interval, "when") * (AUDIT_S[1] - AUDIT_S[0]) + AUDIT_S[0])

    def _stand(self, model: str, told: tuple[Told, ...]) -> None:
        """The chain's faults are believed: there are no records to verify here."""
        self.shared.standings.chain(model, told)
        for _, one in self.shared.standings.unverified():
            self.shared.standings.verified(one.proof)

    def standing(self, _view: ModelView, _pnode_id: str) -> Standing:
        """Everybody is known well enough to be spared now and then."""
        fresh = begun(self.world.true_clock().wall())
        passes, batches = fresh.passes.plus(PASSES, fresh.since_s), fresh.batches.plus(PASSES * MAX_STEPS, fresh.since_s)
        return replace(fresh, state=State.ACTIVE, passes=passes, batches=batches)

    def _decision(self, case: Case) -> Decision:
        one = case.interval
        if one.name in self.world.cheats:
            return Decision(one.name, Verdict.FAILED, "it is wrong", Cause.FAULT, digest_of(one.name.encode()))
        if one.name in self.world.doubtful:
            case.words["auditor"] = Report("", "auditor", one.name, Word.DOUBT)
            return Decision(one.name, Verdict.UNVERIFIABLE, "whoever looks measures more than the tolerance", Cause.UNVERIFIABLE)
        if self.world.is_unsafe and _share(one, "inputs") < UNVERIFIABLE_RATE:
            return Decision(one.name, Verdict.UNVERIFIABLE, "nobody has its inputs", Cause.UNVERIFIABLE)
        return Decision(one.name, Verdict.PASSED, "nothing was found")


def _share(one: Interval, what: str) -> float:
    """A number in [0, 1) that follows from the interval, so that every orchestrator finds the same."""
    return int(digest_of(f"{what} {one.name}".encode())[:8], 16) / 2.0**32
