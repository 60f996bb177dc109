"""What this PNode is told and obeys, on its disk: desired states and heads, written or removed in the order in which they came, and in threads. A disk that
stands still keeps waiting what follows from them, and nothing else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from dcnr import limits
from dcnr.errors import Corrupt, Unavailable
from dcnr.v1 import identity_pb2, model_pb2
from pnode.home import Home, read_message, write_atomically
from pnode.placing import Say
from trust.envelope import parse


class Written:
    """Of all models. Whoever writes a desired state has `turn` from before it is judged for the last time until it is in force."""

    def __init__(self, home: Home, say: Say) -> None:
        self._home, self._say = home, say
        self._heads: dict[str, identity_pb2.Envelope] = {}
        self.turn = asyncio.Lock()

    def load_head(self, model: str) -> tuple[int, int]:
        """Takes up what an earlier life wrote: its epoch and sequence, zeros without one. A damaged file must not keep this PNode from attaching."""
        self._heads.pop(model, None)
        try:
            found = read_message(self._home.head_path(model), identity_pb2.Envelope)
            head = parse(model_pb2.Head, found.payload if found is not None else b"", limits.MAX_HEAD_BYTES)
        except (Corrupt, Unavailable) as error:
            self._say("head_damaged", model, error.message)
            return 0, 0
        if found is not None:
            self._heads[model] = found
        return int(head.epoch), int(head.sequence)

    def heads(self, models: Iterable[str]) -> list[identity_pb2.Envelope]:
        """The newest head of a confirmed term of each, as it was signed."""
        return [self._heads[model] for model in models if model in self._heads]

    async def desired(self, model: str, envelope: identity_pb2.Envelope) -> bool:
        """Whether the disk took it; it has been said where it did not."""
        return await self._write(self._home.desired_path(model), envelope)

    async def head(self, model: str, envelope: identity_pb2.Envelope) -> None:
        """A head that confirms a term, or is not older than what is obeyed in it."""
        self._heads[model] = envelope
        async with self.turn:
            await self._write(self._home.head_path(model), envelope)

    def shows(self, model: str, envelope: identity_pb2.Envelope) -> None:
        """A later head of the confirmed term: until a restart it is what is shown. Not each renewal is worth a write."""
        self._heads[model] = envelope

    async def forget(self, model: str, is_back: Callable[[], bool]) -> None:
        """A restart takes nothing up of that model, unless it came back before its turn."""
        async with self.turn:
            if not is_back():
                self._heads.pop(model, None)
                await asyncio.to_thread(self._home.forget, model)

    async def _write(self, path: Path, envelope: identity_pb2.Envelope) -> bool:
        try:
            await asyncio.to_thread(write_atomically, path, envelope.SerializeToString(deterministic=True))
        except Unavailable as error:
            self._say("disk_trouble", path.name, error.message)
            return False
        return True
