"""One trace from a question at a gateway to the VNode that computes it on another machine, in the form of the W3C trace context (version 00).

Shells make spans; what decides knows nothing of them. A process whose owner names no collector makes none, sends nothing and imports nothing, but hands the
context on. A context that came from elsewhere is checked and then only passed on: nothing is decided by it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Final, Protocol

from dcnr.errors import InvalidInput
from dcnr.settings import TracingSettings

Value = str | int | float | bool
_LENGTH: Final = 55
_FORM: Final = re.compile(r"00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")
_CURRENT: Final[ContextVar[str]] = ContextVar("traceparent", default="")


class Span(Protocol):
    """Something that takes time."""

    def rename(self, name: str) -> None:
        """Its name, where that is known only later."""
        ...

    def note(self, **facts: Value) -> None:
        """What is known of it now."""
        ...


class Tracer(Protocol):
    """Makes spans."""

    def span(self, name: str, parent: str = "", **facts: Value) -> AbstractContextManager[Span]:
        """Lasts as long as the block; inside, `current` is its context. ``parent``: a context from elsewhere; without one, what is current."""
        ...

    def past(self, name: str, parent: str, seconds: float, **facts: Value) -> None:
        """A span that has just ended."""
        ...

    def close(self) -> None:
        """Sends what is left, for two seconds at most."""
        ...


class Nothing:
    """A span that nobody wants."""

    def rename(self, name: str) -> None:
        """Nothing."""

    def note(self, **facts: Value) -> None:
        """Nothing."""


_NOTHING: Final = Nothing()


class Untraced:
    """Makes no spans, and hands on what it is given."""

    def span(self, name: str, parent: str = "", **facts: Value) -> AbstractContextManager[Span]:
        """Only the context."""
        given = checked(parent)
        return _handing_on(given) if given else nullcontext(_NOTHING)

    def past(self, name: str, parent: str, seconds: float, **facts: Value) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


UNTRACED: Final = Untraced()


def checked(context: str) -> str:
    """The trace context, where it is one; else nothing. For what strangers say."""
    return context if len(context) == _LENGTH and _FORM.fullmatch(context) else ""


def of_job(job_id: str) -> str:
    """The context of a job. It follows from the id: whoever takes part knows it, and nothing has to be stored or carried for days."""
    digest = hashlib.sha256(b"trace of job " + job_id.encode()).hexdigest()
    return f"00-{digest[:32]}-{digest[32:48]}-01"


def current() -> str:
    """The context of the span that this task is in; empty without one."""
    return _CURRENT.get()


@contextmanager
def being(context: str) -> Iterator[None]:
    """Inside, that is `current`."""
    before = _CURRENT.get()
    _CURRENT.set(context)  # no token: the generators of streams may be closed in another task's context
    try:
        yield
    finally:
        _CURRENT.set(before)


def started(settings: TracingSettings, service: str, instance: str) -> Tracer:
    """The tracer of this process. ``service`` and ``instance`` (a node id) name it at the collector. Raises InvalidInput."""
    if not settings.endpoint:
        return UNTRACED
    try:
        from dcnr.tracing_otlp import Exporting
    except ImportError as error:
        raise InvalidInput(
            f"traces need OpenTelemetry: {error}",
            code="no_tracing_library",
            remedy="pip install '.[otel]' in the repository, or set no tracing.endpoint",
        ) from error
    return Exporting(settings, service, instance)


@contextmanager
def _handing_on(context: str) -> Iterator[Span]:
    with being(context):
        yield _NOTHING
