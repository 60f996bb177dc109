"""Signed statements of who used what, and signed quotes, as anybody opens them: said by the orchestrator whose key signed them, and by nobody else."""

from __future__ import annotations

from dcnr.errors import Corrupt
from dcnr.v1 import identity_pb2, ledger_pb2
from trust.envelope import open_single, parse


def open_usage(statement: identity_pb2.Envelope, network_id: str) -> ledger_pb2.UsageStatement:
    """A statement of usage in that network. Raises Corrupt (``wrong_signer``, ``wrong_network``)."""
    payload, signer = open_single(statement, identity_pb2.DOMAIN_USAGE)
    said = parse(ledger_pb2.UsageStatement, payload)
    _check(said.orchestrator, signer.node_id, said.network_id, network_id)
    return said


def open_quote(quote: identity_pb2.Envelope, network_id: str) -> ledger_pb2.CostQuote:
    """A quote in that network. Raises Corrupt (``wrong_signer``, ``wrong_network``)."""
    payload, signer = open_single(quote, identity_pb2.DOMAIN_QUOTE)
    said = parse(ledger_pb2.CostQuote, payload)
    _check(said.orchestrator, signer.node_id, said.network_id, network_id)
    return said


def _check(named: str, signer: str, said_network: str, network_id: str) -> None:
    if named != signer:
        raise Corrupt("signed by another key than that of the orchestrator that it names", code="wrong_signer")
    if said_network != network_id:
        raise Corrupt("it belongs to another network", code="wrong_network")
