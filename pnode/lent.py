"""What this machine lends, after the volunteer's settings and the probe, and under which address. Enforced here, advertised from here."""

from __future__ import annotations

import asyncio
import math
import shutil
import socket
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from dataservice.addresses import AddressRule
from dcnr import limits
from dcnr.errors import Unavailable
from dcnr.settings import PNodeSettings
from dcnr.v1 import identity_pb2, membership_pb2
from membership.relays import LOOPBACK
from pnode.budget import Budget, Limits
from pnode.home import Home
from pnode.orders import HostingOptions
from pnode.probe import Machine, printable

MAX_TARGETS = 4
"""Bootstrap entries to which a way is looked for."""
INTERNET = "192.0.2.1:9"
"""An address of documents, to which a machine has the way that it has to everybody."""
SPOOL_SHARE = 4
"""A replica's spool takes at most this fraction of the lent disk."""
EVIDENCE_SHARE = 16
"""The same for what it keeps for auditors."""
STANDING_CORES = 0.04
"""Of a core, what a worker that hosts something takes however little it learns: statements to neighbours, signs of life, reports. Measured on a busy
machine: 0.055 with two VNodes, 0.08 with eight (ADR 0113)."""
LEAST_SHARE = 4
"""At least this fraction of what is lent is said to be there for steps."""
CACHE_SHARE = 4
"""The cache takes at most this fraction of what may be used of the disk; replicas share the rest. No state that they have room for is too large for it."""


def limits_of(settings: PNodeSettings, machine: Machine) -> Limits:
    """The volunteer's limits; 0 has become what the machine has (half of the free memory). Nobody is promised more disk than there is at the start."""
    lent = settings.limits
    cores = min(lent.cores or machine.cores, machine.cores) * lent.cpu_percent / 100
    memory = lent.memory_mb * limits.MIB or machine.free_memory_bytes // 2
    min_free = lent.disk_min_free_mb * limits.MIB
    disk = max(0, min(lent.disk_mb * limits.MIB, machine.free_disk_bytes - min_free))
    cache = max(1, disk // CACHE_SHARE)
    return Limits(max(0.1, cores), min(memory, machine.memory_bytes), max(0, disk - cache), min_free, cache)


def beyond(settings: PNodeSettings, machine: Machine) -> list[str]:
    """What was asked to be lent and is more than this machine has: one line each."""
    lent, memory_mb = settings.limits, machine.memory_bytes // limits.MIB
    found = (
        [f"limits.cores is {lent.cores:g}, but this machine has {machine.cores}: it lends {machine.cores}"]
        if lent.cores > machine.cores
        else []
    )
    if lent.memory_mb > memory_mb:
        found.append(f"limits.memory_mb is {lent.memory_mb}, but this machine has {memory_mb}: it lends no more")
    return found


def capability_of(
    allowed: Limits,
    budget: Budget,
    machine: Machine,
    *,
    device: str,
    accepts_work: bool,
    device_name: str = "",
    device_gflops: float = 0.0,
    relay_mbit: float = 0.0,
    uplink_mbit: float = 0.0,
) -> membership_pb2.Capability:
    """What the advert says. ``device_name`` and ``device_gflops``: an accelerator's, as the worker says them; a processor's are known here.
    ``relay_mbit``: passed on for others.

    ``gflops`` are those that are there for steps, without what hosting takes anyway. An accelerator is lent for as much of the time as a core of those that are
    lent: with less than one, `pnode.pace` keeps it waiting.
    ``uplink_mbit``: see `pnode.line.Line.uplink_mbit`.
    """
    return membership_pb2.Capability(
        cores=allowed.cores, memory_bytes=budget.usable_memory_bytes, disk_bytes=allowed.disk_bytes, device=device or "cpu",
        device_name=printable(device_name) or (machine.processor if (device or "cpu") == "cpu" else ""),
        gflops=device_gflops * min(1.0, allowed.cores) or machine.gflops_per_core * _for_steps(allowed.cores),
        architecture=machine.architecture, system=machine.system, accepts_work=accepts_work,
        relay_mbit=relay_mbit, uplink_mbit=uplink_mbit,
    )  # fmt: skip


def _for_steps(cores: float) -> float:
    return max(cores / LEAST_SHARE, cores - STANDING_CORES)


def threads_of(allowed: Limits) -> int:
    """Threads that compute: whole cores, for a thread that is held back half of the time holds up the others. `pnode.pace` keeps to the rest."""
    return max(1, math.floor(allowed.cores))


def spool_bytes_of(allowed: Limits) -> int:
    """Bound of one replica's spool."""
    return min(limits.SPOOL_BYTES, allowed.disk_bytes // SPOOL_SHARE)


def free_for(root: Path, allowed: Limits) -> Callable[[], int]:
    """Bytes that the disk of ``root`` has at the moment, beside what is to stay free."""
    return lambda: shutil.disk_usage(root).free - allowed.min_free_disk_bytes


def options_of(settings: PNodeSettings, allowed: Limits, home: Home, bulk_bytes_s: Callable[[], float]) -> HostingOptions:
    """What every replica gets. ``home``: its disk is lent."""
    threads = threads_of(allowed)
    return HostingOptions(
        threads=threads,
        cpu_share=allowed.cores / threads,
        spool_bytes=spool_bytes_of(allowed),
        evidence_bytes=min(limits.EVIDENCE_BYTES, allowed.disk_bytes // EVIDENCE_SHARE),
        free_disk_bytes=lambda: shutil.disk_usage(home.root).free,
        used_disk_bytes=partial(asyncio.to_thread, home.used_bytes),
        checkpoint_s=settings.checkpoint_s,
        bulk_bytes_s=bulk_bytes_s,
    )


def advertised_host(settings: PNodeSettings, bootstrap: Sequence[str], *, single_host: bool) -> str:
    """The host that others are told: as set, as listened on, or as this machine uses towards the first of the first few bootstrap entries to which it has a
    way (no packet is sent); empty where nobody can dial this machine. May look up names. Raises Unavailable (``no_address``).
    """
    if settings.outbound_only:
        return ""
    if settings.advertise_host:
        return settings.advertise_host
    if settings.listen_host not in ("0.0.0.0", "::"):
        return settings.listen_host
    if single_host:
        return "127.0.0.1"
    troubles: list[str] = []
    for entry in bootstrap[:MAX_TARGETS] or (INTERNET,):
        target = entry.rpartition("@")[2].rpartition(":")[0].strip("[]")
        try:
            with socket.socket(socket.AF_INET6 if ":" in target else socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect((target, 9))
                return str(probe.getsockname()[0])
        except OSError as error:
            troubles.append(f"this machine has no way to {target}: {error.strerror}")
    raise Unavailable(troubles[0], code="no_address", remedy="set advertise_host")


def listened_host(settings: PNodeSettings) -> str:
    """Where the TCP ports are opened."""
    return LOOPBACK if settings.outbound_only else settings.listen_host


def rule_of(document: identity_pb2.NetworkDocument) -> AddressRule:
    """Which addresses grants may name: of the store none where the document names none."""
    stores = (f"{document.store_scheme or 'https'}://{document.store_address}",) if document.store_address else ()
    return AddressRule(stores=stores, data_hosts=tuple(document.data_hosts))
