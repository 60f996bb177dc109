"""Who counts as somebody else: by owner and by public subnet, and what is not known separates nobody. Pure.

An owner key signs the adverts of all machines of one owner; it is free to make, so it says who belongs together, and another subnet is what costs
something. The locality of the network document lifts both rules where everything runs on one machine.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Party:
    """A node with what is known of where it belongs."""

    node_id: str
    owner: str = ""
    """Whose it is; empty: not known."""
    subnet: str = ""
    """`trust.addresses.subnet_of` the address that others see it at; empty: not known."""


@dataclass(frozen=True, slots=True)
class Separation:
    """The rules in force. ``single_host``: the network document lifts them for owners and subnets, never for a node and itself."""

    single_host: bool = False

    def why_together(self, one: Party, other: Party) -> str:
        """What they have in common; empty if one may judge the other: different nodes, known and different owners, known and different subnets."""
        if one.node_id == other.node_id:
            return "the same node"
        if self.single_host:
            return ""
        if not one.owner or not other.owner:
            return "an owner that is not known"
        if one.owner == other.owner:
            return "the same owner"
        if not one.subnet or not other.subnet:
            return "a subnet that is not known"
        if one.subnet == other.subnet:
            return "the same subnet"
        return ""
