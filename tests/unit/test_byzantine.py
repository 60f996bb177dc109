"""Goal: PNodes that misbehave for tests really do, and a worker of any of their names can be made."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.detection import CASES
from benchmarks.tolerance_cases import REGISTRY
from dcnr.ids import NodeId, ReplicaId
from dcnr.v1 import identity_pb2
from examples.byzantine.process import (
    COLLUDING,
    EQUIVOCATING,
    NAMES,
    SLANDERING,
    EquivocatingChain,
    WavingAuditor,
    making_of,
)
from examples.byzantine.worker import CheatingCompute
from pnode.auditing import Auditing
from pnode.chain import CommitChain, Standing
from trust.commits import Place
from trust.delegation import make_delegation
from trust.equivocation import equivocation_of
from trust.identity import NodeKey
from vnode.torch_compute import TorchCompute
from vnode.vocabulary import Peer

NETWORK, NODE, WORKER = "5" * 40, NodeKey.generate(), NodeKey.generate()


def chain(kind: type[CommitChain]) -> CommitChain:
    def delegation() -> identity_pb2.Envelope:
        return make_delegation(NODE, NETWORK, WORKER.public_der, 3, ["127.0.0.1:1"], 1_700_000_000.0)

    standing = Standing(NETWORK, "m", "j", "a", Peer(ReplicaId("a.1"), 3), NodeId(NODE.node_id))
    return kind(standing, WORKER, delegation, "1" * 64, "")


def test_an_equivocating_chain_proves_itself_and_an_honest_one_does_not() -> None:
    told = [chain(EquivocatingChain), chain(CommitChain)]
    one, other = ([made.close(state="2" * 64).commit, made.close(state="3" * 64).commit] for made in told)
    place = Place(NETWORK, "m", "j", "a")
    assert equivocation_of(one[0], one[1], place).pnode_id == NODE.node_id
    with pytest.raises(Exception, match="different places"):
        equivocation_of(other[0], other[1], place)


def test_each_name_makes_a_worker_that_differs_in_one_thing() -> None:
    assert len(NAMES) == 16
    for name in NAMES:
        made = making_of(name)
        differs = [made.chain is not CommitChain, made.auditing is not Auditing]
        assert differs == [name == EQUIVOCATING, name in (COLLUDING, SLANDERING)]
    assert making_of(COLLUDING).auditing is WavingAuditor
    assert issubclass(CheatingCompute, making_of(EQUIVOCATING).compute)  # type: ignore[arg-type]


def test_a_cheat_may_wait_for_a_file(tmp_path: Path) -> None:
    case, begins = CASES[0], tmp_path / "now"
    made = making_of(f"skipped@{begins}").compute
    assert made is not None

    def after_a_step(compute: TorchCompute) -> bytes:
        info = compute.restore(case.first())
        [entry] = case.entries(1)
        compute.learn(entry.batch, entry.inputs, entry.target, 0)
        return compute.snapshot(info)

    given = {"num_batches": case.num_steps, "seed": case.seed}
    honest = after_a_step(TorchCompute(case.stage(), REGISTRY, **given))
    assert after_a_step(made(case.stage(), REGISTRY, **given)) == honest
    begins.touch()
    assert after_a_step(made(case.stage(), REGISTRY, **given)) != honest
    with pytest.raises(ValueError, match="no behaviour 'dance'"):
        making_of("dance")
