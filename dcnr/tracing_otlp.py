"""Spans to a collector over OTLP (HTTP, protobuf), from a thread of their own; what it does not take in time is dropped. Needs the extra ``otel``."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import urlsplit

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased

from dcnr import __version__
from dcnr.errors import DcnrError, InvalidInput
from dcnr.settings import TracingSettings
from dcnr.tracing import Span, Value, being, checked, current

EXPORT_S: Final = 5.0
DELAY_MS: Final = 1000
MAX_QUEUED: Final = 2048
MAX_BATCH: Final = 256
CLOSE_S: Final = 2.0


class Exporting:
    """A `dcnr.tracing.Tracer`."""

    def __init__(self, settings: TracingSettings, service: str, instance: str) -> None:
        parts = urlsplit(settings.endpoint)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise InvalidInput(
                f"{settings.endpoint!r} is no address of a collector",
                code="bad_setting",
                remedy="tracing.endpoint is like http://127.0.0.1:4318",
            )
        named = {"service.name": service, "service.version": __version__, "service.instance.id": instance}
        self._provider = TracerProvider(
            resource=Resource.create(named), sampler=ParentBased(TraceIdRatioBased(settings.share)), shutdown_on_exit=False
        )
        exporter = OTLPSpanExporter(endpoint=settings.endpoint.rstrip("/") + "/v1/traces", timeout=EXPORT_S)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=MAX_QUEUED, schedule_delay_millis=DELAY_MS, max_export_batch_size=MAX_BATCH)
        )
        logging.getLogger("opentelemetry.exporter").setLevel(
            logging.ERROR
        )  # a line per lost batch, not one per retry: logs stay small
        self._tracer = self._provider.get_tracer("dcnr", __version__)

    @contextmanager
    def span(self, name: str, parent: str = "", **facts: Value) -> Iterator[Span]:
        """See `dcnr.tracing.Tracer`. An error that leaves the block is told by its class and code, never by its text."""
        made = self._tracer.start_span(name, context=_context_of(checked(parent) or current()), attributes=facts)
        try:
            with being(_traceparent_of(made.get_span_context())):
                yield _Made(made)
        except BaseException as error:
            code = f" {error.code}" if isinstance(error, DcnrError) else ""
            made.set_status(trace.StatusCode.ERROR, f"{type(error).__name__}{code}")
            raise
        finally:
            made.end()

    def past(self, name: str, parent: str, seconds: float, **facts: Value) -> None:
        """See `dcnr.tracing.Tracer`."""
        ended_ns = time.time_ns()
        began_ns = ended_ns - int(max(0.0, seconds) * 1e9)
        self._tracer.start_span(name, context=_context_of(checked(parent)), attributes=facts, start_time=began_ns).end(ended_ns)

    def close(self) -> None:
        """See `dcnr.tracing.Tracer`. A collector that does not answer keeps nobody."""
        closing = threading.Thread(target=self._provider.shutdown, name="last spans", daemon=True)
        closing.start()
        closing.join(CLOSE_S)


class _Made:
    """A `dcnr.tracing.Span`."""

    def __init__(self, made: trace.Span) -> None:
        self._made = made

    def rename(self, name: str) -> None:
        self._made.update_name(name)

    def note(self, **facts: Value) -> None:
        self._made.set_attributes(facts)


def _context_of(traceparent: str) -> Context:
    if not traceparent:
        return Context()
    _, trace_id, span_id, flags = traceparent.split("-")
    parent = trace.SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=trace.TraceFlags(int(flags, 16)))
    return trace.set_span_in_context(trace.NonRecordingSpan(parent), Context())


def _traceparent_of(span: trace.SpanContext) -> str:
    return f"00-{span.trace_id:032x}-{span.span_id:016x}-{span.trace_flags & 0xFF:02x}"
