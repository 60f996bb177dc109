"""How the processes of a `LocalNetwork` are started: what is needed of one, and the usual way."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Protocol


class Child(Protocol):
    """What is needed of a process that was started; those of `subprocess` are such."""

    @property
    def pid(self) -> int:
        """Also after it has ended."""

    @property
    def returncode(self) -> int | None:
        """None while it runs, as far as `poll` and `wait` have seen; minus the signal that ended it."""

    @property
    def stdin(self) -> IO[bytes] | None:
        """Our end of the pipe that it reads; it closes with us, however we end."""

    def poll(self) -> int | None:
        """The exit code; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once it has ended. Raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Nothing happens to one that has ended."""

    def kill(self) -> None:
        """SIGKILL."""


Starting = Callable[[Sequence[str], Mapping[str, str], int], Child]
"""From a command, its environment and the descriptor of its log: a process that leads a session of its own and holds no other descriptor of ours."""


def executed(command: Sequence[str], environment: Mapping[str, str], log: int) -> Child:
    """Executes the command, as whoever types it does."""
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=dict(environment), start_new_session=True, close_fds=True
    )
