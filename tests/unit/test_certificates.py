"""Goal: certificates are remembered within a bound, those learned longest ago give way, and what somebody says of another node counts for its key only."""

from __future__ import annotations

import pytest

from dcnr.rpc.certificates import Certificates
from trust.identity import NodeKey
from trust.tls import self_signed_certificate


def test_what_was_learned_longest_ago_gives_way(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dcnr.rpc.certificates.MAX_KNOWN", 2)
    keys = [NodeKey.generate() for _ in range(3)]
    first, second, third = (key.node_id for key in keys)
    shown = {key.node_id: self_signed_certificate(key) for key in keys}
    known = Certificates()
    known.shown(first, shown[first])
    known.told(second, shown[second])
    known.told(third, shown[first])
    assert [known.of(node) for node in (first, second, third)] == [shown[first], shown[second], None], "it is not of that key"
    known.shown(first, shown[first])
    known.told(third, shown[third])
    assert [known.of(node) for node in (first, second, third)] == [shown[first], None, shown[third]]
