"""Goal: nodes that come and go leave no connections behind at whoever called them."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

from dcnr.client import MAX_GONE, Orchestrators
from dcnr.ids import NodeId


def test_only_the_newest_few_connections_to_nodes_that_are_known_no_more_are_kept() -> None:
    async def story() -> None:
        now_known, open_ = list[NodeId](), set[NodeId]()

        async def connect(node_id: NodeId, addresses: object) -> Any:
            async def close() -> None:
                open_.remove(node_id)

            open_.add(node_id)
            return SimpleNamespace(closed=False, close=close)

        dialer: Any = SimpleNamespace(connect=connect)
        orchestrators = Orchestrators(dialer, lambda: [(node_id, ()) for node_id in now_known])
        lasting, coming = NodeId("f" * 40), [NodeId(f"{number:040x}") for number in range(100)]
        for node_id in (lasting, *coming):
            now_known[:] = [lasting, node_id]
            await orchestrators.connection(node_id, ())
        assert open_ == {lasting, *coming[-1 - MAX_GONE :]}
        await orchestrators.close()
        assert not open_

    asyncio.run(story())
