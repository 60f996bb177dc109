"""Goal: where a firewall drops what is sent to the store, heads are read from orchestrators first, and the store is waited for once in a while.
Nothing but the head at the network's store is read by a grant, and no orchestrator's statement counts but another's fresh one about the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import keys
from dataservice.addresses import AddressRule
from dcnr.errors import Corrupt, DcnrError, Refused, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from pnode import headcheck
from pnode.authority import Source
from pnode.headcheck import HeadCheck
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

MAINTAINER, HOLDER, OTHER = (NodeKey.generate() for _ in range(3))
DOCUMENT = create_document(
    MAINTAINER, name="n", now_wall=1_700_000_000.0, orchestrator_ids=[HOLDER.node_id, OTHER.node_id], store_address="store.example:1",
    store_bucket="b", store_scheme="http",
)  # fmt: skip
POLICY = verify_chain([DOCUMENT])
HEAD = seal(
    identity_pb2.DOMAIN_HEAD,
    model_pb2.Head(network_id=POLICY.network_id, model="m", epoch=2, holder=HOLDER.node_id, sequence=1),
    HOLDER,
)
SLOW, DEAD = TimedOut("no answer", code="transfer_timeout"), Unavailable("refused", code="transfer_broken")


class World:
    """A check, the store that it tries, and another orchestrator than the claimant, which answers while it is well."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: DcnrError | None = SLOW
        self.num_tried = self.num_asked = 0
        self.is_well = True
        self.word = stated
        self.known = [(OTHER.node_id, ["o"])]
        orchestrators: Any = SimpleNamespace(known=lambda: self.known, connection=self._connection)
        self.check = HeadCheck(
            policy=lambda: POLICY, orchestrators=orchestrators, rule=lambda: AddressRule(stores=("http://store.example:1",))
        )
        self.check.granted("m", f"http://store.example:1/b/{keys.head('m')}?signed")
        monkeypatch.setattr(headcheck, "fetch_small", self._fetch)
        monkeypatch.setattr(headcheck, "OrchestratorServiceStub", lambda channel: SimpleNamespace(ConfirmHead=None))

    async def read(self) -> Source:
        envelope, source = await self.check.read("m", HOLDER.node_id)
        assert envelope == HEAD
        return source

    async def _fetch(self, url: str, **rest: Any) -> tuple[bytes, str]:
        self.num_tried += 1
        if self.error is not None:
            raise self.error
        return HEAD.SerializeToString(), ""

    async def _connection(self, node_id: NodeId, addresses: list[str]) -> Any:
        return SimpleNamespace(channel=None, call=self._call)

    async def _call(
        self, method: None, request: orchestrator_pb2.ConfirmHeadRequest, *, timeout_s: float
    ) -> orchestrator_pb2.ConfirmHeadResponse:
        self.num_asked += 1
        if not self.is_well:
            raise Unavailable("away", code="no_orchestrator")
        return orchestrator_pb2.ConfirmHeadResponse(statement=self.word(request))


def stated(
    request: orchestrator_pb2.ConfirmHeadRequest, head: identity_pb2.Envelope = HEAD, signer: NodeKey = OTHER, **changes: Any
) -> identity_pb2.Envelope:
    """What the other orchestrator answers, but for the changes."""
    said: dict[str, Any] = {"model": request.model, "nonce": request.nonce, "head": head} | changes
    return seal(identity_pb2.DOMAIN_HEAD_STATEMENT, model_pb2.HeadStatement(**said), signer)


Play = Callable[[Callable[[World], Awaitable[None]]], None]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch) -> Play:
    async def played(story: Callable[[World], Awaitable[None]]) -> None:
        await story(World(monkeypatch))

    return lambda story: asyncio.run(played(story))


def test_a_store_that_does_not_answer_in_time_is_waited_for_once(play: Play) -> None:
    async def story(world: World) -> None:
        assert [await world.read() for _ in range(3)] == [Source.SECOND_STATEMENT] * 3
        assert (world.num_tried, world.num_asked) == (1, 3)

    play(story)


def test_it_is_asked_first_again_after_a_while(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(headcheck, "OUT_OF_REACH_S", 0.0)

    async def story(world: World) -> None:
        await world.read()
        world.error = None
        assert [await world.read() for _ in range(2)] == [Source.OWN_GET] * 2
        assert (world.num_tried, world.num_asked) == (3, 1)

    play(story)


def test_it_is_still_asked_where_no_orchestrator_can_say(play: Play) -> None:
    async def story(world: World) -> None:
        await world.read()
        world.error, world.is_well = None, False
        assert [await world.read() for _ in range(2)] == [Source.OWN_GET] * 2
        assert (world.num_tried, world.num_asked) == (3, 2), "and asked first from then on"

    play(story)


def test_one_that_breaks_off_at_once_is_asked_first_every_time(play: Play) -> None:
    async def story(world: World) -> None:
        world.error = DEAD
        assert [await world.read() for _ in range(2)] == [Source.SECOND_STATEMENT] * 2
        assert (world.num_tried, world.num_asked) == (2, 2)

    play(story)


def test_where_nobody_else_is_known_the_store_s_word_is_what_is_told(play: Play) -> None:
    async def story(world: World) -> None:
        world.known = [(HOLDER.node_id, ["h"])]
        for _ in range(2):
            with pytest.raises(TimedOut):
                await world.read()
        assert (world.num_tried, world.num_asked) == (2, 0), "the claimant does not confirm itself"

    play(story)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"nonce": b"\0" * 32}, "bad_statement"), ({"signer": HOLDER}, "bad_statement"), ({"model": "other"}, "bad_statement"),
        ({"head": seal(identity_pb2.DOMAIN_HEAD, model_pb2.Head(model="m", epoch=9, holder=OTHER.node_id), OTHER)}, "own_word"),
    ],
    ids=["of_earlier", "of_another_signer", "of_another_model", "about_its_own_term"],
)  # fmt: skip
def test_only_a_fresh_word_of_the_one_asked_about_another_confirms_a_term(play: Play, changes: dict[str, Any], code: str) -> None:
    async def story(world: World) -> None:
        world.word = lambda request: stated(request, **changes)
        with pytest.raises(Corrupt) as refused:
            await world.read()
        assert refused.value.code == code

    play(story)


@pytest.mark.parametrize(
    "url",
    [
        f"http://store.example:1/other/{keys.head('m')}?signed", f"http://store.example:1/b/{keys.head('other')}?signed",
        f"http://store.example:2/b/{keys.head('m')}?signed", f"https://data.example/b/{keys.head('m')}?signed",
        f"https://store.example:1/b/{keys.head('m')}?signed",
        f"http://store.example:1/b/{keys.head('m')}?versionId=1&signed", f"http://store.example:1/b/{keys.head('m')}?partNumber=1&signed",
        f"http://store.example:1/b/{keys.head('m')}?response-content-type=x", f"http://store.example:1/b/{keys.head('m')}?Range=bytes=0-1",
    ],
)  # fmt: skip
def test_a_grant_for_anything_but_the_newest_head_at_the_network_s_store_is_refused(url: str) -> None:
    """Each is a URL that this machine may read."""
    rule = AddressRule(stores=("http://store.example:1", "http://store.example:2"), data_hosts=("data.example", "store.example:1"))
    rule.check(url)
    nobody: Any = SimpleNamespace(known=list)
    with pytest.raises(Refused) as refused:
        HeadCheck(policy=lambda: POLICY, orchestrators=nobody, rule=lambda: rule).granted("m", url)
    assert refused.value.code == "bad_head_grant"
