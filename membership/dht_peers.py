"""What a DHT node knows about its peers' addresses: which are acceptable, which are dead for now, and who asks too often.

Pure: time comes with every call; everything is bounded and forgets its oldest entries first.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

from membership.directory import KEY_BYTES
from trust.rates import Rate, TokenBuckets

Address = tuple[str, int]

MAX_TRACKED_ADDRESSES: Final = 4096
FIRST_BACK_OFF_S: Final = 5.0
MAX_BACK_OFF_S: Final = 600.0
REQUESTS_PER_S: Final = 100.0
REQUEST_BURST: Final = 400.0
SUBNET_FACTOR: Final = 4
"""A subnet may ask this many times as often as one address."""
TOTAL_FACTOR: Final = 40


@dataclass(frozen=True, slots=True)
class Contact:
    """A node of the DHT: its id, the IP address (text, canonical) and UDP port where it said it listens."""

    id: bytes
    host: str
    port: int
    long_id: int = field(init=False, compare=False, repr=False)
    subnet: str = field(init=False, compare=False, repr=False)
    address: Address = field(init=False, compare=False, repr=False)
    near: bool = field(init=False, compare=False, repr=False)
    """Loopback, link-local or private."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "long_id", int.from_bytes(self.id))
        object.__setattr__(self, "subnet", subnet_of(self.host))
        object.__setattr__(self, "address", (self.host, self.port))
        object.__setattr__(self, "near", is_near(self.host))

    def wire(self) -> tuple[bytes, str, int]:
        """As sent in answers."""
        return (self.id, self.host, self.port)


@lru_cache(maxsize=MAX_TRACKED_ADDRESSES)
def subnet_of(host: str) -> str:
    """The /24 (IPv4) or /48 (IPv6) that ``host`` lies in. Raises ValueError for what is no IP address."""
    address = ipaddress.ip_address(host)
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    width = 24 if address.version == 4 else 48
    return str(ipaddress.ip_network((address, width), strict=False))


@lru_cache(maxsize=MAX_TRACKED_ADDRESSES)
def is_near(host: str) -> bool:
    """True for loopback, link-local and private ranges: machines of one home or one host."""
    address = ipaddress.ip_address(host)
    return address.is_private or address.is_loopback or address.is_link_local


