"""Admission: what the volunteer's limits allow, decided on the volunteer's machine whatever an orchestrator asks. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from dcnr import limits
from dcnr.errors import Refused

DAEMON_BYTES: Final = 256 * limits.MIB
"""Kept for the daemon and the interpreter of the worker, torch included."""
AUDIT: Final = "audit"
"""Under this name the budget holds what an audit may use: no replica has it."""
CACHE: Final = "cache"
"""Under this name what the cache takes of the disk is told to `Budget.admit`."""


@dataclass(frozen=True, slots=True)
class Limits:
    """The volunteer's limits after the probe: 0 in the settings has become what the machine has."""

    cores: float
    memory_bytes: int
    disk_bytes: int
    """For replicas and audits."""
    min_free_disk_bytes: int
    cache_bytes: int = 0
    """For the cache of objects, of the lent disk too: `disk_bytes` is without it."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """What one replica may use at most."""

    memory_bytes: int
    disk_bytes: int


class Budget:
    """Keeps reservations inside the limits; never admits what does not fit."""

    def __init__(self, allowed: Limits) -> None:
        self.allowed = allowed
        self._reserved: dict[str, Reservation] = {}
        self._found: set[str] = set()
        """Of those, what is in use as it is."""
        self._runtime_bytes = self._accelerator_bytes = 0

    def computes_on(self, *, accelerator_bytes: int, runtime_bytes: int) -> None:
        """The worker computes on an accelerator with so much memory of its own that was free (0: it has none), and took so much of the machine's to use it."""
        self._accelerator_bytes, self._runtime_bytes = accelerator_bytes, runtime_bytes

    @property
    def own_bytes(self) -> int:
        """Of what is lent, for the processes themselves."""
        return DAEMON_BYTES + self._runtime_bytes

    @property
    def reserved(self) -> Mapping[str, Reservation]:
        """Reservations by replica."""
        return dict(self._reserved)

    @property
    def usable_memory_bytes(self) -> int:
        """For replicas, after what the processes themselves need: of an accelerator's own memory as much as of the machine's that is lent."""
        usable = max(0, self.allowed.memory_bytes - self.own_bytes)
        return min(usable, self._accelerator_bytes) if self._accelerator_bytes else usable

    @property
    def free_memory_bytes(self) -> int:
        """Not reserved yet."""
        return self.usable_memory_bytes - sum(item.memory_bytes for item in self._reserved.values())

    def admit(
        self, replica: str, wanted: Reservation, *, free_disk_bytes: int, used_disk_bytes: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Reserves for ``replica`` (idempotent). Raises Refused with the numbers and what would change it.

        ``used_disk_bytes``: what each replica, and `CACHE`, takes of the disk already. The rest of what was reserved for others is promised: of what is
        free it is free no more.
        """
        self._check_memory(replica, wanted.memory_bytes)
        others = [item for name, item in self._reserved.items() if name != replica]
        promised = self._promised_bytes(replica, used_disk_bytes)
        free_disk = min(
            self.allowed.disk_bytes - sum(item.disk_bytes for item in others),
            free_disk_bytes - self.allowed.min_free_disk_bytes - promised + used_disk_bytes.get(replica, 0),
        )
        if wanted.disk_bytes > free_disk:
            raise Refused(
                f"{replica} needs {_mib(wanted.disk_bytes)} MiB of disk, {_mib(free_disk)} MiB are free",
                code="too_little_disk", remedy="free disk space, or raise limits.disk_mb or lower limits.disk_min_free_mb",
                needed_bytes=wanted.disk_bytes, free_bytes=free_disk,
            )  # fmt: skip
        self._reserved[replica] = wanted
        self._found.discard(replica)

    def widen(self, replica: str, memory_bytes: int) -> None:
        """What ``replica`` has reserved becomes so much memory where that is more; nothing for one that has reserved nothing. Raises Refused as `admit`: then
        it has what it had.
        """
        held = self._reserved.get(replica)
        if held is not None and memory_bytes > held.memory_bytes:
            self._check_memory(replica, memory_bytes)
            self._reserved[replica] = replace(held, memory_bytes=memory_bytes)

    def _check_memory(self, replica: str, needed: int) -> None:
        free = self.usable_memory_bytes - sum(item.memory_bytes for name, item in self._reserved.items() if name != replica)
        if needed > free:
            raise Refused(
                f"{replica} needs {_mib(needed)} MiB of memory, {_mib(free)} of {_mib(self.usable_memory_bytes)} MiB are free",
                code="too_little_memory", remedy=self._more_memory(), needed_bytes=needed, free_bytes=free,
            )  # fmt: skip

    def _promised_bytes(self, replica: str, used: Mapping[str, int]) -> int:
        """Disk that is reserved for others and that they do not use yet."""
        reserved = {name: item.disk_bytes for name, item in self._reserved.items() if name not in (replica, *self._found)}
        return sum(max(0, size - used.get(name, 0)) for name, size in (*reserved.items(), (CACHE, self.allowed.cache_bytes)))

    def _more_memory(self) -> str:
        if 0 < self._accelerator_bytes < self.allowed.memory_bytes - self.own_bytes:
            return f'the accelerator had {_mib(self._accelerator_bytes)} MiB free: free more of it, or set limits.device to "cpu"'
        return "raise limits.memory_mb, or lend a larger machine"

    def found(self, name: str, used: Reservation) -> None:
        """Counts what is in use already, whether it fits or not: whoever wants room next is refused the sooner."""
        self._reserved[name] = used
        self._found.add(name)

    def release(self, replica: str) -> None:
        """Gives back what ``replica`` held."""
        self._reserved.pop(replica, None)


def _mib(num_bytes: int) -> int:
    return max(0, num_bytes) // limits.MIB
