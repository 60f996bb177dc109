"""Goal: a volunteer's machine passes on for others only as far as its owner lets it, and not a moment longer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from dcnr.ids import NodeId
from dcnr.system import SystemClock
from membership.relay_desk import RelayDesk
from pnode.passing import Passing
from pnode.telling import Condition
from trust.session import Peer

KNOWN, STRANGER, ORCHESTRATOR = (NodeId(digit * 40) for digit in "123")


def advert(node_id: NodeId, mbit: float, *addresses: str) -> Any:
    capability = SimpleNamespace(relay_mbit=mbit)
    return SimpleNamespace(node_id=node_id, advert=SimpleNamespace(control_addresses=addresses, capability=capability))


class Machine:
    """A daemon's parts; ``may`` is what its owner and the tests from outside say."""

    def __init__(self, mbit: float) -> None:
        self.now, self.may = Condition(0.0), True
        self.servicer: Any = SimpleNamespace(relay=None)
        self.told: list[str] = []
        membership: Any = SimpleNamespace(
            servicer=self.servicer, find=lambda name: KNOWN if name == KNOWN else None,
            pnodes=lambda: [advert(KNOWN, 5.0, "9.9.9.9:7700"), advert(STRANGER, 0.0, "9.9.9.8:7700"), advert(ORCHESTRATOR, 5.0)],
        )  # fmt: skip
        policy: Any = SimpleNamespace(is_orchestrator=lambda name: name == ORCHESTRATOR)
        self.passing = Passing(
            mbit, membership, lambda: policy, self.now, SystemClock(), may_now=lambda: self.may, tell=lambda kind, reason: self.told.append(reason)
        )  # fmt: skip


def test_nothing_is_passed_on_unless_the_owner_says_so() -> None:
    machine = Machine(0.0)
    machine.passing.review()
    assert (machine.servicer.relay, machine.now.relay_mbit, machine.told) == (None, 0.0, [])


def test_it_begins_and_ends_with_what_the_owner_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    ended: list[RelayDesk] = []
    monkeypatch.setattr(RelayDesk, "end_all", lambda self: ended.append(self))
    machine = Machine(20.0)
    machine.passing.review()
    desk = machine.servicer.relay
    assert (isinstance(desk, RelayDesk), machine.now.relay_mbit) == (True, 20.0)
    machine.passing.review()
    assert len(machine.told) == 1, "told once"
    machine.may = False
    machine.passing.review()
    assert (machine.servicer.relay, machine.now.relay_mbit, ended) == (None, 0.0, [desk])
    machine.may = True
    machine.passing.review()
    assert machine.servicer.relay is desk
    assert machine.told == [
        "what others say is passed on at 20 Mbit/s",
        "nothing is passed on for others",
        "what others say is passed on at 20 Mbit/s",
    ]


def test_who_is_known_may_use_it_and_who_can_be_dialled_and_offers_it_is_one() -> None:
    machine = Machine(20.0)
    assert machine.passing.others() == [(KNOWN, ("9.9.9.9:7700",))]
    peers = [Peer(name, None, None, "") for name in (KNOWN, STRANGER, ORCHESTRATOR)]
    assert [machine.passing.may_use(peer) for peer in peers] == [True, False, True]
    assert machine.passing.may_use(Peer(STRANGER, STRANGER, KNOWN, "")), "a worker of one that is known"
