"""gRPC's thread that polls for all event loops of a process stays as long as the process does."""

from __future__ import annotations

import functools

from grpc.aio import init_grpc_aio


@functools.cache
def keep_polling() -> None:
    """To be called before a process makes its first channel or server, and not before it forks.

    Without it gRPC ends that thread whenever the last of its objects is destroyed, which may be in the midst of a search for garbage in whichever thread, and
    waits there without a limit until the thread has said that it ends. Seen with grpcio 1.85.1: the thread was gone, had not been heard, and the event loop of
    a client that had just been made never came out of that wait. What is kept instead is the thread and, of each event loop that ever had a channel, some
    kilobytes.
    """
    init_grpc_aio()
