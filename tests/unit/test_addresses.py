"""Goal: of more than a hundred tricky URLs none leads to an address inside the network; the allowed ones lead to one fixed address."""

from __future__ import annotations

import ipaddress
from collections.abc import Sequence

import pytest

from dataservice.addresses import AddressRule, is_public
from dcnr.errors import DcnrError, Refused, Unavailable

STORE = "http://10.0.0.5:7790"
PUBLIC = "93.184.216.34"

NAMES: dict[str, list[str]] = {
    "data.example.org": [PUBLIC],
    "v6.example.org": ["2606:2800:220:1:248:1893:25c8:1946"],
    "rebind.example.org": [PUBLIC, "127.0.0.1"],
    "inner.example.org": ["10.0.0.5"],
    "loop.example.org": ["127.0.0.1"],
    "loop6.example.org": ["::1"],
    "meta.example.org": ["169.254.169.254"],
    "mapped.example.org": ["::ffff:127.0.0.1"],
    "sixtofour.example.org": ["2002:7f00:1::"],
    "nat64.example.org": ["64:ff9b::7f00:1"],
    "ula.example.org": ["fd00::1"],
    "link.example.org": ["fe80::1%eth0"],
    "zero.example.org": ["0.0.0.0"],
    "multicast.example.org": ["224.0.0.1"],
    "cgnat.example.org": ["100.64.0.1"],
    "broadcast.example.org": ["255.255.255.255"],
    "sitelocal.example.org": ["fec0::1"],
    "sitelocal-last.example.org": ["feff:ffff::1"],
    "documented6.example.org": ["3fff::1"],
    "documented4.example.org": ["203.0.113.7"],
    "relay6to4.example.org": ["192.88.99.1"],
    "benchmark.example.org": ["198.19.0.1"],
    "protocols.example.org": ["192.0.0.9"],
    "orchid.example.org": ["2001:20::1"],
    "teredo.example.org": ["2001:0:4136:e378:8000:63bf:3fff:fdd2"],
    "segments.example.org": ["5f00::1"],
    "discard.example.org": ["100::1"],
    "nat64-local.example.org": ["64:ff9b:1::808:808"],
    "nat64-relay.example.org": ["64:ff9b::c058:6301"],
    "sixtofour-relay.example.org": ["2002:c058:6301::1"],
    "nothing.example.org": [],
}

GOOD_HOST = "data.example.org"
PATH = "/dcnr/x?X-Amz-Signature=ab"
LITERALS = [
    "127.0.0.1",
    "127.1",
    "127.0.1",
    "0",
    "0.0.0.0",
    "2130706433",
    "017700000001",
    "0x7f000001",
    "0x7f.0.0.1",
    "0177.0.0.1",
    "127.0.0.1.",
    "127.000.000.001",
    "127.0.0.01",
    "10.0.0.5",
    "10.0.0.1",
    "172.16.0.1",
    "192.168.0.1",
    "169.254.169.254",
    "100.64.0.1",
    "224.0.0.1",
    "255.255.255.255",
    "[::1]",
    "[::]",
    "[::ffff:127.0.0.1]",
    "[::ffff:7f00:1]",
    "[0:0:0:0:0:0:0:1]",
    "[fe80::1]",
    "[fe80::1%25eth0]",
    "[fd00::1]",
    "[2002:7f00:1::]",
    "[64:ff9b::7f00:1]",
    "[::127.0.0.1]",
    "[ff02::1]",
    "[fec0::1]",
    "[3fff::1]",
    "192.88.99.1",
    "localhost",
    "LOCALHOST",
    "localhost.",
    "localhost.localdomain",
    "store",
    "metadata",
    "metadata.google.internal",
    "169.254.169.254.nip.io",
    "1.1.1.1",
    "93.184.216.34",
    "evil.example.org",
    "data.example.org.evil.org",
    "evil-data.example.org",
    "data.example.org.",
    "data..example.org",
    "-data.example.org",
    "data.example.org-",
    "data_example.org",
    "DATA.example.org",
    "dаta.example.org",
    "data。example.org",
    "data.example.org%00",
    "%64ata.example.org",
    "data.example.org%2f",
    "①②⑦.0.0.1",
    "127。0。0。1",
    "",
    ".",
    "..",
    "[",
    "]",
    "[]",
    "[::1",
    "::1",
    "[v1.x]",
]
FORMS = [
    f"http://{GOOD_HOST}{PATH}", f"HTTPS://{GOOD_HOST}{PATH}", f"ftp://{GOOD_HOST}{PATH}", "file:///etc/passwd", "file://localhost/etc/passwd",
    "gopher://127.0.0.1:25/x", "dict://127.0.0.1:11211/", "data:text/plain,x", "javascript:alert(1)", "//127.0.0.1/", "/etc/passwd", "", " ",
    f" https://{GOOD_HOST}{PATH}", f"https://{GOOD_HOST}{PATH} ", f"https://{GOOD_HOST}{PATH}\n", f"https://{GOOD_HOST}\t{PATH}",
    f"https://user@{GOOD_HOST}{PATH}", f"https://user:pw@{GOOD_HOST}{PATH}", f"https://{GOOD_HOST}@127.0.0.1{PATH}",
    f"https://127.0.0.1@{GOOD_HOST}{PATH}", f"https://{GOOD_HOST}:443@127.0.0.1{PATH}", f"https://{GOOD_HOST}#@127.0.0.1{PATH}",
    f"https://127.0.0.1#@{GOOD_HOST}{PATH}", f"https://127.0.0.1?@{GOOD_HOST}{PATH}", f"https://127.0.0.1\\@{GOOD_HOST}{PATH}",
    f"https://{GOOD_HOST}\\@127.0.0.1{PATH}", f"https:\\\\{GOOD_HOST}{PATH}", f"https:/{GOOD_HOST}{PATH}", f"https:{GOOD_HOST}{PATH}",
    f"https:///{GOOD_HOST}{PATH}", f"https://{GOOD_HOST}:80{PATH}", f"https://{GOOD_HOST}:0{PATH}", f"https://{GOOD_HOST}:0443{PATH}",
    f"https://{GOOD_HOST}:65979{PATH}", f"https://{GOOD_HOST}:99999{PATH}", f"https://{GOOD_HOST}:{PATH}", f"https://{GOOD_HOST}:-1{PATH}",
    f"https://{GOOD_HOST}:443:80{PATH}", f"https://{GOOD_HOST}{PATH}#fragment", f"https://{GOOD_HOST}/a b", f"https://{GOOD_HOST}/a\r\nX: 1",
    f"https://{GOOD_HOST}/a\0", f"https://{GOOD_HOST}", f"https://{GOOD_HOST}?x=1", "https://" + "a" * 9000 + "/", "http://10.0.0.5:7791/x",
    "https://10.0.0.5:7790/x", "http://10.0.0.5/x", "http://10.0.0.5:77900/x", "http://10.0.0.5:7790@127.0.0.1/x", "http://10.0.0.5:7790",
    "http://[::ffff:10.0.0.5]:7790/x", "http://167772165:7790/x", "http://010.0.0.5:7790/x", "http://10.0.5:7790/x",
]  # fmt: skip
TRICKY = (
    [f"https://{host}{PATH}" for host in LITERALS]
    + [f"http://{host}:7790{PATH}" for host in LITERALS if host != "10.0.0.5"]
    + FORMS
)
RESOLVING_INSIDE = [f"https://{name}{PATH}" for name in NAMES if name not in (GOOD_HOST, "v6.example.org", "nothing.example.org")]

