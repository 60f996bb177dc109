"""Goal: what is known means the same told briefly as at length, in a quarter of the bytes, and what cannot be read is refused by name."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dcnr.errors import InvalidInput
from dcnr.v1 import membership_pb2
from membership.gossip import View
from membership.known import MARK_BYTES, MAX_KNOWN_PER_EXCHANGE, SALT_BYTES, Known
from membership.ring import WHOLE, Stretch

RNG = random.Random(1)
IDS = [RNG.randbytes(20).hex() for _ in range(64)]
ORDERS = {node_id: (1_700_000_000_000 + number, 2 * number) for number, node_id in enumerate(IDS[:32])}
SALT = bytes(range(SALT_BYTES))


def request_of(known: Known, *, briefly: bool) -> membership_pb2.ExchangeRequest:
    request = membership_pb2.ExchangeRequest()
    known.put_into(request, briefly=briefly)
    return membership_pb2.ExchangeRequest.FromString(request.SerializeToString())


@pytest.mark.parametrize("briefly", [False, True])
@pytest.mark.parametrize("room", [None, 0, 3])
@pytest.mark.parametrize("stretch", [WHOLE, Stretch(IDS[0], IDS[1])])
def test_what_is_told_is_what_is_read(briefly: bool, room: int | None, stretch: Stretch) -> None:
    read = Known.told(request_of(Known(ORDERS, stretch, room, SALT), briefly=briefly))
    assert [read.order_of(node_id) for node_id in IDS] == [ORDERS.get(node_id) for node_id in IDS]
    assert (read.stretch, read.room) == (stretch, room)


def test_briefly_is_a_quarter() -> None:
    at_length, brief = (request_of(Known(ORDERS, WHOLE, 3, SALT), briefly=briefly).ByteSize() for briefly in (False, True))
    assert brief < at_length / 4


def test_whoever_knows_nothing_says_so_briefly_too() -> None:
    assert Known.told(request_of(Known(), briefly=True)).order_of(IDS[0]) is None


def test_each_exchange_has_marks_of_its_own() -> None:
    """Goal: who makes an id that has the mark of another one hides it in no more than one exchange."""
    view = View(IDS[0], "a" * 40, is_orchestrator=lambda _: False, salt=b"secret")
    assert len({known.salt for _ in range(10) for known in view.known(RNG, 2)}) == 20


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        ("bad_known", {"salt": b""}),
        ("bad_known", {"salt": bytes(100)}),
        ("bad_known", {"marks": bytes(MARK_BYTES + 1)}),
        ("bad_known", {"sequences": []}),
        ("bad_known", {"incarnations": []}),
        ("exchange_too_large", {"incarnations": [1] * (MAX_KNOWN_PER_EXCHANGE + 1)}),
    ],
)
def test_what_cannot_be_read_is_refused(code: str, fields: dict[str, Any]) -> None:
    good: dict[str, Any] = {"salt": SALT, "marks": bytes(MARK_BYTES), "incarnations": [1], "sequences": [1]}
    Known.told(membership_pb2.ExchangeRequest(known_briefly=membership_pb2.KnownBriefly(**good)))
    with pytest.raises(InvalidInput) as caught:
        Known.told(membership_pb2.ExchangeRequest(known_briefly=membership_pb2.KnownBriefly(**{**good, **fields})))
    assert caught.value.code == code


def test_too_many_at_length_are_refused() -> None:
    many = [membership_pb2.KnownNode(node_id=IDS[0])] * (MAX_KNOWN_PER_EXCHANGE + 1)
    with pytest.raises(InvalidInput) as caught:
        Known.told(membership_pb2.ExchangeRequest(known=many))
    assert caught.value.code == "exchange_too_large"
