"""What the gateway answers when it cannot: one form for every error, a fixed list of codes, and no word of our insides.

The body is ``{"error": {"code", "message", "details"}}``. ``code`` is one of `CODES`; ``details`` are texts: ``reason`` is the code of the typed error behind
it (docs/reference/errors.md), ``remedy`` what to do next. `from_typed` turns every class of `dcnr.errors` into one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from dcnr.errors import DcnrError, InvariantBroken, Unavailable, without_directories

MAX_TEXT: Final = 512


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its HTTP status and what it means."""

    status: int
    meaning: str


CODES: Final[Mapping[str, Code]] = MappingProxyType(
    {
        "INVALID_PAYLOAD": Code(400, "body, query or path is wrong: correct it; sending it again cannot help"),
        "KEY_IN_URL": Code(400, "a key stood in the URL, where logs keep it: rotate it, and send it in the header Authorization"),
        "UNAUTHORIZED_KEY": Code(401, "no key, or one that is unknown, revoked or expired"),
        "BAD_SIGNATURE": Code(401, "X-DCNR-Signature is missing where the key wants it, wrong, too old, or was used before"),
        "SCOPE_MISSING": Code(403, "the key is good and may not do this"),
        "REFUSED": Code(403, "policy, budget or signatures say no; details tell what would change that"),
        "NOT_FOUND": Code(404, "there is no such route or object"),
        "JOB_NOT_FOUND": Code(404, "no orchestrator knows that job"),
        "NODE_NOT_FOUND": Code(404, "no such node is known"),
        "MODEL_NOT_FOUND": Code(404, "no such model is known, or it has not got so far"),
        "METHOD_NOT_ALLOWED": Code(405, "the route exists and has other methods: see the header Allow"),
        "CONFLICT_STATE": Code(409, "what you act on has moved on, or the name is taken: read again"),
        "BODY_TOO_LARGE": Code(413, "the body has more bytes than the route takes"),
        "URL_TOO_LONG": Code(414, "the URL is longer than any route needs"),
        "UNSUPPORTED_MEDIA_TYPE": Code(415, "bodies are application/json in UTF-8, not compressed"),
        "WRONG_HOST": Code(421, "the header Host names another machine"),
        "JOB_NOT_READY": Code(425, "the job has not ended: come back, or follow its events"),
        "RATE_LIMITED": Code(429, "too many requests: wait as long as Retry-After says"),
        "HEADERS_TOO_LARGE": Code(431, "more headers than any client needs"),
        "INTERNAL": Code(500, "a fault of ours; the log of the gateway has it under the request's id"),
        "UPSTREAM_FAULT": Code(502, "an orchestrator or the store gave something that does not hold"),
        "UNAVAILABLE": Code(503, "no orchestrator answers at the moment, or the store is away: retry"),
        "NO_ELIGIBLE_NODE": Code(503, "no machine of the network can do this now"),
        "TOO_MANY_CONNECTIONS": Code(503, "as many connections are open as the gateway keeps, altogether or of one subnet"),
        "TOO_MANY_WATCHERS": Code(503, "as many streams of events are open as the gateway keeps"),
        "TIMED_OUT": Code(504, "a named limit passed without an answer: whether it was done is unknown"),
    }
)
_OF_CLASS: Final[Mapping[str, str]] = {
    "InvalidInput": "INVALID_PAYLOAD", "RemoteFault": "UPSTREAM_FAULT", "Unavailable": "UNAVAILABLE", "TimedOut": "TIMED_OUT",
    "Stale": "CONFLICT_STATE", "NotFound": "NOT_FOUND", "Refused": "REFUSED", "NotRunning": "UNAVAILABLE", "Corrupt": "UPSTREAM_FAULT",
    "InvariantBroken": "INTERNAL",
}  # fmt: skip
_OF_REASON: Final[Mapping[str, str]] = {
    "job_not_found": "JOB_NOT_FOUND", "no_such_model": "MODEL_NOT_FOUND", "no_manifest": "MODEL_NOT_FOUND", "no_ledger": "MODEL_NOT_FOUND",
    "no_contribution": "NODE_NOT_FOUND",
    "not_trained": "MODEL_NOT_FOUND", "no_server": "NO_ELIGIBLE_NODE", "depth_unavailable": "NO_ELIGIBLE_NODE", "too_few_ways": "NO_ELIGIBLE_NODE",
    "rate_limited": "RATE_LIMITED",
}  # fmt: skip


class RestError(Exception):
    """An answer that is an error: a code of the list, what happened, facts, and headers of its own."""

    def __init__(self, code: str, message: str, *, headers: Mapping[str, str] | None = None, **details: object) -> None:
        super().__init__(message)
        self.code, self.status = code, CODES[code].status
        self.message = message[:MAX_TEXT]
        self.details = {key: str(value)[:MAX_TEXT] for key, value in details.items()}
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """As it is sent."""
        return {"error": {"code": self.code, "message": self.message, "details": self.details}}


def from_typed(error: DcnrError) -> RestError:
    """The answer that a typed error becomes. Of a bug of ours nothing is told."""
    if isinstance(error, InvariantBroken):
        return RestError("INTERNAL", "internal error")
    code = _OF_REASON.get(error.code) or next(_OF_CLASS[cls.__name__] for cls in type(error).__mro__ if cls.__name__ in _OF_CLASS)
    details = {**error.details, "reason": error.code, **({"remedy": error.remedy} if error.remedy else {})}
    headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if isinstance(error, Unavailable) else {}
    answer = RestError(code, without_directories(error.message), headers=headers)
    answer.details = {key: without_directories(value)[:MAX_TEXT] for key, value in details.items()}
    return answer