asked: list[str] = []


def look_up(host: str, port: int) -> Sequence[str]:
    asked.append(host)
    return NAMES.get(host, [host])


RULE = AddressRule(stores=(STORE,), data_hosts=tuple(NAMES), resolver=look_up)


def connect_to(url: str) -> str:
    """The address that would be dialled."""
    [address] = RULE.resolve(RULE.check(url))
    return address


def test_addresses_of_both_kinds_take_turns_and_few_are_tried() -> None:
    sixes, fours = [f"2606:2800:220:1::{number}" for number in range(1, 7)], ["93.184.216.34", "93.184.216.35"]
    for found, tried in (
        ([*sixes, *fours], [sixes[0], fours[0], sixes[1], fours[1]]),
        ([*fours, sixes[0]], [fours[0], sixes[0], fours[1]]),
        (sixes, sixes[:4]),
    ):
        rule = AddressRule(data_hosts=(GOOD_HOST,), resolver=lambda host, port, found=found: found)
        assert rule.resolve(rule.check(f"https://{GOOD_HOST}{PATH}")) == tried


def test_the_corpus_is_large() -> None:
    assert len(set(TRICKY + RESOLVING_INSIDE)) >= 100


@pytest.mark.parametrize("url", TRICKY + RESOLVING_INSIDE)
def test_a_tricky_url_connects_nowhere(url: str) -> None:
    with pytest.raises(Refused):
        connect_to(url)


def test_refusals_by_name_resolve_nothing() -> None:
    asked.clear()
    for url in TRICKY:
        with pytest.raises(Refused):
            connect_to(url)
    assert asked == []


def test_allowed_urls_have_one_fixed_address() -> None:
    asked.clear()
    assert connect_to(f"{STORE}/dcnr/models/m/head?X-Amz-Expires=60&X-Amz-SignedHeaders=host") == "10.0.0.5"
    assert connect_to(f"https://{GOOD_HOST}{PATH}") == PUBLIC
    assert connect_to(f"https://{GOOD_HOST}:443{PATH}") == PUBLIC
    assert connect_to(f"https://v6.example.org{PATH}") == "2606:2800:220:1:248:1893:25c8:1946"
    assert asked == ["10.0.0.5", GOOD_HOST, GOOD_HOST, "v6.example.org"], "each is resolved once"


def test_no_address_is_unavailable() -> None:
    with pytest.raises(Unavailable):
        connect_to(f"https://nothing.example.org{PATH}")


def test_an_empty_rule_allows_nothing() -> None:
    with pytest.raises(DcnrError):
        AddressRule().check(f"https://{GOOD_HOST}{PATH}")


@pytest.mark.parametrize(
    "text",
    [
        "8.8.8.8",
        "192.88.100.1",
        "223.255.255.1",
        "2001:4860:4860::8888",
        "2a00::1",
        "3ffe:ffff::1",
        "2002:808:808::1",
        "64:ff9b::808:808",
    ],
)
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))
