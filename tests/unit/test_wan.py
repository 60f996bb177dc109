"""Goal: a link is what its profile says and what the router reads, a change touches nothing else; what links lack on a computer is said before."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks import namespaces, wan
from benchmarks.wan import OWN, PROFILES, Link, Links, link_of
from chaos.__main__ import parser, setup_of
from chaos.report import links_of
from dcnr.errors import Refused, Unavailable

FAR = Link("m0", "eth0", "10.200.0.1", PROFILES["home"])
HERE = Link(OWN, "b", "10.200.0.254", PROFILES["home"])


@pytest.mark.parametrize("name", sorted(PROFILES))
def test_what_the_router_reads_is_the_link(name: str) -> None:
    for link in (FAR.of(name), HERE.of(name), Link("m0", "eth0", "10.200.0.1", PROFILES[name], is_up=False)):
        assert link_of(link.line()) == link


def test_the_router_reads_delay_and_bandwidth_where_they_are_written() -> None:
    assert FAR.line() == "m0 eth0 10.200.0.1 50 200 40 2 0.1 200 1\n"


def test_a_server_has_as_far_to_go_on_a_wide_line() -> None:
    served = HERE.of("bad").profile
    assert (served.delay_ms, served.loss_percent) == (PROFILES["bad"].delay_ms, PROFILES["bad"].loss_percent)
    assert (served.up_mbit, served.down_mbit) == (wan.SERVER_MBIT, wan.SERVER_MBIT)
    assert FAR.of("bad").profile == PROFILES["bad"]


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    """Of a router that is told of changes and does nothing."""
    config = tmp_path / "config"
    config.write_text(FAR.line() + Link("m1", "eth0", "10.200.0.2", PROFILES["home"]).line() + HERE.of("home").line())
    with subprocess.Popen(["sh", "-c", "trap '' HUP; echo; read end"], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as router:
        assert router.stdout is not None
        router.stdout.readline()
        yield Links(router.pid, str(config))


def test_a_change_of_one_link_is_one_and_is_taken_back(links: Links) -> None:
    def now() -> list[Link]:
        return [link_of(line) for line in Path(links.config).read_text().splitlines()]

    before = now()
    links.cut(1)
    assert [link.is_up for link in now()] == [True, False, True]
    links.become("bad")
    assert [link.is_up for link in now()] == [True, False, True], "another profile puts no cable back"
    assert [link.profile.up_mbit for link in now()] == [20, 20, wan.SERVER_MBIT]
    links.narrow(0, 5.0)
    assert [link.profile.down_mbit for link in now()] == [5, 20, wan.SERVER_MBIT]
    links.become("home")
    links.join(1)
    assert now() == before


def test_a_router_that_is_gone_is_told(tmp_path: Path) -> None:
    with subprocess.Popen(["true"]) as gone:
        gone.wait()
    config = tmp_path / "config"
    config.write_text(FAR.line())
    for call in (lambda: Links(gone.pid, str(config)).cut(0), lambda: Links(gone.pid, str(config)).carried()):
        with pytest.raises(Unavailable) as caught:
            call()
        assert caught.value.code == "no_router"


def test_what_is_lacking_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "cc" else f"/bin/{name}")
    monkeypatch.setattr(wan, "TUN", tmp_path / "tun")
    assert namespaces.lacking() == "", "without links no compiler is needed"
    assert "cc" in namespaces.lacking("home")
    assert str(tmp_path / "tun") in namespaces.lacking("home")
    with pytest.raises(Refused) as caught, namespaces.Machines(1, profile="home"):
        pass
    assert (caught.value.code, caught.value.remedy) == ("no_namespaces", "leave --link out")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert namespaces.lacking("home").startswith("root")
    with pytest.raises(Refused) as caught, namespaces.Machines(1, profile="home"):
        pass
    assert "--no-partitions" in caught.value.remedy


def test_links_are_those_of_machines_of_their_own() -> None:
    asked = ["run", "--no-partitions", "--link", "home"]
    assert setup_of(parser().parse_args(asked)).own_machines
    assert not setup_of(parser().parse_args(asked[:2])).own_machines


def test_the_page_tells_what_links_did() -> None:
    carried = {"sent_packets": 1000, "sent_bytes": 1, "come_packets": 1, "come_bytes": 1, "dropped_packets": 2, "lost_packets": 3}
    settings = {"link": "home", "profile": {"delay_ms": 40, "up_mbit": 50, "down_mbit": 200, "loss_percent": 0.1}}
    document: dict[str, Any] = {"settings": settings, "links": {"round_trips_ms": [81.5, 80.2], "carried": [carried, carried]}}
    told = links_of(document)
    assert "`home`" in told
    assert "80.2 to 81.5 ms" in told
    assert "of 2000 packets 6 were lost, and 4 dropped" in told
    assert links_of({"settings": settings}) == ""
