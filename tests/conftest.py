"""Files that take longest are begun first, so that no test process is left with a long one when the others are done.

Test modules and what they import stay to the end: they are loaded without, and then set aside from, the search for garbage.
"""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

import pytest
from giving_out import FromBothEnds, last_of
from hypothesis import settings
from xdist.remote import Producer

FIRST = (
    "test_trouble_store_faults", "test_audited_cheats", "test_trouble_interrupts", "test_trouble_store", "test_leaving", "test_proofs",
    "test_proofs_silence", "test_proofs_stopped", "test_shared_vnodes", "test_audited_network", "test_chaos", "test_trouble_orchestrators",
    "test_crash_points", "test_answers", "test_readme", "test_control_under_load", "test_narrow_link", "test_commands", "test_proofs_unlike",
    "test_replicas", "test_auditing", "test_trouble_start", "test_store_denied", "test_asking", "test_worker", "test_cpu_share", "test_outside_components",
    "test_uplink_share", "test_store_out_of_reach", "test_ways_back",
)  # fmt: skip
"""Networks and workers by what they take on two cores, longest first. All others follow as they come, and the last of several test processes begins at the
other end (`giving_out`).
"""
GIVES_WAY = 5
"""Niceness: enough to come second, little enough to go on beside networks that compute."""


def pytest_configure() -> None:
    """A file of another name would silently be begun late."""
    gone = set(FIRST) - {path.stem for path in Path(__file__).parent.rglob("test_*.py")}
    if gone:
        raise pytest.UsageError(f"tests/conftest.py names files that do not exist: {', '.join(sorted(gone))}")
    settings.register_profile("dcnr", deadline=None)  # an example's seconds say how busy the machine is
    settings.load_profile("dcnr")
    hear_ctrl_c()
    gc.disable()
    give_way()


def hear_ctrl_c() -> None:
    """What shells start in the background ignores it, and so would all that tests start and end in that way."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def give_way() -> None:
    """Of several test processes the one that mostly computes takes what the others leave: networks must not wait for it."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    if count > 1 and os.environ.get("PYTEST_XDIST_WORKER") == last_of(count):
        os.nice(GIVES_WAY)


def pytest_collection_finish() -> None:
    """From here on what tests leave behind is searched for."""
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """The process ends."""
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FromBothEnds | None:
    """Only where whole files are given out."""
    return FromBothEnds(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The same order in every test process; whole files are given out in it."""
    place = {name: number for number, name in enumerate(FIRST)}
    items.sort(key=lambda item: place.get(item.path.stem, len(FIRST)))
