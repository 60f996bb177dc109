"""Goal: who asks a daemon again after it was gone hears it as soon as it is back."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from dcnr.cli.local_door import SOCKET, asked
from dcnr.errors import NotRunning
from dcnr.v1 import local_pb2
from pnode.local import LocalDoor


def test_a_call_that_found_nobody_holds_up_none_after_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        path = tmp_path / SOCKET
        for _ in range(4):
            door = LocalDoor(status=lambda: local_pb2.StatusResponse(pid=7), why=list, stop=lambda hand_over: 1.0)
            await door.open(path)
            assert (await asked(tmp_path, "Status", local_pb2.StatusRequest())).pid == 7
            await door.close()
            with socket.socket(socket.AF_UNIX) as dead:  # what a killed daemon leaves
                path.unlink(missing_ok=True)
                dead.bind(str(path))
            for _ in range(5):
                with pytest.raises(NotRunning):
                    await asked(tmp_path, "Status", local_pb2.StatusRequest())

    asyncio.run(scenario())
