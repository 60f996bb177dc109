"""The ring of node ids, and stretches of it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dcnr.errors import InvalidInput
from dcnr.ids import NodeId, check_node_id


@dataclass(frozen=True, slots=True)
class Stretch:
    """The ids from ``first`` up to, not with, ``before``, over the end of the ring where that is not larger; both empty: all. Else raises InvalidInput."""

    first: str = ""
    before: str = ""

    def __post_init__(self) -> None:
        if bool(self.first) != bool(self.before):
            raise InvalidInput("a stretch of ids has both ends or none", code="bad_stretch")
        if self.first:
            check_node_id(self.first)
            check_node_id(self.before)

    def __contains__(self, node_id: NodeId | str) -> bool:
        if self.first < self.before:
            return self.first <= node_id < self.before
        return not self.first or node_id >= self.first or node_id < self.before


WHOLE: Final = Stretch()
