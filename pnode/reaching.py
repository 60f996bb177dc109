"""Has orchestrators dial this machine from outside, and tells others the addresses that they can dial, or that relays lead to it.

Who cannot be dialled is thereby reached through relays without anybody's doing; what decides is `pnode.reach`. Where nobody tests, the addresses are told
as they are: the owner's ``outbound_only`` alone says otherwise then.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from dcnr import limits
from dcnr.client import Orchestrators
from dcnr.errors import DcnrError
from dcnr.ids import NodeId
from dcnr.ports import Clock, Random
from dcnr.v1 import membership_pb2, orchestrator_pb2
from dcnr.v1.membership_pb2_grpc import MembershipServiceStub
from membership.house import own_addresses
from membership.node import Membership
from membership.reach_desk import MAX_PORT, MIN_PORT
from membership.relays import LOOPBACK
from pnode.delegated import Delegated
from pnode.reach import Look, Port, Where, from_outside, meant, verdict
from pnode.telling import Condition
from trust.addresses import is_public, join_address, split_address

NUM_TESTERS: Final = 3
REVIEW_S: Final = 1.0
RESOLVE_S: Final = 3.0
LOOK_S: Final = 15.0
"""For one tester, connecting to it included."""
MOVED_S: Final = 30.0
"""From one round to the next that an orchestrator brings about by seeing this machine elsewhere: none of them uses up what may be asked of the others."""
MAX_HOST_CHARS: Final = 64
NOT_ASKED: Final = "not tested from outside: outbound_only says that nobody can dial this machine"
ONE_MACHINE: Final = "not tested from outside: the whole network is on one machine"
NOT_YET: Final = "not tested from outside: no orchestrator has dialled this machine yet"
_log = structlog.get_logger("pnode")


@dataclass(frozen=True, slots=True)
class Outside:
    """What it works with. ``host`` finds out what others would be told: empty where the owner says that nobody can dial this machine. It may raise
    Unavailable.
    """

    host: Callable[[], str]
    is_single_host: bool
    now: Condition
    orchestrators: Orchestrators
    membership: Membership
    delegated: Callable[[], Delegated]
    relays_changed: Callable[[], Awaitable[None]]
    say: Callable[[str, str, str], None]
    clock: Clock
    rng: Random


class Reaching:
    """One per daemon. Raises Unavailable where this machine has no address to begin with."""

    def __init__(self, outside: Outside) -> None:
        self._outside, self._host = outside, outside.host()
        self._names = ThreadPoolExecutor(max_workers=1, thread_name_prefix="own-names")
        """Where this machine's own names are looked up: nothing that stands in the disk holds that up."""
        self._control, self._data = Port(), Port()
        self._control_port, self._directory = 0, ""
        self._due_s, self._tested_worker = 0.0, 0
        self._began_s, self._has_moved, self._is_met_anew = -MOVED_S, False, False
        self._seen_at: dict[NodeId, str] = {}
        outside.now.reach_note = NOT_ASKED if not self._host else ONE_MACHINE if outside.is_single_host else NOT_YET

    def control_address(self, port: int) -> str:
        """Of the control port as others would be told; on this machine alone where its owner says that nobody can dial it."""
        return join_address(self._host or LOOPBACK, port)

    @property
    def data_host(self) -> str:
        """Where others dial the worker; empty: they cannot, and it listens at relays."""
        return self._host if self._data.is_told else ""

    def needs_relays(self) -> bool:
        """Whether nobody dials the worker, by its owner's word or by tests."""
        return not self.data_host

    @property
    def near_host(self) -> str:
        """Where machines of the same house dial the worker though nobody else can; empty: nowhere."""
        return self._host if not self._data.is_told and not is_public(self._host) else ""

    @property
    def is_reached(self) -> bool:
        """Whether others dial the daemon: a test found that, or the whole network is on this machine."""
        seen = self._outside.is_single_host or any(
            look.control == membership_pb2.REACH_RESULT_REACHED for look in self._outside.now.looks
        )
        return bool(self._host) and self._control.is_told and seen

    @property
    def at_first(self) -> dict[str, object]:
        """What the first advert says before the ports are known: nothing, or that nobody can dial this machine."""
        return {} if self._host else {"control_addresses": [], "dht_address": ""}

    def welcomed(self, orchestrator: NodeId, welcome: orchestrator_pb2.Welcome) -> None:
        """An orchestrator sees this machine; where it sees it elsewhere than before, or the machine itself finds so when an orchestrator is met anew, as after
        sleep, the way to it is tested soon: in another house it may be seen behind the same line.
        """
        self._outside.now.reachable = "direct" if welcome.reachable else "not"
        host, before = welcome.observed_address.rpartition(":")[0][:MAX_HOST_CHARS], self._seen_at.get(orchestrator)
        self._seen_at[orchestrator] = host
        self._has_moved |= before is not None and before != host
        self._is_met_anew |= before is not None

    async def run(self, control_port: int) -> None:
        """Tests now and then, until cancelled; ends at once where there is nothing to test."""
        if not self._host or self._outside.is_single_host:
            return
        self._control_port, self._directory = control_port, self._outside.membership.dht_address
        while True:
            await asyncio.sleep(REVIEW_S)
            worker = self._outside.now.worker
            now_s = self._outside.clock.monotonic()
            if self._is_met_anew and now_s >= self._began_s + MOVED_S:
                self._is_met_anew, self._has_moved = False, self._has_moved or await self._host_now() != self._host
            if self._outside.orchestrators.known() and (
                now_s >= self._due_s
                or (self._has_moved and now_s >= self._began_s + MOVED_S)
                or (worker.has_reported and worker.incarnation != self._tested_worker)
            ):
                self._began_s, self._has_moved = now_s, False
                await self._round()

    async def _round(self) -> None:
        now, before = self._outside.now, self._host
        self._host = await self._host_now()
        request, worker = self._request(), now.worker
        if worker.has_reported and worker.incarnation != self._tested_worker:
            self._data.forget()
            self._tested_worker = worker.incarnation
        looks = await self._looks(request)
        where = Where(await self._addresses_of(self._host), own_addresses())
        outside, found_s = from_outside(looks), self._outside.clock.monotonic()
        changed = self._control.heard(verdict(meant(look, look.control, where) for look in outside), found_s)
        wait_s = self._control.next_s
        if request.data_port and now.worker is worker:  # else they dialled one that is gone
            changed |= self._data.heard(verdict(meant(look, look.data, where) for look in outside), found_s)
            wait_s = min(wait_s, self._data.next_s)
        self._due_s = found_s + wait_s * self._outside.rng.uniform(0.75, 1.0)
        now.looks, now.is_data_told = tuple(looks) or now.looks, self._data.is_told
        now.reach_note = self._note(where)
        if changed or self._host != before:
            await self._tell(", ".join(f"{look.tester[:8]} sees it at {look.host}" for look in looks))

    async def _host_now(self) -> str:
        """What others would be told; what they were told where there is no way out at the moment."""
        with contextlib.suppress(DcnrError, TimeoutError):
            async with asyncio.timeout(RESOLVE_S):
                return await asyncio.get_running_loop().run_in_executor(self._names, self._outside.host)
        return self._host

    async def _addresses_of(self, host: str) -> frozenset[str]:
        """The IP addresses that a host has; none where that cannot be found out."""
        if _is_ip(host):
            return frozenset((str(ipaddress.ip_address(host)),))
        look = partial(socket.getaddrinfo, host, None, type=socket.SOCK_STREAM)
        try:
            async with asyncio.timeout(RESOLVE_S):
                found = await asyncio.get_running_loop().run_in_executor(self._names, look)
        except (OSError, TimeoutError, UnicodeError):
            return frozenset()
        return frozenset(str(row[4][0]) for row in found)

    def _request(self) -> membership_pb2.ReachRequest:
        delegated = self._outside.delegated()
        data_port = delegated.data_port if self._outside.now.worker.has_reported else 0
        return membership_pb2.ReachRequest(
            control_port=_asked(self._control_port),
            data_port=_asked(data_port),
            delegation=delegated.delegation if _asked(data_port) else None,
        )

    async def _looks(self, request: membership_pb2.ReachRequest) -> list[Look]:
        """What a few orchestrators say, other ones each time."""
        known = list(self._outside.orchestrators.known())
        asked = self._outside.rng.sample(known, min(NUM_TESTERS, len(known)))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._look(tester, addresses, request)) for tester, addresses in asked]
        return [look for task in tasks if (look := task.result()) is not None]

    async def _look(self, tester: NodeId, addresses: Sequence[str], request: membership_pb2.ReachRequest) -> Look | None:
        try:
            async with asyncio.timeout(LOOK_S):
                connection = await self._outside.orchestrators.connection(tester, addresses)
                stub: Any = MembershipServiceStub(connection.channel)
                answer = await connection.call(stub.Reach, request, limits.CALL_TIMEOUT_S)
        except (DcnrError, TimeoutError):  # it is away, has too much to do, or is too old to test anybody
            return None
        except Exception as error:  # noqa: BLE001  RPC boundary: what one orchestrator says never ends the daemon
            _log.error("reach_test_failed", orchestrator=tester, exc_info=error)
            return None
        host = answer.host[:MAX_HOST_CHARS]
        if not _is_ip(host):
            return None
        return Look(tester, host, answer.control, answer.data, self._outside.clock.monotonic())

    def _note(self, where: Where) -> str:
        looks = self._outside.now.looks
        if not looks:
            return NOT_YET
        elsewhere = sorted(
            {look.host for look in looks if look.data == membership_pb2.REACH_RESULT_REACHED} - where.told - where.own
        )
        if elsewhere and not self._data.is_told:
            return f"its ports answer at {elsewhere[0]}: with that as advertise_host others would dial it directly"
        if self._data.is_told:
            return "" if self._control.is_told else "others dial the worker, but not the daemon"
        return "others cannot dial the data port: relays lead to it, and it is tested again from time to time"

    async def _tell(self, seen: str) -> None:
        """Others hear what holds now: first the worker of relays, then everybody of its addresses."""
        outside = self._outside
        await outside.relays_changed()
        control = [join_address(self._host, self._control_port)] if self._control.is_told else []
        outside.membership.update_self(control_addresses=control, dht_address=self._directory_now() if control else "")
        await outside.delegated().renew()
        how = "dial its worker" if self._data.is_told else "cannot dial its worker, and go through relays"
        outside.say("reach_changed", outside.membership.node_id, f"others {how}; {seen or 'it has another address'}")

    def _directory_now(self) -> str:
        if not self._directory or split_address(self._directory)[0] == self._host or not _is_ip(self._host):
            return self._directory
        return join_address(self._host, split_address(self._directory)[1])


def _asked(port: int) -> int:
    """The port, if testers dial such ones."""
    return port if MIN_PORT <= port <= MAX_PORT else 0


def _is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return "%" not in host  # a zone may be any text
