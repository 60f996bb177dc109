"""The owner's door: LocalService on a Unix socket in the home directory, which only its owner can open."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import grpc

from dcnr.errors import DcnrError, InvalidInput, Unavailable
from dcnr.rpc.errors import status_of, trailing_metadata_of
from dcnr.rpc.options import message_options
from dcnr.v1 import local_pb2, local_pb2_grpc

MAX_SOCKET_PATH = 100


@dataclass(frozen=True, slots=True)
class Owner:
    """What only a daemon that has found its network can do for its owner."""

    pause: Callable[[float], Awaitable[float]]
    resume: Callable[[], Awaitable[None]]
    settings: Sequence[local_pb2.Setting]


class LocalDoor(local_pb2_grpc.LocalServiceServicer):
    """Answers the owner from the daemon's state."""

    def __init__(
        self, *, status: Callable[[], local_pb2.StatusResponse], why: Callable[[], list[local_pb2.WhyLine]], stop: Callable[[bool], float],
        owner: Owner | None = None,
    ) -> None:  # fmt: skip
        self._status, self._why, self._stop, self._owner = status, why, stop, owner
        self._server: grpc.aio.Server | None = None

    async def open(self, socket: Path) -> None:
        """Listens on ``socket``. Raises InvalidInput for a path that the system cannot use."""
        if len(str(socket)) > MAX_SOCKET_PATH:
            raise InvalidInput(
                f"the home directory's path is too long for a local socket: {socket}",
                code="path_too_long",
                remedy="choose a shorter --home",
            )
        socket.unlink(missing_ok=True)
        self._server = grpc.aio.server(options=message_options())
        local_pb2_grpc.add_LocalServiceServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{socket}")
        await self._server.start()
        socket.chmod(0o600)

    async def close(self) -> None:
        """Ends within half a second."""
        if self._server is not None:
            await self._server.stop(0.5)

    async def Status(self, request: local_pb2.StatusRequest, context: Any) -> local_pb2.StatusResponse:
        """One screen that tells all."""
        return self._status()

    async def Stop(self, request: local_pb2.StopRequest, context: Any) -> local_pb2.StopResponse:
        """Ends the daemon."""
        return local_pb2.StopResponse(within_s=self._stop(request.hand_over))

    async def Why(self, request: local_pb2.WhyRequest, context: Any) -> local_pb2.WhyResponse:
        """Reasons."""
        return local_pb2.WhyResponse(lines=self._why())

    async def Pause(self, request: local_pb2.PauseRequest, context: Any) -> local_pb2.PauseResponse:
        """Begins a pause."""
        try:
            return local_pb2.PauseResponse(within_s=await self._joined().pause(request.for_s))
        except DcnrError as error:
            await _refuse(context, error)

    async def Resume(self, request: local_pb2.ResumeRequest, context: Any) -> local_pb2.ResumeResponse:
        """Ends a pause."""
        try:
            await self._joined().resume()
        except DcnrError as error:
            await _refuse(context, error)
        return local_pb2.ResumeResponse()

    async def Settings(self, request: local_pb2.SettingsRequest, context: Any) -> local_pb2.SettingsResponse:
        """What this run took."""
        try:
            return local_pb2.SettingsResponse(settings=self._joined().settings)
        except DcnrError as error:
            await _refuse(context, error)

    def _joined(self) -> Owner:
        if self._owner is None:
            raise Unavailable("the daemon has not found its network yet", code="not_joined", remedy="see `pnode why`")
        return self._owner


async def _refuse(context: Any, error: DcnrError) -> NoReturn:
    await context.abort(status_of(error), error.message, trailing_metadata_of(error))
    raise error  # abort has raised already
