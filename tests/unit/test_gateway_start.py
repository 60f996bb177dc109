"""Goal: a gateway that still looks for its network ends when it is told to."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from dcnr.cli.gateway_serving import alone
from dcnr.settings import GatewaySettings, TracingSettings

WITHIN_S = 60.0


def test_a_gateway_that_waits_for_a_silent_bootstrap_node_ends_when_it_is_told_to(tmp_path: Path) -> None:
    async def story() -> None:
        stop, gone = asyncio.Event(), asyncio.Event()

        async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            stop.set()  # somebody waits for an answer now
            await reader.read(-1)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
            gone.set()

        server = await asyncio.start_server(silent, "127.0.0.1", 0)
        async with asyncio.timeout(WITHIN_S), server:
            entry = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            settings = GatewaySettings(listen="127.0.0.1:0")
            await alone(settings, tmp_path, network=None, bootstrap=[entry], network_id=None, stop=stop, tracing=TracingSettings())
            await gone.wait()

    asyncio.run(story())
