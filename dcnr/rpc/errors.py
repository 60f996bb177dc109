"""Typed errors over gRPC: one status and one `ErrorDetail` per error on the way out, the same class again on the way in.

The detail travels in the trailing metadata ``dcnr-error-bin``, cut to a size that always fits. A peer cannot make us believe in a bug of our own:
its `InvariantBroken` arrives as RemoteFault.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
import traceback
from collections.abc import Iterable, Iterator
from typing import Final, cast

import grpc
from google.protobuf.message import DecodeError
from grpc import aio

from dcnr.errors import (
    ERROR_CLASSES,
    Corrupt,
    DcnrError,
    InvalidInput,
    InvariantBroken,
    NotFound,
    Refused,
    RemoteFault,
    Stale,
    TimedOut,
    Unavailable,
    without_directories,
)
from dcnr.v1 import common_pb2

ERROR_METADATA: Final = "dcnr-error-bin"
MAX_DETAIL_BYTES: Final = 4096
MAX_TEXT_CHARS: Final = 512
MAX_FACTS: Final = 32
MAX_RETRY_AFTER_S: Final = 3600.0
CALL_HAS_ENDED: Final = "Internal error from Core"
"""What gRPC for Python says by itself, with the status INTERNAL, where the call ended while this end was writing; why it ended is lost then."""
SESSION_CODES: Final = ("session_required", "session_expired", "session_elsewhere")
"""Codes of Refused that a new session cures; sent with the status UNAUTHENTICATED."""

_BY_KIND: Final = {cls.__name__: cls for cls in ERROR_CLASSES}
_BY_STATUS: Final[dict[grpc.StatusCode, tuple[type[DcnrError], str]]] = {
    grpc.StatusCode.INVALID_ARGUMENT: (InvalidInput, "invalid_input"),
    grpc.StatusCode.NOT_FOUND: (NotFound, "not_found"),
    grpc.StatusCode.FAILED_PRECONDITION: (Stale, "stale"),
    grpc.StatusCode.ABORTED: (Stale, "stale"),
    grpc.StatusCode.PERMISSION_DENIED: (Refused, "refused"),
    grpc.StatusCode.UNAUTHENTICATED: (Refused, "session_required"),
    grpc.StatusCode.RESOURCE_EXHAUSTED: (InvalidInput, "message_too_large"),
    grpc.StatusCode.DATA_LOSS: (Corrupt, "corrupt"),
    grpc.StatusCode.DEADLINE_EXCEEDED: (TimedOut, "timed_out"),
    grpc.StatusCode.UNAVAILABLE: (Unavailable, "unreachable"),
    grpc.StatusCode.CANCELLED: (Unavailable, "call_cancelled"),
    grpc.StatusCode.UNIMPLEMENTED: (RemoteFault, "unimplemented"),
}


def status_of(error: DcnrError) -> grpc.StatusCode:
    """The gRPC status of an error."""
    if isinstance(error, Refused) and error.code in SESSION_CODES:
        return grpc.StatusCode.UNAUTHENTICATED
    return grpc.StatusCode[error.grpc_status]


@contextlib.contextmanager
def calls_let_go() -> Iterator[None]:
    """What is raised inside keeps no call, nor does what it stems from, or what failed beside it. gRPC's core ends a connection only once nobody holds a call
    of it, closed channel or not; an exception holds the frames that it went through, and is itself often held in a circle, such as its task's, that only a
    search for garbage finds, a thousand failures later. Nothing inside may hand over the exception of a task that goes on: its frames would be cleared too,
    and it would end.
    """
    before = sys.exception()
    try:
        yield
    except BaseException as error:
        for one in _behind(error, before):
            traceback.clear_frames(one.__traceback__)  # those that are over; the callers, which still run, are left alone
        raise


def _behind(error: BaseException, before: BaseException | None) -> list[BaseException]:
    """The error and all that it stems from, but for what was being handled ``before``, each once."""
    found: list[BaseException] = []
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is None or one is before or any(one is known for known in found):
            continue
        found.append(one)
        waiting += (one.__cause__, one.__context__, *(one.exceptions if isinstance(one, BaseExceptionGroup) else ()))
    return found


@contextlib.contextmanager
def unless_closed() -> Iterator[None]:
    """gRPC cancels whoever waits for a call on a channel that somebody else closes: raises Unavailable (``connection_closed``) then. Left as it is, the task
    that waits would end without a word, as if it had been cancelled itself. What is raised keeps no call (`calls_let_go`).
    """
    try:
        with calls_let_go():
            yield
    except asyncio.CancelledError as error:
        if (task := asyncio.current_task()) is None or task.cancelling():
            raise
        raise Unavailable("the connection was closed meanwhile", code="connection_closed") from error


def detail_of(error: DcnrError) -> common_pb2.ErrorDetail:
    """The error as it travels, without directories of this machine: at most `MAX_DETAIL_BYTES`, facts dropped from the end where it would be more."""
    facts = [(key[:64], without_directories(value)[:MAX_TEXT_CHARS]) for key, value in list(error.details.items())[:MAX_FACTS]]
    detail = common_pb2.ErrorDetail(
        kind=type(error).__name__,
        code=error.code[:64],
        message=without_directories(error.message)[:MAX_TEXT_CHARS],
        remedy=without_directories(error.remedy)[:MAX_TEXT_CHARS],
        details=dict(facts),
        retry_after_s=error.retry_after_s if isinstance(error, Unavailable) else 0.0,
    )
    while facts and detail.ByteSize() > MAX_DETAIL_BYTES:
        del detail.details[facts.pop()[0]]
    return detail


def trailing_metadata_of(error: DcnrError) -> tuple[tuple[str, bytes], ...]:
    """What to send with the status."""
    return ((ERROR_METADATA, detail_of(error).SerializeToString()),)


def error_from_rpc(error: aio.AioRpcError) -> DcnrError:
    """The typed error behind a failed call."""
    status = error.code()
    text = (error.details() or status.name)[:MAX_TEXT_CHARS]
    detail = _detail_in(error)
    if detail is None:
        if status is grpc.StatusCode.INTERNAL and text == CALL_HAS_ENDED:
            return Unavailable("the call ended while it was written", code="call_ended")
        cls, code = _BY_STATUS.get(status, (RemoteFault, f"rpc_{status.name.lower()}"))
        return cls(text, code=code)
    cls = _BY_KIND.get(detail.kind, RemoteFault)
    if issubclass(cls, InvariantBroken):
        cls = RemoteFault
    message, remedy = detail.message[:MAX_TEXT_CHARS] or text, detail.remedy[:MAX_TEXT_CHARS]
    reason = detail.code[:64] or None
    if issubclass(cls, Unavailable):
        wait_s = detail.retry_after_s if math.isfinite(detail.retry_after_s) else 0.0
        rebuilt: DcnrError = cls(message, code=reason, remedy=remedy, retry_after_s=min(max(wait_s, 0.0), MAX_RETRY_AFTER_S))
    else:
        rebuilt = cls(message, code=reason, remedy=remedy)
    rebuilt.details = dict(sorted(detail.details.items())[:MAX_FACTS])
    return rebuilt


def _detail_in(error: aio.AioRpcError) -> common_pb2.ErrorDetail | None:
    for key, value in cast(Iterable[tuple[str, str | bytes]], error.trailing_metadata() or ()):
        if key == ERROR_METADATA and isinstance(value, bytes) and len(value) <= 2 * MAX_DETAIL_BYTES:
            try:
                return common_pb2.ErrorDetail.FromString(value)
            except DecodeError:
                return None
    return None
