"""Goal: what an orchestrator knows of a model is told while its store stands still."""

from __future__ import annotations

import asyncio
from typing import Any

from attack_rig import MODEL, Rig, run

from dataservice import keys
from dcnr.ids import digest_of
from dcnr.v1 import model_pb2, orchestrator_pb2
from dcnr.v1.orchestrator_pb2_grpc import OrchestratorServiceStub
from orchestrator.runtime import ModelRuntime
from orchestrator.view import ModelView
from trust.identity import NodeKey

GRAPH = model_pb2.ModelGraph(name=MODEL).SerializeToString()


def test_a_model_that_nothing_trains_is_shown_by_what_was_read_before() -> None:
    async def stands_still(*asked: Any, **how: Any) -> Any:
        await asyncio.Event().wait()

    async def story(found: Rig) -> None:
        runtime = found.runtimes[MODEL] = ModelRuntime(MODEL, found.shared)
        head = model_pb2.Head(model=MODEL, manifest_digest="m" * 64)
        runtime.view = ModelView(MODEL, head, b"", manifest=model_pb2.Manifest(graph_digest=digest_of(GRAPH)))
        await found.store.put(keys.graph(digest_of(GRAPH)), GRAPH)
        stranger = await found.dial(NodeKey.generate())

        async def shown() -> Any:
            ask = OrchestratorServiceStub(stranger.channel).GetModel
            return await stranger.call(ask, orchestrator_pb2.GetModelRequest(model=MODEL), timeout_s=5.0)

        before = await shown()
        store: Any = found.store
        for name in ("list", "get", "head"):
            setattr(store, name, stands_still)
        assert await shown() == before
        assert (before.graph, before.manifest_digest) == (GRAPH, "m" * 64)

    run(story)
