"""Calls to the orchestrators of one network, any of which may be down: each call goes to one that works, or fails with the reasons of all.

Every call of the contract is idempotent, so trying the next orchestrator after an unknown outcome is safe.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import Any, Final

import grpc

from dcnr import limits
from dcnr.errors import Corrupt, DcnrError, NotFound, RemoteFault, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.connection import Connection
from dcnr.rpc.dialer import Dialer
from dcnr.rpc.errors import error_from_rpc, unless_closed

TOLD: Final = frozenset(
    ("answers_differ", "busy", "depth_unavailable", "no_server", "rate_limited", "slow_messages", "too_few_ways", "unknown_caller",
     "version_not_served")
)  # fmt: skip
"""What an orchestrator says of the model or the caller, not of itself: another one is asked, and if none can do better the caller hears it."""
ELSEWHERE: Final = frozenset(("not_hosted",))
"""What an orchestrator refuses by its view of the plan, which may lag: another one is asked, and if none sees it otherwise the caller hears it."""
FINAL: Final = frozenset(("deadline_exceeded",))
"""What no other orchestrator would say otherwise: the caller's time is over."""
BROKEN: Final = frozenset(("unreachable", "connection_closed"))
"""What says that a connection is of no use; whatever else was said over it, the other calls over it go on."""

Known = Callable[[], Sequence[tuple[NodeId, Sequence[str]]]]
"""Orchestrators with their control addresses, best first."""


MAX_GONE: Final = 16
"""Connections kept of nodes that are known no more."""


class Orchestrators:
    """Keeps at most one connection per orchestrator, opened on first use and dropped when it breaks."""

    def __init__(self, dialer: Dialer, known: Known) -> None:
        self._dialer = dialer
        self.known = known
        self._connections: dict[NodeId, Connection] = {}
        self._opening: dict[NodeId, asyncio.Lock] = {}
        self._last_good: NodeId | None = None

    async def connection(self, node_id: NodeId, addresses: Sequence[str]) -> Connection:
        """The open connection to one orchestrator. Raises Unavailable, Refused, RemoteFault (``wrong_identity``: somebody else answers at its addresses)."""
        async with self._opening.setdefault(node_id, asyncio.Lock()):
            connection = self._connections.get(node_id)
            if connection is None or connection.closed:
                connection = await self._dialer.connect(node_id, addresses)
                self._connections[node_id] = connection
                await self._forget()
            return connection

    async def one_of_many(self, node_id: NodeId, addresses: Sequence[str]) -> Connection:
        """As `connection`, for who goes on to others: somebody else who answers there says as little of that orchestrator as silence does (Unavailable)."""
        try:
            return await self.connection(node_id, addresses)
        except RemoteFault as error:
            raise Unavailable(error.message, code=error.code, remedy=error.remedy) from error

    async def call(
        self, stub: Callable[[Any], Any], method: str, request: Any, *, timeout_s: float = limits.CALL_TIMEOUT_S, prefer: NodeId | None = None
    ) -> Any:  # fmt: skip
        """What `answered` gives, whoever it comes from."""
        return (await self.answered(stub, method, request, timeout_s=timeout_s, prefer=prefer))[1]

    async def answered(
        self, stub: Callable[[Any], Any], method: str, request: Any, *, timeout_s: float = limits.CALL_TIMEOUT_S, prefer: NodeId | None = None,
        without: Collection[NodeId] = (),
    ) -> tuple[NodeId, Any]:  # fmt: skip
        """The first answer of an orchestrator with its id, ``prefer`` and the last good one asked first, those in ``without`` not at all.

        Raises the typed error of whoever answered, also where all say that the store is in trouble, the model cannot answer, the plan places nothing there,
        or what is asked for is not there or damaged: one alone may be stale, or lie. Unavailable with all reasons when nobody did.
        """
        reasons: list[str] = []
        told: DcnrError | None = None
        for node_id, addresses in self._ordered(prefer, without):
            connection: Connection | None = None
            try:
                connection = await self.one_of_many(node_id, addresses)
                answer = await connection.call(getattr(stub(connection.channel), method), request, timeout_s=timeout_s)
            except DcnrError as error:
                reasons.append(_reason(node_id, error))
                if error.code in FINAL or not goes_on(error):
                    raise
                if _is_told(error):
                    told = better(told, error)
                elif error.code in BROKEN and connection is not None:
                    await self._drop(node_id, connection)
                continue
            self._last_good = node_id
            return node_id, answer
        raise told or self._nobody(reasons)

    async def stream(
        self, stub: Callable[[Any], Any], method: str, request: Any, *, timeout_s: float, prefer: NodeId | None = None,
        without: Collection[NodeId] = (),
    ) -> AsyncGenerator[Any, None]:  # fmt: skip
        """Messages of a server stream of the first orchestrator that gives one; from then on it ends or raises as that one does.

        Raises as `answered` does where nobody gives any.
        """
        reasons: list[str] = []
        told: DcnrError | None = None
        for node_id, addresses in self._ordered(prefer, without):
            has_begun = False
            try:
                connection = await self.one_of_many(node_id, addresses)
                messages = _messages(connection, getattr(stub(connection.channel), method), request, timeout_s)
                with unless_closed():
                    async with contextlib.aclosing(messages):
                        async for message in messages:
                            has_begun, self._last_good = True, node_id
                            yield message
                return
            except grpc.aio.AioRpcError as failed:
                error = error_from_rpc(failed)
                if has_begun or not goes_on(error) or isinstance(error, TimedOut) or error.code in FINAL:
                    raise error from failed
                if _is_told(error):
                    told = better(told, error)
                elif error.code in BROKEN:
                    await self._drop(node_id, connection)
            except Unavailable as failed:
                if has_begun:
                    raise
                error = failed
            reasons.append(_reason(node_id, error))
        raise told or self._nobody(reasons)

    async def close(self) -> None:
        """Closes all connections."""
        connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            await connection.close()

    def _ordered(self, prefer: NodeId | None, without: Collection[NodeId]) -> list[tuple[NodeId, Sequence[str]]]:
        first = (prefer, self._last_good)
        asked = [item for item in self.known() if item[0] not in without]
        return sorted(asked, key=lambda item: first.index(item[0]) if item[0] in first else len(first))

    async def _forget(self) -> None:
        """Closes what leads to nodes that are known no more, but for the newest few, over which something may still run."""
        known = {node_id for node_id, _ in self.known()}
        for node_id, connection in [item for item in self._connections.items() if item[0] not in known][:-MAX_GONE]:
            await self._drop(node_id, connection)
        idle = [node_id for node_id, lock in self._opening.items() if not lock.locked()]
        for node_id in idle:
            if node_id not in known and node_id not in self._connections:
                del self._opening[node_id]

    async def _drop(self, node_id: NodeId, connection: Connection) -> None:
        """Closes that connection, unless another one has taken its place."""
        if self._connections.get(node_id) is connection:
            del self._connections[node_id]
            await connection.close()

    def _nobody(self, reasons: Sequence[str]) -> DcnrError:
        why = "; ".join(reasons) if reasons else "none is known"
        return Unavailable(
            f"no orchestrator answered ({why})",
            code="no_orchestrator",
            remedy="check the bootstrap list, and that an orchestrator runs and reaches its store: orchestrator status",
        )


