"""First contact: from nothing but ``host:port`` or ``id@host:port`` to a verified network document and the first adverts.

Without a network id the first document seen is pinned. A node that is not who the entry says it is, or that belongs to another network, is an error with
that reason, not silence.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from dcnr.errors import DcnrError, InvalidInput, Unavailable
from dcnr.ids import NodeId
from dcnr.limits import MAX_BOOTSTRAP_ENTRIES
from dcnr.ports import Clock
from dcnr.rpc.dialer import Dialer
from dcnr.v1 import identity_pb2, membership_pb2
from membership.bootstrap import Entry, parse_entry
from membership.network_time import Said
from trust.addresses import join_address
from trust.network import NetworkPolicy, verify_chain

AT_ONCE: Final = 4
"""Entries asked at the same time."""


@dataclass(frozen=True, slots=True)
class Introduction:
    """One node's answer to a Join."""

    entry: Entry
    node_id: NodeId
    response: membership_pb2.JoinResponse
    said: Said
    """Its time."""


async def discover(
    entries: Iterable[str],
    *,
    dialer: Dialer,
    clock: Clock,
    network_id: str | None = None,
    advert: identity_pb2.Envelope | None = None,
) -> tuple[NetworkPolicy, membership_pb2.JoinResponse]:
    """The network's policy and first adverts, from the first entry that answers with a valid document (of ``network_id``, if given).

    Raises InvalidInput (no or malformed entries), Unavailable (``no_bootstrap``: nobody answers, with reasons), else what was wrong with the answers:
    RemoteFault (``wrong_identity``), Refused (``wrong_network``), Corrupt, Stale (``document_expired``).
    """
    parsed = [parse_entry(text) for text in entries]
    if not parsed:
        raise InvalidInput("no bootstrap entry is known", code="no_bootstrap", remedy="pass HOST:PORT or ID@HOST:PORT of any node")
    request = membership_pb2.JoinRequest(network_id=network_id or "", advert=advert)
    failures: list[tuple[Entry, DcnrError]] = []
    for batch in in_batches(parsed):
        answers, silent = await introduce(dialer, batch, request, clock)
        failures += silent
        for answer in answers:
            try:
                return document_in(answer.response, clock.wall(), network_id), answer.response
            except DcnrError as error:
                failures.append((answer.entry, error))
    raise worst_of(failures)


async def introduce(
    dialer: Dialer, entries: Sequence[Entry], request: membership_pb2.JoinRequest, clock: Clock
) -> tuple[list[Introduction], list[tuple[Entry, DcnrError]]]:
    """Asks these entries, all at once; returns the answers, whatever they are worth, and for the others why not."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_ask(dialer, entry, request, clock)) for entry in entries]
    results = [task.result() for task in tasks]
    return [found for found in results if isinstance(found, Introduction)], [why for why in results if isinstance(why, tuple)]


def in_batches(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """The entries in their order, each once, `AT_ONCE` together, for `introduce`; bounded."""
    bounded = list(dict.fromkeys(entries))[: 4 * MAX_BOOTSTRAP_ENTRIES]
    return (bounded[i : i + AT_ONCE] for i in range(0, len(bounded), AT_ONCE))


def document_in(response: membership_pb2.JoinResponse, now_wall: float | None, network_id: str | None) -> NetworkPolicy:
    """The policy that a Join's answer proves; ``now_wall`` None: also one that has expired. Raises Corrupt, Refused, Stale."""
    history = [*response.document_history, response.network_document]
    return verify_chain(history, now_wall=now_wall, network_id=network_id or None)


def worst_of(failures: Sequence[tuple[Entry, DcnrError]]) -> DcnrError:
    """What to tell: an answer that was wrong before silence; all reasons in the details."""
    reasons = {str(entry): error.message for entry, error in failures[:16]}
    for entry, error in failures:
        if not isinstance(error, Unavailable):
            error.details = {**error.details, "entry": str(entry)}
            return error
    summary = "; ".join(f"{entry}: {reason}" for entry, reason in list(reasons.items())[:3])
    error = Unavailable(
        f"no bootstrap node answered ({summary})", code="no_bootstrap", remedy="check the addresses and that a node runs there"
    )
    error.details = reasons
    return error


async def _ask(
    dialer: Dialer, entry: Entry, request: membership_pb2.JoinRequest, clock: Clock
) -> Introduction | tuple[Entry, DcnrError]:
    asked_s = clock.monotonic()
    try:
        response, node_id = await dialer.join(join_address(entry.host, entry.port), request, entry.node_id)
    except DcnrError as error:
        return entry, error
    return Introduction(entry, node_id, response, Said(response.time_unix_ms / 1000, asked_s, clock.monotonic()))
