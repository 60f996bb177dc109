"""Calls to a daemon on this machine over the Unix socket in its home directory. Raises NotRunning where none answers."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dcnr.errors import DcnrError, InvalidInput, NotRunning, TimedOut
from dcnr.limits import CALL_TIMEOUT_S

if TYPE_CHECKING:
    from dcnr.v1 import local_pb2

SOCKET: Final = "run.sock"
POLL_S: Final = 0.1


def ask(home: Path, method: str, request: Any) -> Any:
    """The daemon's answer to one call of LocalService."""
    return asyncio.run(asked(home, method, request))


def status_of_home(home: Path) -> local_pb2.StatusResponse:
    """What the PNode on ``home`` says of itself. Raises NotRunning, Unavailable."""
    from dcnr.v1 import local_pb2

    answer: local_pb2.StatusResponse = ask(home, "Status", local_pb2.StatusRequest())
    return answer


def wait_gone(home: Path, within_s: float) -> None:
    """Returns when no daemon listens any more. Raises TimedOut."""
    asyncio.run(_wait_gone(home, within_s))


async def asked(home: Path, method: str, request: Any) -> Any:
    """As `ask`, in a running loop."""
    socket = home / SOCKET
    if not socket.exists():
        raise _not_running(home)
    import grpc

    from dcnr.rpc.errors import error_from_rpc
    from dcnr.rpc.options import message_options
    from dcnr.v1 import local_pb2_grpc

    # The last: else one call that failed has the next ones wait, and a daemon that has just started looks dead.
    options = [*message_options(), ("grpc.enable_http_proxy", 0), ("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(f"unix:{socket}", options=options) as channel:
        try:
            return await getattr(local_pb2_grpc.LocalServiceStub(channel), method)(request, timeout=CALL_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                raise _not_running(home) from None
            typed: DcnrError = error_from_rpc(error)
            raise typed from None


async def _wait_gone(home: Path, within_s: float) -> None:
    try:
        async with asyncio.timeout(within_s):
            while await _listens(home / SOCKET):  # noqa: ASYNC110  another process: nothing here could signal its end
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise TimedOut(f"the daemon has not ended within {within_s:.0f} s", code="still_running") from None


async def _listens(socket: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(socket))
    except OSError as error:
        if "too long" in str(error):
            raise InvalidInput(f"the path {socket} is too long for a local socket", code="path_too_long") from error
        return False
    writer.transport.abort()
    return True


def _not_running(home: Path) -> NotRunning:
    """With the command that starts one on that very home; who has joined a network needs nobody to ask for it."""
    from pnode.home import Home

    first = "" if Home(home).network.exists() else " --bootstrap HOST:PORT"
    return NotRunning(f"nothing runs on {home}", remedy=f"pnode start{first} --home {shlex.quote(str(home))}")
