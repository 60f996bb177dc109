"""Whose evidence an orchestrator awaits: bundles of the accused of an open interval and of who hosts the VNode, fault records of who audits there. Pure.

Whoever holds the head knows whom its desk has asked. The others read in the chain of manifests what is open; a PNode that they know nothing of asks the next
orchestrator, or again: their chain may be older than the question.
"""

from __future__ import annotations

from dcnr import limits
from dcnr.errors import Refused, Unavailable
from orchestrator.view import ModelView
from trust.evidence import MAX_RECORD_BYTES


def evidence_bound(view: ModelView | None, pnode_id: str, vnode: str, *, is_drawn: bool, is_asked: bool | None) -> int:
    """The most bytes that this PNode may bring at once about that VNode.

    ``is_drawn``: whether audits are in force. ``is_asked``: whether an audit of that VNode was given to the PNode; None at an orchestrator that gives none.
    Raises Refused (``no_audits``, ``no_such_vnode``, ``not_asked``), Unavailable (``unknown_model``, ``not_challenged``).
    """
    if not is_drawn:
        raise Refused("no audits are drawn in this network: nobody awaits evidence", code="no_audits")
    if view is None or view.chain is None or view.plan is None:
        raise Unavailable("nothing of that model is audited here, or it is not known yet", code="unknown_model")
    if vnode not in view.chain.ledger.lines and all(place.vnode != vnode for place in view.plan.assignments):
        raise Refused(f"the model has no VNode {vnode}", code="no_such_vnode")
    opened = [one for one in view.chain.to_judge() if one.vnode == vnode]
    if any(one.pnode_id == pnode_id for one in opened) or any(one.vnode == vnode for one in view.hosted_by(pnode_id)):
        return bundle_bound(view, vnode)
    if is_asked or (is_asked is None and opened):
        return MAX_RECORD_BYTES
    if is_asked is None:
        raise Unavailable(f"no interval of {vnode} is open, as far as is known here", code="not_challenged")
    raise Refused(f"this PNode was asked for nothing about {vnode}", code="not_asked")


def bundle_bound(view: ModelView, vnode: str) -> int:
    """What a bundle of an interval of that VNode may take: what is kept of it, and states that are computed again."""
    costs = view.job.costs if view.job is not None else ()
    state_bytes = next((cost.state_bytes for cost in costs if cost.vnode == vnode), limits.MAX_OBJECT_BYTES)
    return min(limits.MAX_OBJECT_BYTES, limits.EVIDENCE_BYTES + limits.BUNDLE_STATES * state_bytes)


def hourly_bytes(view: ModelView | None, pnode_id: str) -> int:
    """What that PNode may write in an hour, by what it hosts."""
    hosted = {place.vnode for place in view.hosted_by(pnode_id)} if view is not None else set[str]()
    costs = view.job.costs if view is not None and view.job is not None else ()
    state_bytes = sum(cost.state_bytes for cost in costs if cost.vnode in hosted)
    return min(limits.MAX_WRITTEN_BYTES_H, max(limits.WRITTEN_BYTES_H, limits.WRITTEN_STATES_H * state_bytes))
