"""A disk that refuses what it took before, and what lies on it."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dcnr.ids import digest_of
from dcnr.v1 import local_pb2, model_pb2


@contextmanager
def refusing(*calls: str) -> Iterator[list[str]]:
    """The disk is read-only for these calls of `os` and `Path`; the names of those that were refused."""
    met: list[str] = []
    with pytest.MonkeyPatch.context() as patch:
        for call in calls:
            owner = os if hasattr(os, call) and call == "utime" else Path

            def refuse(*arguments: object, _call: str = call, **options: object) -> None:
                met.append(_call)
                raise OSError(errno.EROFS, os.strerror(errno.EROFS))

            patch.setattr(owner, call, refuse)
        yield met


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.005)


def snapshot(directory: Path, step: int) -> local_pb2.SnapshotReady:
    data = f"state {step}".encode()
    path = directory / f"{step}.state"
    path.write_bytes(data)
    checkpoint = model_pb2.Checkpoint(vnode="v", digest=digest_of(data), size_bytes=len(data), step=step, incarnation=1)
    return local_pb2.SnapshotReady(replica="v.1", model="m", job_id="j", path=str(path), checkpoint=checkpoint)
