"""What exchanges alone cost: networks of real views in virtual time, from a seed, and the bytes of the messages that they would send.

Everybody knows as many others as there is room for at the beginning, and says nothing but the same for longer: an idle network. Adverts are as large as real
ones, but not signed.
"""

from __future__ import annotations

import heapq
import random
import sys
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

from benchmarks.result import Row
from dcnr.ids import NodeId
from dcnr.v1 import common_pb2, identity_pb2, membership_pb2
from membership.gossip import MAX_PNODES, Gone, GoneReason, View
from membership.known import Known
from membership.node import MembershipSettings
from membership.partners import ENTRIES_AGAIN_S
from trust.records import VerifiedAdvert

SIZES: Final = (32, 100, 250, 400)
EPOCH_S: Final = 1_700_000_000.0
NETWORK: Final = "a" * 40
ENTRY: Final = f"{'b' * 40}@192.0.2.100:7700"
DELEGATION_BYTES: Final = 330
"""With its signature and the worker's key."""


@dataclass(slots=True)
class Member:
    """One node of the network."""

    view: View
    renew_at_s: float
    sequence: int = 0
    met: set[str] = field(default_factory=set)
    """Partners that said that they read what is known briefly."""
    entries_at_s: dict[str, float] = field(default_factory=dict)
    """By partner, when it is told entries again."""


