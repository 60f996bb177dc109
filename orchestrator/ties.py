"""Who has to do with whom by the plans under the heads: whose word that it cannot reach another one counts, and what a PNode can have been given. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from dcnr.v1 import model_pb2

Hosted = Mapping[str, Collection[model_pb2.Assignment]]
"""What a plan gives each PNode."""
Feeds = Mapping[str, Collection[str]]
"""By VNode: those whose output it reads."""
NO_FEEDS: Final[Feeds] = {}


@dataclass(slots=True)
class Ties:
    """By model: its plan, and from where each of its VNodes is fed."""

    _plans: dict[str, tuple[Hosted, Feeds]] = field(default_factory=dict)

    def planned(self, model: str, hosted: Hosted, feeds: Feeds) -> None:
        """This is the plan of that model now."""
        self._plans[model] = (hosted, feeds)

    def given(self, pnode_id: str) -> dict[str, str]:
        """Replicas that plans give that PNode, with their VNodes."""
        return {item.replica: item.vnode for hosted, _ in self._plans.values() for item in hosted.get(pnode_id, ())}

    def tied(self, pnode_id: str, others: Iterable[str]) -> set[str]:
        """Those of ``others`` that host what feeds, or is fed by, or is a sibling of what that PNode hosts: only with these does its worker speak."""
        found, others = set[str](), set(others) - {pnode_id}
        for hosted, feeds in self._plans.values() if others else ():
            mine = {item.vnode for item in hosted.get(pnode_id, ())}
            near = mine.union(*(feeds.get(vnode, ()) for vnode in mine))
            for other in others if mine else ():
                theirs = {item.vnode for item in hosted.get(other, ())}
                if theirs & near or any(not mine.isdisjoint(feeds.get(vnode, ())) for vnode in theirs):
                    found.add(other)
        return found
