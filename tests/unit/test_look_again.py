"""Goal: who looks again for a newer network document hears it, whatever one of those who are asked makes of the question."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from dcnr.errors import DcnrError, Refused, Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.dialer import Dialer
from dcnr.sdk.contact import Contact, look_again
from dcnr.v1 import membership_pb2
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain

MAINTAINER, REMOVED, STAYS = (NodeKey.generate() for _ in range(3))
LISTED = [REMOVED.node_id, STAYS.node_id]
FIRST = verify_chain([create_document(MAINTAINER, name="n", now_wall=1.0, orchestrator_ids=LISTED)])
OTHER = verify_chain([create_document(MAINTAINER, name="other", now_wall=1.0, orchestrator_ids=LISTED)])
ADDRESSES = {"127.0.0.1:1": REMOVED.node_id, "127.0.0.1:2": STAYS.node_id}


def second() -> NetworkPolicy:
    draft = draft_successor(FIRST)
    draft.orchestrator_ids[:] = [STAYS.node_id]
    return FIRST.successor([*FIRST.history, sign_document(draft, MAINTAINER)])


class Network:
    """Answers by address: a document, or an error."""

    def __init__(self, answers: dict[str, NetworkPolicy | DcnrError]) -> None:
        self._answers = answers

    async def join(
        self, address: str, request: membership_pb2.JoinRequest, expected_id: str | None = None
    ) -> tuple[membership_pb2.JoinResponse, NodeId]:
        answer = self._answers[address]
        if isinstance(answer, DcnrError):
            raise answer
        response = membership_pb2.JoinResponse(network_document=answer.envelope, document_history=answer.history[:-1])
        return response, ADDRESSES[address]


def looked_again(answers: dict[str, NetworkPolicy | DcnrError]) -> Contact:
    contact = Contact(FIRST, tuple((node_id, (address,)) for address, node_id in ADDRESSES.items()), True, ())
    return asyncio.run(look_again(cast(Dialer, Network(answers)), contact, 2.0))


@pytest.mark.parametrize("answer", [OTHER, FIRST, Refused("go away", code="not_listed"), Unavailable("silent", code="unreachable")])
def test_who_is_taken_out_hides_that_from_nobody_who_asks_others_too(answer: NetworkPolicy | DcnrError) -> None:
    found = looked_again({"127.0.0.1:1": answer, "127.0.0.1:2": second()})
    assert found.policy.document.version == 2
    assert found.orchestrators == ((STAYS.node_id, ("127.0.0.1:2",)),)


def test_where_nobody_answers_well_it_is_the_same_contact() -> None:
    found = looked_again({"127.0.0.1:1": OTHER, "127.0.0.1:2": Unavailable("silent", code="unreachable")})
    assert (found.policy, len(found.orchestrators), len(found.remarks)) == (FIRST, 2, 2)