class Network:
    """``num_nodes`` of them, the first an orchestrator; ``told_bytes`` counts what is sent."""

    def __init__(self, num_nodes: int, *, max_pnodes: int = MAX_PNODES, seed: int = 1) -> None:
        self._rng, self._settings = random.Random(seed), MembershipSettings()
        self._adverts: dict[bytes, VerifiedAdvert] = {}
        ids = [NodeId(self._rng.randbytes(20).hex()) for _ in range(num_nodes)]
        self.told_bytes: Counter[str] = Counter()
        self.num_given = 0
        self.num_expired = 0
        self.members: dict[NodeId, Member] = {}
        for node_id in ids:
            view = View(
                node_id, NETWORK, is_orchestrator=lambda name: name == ids[0], salt=self._rng.randbytes(16), max_pnodes=max_pnodes
            )
            self.members[node_id] = Member(view, self._rng.uniform(0.0, self._settings.advert_renew_s))
        self._orchestrator = ids[0]
        firsts = [
            self._advert(node_id, member.renew_at_s - self._settings.advert_renew_s) for node_id, member in self.members.items()
        ]
        for (node_id, member), own in zip(self.members.items(), firsts, strict=True):
            member.view.set_own_verified(own)
            for advert in self._rng.sample(firsts, len(firsts)):
                if advert.node_id != node_id:
                    member.view.believe(advert, EPOCH_S)
            while member.view.news():
                pass  # what everybody knows is no news
        self._rounds = [(self._rng.uniform(0.0, self._settings.exchange_s), node_id) for node_id in ids]
        heapq.heapify(self._rounds)

    def run_until(self, end_s: float) -> None:
        """Rounds of everybody up to a time."""
        while self._rounds[0][0] < end_s:
            now_s, node_id = heapq.heappop(self._rounds)
            self._round(node_id, now_s)
            heapq.heappush(self._rounds, (now_s + self._settings.exchange_s * self._rng.uniform(0.75, 1.25), node_id))

    def least_left_s(self, now_s: float) -> float:
        """How long the advert that expires first of all that anybody has still lives."""
        return min(a.expires_wall for member in self.members.values() for a in member.view.members()) - EPOCH_S - now_s

    def _round(self, node_id: NodeId, now_s: float) -> None:
        me, settings = self.members[node_id], self._settings
        gone = me.view.expire(EPOCH_S + now_s)
        self.num_expired += sum(isinstance(event, Gone) and event.reason is GoneReason.EXPIRED for event in gone)
        if now_s >= me.renew_at_s:
            me.view.set_own_verified(self._advert(node_id, now_s))
            me.renew_at_s = now_s + settings.advert_renew_s * self._rng.uniform(0.75, 1.0)
        partners = me.view.partners(self._rng, settings.num_partners, now_s)
        news = me.view.news()
        for partner, known in zip(partners, me.view.known(self._rng, len(partners)), strict=True):
            entries = [ENTRY] if now_s >= me.entries_at_s.get(partner.node_id, 0.0) else []
            if entries:
                me.entries_at_s[partner.node_id] = now_s + ENTRIES_AGAIN_S
            request = membership_pb2.ExchangeRequest(adverts=news, bootstrap=entries, suspects=me.view.suspects())
            bare = request.ByteSize()
            known.put_into(request, briefly=partner.node_id in me.met)
            me.met.add(partner.node_id)
            self.told_bytes += Counter(pushed=bare, known=request.ByteSize() - bare)
            other = self.members[partner.node_id].view
            given = other.news_for(Known.told(request), self._rng, EPOCH_S + now_s)
            response = membership_pb2.ExchangeResponse(
                adverts=given, bootstrap=entries, time_unix_ms=int(EPOCH_S * 1000), document_version=1, reads_briefly=True
            )
            self.told_bytes["given"] += response.ByteSize()
            self.num_given += len(given)
            for view, envelopes in ((other, news), (me.view, given)):
                for envelope in envelopes:
                    view.believe(self._adverts[envelope.SerializeToString()], EPOCH_S + now_s)

    def _advert(self, node_id: NodeId, now_s: float) -> VerifiedAdvert:
        """The next one of a node, as it would be but for the signatures."""
        member, rng = self.members[node_id], random.Random(node_id)
        member.sequence += 2
        is_orchestrator = node_id == self._orchestrator
        message = membership_pb2.Advert(
            network_id=NETWORK, node_id=node_id, incarnation=int(EPOCH_S * 1000) + rng.randrange(10**8), sequence=member.sequence,
            kind=membership_pb2.NODE_KIND_ORCHESTRATOR if is_orchestrator else membership_pb2.NODE_KIND_PNODE,
            control_addresses=["192.168.1.100:7700"], dht_address="192.168.1.100:7702", software="1.0.0",
            protocol=common_pb2.ProtocolRange(min=1, max=1), issued_unix_ms=int((EPOCH_S + now_s) * 1000),
            expires_unix_ms=int((EPOCH_S + now_s + self._settings.advert_lifetime_s) * 1000),
        )  # fmt: skip
        if not is_orchestrator:
            message.delegation.payload = rng.randbytes(DELEGATION_BYTES)
            message.capability.cores, message.capability.memory_bytes, message.capability.device = 8.0, 2**33, "cpu"
        envelope = identity_pb2.Envelope(payload=message.SerializeToString())
        envelope.signatures.add(public_key=rng.randbytes(65), signature=rng.randbytes(64))
        advert = VerifiedAdvert(message, node_id, None, envelope)
        self._adverts[envelope.SerializeToString()] = advert
        return advert


def measured(num_nodes: int, settle_s: float, for_s: float) -> Row:
    """Bytes of messages each way a second and node, by what they are for, and adverts given in answers."""
    network = Network(num_nodes)
    network.run_until(settle_s)
    network.told_bytes.clear()
    network.num_given = 0
    network.run_until(settle_s + for_s)
    each, left_s = num_nodes * for_s, network.least_left_s(settle_s + for_s)
    told = {f"{name}_bytes_s": round(count / each, 1) for name, count in network.told_bytes.items()}
    return {
        "bytes_s": round(network.told_bytes.total() / each, 1), **told, "given_s": round(network.num_given / each, 3), "expired": network.num_expired,
        "least_left_s": round(left_s, 1),
    }  # fmt: skip


def main() -> int:
    """Entry point: sizes of networks."""
    for size in [int(word) for word in sys.argv[1:]] or SIZES:
        print(size, measured(size, 60.0, 60.0), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
