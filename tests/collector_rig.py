"""A collector of traces: takes OTLP over HTTP as any collector does, and keeps what it was told."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse

WAIT_S = 60.0
MAX_BYTES = 4 << 20


@dataclass(frozen=True)
class Told:
    """One span."""

    service: str
    instance: str
    name: str
    trace: str
    span: str
    parent: str
    facts: dict[str, Any]
    status: str
    seconds: float


class Collector:
    """A context manager: listens while it lasts."""

    def __init__(self) -> None:
        self._spans: list[Told] = []
        self._news = threading.Condition(threading.RLock())
        rig = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                assert self.path == "/v1/traces"
                data = self.rfile.read(min(MAX_BYTES, int(self.headers["content-length"])))
                rig._take(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Collector:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._server.shutdown()
        self._thread.join(10)
        self._server.server_close()

    def of(self, trace: str) -> list[Told]:
        """What it was told of that trace so far."""
        with self._news:
            return [span for span in self._spans if span.trace == trace]

    def wait(self, trace: str, enough: Callable[[list[Told]], bool]) -> list[Told]:
        """The spans of that trace, once they are enough."""
        with self._news:
            assert self._news.wait_for(lambda: enough(self.of(trace)), WAIT_S), self.of(trace)
            return self.of(trace)

    def _take(self, data: bytes) -> None:
        found = []
        for group in ExportTraceServiceRequest.FromString(data).resource_spans:
            named = {item.key: item.value.string_value for item in group.resource.attributes}
            for scope in group.scope_spans:
                for span in scope.spans:
                    facts = {
                        item.key: getattr(item.value, item.value.WhichOneof("value") or "string_value") for item in span.attributes
                    }
                    found.append(
                        Told(
                            named["service.name"], named["service.instance.id"], span.name, span.trace_id.hex(), span.span_id.hex(),
                            span.parent_span_id.hex(), facts, span.status.message,
                            (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9,
                        )
                    )  # fmt: skip
        with self._news:
            self._spans += found
            self._news.notify_all()
