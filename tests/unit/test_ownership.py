"""Goal: a machine has an owner only by that owner's own signature over its id, and the planner keeps replicas of a VNode on different owners by it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound
from dcnr.limits import MIB
from dcnr.v1 import identity_pb2, membership_pb2, orchestrator_pb2
from orchestrator.costs import StageCost
from orchestrator.inventory import Inventory
from orchestrator.offers import PlanPolicy, PlanRequest
from orchestrator.planner import make_plan
from trust.envelope import seal
from trust.identity import NodeKey
from trust.ownership import load_ownership, make_ownership, open_ownership, owner_in
from trust.records import VerifiedAdvert, make_advert, open_advert

NETWORK, NOW = "a" * 40, 1_700_000_000.0
OWNER, OTHER, NODE, MALLORY = (NodeKey.generate() for _ in range(4))


def advert(node: NodeKey, owner: identity_pb2.Envelope | None, gflops: float = 10.0) -> VerifiedAdvert:
    envelope = make_advert(
        node, network_id=NETWORK, kind=membership_pb2.NODE_KIND_PNODE, incarnation=1, sequence=2, control_addresses=["192.0.2.1:7700"],
        now_wall=NOW, owner=owner,
        capability=membership_pb2.Capability(accepts_work=True, gflops=gflops, memory_bytes=1000 * MIB, disk_bytes=40_000 * MIB),
    )  # fmt: skip
    return open_advert(envelope, network_id=NETWORK, now_wall=NOW)


def test_the_owner_is_who_signed() -> None:
    statement = make_ownership(OWNER, NODE.node_id)
    assert open_ownership(statement, NODE.node_id) == owner_in(statement, NODE.node_id) == OWNER.node_id
    assert advert(NODE, statement).owner == OWNER.node_id
    assert advert(NODE, None).owner == ""
    with pytest.raises(InvalidInput):
        make_ownership(OWNER, "somebody")


def test_nothing_else_names_an_owner_and_the_advert_is_believed_all_the_same() -> None:
    said = identity_pb2.Ownership(node_id=NODE.node_id)
    statement = make_ownership(OWNER, NODE.node_id)
    forged = identity_pb2.Envelope.FromString(statement.SerializeToString())
    forged.signatures[0].public_key = OTHER.public_der
    wrong = [
        make_ownership(OWNER, MALLORY.node_id),  # another machine's
        seal(identity_pb2.DOMAIN_LOCATION, said, OWNER),  # signed as something else
        seal(identity_pb2.DOMAIN_OWNERSHIP, said, OWNER, OTHER),  # two owners
        seal(identity_pb2.DOMAIN_OWNERSHIP, said.SerializeToString() + b"\x7a\xff\x03" + bytes(511), OWNER),  # too long
        seal(identity_pb2.DOMAIN_OWNERSHIP, b"\xff", OWNER),
        forged,
        identity_pb2.Envelope(),
    ]
    for envelope in wrong:
        with pytest.raises(Corrupt):
            open_ownership(envelope, NODE.node_id)
        opened = advert(NODE, envelope)
        assert (opened.node_id, opened.owner) == (NODE.node_id, "")


def test_no_changed_byte_names_an_owner() -> None:
    data = make_ownership(OWNER, NODE.node_id).SerializeToString()
    for index in range(len(data)):
        changed = bytearray(data)
        changed[index] ^= 1 + index % 255
        try:
            envelope = identity_pb2.Envelope.FromString(bytes(changed))
        except Exception:  # noqa: BLE001  not even an envelope
            continue
        assert owner_in(envelope, NODE.node_id) == ""


def test_a_file_that_does_not_hold_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "owner.pb"
    for data, code in ((None, "no_ownership"), (b"?", "bad_ownership"), (bytes(4096), "bad_ownership")):
        if data is not None:
            path.write_bytes(data)
        with pytest.raises((NotFound, Corrupt)) as refused:
            load_ownership(path, NODE.node_id)
        error: DcnrError = refused.value
        assert error.code == code
        assert "pnode own" in error.remedy
    path.write_bytes(make_ownership(OWNER, NODE.node_id).SerializeToString())
    assert owner_in(load_ownership(path, NODE.node_id), NODE.node_id) == OWNER.node_id
    with pytest.raises(Corrupt):
        load_ownership(path, MALLORY.node_id)


def owners_of_replicas(policy: PlanPolicy) -> list[str]:
    """Three machines, the two faster ones of one owner; two replicas of one VNode: whose machines they are put onto."""
    inventory, owners = Inventory(), dict[str, str]()
    for owner, gflops in ((OWNER, 20.0), (OWNER, 20.0), (OTHER, 10.0)):
        node = NodeKey.generate()
        known = advert(node, make_ownership(owner, node.node_id), gflops)
        owners[node.node_id] = known.owner
        inventory.advertised(known.advert, 0.0, known.owner)
        inventory.attached(node.node_id, 0.0)
        inventory.beat(node.node_id, 0.0, orchestrator_pb2.Beat(worker_alive=True, capability=known.advert.capability), 2.0)
    inventory.tick(0.0)
    stage = StageCost("v", (), (), True, 2, 1e9, 4 * MIB, 100 * MIB, MIB, sharing_bytes=20 * MIB)
    asked = PlanRequest(
        NETWORK,
        "m",
        "j",
        "g" * 64,
        1,
        "h" * 40,
        (stage,),
        inventory.offers(0.0),
        None,
        "",
        256,
        8,
        1e9,
        allow_moves=True,
        reason="test",
    )
    plan = make_plan(asked, policy)
    return sorted(owners[item.pnode_id] for item in plan.assignments)


def test_from_keys_to_a_plan_over_two_owners() -> None:
    assert owners_of_replicas(PlanPolicy()) == sorted([OWNER.node_id, OTHER.node_id])
    assert owners_of_replicas(PlanPolicy(keeps_apart=False)) == [OWNER.node_id] * 2, "on a single host the rule is lifted"
