"""A gateway over a network that is not there (`benchmarks.dashboard_network`): the real pages with their real headers, and its answers.

Runs in a thread on a port of its own; it can be stopped and started again on the same port, as a gateway that goes away and comes back. Tests, pictures and
measurements of the dashboard share it.
"""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from benchmarks.dashboard_network import TOKEN, Network, node_id
from dcnr.v1 import orchestrator_pb2
from gateway.errors import RestError
from gateway.pages import mount_dashboard
from gateway.shapes import shown


class Gateway:
    """Serves a network at ``address`` until it is stopped; ``start`` serves it again there. `close` it in the end."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.asked: list[str] = []
        self._place = socket.socket()  # bound, never listening: while the gateway is away nobody else gets its port
        self._place.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._place.bind(("127.0.0.1", 0))
        self.port: int = self._place.getsockname()[1]
        self.address = f"http://127.0.0.1:{self.port}"
        self._server: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Returns when connections are taken. Raises RuntimeError where that takes over 30 s."""
        config = uvicorn.Config(
            self._app(), host="127.0.0.1", port=self.port, log_level="error", timeout_graceful_shutdown=1, lifespan="off", ws="none"
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        for _ in range(3000):
            if self._server.started:
                return
            self._thread.join(0.01)
        raise RuntimeError("the gateway does not start")

    def stop(self) -> None:
        """Returns when nobody listens any more."""
        if self._server is not None and self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join(30)
            self._server = self._thread = None

    def close(self) -> None:
        """Stops it for good."""
        self.stop()
        self._place.close()

    def _app(self) -> Starlette:
        network = self.network

        def route(path: str, made: Any) -> Route:
            def answer(request: Request) -> Response:
                self.asked.append(request.url.path)
                return JSONResponse(made(request))

            return Route(path, answer)

        app = Starlette(
            routes=[
                route("/v1/stats", lambda request: network.stats()),
                route("/v1/orchestrators", lambda request: {"orchestrators": network.orchestrators()}),
                route("/v1/ledger", lambda request: network.ledger()),
                route("/v1/nodes", self._nodes),
                route("/v1/nodes/{node_id}", self._node),
                route("/v1/nodes/{node_id}/audits", lambda request: network.audits(request.path_params["node_id"])),
                route("/v1/jobs", lambda request: {"jobs": [shown(network.job())], "next_cursor": ""}),
                route("/v1/jobs/{job_id}", lambda request: shown(network.job())),
                route(
                    "/v1/log", lambda request: {"reporter": node_id(10_000), "events": [shown(event) for event in network.events]}
                ),
                Route("/v1/events", self._stream),
                route(
                    "/v1/model",
                    lambda request: {"head": {"epoch": 4}, "graph": shown(network.graph()), "manifest_digest": "ef" * 32},
                ),
                Route("/v1/here", self._here),
                Route("/v1/here/{what}", self._here, methods=["GET", "POST"]),
                route("/v1/model/placement", lambda request: {"plan_digest": "01" * 32, "plan": shown(network.plan())}),
            ]
        )
        mount_dashboard(app)
        return app

    def _nodes(self, request: Request) -> dict[str, Any]:
        limit, first = int(request.query_params.get("limit", "100")), int(request.query_params.get("cursor") or 0)
        rows = self.network.nodes[first : first + limit]
        following = str(first + limit) if first + limit < len(self.network.nodes) else ""
        return {"nodes": [shown(node) for node in rows], "num_nodes": len(self.network.nodes), "next_cursor": following}

    def _node(self, request: Request) -> dict[str, Any]:
        found = next(node for node in self.network.nodes if node.node_id == request.path_params["node_id"])
        line = orchestrator_pb2.Explanation(
            subject=found.node_id, verdict="seen", reason=found.reason or "its beats come in time", inputs={"beats": "12"}
        )
        return {"node": shown(found), "explanations": [shown(line)]}

    async def _here(self, request: Request) -> Response:
        """The reader's own machine, for who has `TOKEN`. What it is asked to do is in ``asked``."""
        what = request.path_params.get("what", "")
        if request.headers.get("x-dcnr-local-token") != TOKEN:
            error = RestError("UNAUTHORIZED_KEY", "this needs the local token", remedy="pnode dashboard")
            return JSONResponse(error.body(), error.status)
        if request.method == "POST":
            self.asked.append(f"{what} {(await request.body()).decode()}")
            self.network.is_paused = what == "pause"
        setting = {"key": "limits.memory_mb", "value": "512", "origin": "flag --memory-mb"}
        told = {
            "": self.network.machine(),
            "settings": {"settings": [setting]},
            "log": {"lines": ["worker: <b>ready</b>"]},
            "note": self.network.note(),
        }
        return JSONResponse(told.get(what, {"within_s": 5.0}))

    async def _stream(self, request: Request) -> Response:
        server, network = self._server, self.network

        async def items() -> AsyncIterator[str]:
            sequence = 0
            while server is not None and not server.should_exit:
                for event in network.events[sequence:]:
                    sequence = event.sequence
                    yield f"id: {sequence}\nevent: event\ndata: {json.dumps(shown(event))}\n\n"
                yield f"event: stats\ndata: {json.dumps(network.stats())}\n\n"
                await asyncio.to_thread(network.wait_for_event, sequence, 0.5)

        return StreamingResponse(items(), media_type="text/event-stream")