async def _messages(
    connection: Connection, method: Callable[..., Any], request: Any, timeout_s: float
) -> AsyncGenerator[Any, None]:
    """What a server stream gives; it is asked once more in a new session where it was refused for that. Whoever reads no more has it ended at once."""
    metadata, may_renew = await connection.fresh_metadata(), True
    while True:
        call = method(request, metadata=metadata, timeout=timeout_s)
        try:
            while (message := await call.read()) is not grpc.aio.EOF:  # type: ignore[attr-defined]  # missing in the stubs
                may_renew = False
                yield message
            return
        except grpc.aio.AioRpcError as error:
            if not may_renew or error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
        finally:
            call.cancel()
        metadata, may_renew = await connection.renewed(metadata), False


def goes_on(error: DcnrError) -> bool:
    """Whether another orchestrator may say something else."""
    return isinstance(error, Unavailable | NotFound | Corrupt) or error.code in ELSEWHERE


def _is_told(error: DcnrError) -> bool:
    """Whether the caller hears it where nobody does better."""
    return isinstance(error, NotFound | Corrupt) or error.code.startswith("store_") or error.code in TOLD or error.code in ELSEWHERE


def better(told: DcnrError | None, error: DcnrError) -> DcnrError:
    """The newest, but what one says that answers, knows the caller and sees it placed, before what one says that does not; what passes comes first."""
    return told if told is not None and _weight(error) < _weight(told) else error


def _weight(error: DcnrError) -> int:
    if error.code in BROKEN:
        return 0
    if error.code == "unknown_caller":
        return 1
    return 2 if isinstance(error, NotFound | Corrupt) or error.code in ELSEWHERE else 3


def _reason(node_id: NodeId, error: DcnrError) -> str:
    """Why a node did not answer; who it is stands there once."""
    return error.message if node_id[:8] in error.message else f"node {node_id[:8]}: {error.message}"
