"""Indirect probes, pure: whom to ask about a silent node, and what the answers say (SWIM: Das, Gupta and Motivala 2002, section 4.1).

A node that does not answer one other may be dead, or only the way between the two may be broken. Before anybody believes it gone, `NUM_HELPERS` other
nodes are asked to reach it (`MembershipService.Probe`). Nobody is believed alone: one helper that reaches the node keeps it alive for a while, and a
node that gets no answer from any helper suspects its own connection, not the other node (Dadgar, Phillips and Currey 2018, "Lifeguard").

For an inventory of PNodes: when a node is silent for longer than a told interval, or a neighbour accuses it, call `membership.node.Membership.probe`
(it takes at most `PROBE_BUDGET_S`) and hand the `Findings` to the core as one event with its time. `Verdict.UNREACHED` is evidence that it is gone: no
need to wait for the third missed beat. `Verdict.REACHED` says that it lives though it does not talk to us: worth a longer wait, for it can be told
through others; never for ever, since a helper may lie. `Verdict.UNKNOWN` says nothing about the node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from dcnr.ids import NodeId
from dcnr.ports import Random
from trust.records import VerifiedAdvert

NUM_HELPERS: Final = 3
"""Nodes that are asked about one silent node."""
PROBE_BUDGET_S: Final = 3.0
"""From the question to the findings: a helper tries for two seconds, and a message takes its time."""


class Verdict(StrEnum):
    """What a probe says about a node."""

    REACHED = "reached"
    UNREACHED = "unreached"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Answer:
    """What one helper found. ``incarnation``: of the newest advert that it has of the node."""

    helper: NodeId
    reachable: bool
    incarnation: int = 0


@dataclass(frozen=True, slots=True)
class Findings:
    """All that a probe of ``subject`` found. ``direct``: whether we reach it ourselves; ``num_asked`` helpers were asked, some of which answered."""

    subject: NodeId
    direct: bool
    num_asked: int
    answers: tuple[Answer, ...]

    @property
    def verdict(self) -> Verdict:
        """Reached if anybody reaches it; unreached if all who were asked and answered do not; unknown if nobody answers us at all."""
        if self.direct or any(answer.reachable for answer in self.answers):
            return Verdict.REACHED
        return Verdict.UNREACHED if self.answers or not self.num_asked else Verdict.UNKNOWN

    @property
    def incarnation(self) -> int:
        """The newest that a helper knows; 0 if none told."""
        return max((answer.incarnation for answer in self.answers), default=0)

    @property
    def reason(self) -> str:
        """For events and judgements."""
        if self.direct:
            return "it answers a probe"
        reaching = [answer.helper[:8] for answer in self.answers if answer.reachable]
        if reaching:
            return f"{' and '.join(reaching)} reach{'es' * (len(reaching) == 1)} it, this node does not"
        if self.verdict is Verdict.UNKNOWN:
            return f"none of {self.num_asked} other nodes answers either: the trouble may be here"
        return f"neither this node nor {len(self.answers)} other{'s' * (len(self.answers) != 1)} reach it"


def helpers_for(
    subject: str, members: Iterable[VerifiedAdvert], rng: Random, *, avoid: Sequence[str] = (), count: int = NUM_HELPERS
) -> list[VerifiedAdvert]:
    """Up to ``count`` nodes to ask about ``subject``, at random so that nobody can arrange to be asked; those in ``avoid`` only if there are no others."""
    able = [item for item in members if item.node_id != subject and item.advert.control_addresses]
    able.sort(key=lambda item: item.node_id)
    first = [item for item in able if item.node_id not in avoid]
    chosen = rng.sample(first, min(count, len(first)))
    rest = [item for item in able if item not in first]
    return chosen + rng.sample(rest, min(count - len(chosen), len(rest)))
