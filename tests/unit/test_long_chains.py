"""Goal: one manifest more costs the same after a thousand checkpoints as after ten thousand, for who makes it and for who reads it: both are done at once, by
who holds the head.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from audited_rig import NODES, Draw, judged, name_of, piece, spans
from hypothesis import given, settings
from hypothesis import strategies as st

from dataservice.manifest_form import from_proto, to_proto
from dataservice.manifests import Rules, StoredState
from dcnr.ids import Digest
from dcnr.v1 import model_pb2
from orchestrator import audited
from orchestrator.audited import audited_manifest
from orchestrator.chain import Chain
from orchestrator.verdicts import Taken
from trust import ledger as ledger_module
from trust.folding import AUDITS_DRAWN, Folding
from trust.layers import Layers, updated
from trust.ledger import Named, Verdict

SPARED: Draw = lambda _, held: Verdict.SPARED  # noqa: E731


def checkpoint(at: int) -> model_pb2.Checkpoint:
    return model_pb2.Checkpoint(
        vnode="a", digest=name_of(f"a{at}"), size_bytes=9, lineage=spans((0, 4 * at)) if at else spans(), replica="a.0", pnode_id=NODES["x"],
        incarnation=1, step=4 * at, commit_digest=name_of(f"commit {at}"), job_id="job",
    )  # fmt: skip


def manifest(at: int) -> model_pb2.Manifest:
    """The ``at``-th of a job of one VNode."""
    made = model_pb2.Manifest(
        number=at, network_id="n", model="m", job_id="job" if at else "", audits=AUDITS_DRAWN if at else "none"
    )
    made.entries.add(vnode="a", working=[checkpoint(at)], cleared=checkpoint(at))
    if at:
        made.contributions.add(
            vnode="a", replica="a.0", pnode_id=NODES["x"], interval=name_of(f"a-{at}"), verdict="spared", batches=spans((4 * at - 4, 4 * at)),
            decided_unix_ms=1000 * at,
        )  # fmt: skip
    return made


class Counted(list[Named]):
    """A line that counts how many of its checkpoints are looked at."""

    steps = 0

    def __iter__(self) -> Any:
        for one in super().__iter__():
            Counted.steps += 1
            yield one


def costs(count: int, monkeypatch: pytest.MonkeyPatch) -> tuple[int, int, int]:
    """After so many checkpoints, of one more: conversions, checkpoints asked whether they are clear, and places of its line walked over as it is read."""
    folding, checkpoints = Folding(manifest(0)), {checkpoint(at).digest: checkpoint(at) for at in range(count)}
    for at in range(1, count):
        folding.read(manifest(at))
    chronicle = folding.chronicle()
    chain, calls = Chain(chronicle, Layers(checkpoints)), {"converted": 0, "asked": 0}
    convert, is_clear = audited.record_from_proto, ledger_module.Ledger._is_clear

    def counted_convert(one: model_pb2.Checkpoint) -> Any:
        calls["converted"] += 1
        return convert(one)

    def counted_clear(self: ledger_module.Ledger, one: Named) -> bool:
        calls["asked"] += 1
        return is_clear(self, one)

    one = judged(f"a{count}", f"a{count - 1}", piece(f"a-{count}", 4 * count - 4, 4 * count), held=[(0, 4 * count)])
    stored = [StoredState("a", Digest(one.checkpoint.digest), 9, 1)]
    rules = Rules("job", 1, "h" * 40, "g" * 64, {"a": "a.0"}, stored, 2, 3_600_000)
    with monkeypatch.context() as patch:
        patch.setattr(audited, "record_from_proto", counted_convert)
        patch.setattr(ledger_module.Ledger, "_is_clear", counted_clear)
        outcome = audited_manifest(chain, from_proto(manifest(count - 1)), "d" * 64, [one], Taken(), rules, SPARED, 7)
        chain.open_intervals()
    assert outcome.manifest is not None
    cleared = outcome.manifest.entries["a"].cleared
    assert cleared is not None
    assert cleared.digest == one.checkpoint.digest
    folding._reading.lines["a"] = Counted(folding._reading.lines["a"])
    Counted.steps = 0
    folding.read(to_proto(replace(outcome.manifest, number=count)))
    folding.take_gone()
    steps = Counted.steps
    folding._reading.lines["a"] = list(folding._reading.lines["a"])
    assert folding.chronicle().cleared == {"a": count + 1}
    return calls["converted"], calls["asked"], steps


def test_one_manifest_more_costs_the_same_however_long_the_chain_is(monkeypatch: pytest.MonkeyPatch) -> None:
    few, many = costs(1_000, monkeypatch), costs(10_000, monkeypatch)
    assert few == many
    assert max(many) <= 4


@given(st.lists(st.dictionaries(st.integers(0, 30), st.integers(), max_size=6), max_size=20))
@settings(max_examples=100)
def test_layers_are_the_mapping_that_they_stand_for(news: list[dict[int, int]]) -> None:
    """With its order, and whoever holds an older one finds it as it was."""
    plain, layers, older = dict[int, int](), Layers[int, int]({}), list[tuple[dict[int, int], Layers[int, int]]]()
    for at, one in enumerate(news):
        older.append((dict(plain), layers))
        plain, layers = {**plain, **one}, layers.updated(one)
        assert len(layers) == len(plain)
        assert all(layers[key] == plain[key] and key in layers for key in plain)
        assert all((key in layers) == (key in plain) for key in range(32))
        if at % 3 == 0:
            assert list(layers.items()) == list(plain.items())
    assert list(layers) == list(plain)
    assert list(updated(layers, {5: 1}).items()) == list({**plain, 5: 1}.items()) == list(updated(plain, {5: 1}).items())
    assert all(dict(held) == before for before, held in older)


def test_layers_stay_few() -> None:
    layers = Layers[int, int]({})
    for key in range(5_000):
        layers = layers.updated({key: key})
    assert len(layers._layers) <= 14
