"""First contact of a client: from a network file or a bootstrap entry to a verified policy and the addresses of listed orchestrators.

Only addresses of orchestrators that the verified document lists are used; whoever answers there must hold the listed key.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dcnr.errors import DcnrError, InvalidInput, Refused, Stale, Unavailable
from dcnr.ids import NodeId, check_node_id
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import membership_pb2
from trust.addresses import split_address
from trust.network import NetworkPolicy, verify_chain
from trust.records import open_advert

Addresses = tuple[tuple[NodeId, tuple[str, ...]], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """A bootstrap entry: ``id@host:port``, or ``host:port`` where the id is not known."""

    node_id: NodeId | None
    address: str


@dataclass(frozen=True, slots=True)
class Contact:
    """A network as a client found it. ``pinned``: its id was known before; else the first document seen was believed."""

    policy: NetworkPolicy
    orchestrators: Addresses
    pinned: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Answer:
    policy: NetworkPolicy
    found: Addresses


def parse_entry(text: str) -> Entry:
    """``text`` as an entry. Raises InvalidInput."""
    node_id, separator, address = text.rpartition("@")
    split_address(address)
    return Entry(check_node_id(node_id) if separator else None, address)


async def find(
    dialer: Dialer, *, policy: NetworkPolicy | None, bootstrap: Iterable[str], network_id: str | None, now_wall: float
) -> Contact:
    """The network's newest policy and its orchestrators' addresses.

    Asks nobody where the policy is known and the entries name every listed orchestrator. Raises Refused (``wrong_network``), Unavailable with all reasons.
    """
    entries = [parse_entry(text) for text in bootstrap]
    if policy is not None:
        entries += [parse_entry(text) for text in policy.document.bootstrap]
    if not entries:
        raise InvalidInput(
            "no node of the network is known",
            code="no_bootstrap",
            remedy="give --network FILE with bootstrap entries, or --bootstrap id@host:port",
        )
    pinned = policy is not None or network_id is not None
    wanted = network_id or (policy.network_id if policy else None)
    direct = _merged((entry.node_id, (entry.address,)) for entry in entries if entry.node_id is not None)
    if policy is not None and policy.orchestrator_ids <= {node_id for node_id, _ in direct}:
        return Contact(policy, _listed(policy, direct), pinned, ())
    policy, found, errors = await _gathered(dialer, entries, policy, wanted, direct, now_wall)
    if refusals := [error for error in errors if isinstance(error, Refused)]:
        raise refusals[0]
    remarks = [error.message for error in errors]
    if policy is None:
        raise Unavailable(
            f"no bootstrap node answered: {'; '.join(remarks)}",
            code="no_bootstrap",
            remedy="check the addresses and that the nodes run",
        )
    if not found:
        reasons = "; ".join(remarks) or "the nodes that answered know none"
        raise Unavailable(
            f"no orchestrator of the network is known: {reasons}", code="no_orchestrator", remedy="give another --bootstrap"
        )
    return Contact(policy, found, pinned, tuple(remarks))


async def look_again(dialer: Dialer, contact: Contact, now_wall: float) -> Contact:
    """What the orchestrators of an earlier contact, and the entries of its document, say now: other versions have other orchestrators.

    Where nobody answers it is the same contact. What one of them says that is worth nothing keeps nobody from hearing the others: an orchestrator that is
    taken out would hide that by it.
    """
    entries = [Entry(node_id, address) for node_id, addresses in contact.orchestrators for address in addresses[:1]]
    entries += [parse_entry(text) for text in contact.policy.document.bootstrap]
    policy, found, errors = await _gathered(
        dialer, entries, contact.policy, contact.policy.network_id, contact.orchestrators, now_wall
    )
    remarks = tuple(error.message for error in errors)
    return Contact(policy or contact.policy, found or contact.orchestrators, contact.pinned, remarks)


async def _gathered(
    dialer: Dialer, entries: Sequence[Entry], policy: NetworkPolicy | None, wanted: str | None, known: Addresses, now_wall: float
) -> tuple[NetworkPolicy | None, Addresses, list[DcnrError]]:
    """The newest policy of all answers, the listed orchestrators that were known or are named, and why others did not answer well."""
    answers, errors = await _ask(dialer, entries, wanted, now_wall)
    for answer in answers:
        policy = _newer(policy, answer.policy)
    merged = _merged([*known, *(item for answer in answers for item in answer.found)])
    return policy, _listed(policy, merged) if policy is not None else (), errors


async def _ask(
    dialer: Dialer, entries: Sequence[Entry], network_id: str | None, now_wall: float
) -> tuple[list[_Answer], list[DcnrError]]:
    """Answers of all entries that answer, asked at once; each is bounded by the dialer."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_join(dialer, entry, network_id, now_wall)) for entry in dict.fromkeys(entries)]
    results = [task.result() for task in tasks]
    return [r for r in results if isinstance(r, _Answer)], [r for r in results if isinstance(r, DcnrError)]


async def _join(dialer: Dialer, entry: Entry, network_id: str | None, now_wall: float) -> _Answer | DcnrError:
    try:
        response, node_id = await dialer.join(entry.address, membership_pb2.JoinRequest(network_id=network_id or ""), entry.node_id)
        history = [*response.document_history, response.network_document]
        policy = verify_chain(history, now_wall=now_wall, network_id=network_id)
    except DcnrError as error:
        return error
    found: list[tuple[NodeId, tuple[str, ...]]] = [(node_id, (entry.address,))]
    for envelope in response.adverts:
        try:
            advert = open_advert(envelope, network_id=policy.network_id, now_wall=now_wall)
        except DcnrError:
            continue
        found.append((advert.node_id, tuple(advert.advert.control_addresses)))
    return _Answer(policy, tuple(found))


def _newer(known: NetworkPolicy | None, heard: NetworkPolicy) -> NetworkPolicy:
    if known is None:
        return heard
    if known.network_id != heard.network_id:
        raise Refused(
            "the bootstrap nodes belong to different networks", code="wrong_network", remedy="give the --network-id that you mean",
            one=known.network_id, other=heard.network_id,
        )  # fmt: skip
    try:
        return known.successor(heard.history)
    except (Stale, Refused):  # an older one, or one that does not follow from what is known
        return known


def _merged(items: Iterable[tuple[NodeId | None, tuple[str, ...]]]) -> Addresses:
    """Addresses by node, in the order of first mention, each once."""
    table: dict[NodeId, dict[str, None]] = {}
    for node_id, addresses in items:
        if node_id is not None:
            table.setdefault(node_id, {}).update(dict.fromkeys(addresses))
    return tuple((node_id, tuple(addresses)) for node_id, addresses in table.items())


def _listed(policy: NetworkPolicy, addresses: Addresses) -> Addresses:
    return tuple((node_id, known) for node_id, known in addresses if policy.is_orchestrator(node_id))
