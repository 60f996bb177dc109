"""How little a PNode may be given by where it stands, and the words for it: probation hosts little, and a few machines behind one subnet cannot take a network.

The planner keeps these rules where it looks for a place (`orchestrator.placement`).
"""

from __future__ import annotations

from enum import Enum
from typing import Final

PROBATION_VNODES: Final = 2
"""A PNode in probation hosts at most so many."""
IDS_PER_SUBNET: Final = 2
"""Nodes of one public /24 or /48 in the placement of a model."""


class Cap(Enum):
    """Why a PNode gets no more, in words for the plan."""

    VNODES = "in probation, and hosts as much as that allows"
    ONLY_COPY = "in probation, and would hold an only copy that somebody else can hold"
    YOUNG = "in probation: what it learns is audited before anything is built on it, and it contributes to nothing"
    SUBNET = "enough nodes of its subnet are in the plan"
