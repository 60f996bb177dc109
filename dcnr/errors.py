"""One tree of errors, cut by who can act on them.

Every error that leaves a component is one of these classes. Each class has exactly one gRPC status name, one REST status and one
process exit code, so that a caller decides by type and never by matching text. ``code`` is a stable snake_case word for the precise reason
(``unsigned_job``, ``head_moved``); ``details`` holds the facts as strings; ``remedy`` says what to do next.
"""

from __future__ import annotations

import re
from typing import ClassVar, Final

_DIRECTORY: Final = r"(?!\s)(?:(?!\w{1,16}://)[^/\n])*[^\s/]/"
"""A name may have spaces, but none at its ends; no URL begins within it."""
_DIRECTORIES: Final = re.compile(rf"(?<![\w/:.])/(?:{_DIRECTORY})+")


class DcnrError(Exception):
    """Base of all typed errors: what happened (``message``), why (``code``), what to do (``remedy``)."""

    grpc_status: ClassVar[str] = "UNKNOWN"
    http_status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1
    default_code: ClassVar[str] = "error"

    def __init__(self, message: str, *, code: str | None = None, remedy: str = "", **details: object) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.remedy = remedy
        self.details: dict[str, str] = {key: str(value) for key, value in details.items()}

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})" if self.remedy else self.message


class InvalidInput(DcnrError):
    """The caller's input is wrong: correct it; sending it again cannot help."""

    grpc_status = "INVALID_ARGUMENT"
    http_status = 400
    exit_code = 2
    default_code = "invalid_input"


class RemoteFault(DcnrError):
    """A peer broke the protocol; ``details`` carries the evidence. Drop what it sent, remember who."""

    grpc_status = "DATA_LOSS"
    http_status = 502
    default_code = "remote_fault"


class Unavailable(DcnrError):
    """Not possible at the moment: retry elsewhere, or here after ``retry_after_s``."""

    grpc_status = "UNAVAILABLE"
    http_status = 503
    exit_code = 4
    default_code = "unavailable"

    def __init__(
        self, message: str, *, code: str | None = None, remedy: str = "", retry_after_s: float = 1.0, **details: object
    ) -> None:
        super().__init__(message, code=code, remedy=remedy, **details)
        self.retry_after_s = retry_after_s


class TimedOut(Unavailable):
    """A named limit passed without an answer: whether the other side acted is unknown."""

    grpc_status = "DEADLINE_EXCEEDED"
    http_status = 504
    exit_code = 6
    default_code = "timed_out"


class Stale(DcnrError):
    """The caller acted on something that has moved on: read again, do not repeat the same call."""

    grpc_status = "FAILED_PRECONDITION"
    http_status = 409
    default_code = "stale"


class NotFound(DcnrError):
    """The named thing does not exist here."""

    grpc_status = "NOT_FOUND"
    http_status = 404
    default_code = "not_found"


class Refused(DcnrError):
    """Policy, budget or permission says no; ``remedy`` says what would change that."""

    grpc_status = "PERMISSION_DENIED"
    http_status = 403
    exit_code = 5
    default_code = "refused"


class NotRunning(DcnrError):
    """The local daemon that the command talks to is not running."""

    grpc_status = "UNAVAILABLE"
    http_status = 503
    exit_code = 3
    default_code = "not_running"


class Corrupt(DcnrError):
    """Bytes do not match their digest, signature or format. Never used; fetched again from elsewhere."""

    grpc_status = "DATA_LOSS"
    http_status = 502
    default_code = "corrupt"


class InvariantBroken(DcnrError):
    """A bug of ours: the part concerned stops, the process lives on, the event names it."""

    grpc_status = "INTERNAL"
    default_code = "invariant_broken"


ERROR_CLASSES: tuple[type[DcnrError], ...] = (
    InvalidInput, RemoteFault, Unavailable, TimedOut, Stale, NotFound, Refused, NotRunning, Corrupt, InvariantBroken,
)  # fmt: skip


def disk_trouble(what: str, error: OSError) -> Unavailable:
    """What the disk refuses, as everybody tells it who tries again: a disk that is full now may have room later."""
    return Unavailable(
        f"{what}: {error.strerror}", code="disk_trouble", remedy="free disk space, or see whether the disk can be written"
    )


def for_others(error: BaseException) -> str:
    """What of an error may leave this machine: no directory of it, and so not its owner's name. A typed one: code and message; one of the system: class
    and what the system says; any other the class alone, for its text may hold anything. The whole is for the log here (`dcnr.logs.told`).
    """
    match error:
        case DcnrError():
            return f"{error.code}: {without_directories(error.message)}"
        case OSError(strerror=str(said)) if said:
            return f"{type(error).__name__}: {without_directories(said)}"
        case _:
            return type(error).__name__


def without_directories(text: str) -> str:
    """The text with each absolute path cut down to its last part, with words after it where another slash follows: a directory's name may have spaces, and
    rather too much is cut. URLs stay as they are.
    """
    return _DIRECTORIES.sub("", text)
