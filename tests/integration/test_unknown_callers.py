"""Goal: a PNode that one orchestrator does not know, or not yet, reads and writes all the same through another that does."""

from __future__ import annotations

import secrets
from pathlib import Path
from types import SimpleNamespace

import pytest
from attack_rig import CLOCK, MODEL, Rig, run

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.objects import ObjectClient
from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.server import RpcServer
from dcnr.v1 import data_pb2
from dcnr.v1.data_pb2_grpc import add_DataServiceServicer_to_server
from orchestrator.datarpc import DataServicer
from trust.identity import NodeKey

HOSTED = SimpleNamespace(view=SimpleNamespace(hosted_by=lambda node_id: (SimpleNamespace(vnode="first"),), job=None))


@pytest.mark.parametrize("knows_the_caller", [False, True])
def test_who_is_asked_first_and_has_just_begun_keeps_no_pnode_from_its_objects(tmp_path: Path, knows_the_caller: bool) -> None:
    """It knows no PNode yet, or no model."""

    async def story(found: Rig) -> None:
        begun, key = NodeKey.generate(), NodeKey.generate()
        data = DataServicer(found.shared, {}, presigner=None, proxy_uploads=True, known=lambda node: knows_the_caller)
        server = RpcServer(begun, found.policy.network_id, clock=CLOCK, rng=secrets.token_bytes)
        server.add(lambda target: add_DataServiceServicer_to_server(data, target))
        address = f"127.0.0.1:{await server.start('127.0.0.1', 0)}"
        found.runtimes[MODEL] = HOSTED
        dialer = Dialer(key, found.policy.network_id, clock=CLOCK, rng=secrets.token_bytes, own_connections=True)
        both = [(begun.node_id, (address,)), (found.key.node_id, (found.address,))]
        orchestrators, alone = Orchestrators(dialer, lambda: both), Orchestrators(dialer, lambda: both[:1])
        objects, state = ObjectClient(orchestrators, AddressRule), b"a state"
        path = tmp_path / "state"
        path.write_bytes(state)
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_STATE, model=MODEL, owner="first", digest=digest_of(state))
        try:
            with pytest.raises(Unavailable):
                await ObjectClient(alone, AddressRule).write_file(ref, path, size_bytes=len(state), sha256=digest_of(state))
            await objects.write_file(ref, path, size_bytes=len(state), sha256=digest_of(state))
            assert (await found.store.get(keys.state(MODEL, "first", ref.digest), max_bytes=limits.MIB)).data == state
            assert await objects.read_bytes(ref, max_bytes=limits.MIB, directory=tmp_path) == state
        finally:
            await orchestrators.close()
            await alone.close()
            await server.stop(0.1)

    run(story)
