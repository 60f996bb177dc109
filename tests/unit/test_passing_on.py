"""An orchestrator that reaches no PNode passes a question on to the holder, once; there, or where none decides, the reason is said."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from dcnr.errors import DcnrError
from dcnr.system import SystemClock
from dcnr.v1 import model_pb2, orchestrator_pb2
from orchestrator.asking import MAX_IN_FLIGHT, STRANGERS_AT_ONCE, Asking
from orchestrator.candidates import Workers

ME, OTHER = "1" * 40, "2" * 40


class Holders:
    """Other orchestrators; keeps whom was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def ask(
        self, node_id: str, request: orchestrator_pb2.ForwardRequest, timeout_s: float
    ) -> orchestrator_pb2.ForwardResponse:
        self.asked.append(node_id)
        return orchestrator_pb2.ForwardResponse(exit="c")

    async def close(self) -> None:
        pass


class Nothing:
    """Stands for what the question never reaches."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(name)


class Versions:
    def get(self, digest: str) -> None:
        return None

    def why_not(self, digest: str) -> str:
        return ""


class Runtime:
    """A model without a PNode."""

    def __init__(self, holder: str, manifest: str) -> None:
        self.model, self.shared, self.view, self.serving = "toy", Shared(), None, Serving()
        self.head = model_pb2.Head(holder=holder, manifest_digest=manifest)
        self.is_holder = holder == ME


class Serving:
    versions = Versions()

    def following(self, newest: str) -> str:
        return newest


class Inventory:
    def nodes(self) -> dict[str, Any]:
        return {}


class Key:
    node_id = ME


class Shared:
    clock, inventory, key = SystemClock(), Inventory(), Key()


def asking(holders: Holders) -> Asking:
    shared, nothing = Shared(), Nothing()
    made: Any = Asking
    result: Asking = made(
        shared, streams=nothing, workers=Workers("n" * 40, shared.clock.wall, lambda _: None), rng=random.Random(1), holders=holders
    )
    return result


def outcome(runtime: Any, *, may_pass_on: bool = True, live: bool = False) -> tuple[str, list[str]]:
    """The error's code, or nothing; and who was asked."""
    holders = Holders()
    weights = orchestrator_pb2.WEIGHTS_LIVE if live else orchestrator_pb2.WEIGHTS_SERVED
    try:
        asyncio.run(
            asking(holders).forward(runtime, orchestrator_pb2.ForwardRequest(model="toy", weights=weights), may_pass_on=may_pass_on)
        )
    except DcnrError as error:
        return error.code, holders.asked
    return "", holders.asked


def test_the_holder_is_asked_once() -> None:
    assert outcome(Runtime(OTHER, "m" * 64)) == ("", [OTHER])
    assert outcome(Runtime(OTHER, "m" * 64), may_pass_on=False) == ("no_server", [])


def test_the_holder_itself_says_why_there_is_no_answer() -> None:
    assert outcome(Runtime(ME, "")) == ("not_trained", [])
    assert outcome(Runtime(ME, "m" * 64)) == ("no_server", [])
    assert outcome(Runtime(ME, "m" * 64), live=True) == ("no_server", [])
    assert outcome(Runtime("", ""), may_pass_on=True) == ("not_trained", [])


def test_too_many_questions_at_once_are_told_to_come_again() -> None:
    one = asking(Holders())
    runtime: Any = Runtime(OTHER, "m" * 64)
    for places in (MAX_IN_FLIGHT, STRANGERS_AT_ONCE):
        one.figures.num_in_flight = places
        with pytest.raises(DcnrError) as caught:
            asyncio.run(one.forward(runtime, orchestrator_pb2.ForwardRequest(), may_pass_on=True, places=places))
        assert caught.value.code == "busy"
    assert one.figures.view().failed["busy"] == 2
    asyncio.run(one.forward(runtime, orchestrator_pb2.ForwardRequest(), may_pass_on=True))  # members have places left
