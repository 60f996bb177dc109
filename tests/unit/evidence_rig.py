"""Books over a real directory: what a replica writes down for auditors, without the replica."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import numpy as np

from dcnr.ids import Digest, ReplicaId, VNodeId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.tensor import encode
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.books import Books
from pnode.chain import Standing
from pnode.evidence import name_of, signed_in
from pnode.spool import Frame
from vnode.compute import StepResult
from vnode.state import StateInfo
from vnode.vocabulary import Peer

STANDING = Standing("5" * 40, "m", "j", VNodeId("a"), Peer(ReplicaId("a.1"), 3), "6" * 40)
INFO = StateInfo("a", "m", "g", "", 1, 0, 100, 7, IntervalSet.empty())
NAMES = [digest_of(bytes([number])) for number in range(6)]


class Rig:
    """Books over a real directory; their replica is this test."""

    def __init__(
        self, root: Path, *, max_bytes: int = 1 << 20, span_steps: int = 256, is_read: bool = False, state: bytes = b"state",
        inputs: Sequence[int] = (0,),
    ) -> None:  # fmt: skip
        self.root, self.held, self.crowded, self.captured = root, list[str](), list[str](), list[StateInfo]()
        self.wanted, self.state = set[int](), state
        self.interval = 0
        (root / "begin.state").write_bytes(b"begin")
        order = local_pb2.HostReplica(
            evidence_dir=str(root / "evidence"), evidence_bytes=max_bytes, state_path=str(root / "begin.state"),
            assignment=model_pb2.DesiredAssignment(role=model_pb2.ROLE_PRIMARY),
        )  # fmt: skip
        self.books = Books(
            STANDING, order, INFO, inputs=inputs, is_read=is_read, span_steps=span_steps, capture=self._capture, held=self.held.append,
            crowded=self.crowded.append,
        )  # fmt: skip

    async def _capture(self, info: StateInfo) -> bytes:
        self.captured.append(info)
        return self.state

    async def learn(self, batch: int, num_bytes: int = 64) -> None:
        tensor = np.full(num_bytes // 4, batch, np.float32)
        await self.books.before_learning()
        await self.books.learned(batch, [tensor], StepResult(tensor + 1, 0.5, 1, 1, 1, 0.1), batch, await self.frame(batch))

    async def again(self, batch: int, num_bytes: int = 64) -> None:
        tensor = np.full(num_bytes // 4, batch, np.float32)
        await self.books.forwarded(batch, [tensor], tensor + 1, batch, await self.frame(batch))

    async def frame(self, batch: int) -> asyncio.Future[Frame] | None:
        """Of an output that somebody wants, in the codec of its way."""
        if batch not in self.wanted:
            return None
        frame: asyncio.Future[Frame] = asyncio.get_running_loop().create_future()
        frame.set_result(Frame(encode(np.full(16, batch + 1, np.float32), "int8"), batch))
        return frame

    async def end(self, name: Digest) -> model_pb2.StepLog:
        log = await self.books.log("begin")
        ended = self.books.ended(identity_pb2.Envelope(payload=b"statement"), log, INFO)
        self.interval += 1
        (self.root / "end.state").write_bytes(b"end")
        await self.books.keep(ended, name, self.root / "end.state")
        return model_pb2.StepLog.FromString(log)

    @property
    def num_bytes(self) -> int:
        """On the disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())

    @property
    def folder(self) -> Path:
        return self.root / "evidence"


def closed_in(directory: Path) -> dict[str, Path]:
    """The whole intervals of a replica's directory by name, as they lie on disk."""
    return {name: path for path in signed_in(directory) if (name := name_of(path))}


def run(scenario: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(scenario(), 60))
