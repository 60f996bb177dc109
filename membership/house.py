"""This machine's own addresses, and those of machines that may stand beside it."""

from __future__ import annotations

import socket
from collections.abc import Sequence

import psutil

from trust.addresses import split_address, subnet_of


def own_addresses() -> frozenset[str]:
    """The IP addresses of this machine; none where the system does not tell them."""
    try:
        found = [one for addresses in psutil.net_if_addrs().values() for one in addresses]
    except OSError:
        return frozenset()
    return frozenset(one.address.partition("%")[0] for one in found if one.family in (socket.AF_INET, socket.AF_INET6))


def in_our_house(addresses: Sequence[str]) -> list[str]:
    """Those of ``addresses`` (``host:port``) that are in a subnet of this machine's own. Other houses use the same private ones."""
    subnets = {subnet_of(own) for own in own_addresses()} if addresses else set()
    return [address for address in addresses if subnet_of(split_address(address)[0]) in subnets]
