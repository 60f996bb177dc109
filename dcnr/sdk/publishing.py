"""Hands a network document to nodes that run: each verifies it and obeys it from then on, and tells others of it by gossip."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from dcnr import limits
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Clock
from dcnr.rpc.dialer import Dialer
from dcnr.sdk.contact import Entry, parse_entry
from dcnr.v1 import membership_pb2, membership_pb2_grpc
from trust.network import NetworkPolicy
from trust.records import open_advert


@dataclass(frozen=True, slots=True)
class Told:
    """What became of it at one node: the version that is in force there now (0: not known), and what is wrong with that."""

    node_id: str
    address: str
    version: int = 0
    problem: str = ""

    @property
    def taken(self) -> bool:
        """Whether the very document is in force there."""
        return not self.problem


async def publish(dialer: Dialer, policy: NetworkPolicy, bootstrap: Sequence[str], clock: Clock) -> list[Told]:
    """Every orchestrator that is found by these entries, by those of the document and by those of the version before; and the nodes of the entries.

    Nodes that cannot be reached are told with the reason. Raises InvalidInput for an entry that is none.
    """
    named = [*bootstrap, *policy.document.bootstrap, *(entry for one in policy.past[-1:] for entry in one.bootstrap)]
    entries = list(dict.fromkeys(parse_entry(text) for text in named))
    introduced = await asyncio.gather(*(_introduced(dialer, policy, entry, clock) for entry in entries))
    targets: dict[NodeId, list[str]] = {}
    for found in introduced:
        for node_id, addresses in found if isinstance(found, list) else ():
            targets.setdefault(node_id, []).extend(address for address in addresses if address not in targets[node_id])
    told = await asyncio.gather(*(_tell(dialer, policy, node_id, addresses) for node_id, addresses in sorted(targets.items())))
    missed = [one for one in introduced if isinstance(one, Told) and one.node_id not in targets]
    return [*told, *missed]


async def _introduced(
    dialer: Dialer, policy: NetworkPolicy, entry: Entry, clock: Clock
) -> list[tuple[NodeId, tuple[str, ...]]] | Told:
    """The node of an entry and the orchestrators that it knows."""
    try:
        response, node_id = await dialer.join(
            entry.address, membership_pb2.JoinRequest(network_id=policy.network_id), entry.node_id
        )
    except DcnrError as error:
        return Told(entry.node_id or "", entry.address, problem=error.message)
    found: list[tuple[NodeId, tuple[str, ...]]] = [(node_id, (entry.address,))]
    for envelope in response.adverts[: limits.MAX_ADVERTS_PER_EXCHANGE]:
        try:
            advert = open_advert(envelope, network_id=policy.network_id, now_wall=clock.wall())
        except DcnrError:
            continue
        if advert.is_orchestrator and policy.has_listed(advert.node_id):
            found.append((NodeId(advert.node_id), tuple(advert.advert.control_addresses)))
    return found


async def _tell(dialer: Dialer, policy: NetworkPolicy, node_id: NodeId, addresses: Sequence[str]) -> Told:
    request = membership_pb2.DocumentRequest(history=policy.history)  # version 0: what is in force there comes back
    try:
        connection = await dialer.connect(node_id, addresses)
        try:
            stub = membership_pb2_grpc.MembershipServiceStub(connection.channel)
            answer: membership_pb2.DocumentResponse = await connection.call(stub.Document, request, limits.CALL_TIMEOUT_S)
        finally:
            await connection.close()
    except DcnrError as error:
        return Told(node_id, addresses[0] if addresses else "", problem=error.message)
    same = bool(answer.history) and answer.history[-1].payload == policy.envelope.payload
    return Told(node_id, connection.address, int(answer.version), "" if same else f"another version {answer.version} is in force")
