"""Who may do what, and how often: host, key, scope, rate and signature of a request, judged before its route hears of it."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl, unquote

from dcnr.ports import Clock
from dcnr.settings import GatewaySettings
from gateway.buckets import MAX_BUCKETS, take
from gateway.errors import RestError
from gateway.keys import PREFIX, Key, KeyRing, Use
from trust.addresses import subnet_of
from trust.rates import Rate, TokenBuckets

SIGNATURE_WINDOW_S: Final = 300.0
MAX_SIGNATURES: Final = 100_000
"""Remembered within the window; above that signed requests wait."""
MAX_QUERY_FIELDS: Final = 32
MAX_PATH: Final = 128
"""Of what was refused before it found its route, in the log."""
LOOPBACK_HOSTS: Final = ("127.0.0.1", "localhost", "[::1]")
KEY_NAMES: Final = frozenset({"key", "api_key", "api-key", "apikey", "access_token", "token", "authorization", "secret", "bearer"})
OPEN, READ, CLIENT, OWNER, ADMIN = "open", "read", "client", "owner", "admin"
MAY: Final = {"client": (OPEN, READ, CLIENT), "admin": (OPEN, READ, CLIENT, OWNER, ADMIN), "node-owner": (OPEN, READ, OWNER)}
HERE: Final = "/v1/here"
"""The machine of whoever began the gateway: its token is asked for by the routes themselves (`gateway.here`)."""
_SIGNATURE: Final = re.compile(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request without its body. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    client: str


@dataclass(frozen=True, slots=True)
class Admitted:
    """Who asks, and what the answer tells of the rate."""

    key: Key | None
    text: str = field(repr=False)
    subnet: str
    headers: dict[str, str]


def needed(method: str, path: str) -> str:
    """What a request needs: nothing, the right to read, a client's key, an owner's or an admin's."""
    if path.startswith("/v1/admin/"):
        return ADMIN
    if path.startswith("/v1/owner/"):
        return OWNER
    if path.startswith("/v1/results/"):
        return CLIENT
    if path == HERE or path.startswith(f"{HERE}/"):
        return OPEN
    if not path.startswith("/v1/") and path != "/metrics":
        return OPEN
    return READ if method in ("GET", "HEAD", "OPTIONS") else CLIENT


def signature_of(text: str, timestamp: int, method: str, target: str, body: bytes) -> str:
    """The header X-DCNR-Signature of a request with the key ``text``; ``target`` is path and query as sent."""
    signed = f"{timestamp}\n{method}\n{target}\n".encode() + body
    return f"t={timestamp},v1={hmac.new(text.encode(), signed, hashlib.sha256).hexdigest()}"


