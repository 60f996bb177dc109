"""No URL from elsewhere makes this machine talk to an address inside its own network: one rule, applied before every connection.

Allowed are exactly the stores of the network document (scheme, host and port, private addresses included) and https hosts of its allow-list.
A name is resolved once and the connection goes to one of those addresses, so a second look-up cannot answer differently; every address that the
name has must be public. The grammar accepted here is narrower than any library's, so that no two parsers can disagree about the host.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import Final

from dcnr.errors import Refused, Unavailable, for_others

MAX_URL_CHARS: Final = 8192
MAX_ADDRESSES: Final = 4
"""Of one name, that are tried."""
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::(?P<port>[1-9][0-9]{0,4}))?"
    r"(?P<target>/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*(?:\?[A-Za-z0-9._~!$&'()*+,;=:@%/?-]*)?)"
)
_LABEL = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?")
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}

_V6_PUBLIC: Final = ipaddress.IPv6Network("2000::/3")
"""What is given out to the public internet: link-local, site-local, unique local, multicast and mapped addresses lie outside."""
_NAT64: Final = ipaddress.IPv6Network("64:ff9b::/96")
_NOT_PUBLIC: Final = tuple(
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24", "192.0.2.0/24",
        "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
        "2001::/23", "2001:db8::/32", "3fff::/20",
    )
)  # fmt: skip
"""IANA's registries of special-purpose addresses, in which nothing has a host on the public internet. A list of our own: `ipaddress` knows more of them with
every version of Python.
"""

Resolver = Callable[[str, int], Sequence[str]]
Address = ipaddress.IPv4Address | ipaddress.IPv6Address


@dataclass(frozen=True, slots=True)
class Target:
    """A URL that the rule allows: where to connect and what to ask for there."""

    scheme: str
    host: str
    port: int
    path: str
    is_store: bool


def resolve_by_system(host: str, port: int) -> Sequence[str]:
    """All addresses of ``host`` as the operating system knows them."""
    return [str(row[4][0]) for row in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]


@dataclass(frozen=True, slots=True)
class AddressRule:
    """Where connections may go. ``stores`` are base URLs (``http://host:port``), ``data_hosts`` are ``host`` or ``host:port``."""

    stores: tuple[str, ...] = ()
    data_hosts: tuple[str, ...] = ()
    resolver: Resolver = resolve_by_system

    def check(self, url: str) -> Target:
        """The target that ``url`` means. Raises Refused (``bad_url``, ``address_not_allowed``). Pure: resolves nothing."""
        scheme, host, port, path = _split(url)
        if (scheme, host, port) in {_split(f"{store.rstrip('/')}/")[:3] for store in self.stores}:
            return Target(scheme, host, port, path, is_store=True)
        allowed = {(name if ":" in name else f"{name}:443") for name in self.data_hosts}
        if scheme == "https" and f"{host}:{port}" in allowed:
            return Target(scheme, host, port, path, is_store=False)
        raise Refused(
            f"{scheme}://{host}:{port} is neither the network's store nor an allowed data host",
            code="address_not_allowed",
            remedy="maintainers list data hosts: dcnr network amend --add-data-host HOST",
        )

    def resolve(self, target: Target) -> list[str]:
        """The addresses to try, in this order: IPv6 and IPv4 take turns, for one of them may not work here. Raises Refused if any address of a data host is
        not public, Unavailable if it has none.
        """
        try:
            addresses = [
                ipaddress.ip_address(text.split("%", 1)[0]) for text in self.resolver(target.host.strip("[]"), target.port)
            ]
        except (OSError, ValueError, UnicodeError) as error:
            raise Unavailable(f"{target.host} cannot be resolved: {for_others(error)}", code="name_not_resolved") from None
        if not addresses:
            raise Unavailable(f"{target.host} has no address", code="name_not_resolved")
        if not target.is_store:
            for address in addresses:
                if not is_public(address):
                    raise Refused(f"{target.host} resolves to {address}, which is not public", code="address_not_public")
        first = addresses[0].version
        same, other = ([str(one) for one in addresses if (one.version == first) is wanted] for wanted in (True, False))
        return [one for one in chain.from_iterable(zip_longest(same, other)) if one is not None][:MAX_ADDRESSES]


def is_public(address: Address) -> bool:
    """Whether ``address`` is reachable over the public internet, and so is an IPv4 address embedded in it."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if address not in _V6_PUBLIC or (address.sixtofour is not None and not is_public(address.sixtofour)):
            return False
    return not any(address in network for network in _NOT_PUBLIC)


def _split(url: str) -> tuple[str, str, int, str]:
    """Scheme, host, port and the rest, from the narrow grammar. Raises Refused (``bad_url``)."""
    found = _URL.fullmatch(url) if isinstance(url, str) and len(url) <= MAX_URL_CHARS else None
    if found is None:
        raise Refused(f"{url!r:.80} is not an acceptable URL", code="bad_url", remedy="http(s)://lower-case-host[:port]/path")
    scheme, host = found["scheme"], found["host"]
    port = int(found["port"] or _DEFAULT_PORTS[scheme])
    if port > 65535 or not _is_host(host):
        raise Refused(f"{host}:{port} is not a host and port", code="bad_url")
    return scheme, host, port, found["target"]


def _is_host(host: str) -> bool:
    """A canonical IP literal, or a name whose last label cannot be read as a number (1.2, 0x7f.1, 2130706433 are refused)."""
    if host.startswith("["):
        try:
            return f"[{ipaddress.IPv6Address(host[1:-1])}]" == host
        except ValueError:
            return False
    labels = host.split(".")
    if labels[-1][:1].isdigit():
        try:
            return str(ipaddress.IPv4Address(host)) == host
        except ValueError:
            return False
    return all(_LABEL.fullmatch(label) for label in labels)
