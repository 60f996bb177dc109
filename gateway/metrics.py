"""What ``/metrics`` shows, and the catalogue of it: every family is in `CATALOGUE` with its meaning, and there is no other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from gateway.stats import Stats

CATALOGUE: Final[Mapping[str, tuple[str, tuple[str, ...], str]]] = MappingProxyType(
    {
        "dcnr_gateway_requests": ("counter", ("route", "method", "status"), "requests answered"),
        "dcnr_gateway_request_seconds": ("histogram", ("route",), "seconds from a request to the end of its answer, streams left out"),
        "dcnr_gateway_in_flight": ("gauge", (), "requests and streams that are open"),
        "dcnr_gateway_watchers": ("gauge", (), "streams of events that are open"),
        "dcnr_gateway_watchers_dropped": ("counter", ("reason",), "streams of events that were ended because their client did not read"),
        "dcnr_gateway_network_up": ("gauge", (), "1 where an orchestrator answered just now; else 0, and the network's figures are old"),
        "dcnr_nodes": ("gauge", ("state",), "PNodes by state"),
        "dcnr_jobs": ("gauge", ("state",), "jobs by state"),
        "dcnr_queue_depth": ("gauge", (), "jobs accepted and not yet at work"),
        "dcnr_store_up": ("gauge", (), "1 where the orchestrator's last request to the store worked"),
        "dcnr_proxied_read_objects": ("gauge", ("orchestrator",), "objects of the store given out by the orchestrator that answers, since its start"),
        "dcnr_proxied_read_bytes": ("gauge", ("orchestrator",), "bytes of those"),
        "dcnr_proxied_written_objects": ("gauge", ("orchestrator",), "objects that it took for the store"),
        "dcnr_proxied_written_bytes": ("gauge", ("orchestrator",), "bytes of those"),
        "dcnr_job_batches": ("gauge", ("job", "model"), "batches of a job at work"),
        "dcnr_job_learned_batches": ("gauge", ("job", "model"), "batches learned by the VNode that has learned least"),
        "dcnr_job_batches_per_second": ("gauge", ("job", "model"), "rate of the slowest VNode"),
        "dcnr_questions": ("gauge", ("orchestrator",), "questions asked at the orchestrator that answers, since its start"),
        "dcnr_questions_answered": ("gauge", ("orchestrator",), "of those, answered"),
        "dcnr_questions_degraded": ("gauge", ("orchestrator",), "of the answered, from a shallower exit than was asked"),
        "dcnr_questions_failed": ("gauge", ("orchestrator", "code"), "the others, by error code"),
        "dcnr_questions_in_flight": ("gauge", ("orchestrator",), "asked and not answered yet"),
        "dcnr_questions_seconds_p50": ("gauge", ("orchestrator",), "median of the newest answers, from question to answer"),
        "dcnr_questions_seconds_p95": ("gauge", ("orchestrator",), "95 % of them took no longer"),
        "dcnr_questions_ways": ("gauge", ("orchestrator",), "ways tried for questions"),
        "dcnr_questions_compared": ("gauge", ("orchestrator",), "answers compared with another way's"),
        "dcnr_questions_differing": ("gauge", ("orchestrator",), "of those, by more than tolerance"),
        "dcnr_text_passes_continued": ("gauge", ("orchestrator",), "passes of texts that went on from what stages had kept"),
        "dcnr_text_passes_replayed": ("gauge", ("orchestrator",), "passes of texts that brought the whole window again, since a stage had lost it"),
    }
)  # fmt: skip
"""Kind, labels and meaning by name of the family."""
SERVING: Final[Mapping[str, str]] = MappingProxyType(
    {
        "num_questions": "dcnr_questions", "num_answered": "dcnr_questions_answered", "num_degraded": "dcnr_questions_degraded",
        "in_flight": "dcnr_questions_in_flight", "p50_s": "dcnr_questions_seconds_p50", "p95_s": "dcnr_questions_seconds_p95",
        "num_ways": "dcnr_questions_ways", "num_compared": "dcnr_questions_compared", "num_differing": "dcnr_questions_differing",
        "num_continued": "dcnr_text_passes_continued", "num_replays": "dcnr_text_passes_replayed",
    }
)  # fmt: skip
"""The family of each single figure of the contract's ServingFigures."""
PROXIED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "num_read": "dcnr_proxied_read_objects", "read_bytes": "dcnr_proxied_read_bytes",
        "num_written": "dcnr_proxied_written_objects", "written_bytes": "dcnr_proxied_written_bytes",
    }
)  # fmt: skip
"""The family of each figure of the contract's ProxyFigures."""
NETWORK: Final = (
    "dcnr_nodes", "dcnr_jobs", "dcnr_job_batches", "dcnr_job_learned_batches", "dcnr_job_batches_per_second", "dcnr_questions_failed",
    *SERVING.values(), *PROXIED.values(),
)  # fmt: skip
"""Families whose series are those of the last answer alone."""
SECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Metrics:
    """The families of one gateway."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        made = {"counter": self._counter, "gauge": self._gauge, "histogram": self._histogram}
        self._families: dict[str, Any] = {
            name: made[kind](name, meaning, labels) for name, (kind, labels, meaning) in CATALOGUE.items()
        }

    @contextlib.contextmanager
    def in_flight(self) -> Iterator[None]:
        """Counts a request while it lasts."""
        gauge = self._families["dcnr_gateway_in_flight"]
        gauge.inc()
        try:
            yield
        finally:
            gauge.dec()

    def answered(self, route: str, method: str, status: int, seconds: float | None) -> None:
        """A request is done. ``route`` is its pattern, never its path: the number of series stays bounded. ``seconds``: None for a stream."""
        known = method if method in ("GET", "POST", "HEAD", "OPTIONS", "PUT", "DELETE", "PATCH") else "other"
        self._families["dcnr_gateway_requests"].labels(route, known, str(status)).inc()
        if seconds is not None:
            self._families["dcnr_gateway_request_seconds"].labels(route).observe(seconds)

    def watchers(self, number: int) -> None:
        """So many streams are open."""
        self._families["dcnr_gateway_watchers"].set(number)

    def dropped(self, reason: str) -> None:
        """A stream was ended."""
        self._families["dcnr_gateway_watchers_dropped"].labels(reason).inc()

    def rendered(self, stats: Stats | None) -> bytes:
        """The exposition, with the network's figures of now; None where no orchestrator answered."""
        families = self._families
        families["dcnr_gateway_network_up"].set(stats is not None)
        for name in NETWORK:
            families[name].clear()
        if stats is not None:
            for state, number in stats.nodes_by_state.items():
                families["dcnr_nodes"].labels(state).set(number)
            for state, number in stats.jobs_by_state.items():
                families["dcnr_jobs"].labels(state).set(number)
            families["dcnr_queue_depth"].set(stats.queue_depth)
            families["dcnr_store_up"].set(stats.store_ok)
            for job in stats.training:
                families["dcnr_job_batches"].labels(job.job_id, job.model).set(job.num_batches)
                families["dcnr_job_learned_batches"].labels(job.job_id, job.model).set(job.num_learned)
                families["dcnr_job_batches_per_second"].labels(job.job_id, job.model).set(job.batches_per_s)
            for field, value in stats.serving.items():
                families[SERVING[field]].labels(stats.reporter).set(value)
            for field, number in stats.proxied.items():
                families[PROXIED[field]].labels(stats.reporter).set(number)
            for code, number in stats.questions_failed.items():
                families["dcnr_questions_failed"].labels(stats.reporter, code).set(number)
        return generate_latest(self.registry)

    def _counter(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
        return Counter(name, meaning, labels, registry=self.registry)

    def _gauge(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
        return Gauge(name, meaning, labels, registry=self.registry)

    def _histogram(self, name: str, meaning: str, labels: tuple[str, ...]) -> Counter | Gauge | Histogram:
        return Histogram(name, meaning, labels, registry=self.registry, buckets=SECONDS)