class Access:
    """Judges requests. ``loopback``: the gateway listens on this machine only, so nobody else's pages may speak to it."""

    def __init__(self, settings: GatewaySettings, ring: KeyRing, clock: Clock, *, loopback: bool) -> None:
        self._settings, self._ring, self._clock = settings, ring, clock
        self._public = loopback if settings.public_reads == "auto" else settings.public_reads == "yes"
        self._hosts = frozenset({*settings.hosts, *LOOPBACK_HOSTS}) if loopback else frozenset(settings.hosts)
        self._of_keys, self._of_subnets = (
            TokenBuckets(Rate(per_s, max(1, int(2 * per_s))), max_names=MAX_BUCKETS)
            for per_s in (settings.requests_per_s, settings.public_requests_per_s)
        )
        self._seen: OrderedDict[str, float] = OrderedDict()

    async def meet(self, asked: Asked) -> None:
        """Before `admit`: a key that was made since the last look at the file is known from now on."""
        await self._ring.seek(_bearer(asked))

    def admit(self, asked: Asked) -> Admitted:
        """Who asks. Raises RestError; that the key may not do this, or no longer, is in the log then."""
        self._check_host(asked)
        _check_url(asked)
        subnet = subnet_of(asked.client)
        held, text = self._held(asked)
        key = held if held is not None and held.holds(self._clock.wall()) else None
        buckets, name = (self._of_keys, key.id) if key is not None else (self._of_subnets, subnet)
        allowance = take(buckets, name, self._clock.monotonic())
        headers, per_s = allowance.headers(), buckets.rate.per_s
        if not allowance.allowed:
            raise RestError(
                "RATE_LIMITED", f"more than {per_s:g} requests a second", headers=headers, wait_s=f"{allowance.wait_s:.2f}"
            )
        try:
            self._check_right(asked, key, text, headers)
        except RestError as error:
            self.note(Admitted(held, text, subnet, headers), asked.method, asked.path[:MAX_PATH], error.status)
            raise
        return Admitted(key, text, subnet, headers)

    def _check_right(self, asked: Asked, key: Key | None, text: str, headers: dict[str, str]) -> None:
        want = needed(asked.method, asked.path)
        if text and key is None:
            raise _unauthorized("this key is unknown, revoked or expired", headers)
        if key is None and want not in ((OPEN, READ) if self._public else (OPEN,)):
            raise _unauthorized(
                "this needs a key in the header Authorization: Bearer", headers, remedy="dcnr gateway key add NAME --home HOME"
            )
        if key is not None and want not in MAY[key.scope]:
            raise RestError("SCOPE_MISSING", f"a key of scope {key.scope} may not do this", headers=headers, scope=key.scope)

    def check_signature(self, asked: Asked, admitted: Admitted, body: bytes) -> None:
        """A signature that is there is right, fresh and new; a key that wants one has it. Raises RestError."""
        given = asked.headers.get("x-dcnr-signature", "")
        if not given and not (admitted.key is not None and admitted.key.signed):
            return
        found = _SIGNATURE.fullmatch(given)
        now = self._clock.wall()
        if found is None or admitted.key is None:
            raise RestError("BAD_SIGNATURE", "X-DCNR-Signature is t=SECONDS,v1=HEX, made with the key of the request")
        target = asked.path + (f"?{asked.query}" if asked.query else "")
        wanted = signature_of(admitted.text, int(found[1]), asked.method, target, body)
        if not hmac.compare_digest(wanted.partition("v1=")[2], found[2]):
            raise RestError("BAD_SIGNATURE", "the signature does not belong to key, method, path and body")
        if abs(now - int(found[1])) > SIGNATURE_WINDOW_S:
            raise RestError("BAD_SIGNATURE", f"the signature is more than {SIGNATURE_WINDOW_S:g} s from the clock of the gateway")
        self._once(found[2], now)

    def note(self, admitted: Admitted | None, method: str, route: str, status: int) -> None:
        """Logs the use of a key."""
        if admitted is not None and admitted.key is not None:
            self._ring.note(Use(self._clock.wall(), admitted.key.id, method[:16], route, status, admitted.subnet))

    def _check_host(self, asked: Asked) -> None:
        host = re.sub(r":[0-9]{0,5}$", "", asked.headers.get("host", "")).lower()
        if self._hosts and host not in self._hosts:
            raise RestError("WRONG_HOST", "the header Host names another machine than this gateway's")

    def _held(self, asked: Asked) -> tuple[Key | None, str]:
        if not asked.headers.get("authorization", ""):
            return None, ""
        text = _bearer(asked)
        return self._ring.held(text), text or "-"

    def _once(self, mark: str, now: float) -> None:
        while self._seen and next(iter(self._seen.values())) < now - 2 * SIGNATURE_WINDOW_S:
            self._seen.popitem(last=False)
        if mark in self._seen:
            raise RestError("BAD_SIGNATURE", "this signature was used before: sign each request anew", replayed=True)
        if len(self._seen) >= MAX_SIGNATURES:
            raise RestError("RATE_LIMITED", "too many signed requests", headers={"Retry-After": "60"})
        self._seen[mark] = now


def _bearer(asked: Asked) -> str:
    """The key that the request bears; empty where it bears none."""
    scheme, _, text = asked.headers.get("authorization", "").partition(" ")
    return text.strip() if scheme.lower() == "bearer" else ""


def check_origin(asked: Asked) -> None:
    """For WebSockets, which browsers let any page open: where a page says whence it is, that is from here. Raises RestError."""
    origin = asked.headers.get("origin", "")
    if origin and origin.partition("://")[2].lower() != asked.headers.get("host", "").lower():
        raise RestError("WRONG_HOST", "a page from elsewhere may not open a WebSocket here")


def _check_url(asked: Asked) -> None:
    try:
        pairs = parse_qsl(asked.query, keep_blank_values=True, max_num_fields=MAX_QUERY_FIELDS)
    except ValueError as error:
        raise RestError("INVALID_PAYLOAD", f"more than {MAX_QUERY_FIELDS} query fields") from error
    names = {name.lower() for name, _ in pairs}
    if names & KEY_NAMES or PREFIX.search(asked.path) or PREFIX.search(unquote(asked.query)):
        raise RestError("KEY_IN_URL", "keys go into the header Authorization; one that stood in a URL has to be rotated")


def _unauthorized(message: str, headers: dict[str, str], **details: str) -> RestError:
    return RestError("UNAUTHORIZED_KEY", message, headers={**headers, "WWW-Authenticate": 'Bearer realm="dcnr"'}, **details)
