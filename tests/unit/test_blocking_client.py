"""Goal: a script that connects more than once, in vain or not, meets no error but those of the tree."""

from __future__ import annotations

import socket
import threading

import pytest

from dcnr.errors import InvalidInput, Unavailable
from dcnr.sdk.blocking import Client, _Loop, connect


class NeverUsed:
    """The client behind: nothing but `close` may be reached here."""

    def __init__(self) -> None:
        self.num_closed = 0

    async def close(self) -> None:
        self.num_closed += 1

    async def status(self) -> None:
        raise AssertionError("a closed client asks nobody")


def threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "dcnr sdk"]


@pytest.fixture
def nobody() -> str:
    """An address where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def test_all_clients_share_a_loop_that_is_never_closed(nobody: str) -> None:
    """gRPC tells a closed loop's late news to the next one, which fails: a traceback, and what came behind it waits for ever."""
    for entries in ([nobody], nobody):  # one address may stand for a list
        with pytest.raises(Unavailable) as caught:
            connect(entries)
        assert caught.value.code == "no_bootstrap"
        assert nobody in caught.value.message
    (thread,) = threads()
    assert thread.is_alive()


def test_a_closed_client_says_so() -> None:
    behind = NeverUsed()
    client = Client(behind, _Loop())  # type: ignore[arg-type]
    with client:
        pass
    client.close()
    assert behind.num_closed == 1
    with pytest.raises(InvalidInput) as caught:
        client.status()
    assert caught.value.code == "client_closed"
    assert caught.value.remedy
