"""Goal: an advert says what kind of processor or accelerator computes, bounded and printable, and never whose machine it is."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from pnode.budget import Budget, Limits
from pnode.lent import capability_of
from pnode.probe import MAX_NAME, Machine, named_in, printable, probe_machine

ALLOWED = Limits(2.0, 4 << 30, 1 << 30, 0)
MACHINE = Machine(2, 4 << 30, 4 << 30, 40 << 30, 10.0, "x86_64", "linux", "AMD EPYC")


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("processor\t: 0\nmodel name\t: AMD  EPYC 7B13\n", "AMD EPYC 7B13"),
        ("processor : 0\nHardware : BCM2835\n", "BCM2835"),
        ("processor : 0\n", ""),
        ("model name : \x1b[31m" + "x" * 500, ("[31m" + "x" * 500)[:MAX_NAME]),
    ],
)
def test_the_processors_name_is_found_and_bounded(text: str, name: str) -> None:
    assert named_in(text) == name


def test_a_processor_is_named_by_the_daemon_and_an_accelerator_by_the_worker() -> None:
    def name(device: str, told: str = "") -> str:
        return capability_of(ALLOWED, Budget(ALLOWED), MACHINE, device=device, accepts_work=True, device_name=told).device_name

    assert name("") == name("cpu") == "AMD EPYC"
    assert name("cuda", "NVIDIA H200") == "NVIDIA H200"
    assert name("cuda") == "", "the processor's name would say nothing about it"


def test_this_machines_processor_name_holds_no_host_name(tmp_path: Path) -> None:
    found = probe_machine(tmp_path).processor
    assert found == printable(found)
    assert socket.gethostname() not in found


def test_an_accelerator_is_advertised_by_its_own_measure_for_the_time_that_is_lent() -> None:
    def gflops(cores: float, measured: float) -> float:
        allowed = Limits(cores, 4 << 30, 1 << 30, 0)
        return capability_of(allowed, Budget(allowed), MACHINE, device="cuda", accepts_work=True, device_gflops=measured).gflops

    assert gflops(2.0, 500.0) == 500.0, "two cores drive one accelerator"
    assert gflops(0.25, 500.0) == 125.0, "a quarter of the time"
    assert gflops(0.25, 0.0) == pytest.approx(2.1), "a processor's are the cores that are lent, but for what hosting takes"


@pytest.mark.parametrize(("cores", "expected"), [(0.1, 0.06), (0.05, 0.0125), (0.4, 0.36), (4.0, 3.96)])
def test_what_hosting_takes_anyway_is_not_there_for_steps(cores: float, expected: float) -> None:
    allowed = replace(ALLOWED, cores=cores)
    said = capability_of(allowed, Budget(allowed), MACHINE, device="cpu", accepts_work=True)
    assert (said.gflops, said.cores) == (pytest.approx(expected * MACHINE.gflops_per_core), cores)
