"""The draw: whether an interval is audited, decided when a manifest first names it, at the rate of its PNode's record, by this orchestrator's secret."""

from __future__ import annotations

from collections.abc import Callable

from dataservice.manifest_form import Contribution
from dcnr.errors import InvariantBroken
from dcnr.ports import Clock
from orchestrator.view import ModelView
from trust.draw import Secret, floors_of, is_drawn, is_last, rate
from trust.folding import Chronicle, standings_of
from trust.ledger import Verdict
from trust.network import NetworkPolicy
from trust.standing import Standing, begun
from vnode.checks.claims import MAX_STEPS

Standings = Callable[[ModelView, str], Standing]
"""Where a PNode stands with this orchestrator, by the chain of that view."""


class Drawing:
    """One per model. ``standing`` is the chain's word alone, which moves nobody for a fault, until the audit desk puts its own there."""

    def __init__(
        self, secret: Secret | None, policy: Callable[[], NetworkPolicy], clock: Clock, trusts: Callable[[str], bool]
    ) -> None:
        self._secret, self._policy, self._clock, self._trusts = secret, policy, clock, trusts
        self.standing: Standings = self._by_chain
        self._folded: tuple[str, dict[str, Standing]] = ("", {})

    def rate(self, view: ModelView, pnode_id: str, num_batches: int) -> float:
        """The probability with which an interval of that PNode and of so many batches is drawn now. Whoever was quarantined once is trusted no more than
        anybody.
        """
        standing, now_s = self.standing(view, pnode_id), self._clock.wall()
        floors = floors_of(self._policy().document.audit_floor)
        trusted = self._trusts(pnode_id) and not standing.num_quarantines
        return rate(standing.record(now_s, num_batches), standing.state, floors, trusted=trusted)

    def verdict(self, view: ModelView, one: Contribution, num_held: int) -> Verdict:
        """What the draw says of a new interval: open or spared. ``num_held``: batches of the checkpoint that brings it.

        Raises InvariantBroken in a process without a secret.
        """
        if self._secret is None:
            raise InvariantBroken("audits are in force and this process has nothing to draw with", code="no_draw_secret")
        always = _is_redundant(view, one.vnode) or _is_last(view, one, num_held) or len(one.batches) > MAX_STEPS
        probability = 1.0 if always else self.rate(view, one.pnode_id, len(one.batches))
        return Verdict.OPEN if is_drawn(self._secret, one.interval, probability) else Verdict.SPARED

    def _by_chain(self, view: ModelView, pnode_id: str) -> Standing:
        if view.chain is None:
            return begun(self._clock.wall())
        if self._folded[0] != view.head.manifest_digest:
            told = Chronicle(view.chain.ledger, view.chain.told)
            self._folded = (view.head.manifest_digest, standings_of(told, frozenset(), now_s=self._clock.wall()))
        return self._folded[1].get(pnode_id) or begun(self._clock.wall())


def _is_last(view: ModelView, one: Contribution, num_held: int) -> bool:
    """Whether the job ends with that interval."""
    return view.job is not None and is_last(one.batches, num_held, int(view.job.request.num_batches))


def _is_redundant(view: ModelView, vnode: str) -> bool:
    """Whether the graph asks for more than one execution of that VNode: then every interval is audited."""
    return view.job is not None and any(stage.id == vnode and stage.redundancy > 1 for stage in view.job.stages)
