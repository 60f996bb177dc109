"""Structured logs of the daemons: one line per event on standard error, for people or as JSON; nothing is logged before `configure`.

No process ends or waits for its log: whoever reads it may go, or read nothing, and the disk on which it lies may be full.

Where they are known a line has ``node`` (who says it), ``job``, ``model``, ``vnode`` and ``replica`` (what it is about), ``trace_id`` and ``span_id`` (see
`dcnr.tracing`). As JSON every line is one object, also what libraries warn of.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any, TextIO, cast

import structlog

from dcnr import tracing
from dcnr.aside import NO_ROOM, Aside, keeps_waiting, show_nothing
from dcnr.errors import DcnrError, InvalidInput, for_others
from dcnr.ids import check_replica_id, vnode_of


class Outliving:
    """A stream for whose reader's end, or terminal's, or disk, nobody need end: what cannot be shown goes nowhere. Nor need anybody wait for a reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._aside = _aside_of(stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of any stream; never raises for a reader that is gone, or a disk that is full."""
        if self._aside is not None:
            self._aside.put(text)
            return len(text)
        try:
            self._stream.write(text)
        except OSError as error:
            self._failed(error)
        return len(text)

    def flush(self) -> None:
        """As of any stream; never raises for a reader that is gone, or a disk that is full."""
        if self._aside is not None:
            return
        try:
            self._stream.flush()
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """What else than a full disk refuses goes on refusing: nothing more is shown."""
        if error.errno not in NO_ROOM:
            show_nothing(self._stream.fileno())


def _aside_of(stream: TextIO) -> Aside | None:
    """Where its reader may keep others waiting."""
    try:
        descriptor = stream.fileno()
    except (OSError, ValueError):  # it is none of the system's
        return None
    return Aside(descriptor) if keeps_waiting(descriptor) else None


def configure(*, level: str, as_json: bool, colours: bool = False) -> None:
    """Sends structlog's events and warnings of libraries to standard error, from ``level`` (debug, info, warning, error) on; this process outlives it."""
    sys.stderr = cast(TextIO, Outliving(sys.stderr))
    minimum = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        _with_trace,
    ]
    if as_json:
        plain = structlog.tracebacks.ExceptionDictTransformer(show_locals=False)  # locals hold tokens, and strangers' bytes
        last: list[Any] = [structlog.processors.ExceptionRenderer(plain), structlog.processors.JSONRenderer()]
    else:
        last = [structlog.dev.ConsoleRenderer(colors=colours, exception_formatter=structlog.dev.plain_traceback)]
    structlog.configure(
        processors=[*shared, *last],
        wrapper_class=structlog.make_filtering_bound_logger(minimum),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    of_libraries = logging.StreamHandler(sys.stderr)
    of_libraries.setFormatter(_as_events([*shared, *last]) if as_json else logging.Formatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[of_libraries], level=max(minimum, logging.WARNING))


def name_node(node_id: str) -> None:
    """From now on every line of this task, and of tasks that it begins, says who says it."""
    structlog.contextvars.bind_contextvars(node=node_id)


def told(event: str, error: Exception, **facts: object) -> str:
    """What others may hear of an error, see `dcnr.errors.for_others`; the log keeps the whole of one that nobody thought of."""
    if not isinstance(error, DcnrError):
        structlog.get_logger(__name__).error(event, exc_info=error, **facts)
    return for_others(error)


def vnode_in(kind: str, subject: str) -> dict[str, str]:
    """``vnode``, and ``replica``, where an event is about one."""
    if kind.startswith("seat_"):
        return {"vnode": subject}
    try:
        replica = check_replica_id(subject)
    except InvalidInput:
        return {}
    return {"replica": replica, "vnode": vnode_of(replica)}


def _with_trace(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    context = tracing.current()
    if context:
        _, event["trace_id"], event["span_id"], _ = context.split("-")
    return event


def _as_events(processors: list[Any]) -> logging.Formatter:
    meta = structlog.stdlib.ProcessorFormatter.remove_processors_meta
    return structlog.stdlib.ProcessorFormatter(foreign_pre_chain=[structlog.stdlib.add_logger_name], processors=[meta, *processors])
