"""What a PNode may be given, by where it stands: probation hosts little, and a few machines behind one subnet cannot take a network. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

from trust.separation import Party, Separation
from trust.standing import PLACEABLE, State

PROBATION_VNODES: Final = 2
"""A PNode in probation hosts at most so many."""
IDS_PER_SUBNET: Final = 2
"""Nodes of one public /24 or /48 in the placement of a model."""


class Cap(Enum):
    """Why a PNode gets no more, in words for the plan."""

    NONE = ""
    STATE = "its standing allows no new work"
    VNODES = "in probation, and hosts as much as that allows"
    ONLY_COPY = "in probation, and would hold an only copy that somebody else can hold"
    YOUNG = "in probation: what it learns is audited before anything is built on it, and it contributes to nothing"
    SUBNET = "enough nodes of its subnet are in the plan"


@dataclass(frozen=True, slots=True)
class Host:
    """A PNode that something could be placed on."""

    party: Party
    state: State
    num_vnodes: int
    """That it hosts now."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A replica to be placed."""

    num_copies: int
    """Of the VNode's state besides: replicas elsewhere, and one more if a manifest names a working checkpoint."""
    others_can: bool
    """Whether a PNode that is not in probation could take it."""


def cap_of(host: Host, wanted: Wanted, placed: Iterable[Party], separation: Separation) -> Cap:
    """What stands against placing it there. ``placed``: every PNode that the plan uses; one that is among them already adds no name."""
    if host.state not in PLACEABLE:
        return Cap.STATE
    if separation.num_beside(host.party, placed) >= IDS_PER_SUBNET:
        return Cap.SUBNET
    if host.state is State.PROBATION:
        if host.num_vnodes >= PROBATION_VNODES:
            return Cap.VNODES
        if wanted.num_copies == 0 and wanted.others_can:
            return Cap.ONLY_COPY
    return Cap.NONE
