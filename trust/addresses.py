"""Addresses from strangers, checked before anybody dials them: ``host:port`` in one spelling, and the subnet that limits count by."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import Final

from dcnr.errors import InvalidInput

MAX_ADDRESSES: Final = 8
MAX_ADDRESS_CHARS: Final = 255
_HOST_NAME: Final = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
)
_PORT: Final = re.compile("[1-9][0-9]{0,4}")


def split_address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[ipv6]:port``, the port without zeros before it. Raises InvalidInput."""
    host, _, port = text.rpartition(":") if len(text) <= MAX_ADDRESS_CHARS else ("", "", "")
    if not _PORT.fullmatch(port) or int(port) > 65535:
        raise _bad(text)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        if not _is_ip(host) or ":" not in host:
            raise _bad(text)
    elif not _HOST_NAME.fullmatch(host):
        raise _bad(text)
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """The text of an address; IPv6 hosts get brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_addresses(addresses: Iterable[str]) -> tuple[str, ...]:
    """The addresses, if there are at most 8 and each is well-formed. Raises InvalidInput."""
    checked = tuple(addresses)
    if len(checked) > MAX_ADDRESSES:
        raise InvalidInput(f"{len(checked)} addresses, at most {MAX_ADDRESSES} are allowed", code="too_many_addresses")
    for address in checked:
        split_address(address)
    return checked


def ip_of(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, one of IPv4 also out of its IPv6 form; None for a name."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return None
    return (isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped) or address


def subnet_of(host: str) -> str:
    """The /24 (IPv4) or /48 (IPv6) of an IP address; any other host is its own subnet."""
    address = ip_of(host)
    if address is None:
        return host.lower()
    return str(ipaddress.ip_network((address, 24 if address.version == 4 else 48), strict=False))


def public_subnet(address: str) -> str:
    """The subnet that ``host:port`` lies in on the open internet; empty for none, for any other, and for a name: whoever owns one makes a thousand of it."""
    host = split_address(address)[0] if address else ""
    number = ip_of(host)
    return subnet_of(host) if number is not None and number.is_global else ""


def is_public(host: str) -> bool:
    """True for addresses of the open internet: rules on subnets count there only."""
    address = ip_of(host)
    return address is None or address.is_global


def is_loopback(host: str) -> bool:
    """True for addresses that only this machine itself comes from."""
    address = ip_of(host)
    return address is not None and address.is_loopback


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host


def _bad(text: str) -> InvalidInput:
    return InvalidInput(f"{text[:80]!r} is not an address", code="bad_address", remedy="write host:port or [ipv6]:port")
