"""Structured logs of the daemons: one line per event on standard error, for people or as JSON; nothing is logged before `configure`."""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog


def configure(*, level: str, as_json: bool, colours: bool = False) -> None:
    """Sends structlog's events and warnings of libraries to standard error, from ``level`` (debug, info, warning, error) on."""
    minimum = logging.getLevelNamesMapping()[level.upper()]
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
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
    logging.basicConfig(stream=sys.stderr, level=max(minimum, logging.WARNING), format="%(levelname)s %(name)s: %(message)s")