@lru_cache(maxsize=MAX_TRACKED_ADDRESSES)
def usable_host(host: str, *, single_host: bool) -> bool:
    """Whether a stranger may make us send datagrams to ``host``: not to multicast, unspecified, reserved or mapped addresses, and to this
    very machine only with ``single_host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        return False
    if address.is_loopback or address.is_link_local:
        return single_host
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def contact_from_wire(raw: object, *, single_host: bool, version: int) -> Contact | None:
    """A contact from an answer, or None if anything about it is wrong. ``version``: 4 or 6, the family of our own socket."""
    if not isinstance(raw, list | tuple) or len(raw) != 3:
        return None
    node_id, host, port = raw
    if not isinstance(node_id, bytes) or len(node_id) != KEY_BYTES or not isinstance(host, str) or len(host) > 45:
        return None
    if isinstance(port, bool) or not isinstance(port, int) or not 0 < port < 65536:
        return None
    if not usable_host(host, single_host=single_host):
        return None
    address = ipaddress.ip_address(host)
    return Contact(node_id, str(address), port) if address.version == version else None


class ContactReader:
    """Reads contacts out of answers: at most `max_per_answer`, each checked, and none on a private network from a teller on a public address."""

    def __init__(self, *, single_host: bool, version: int, max_per_answer: int = 20) -> None:
        self._single_host, self._version, self._max_per_answer = single_host, version, max_per_answer
        self._read: OrderedDict[tuple[object, ...], Contact | None] = OrderedDict()

    def contacts(self, answer: object, teller: Contact) -> list[Contact]:
        """The acceptable contacts among what ``teller`` named."""
        if not isinstance(answer, list | tuple):
            return []
        read = [self.contact(raw) for raw in answer[: self._max_per_answer]]
        return [c for c in read if c is not None and (teller.near or not c.near)]

    def contact(self, raw: object) -> Contact | None:
        """As `contact_from_wire`, remembering what it has read."""
        if not isinstance(raw, list | tuple) or len(raw) != 3 or not all(isinstance(part, bytes | str | int) for part in raw):
            return None
        key = (*raw, type(raw[2]))  # True and 1 are equal keys, but only one of them is a port
        if key not in self._read:
            self._read[key] = contact_from_wire(raw, single_host=self._single_host, version=self._version)
            if len(self._read) > MAX_TRACKED_ADDRESSES:
                self._read.popitem(last=False)
        return self._read[key]


@dataclass(slots=True)
class _Silence:
    strikes: int
    failed_at: float
    skip_until: float


class DeadPeers:
    """Addresses that did not answer, shared by all look-ups of a node: skipped for a time that doubles with each failure, cleared by a sign of life."""

    def __init__(self, *, max_addresses: int = MAX_TRACKED_ADDRESSES) -> None:
        self._silent: OrderedDict[Address, _Silence] = OrderedDict()
        self._max = max_addresses

    def __len__(self) -> int:
        return len(self._silent)

    def failed(self, address: Address, sent_at: float, now: float) -> int:
        """Notes a request without answer; returns the failures in a row. Requests sent before the last noted failure say nothing new."""
        silence = self._silent.get(address)
        if silence is not None and sent_at < silence.failed_at:
            return silence.strikes
        strikes = silence.strikes + 1 if silence is not None else 1
        back_off = min(FIRST_BACK_OFF_S * 2.0 ** min(strikes - 1, 16), MAX_BACK_OFF_S)
        self._silent[address] = _Silence(strikes, now, now + back_off)
        self._silent.move_to_end(address)
        if len(self._silent) > self._max:
            self._silent.popitem(last=False)
        return strikes

    def heard(self, address: Address) -> None:
        """A sign of life: the address is as good as new."""
        self._silent.pop(address, None)

    def skip(self, address: Address, now: float) -> bool:
        """True while the address should not be asked nor recommended."""
        silence = self._silent.get(address)
        return silence is not None and now < silence.skip_until


class RateLimiter:
    """Admits requests while their address, its subnet and all together stay under their rates.

    With ``single_host`` near addresses (many nodes on one machine) are told apart by port, and their subnet is not limited.
    """

    def __init__(self, *, single_host: bool, rate_per_s: float = REQUESTS_PER_S, burst: float = REQUEST_BURST) -> None:
        self._single_host = single_host
        self._sources, self._subnets, self._total = (
            TokenBuckets(Rate(rate_per_s * factor, burst * factor), max_names=MAX_TRACKED_ADDRESSES)
            for factor in (1, SUBNET_FACTOR, TOTAL_FACTOR)
        )

    def admit(self, source: Address, now: float, *, cost: float = 1.0) -> bool:
        """Whether a request from ``source`` is worth an answer now."""
        host, port = source
        if self._single_host and is_near(host):
            asked = [(self._sources, f"{host} {port}"), (self._total, "")]
        else:
            asked = [(self._sources, host), (self._subnets, subnet_of(host)), (self._total, "")]
        return all(buckets.wait_s(name, now, cost=cost) == 0.0 for buckets, name in asked)


class RoundTrip:
    """A running estimate of the time an answer takes; `patience_s` is when a request counts as stalled (not yet as failed)."""

    def __init__(self, *, low_s: float = 0.1, high_s: float = 0.8) -> None:
        self._low, self._high = low_s, high_s
        self._mean: float | None = None
        self._deviation = 0.0

    def add(self, elapsed_s: float) -> None:
        """Notes one answer (RFC 6298's smoothing)."""
        if self._mean is None:
            self._mean, self._deviation = elapsed_s, elapsed_s / 2
            return
        self._deviation += 0.25 * (abs(self._mean - elapsed_s) - self._deviation)
        self._mean += 0.125 * (elapsed_s - self._mean)

    @property
    def patience_s(self) -> float:
        """Mean plus four deviations within bounds; half a second before the first answer."""
        if self._mean is None:
            return 0.5
        return min(max(self._mean + 4 * self._deviation, self._low), self._high)
