"""Goal: a machine that does not say which addresses it has dials its house through relays, and nothing ends."""

from __future__ import annotations

import psutil
import pytest

from membership.house import in_our_house, own_addresses


def test_a_machine_that_hides_its_addresses_has_no_house(monkeypatch: pytest.MonkeyPatch) -> None:
    assert in_our_house(["127.0.0.1:7701", "203.0.113.9:7701"]) == ["127.0.0.1:7701"]

    def hidden() -> None:
        raise PermissionError("no netlink here")

    monkeypatch.setattr(psutil, "net_if_addrs", hidden)
    assert own_addresses() == frozenset()
    assert in_our_house(["127.0.0.1:7701"]) == []
