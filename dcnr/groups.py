"""What leaves a task group: its errors, and a cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from dcnr.errors import DcnrError

T = TypeVar("T")


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that stands for a group: a typed one where there is one."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.append(first_cause(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((error for error in leaves if isinstance(error, DcnrError)), leaves[0])


async def apart(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns or raises, from a task of its own; it has ended when this returns. For whoever catches what a task group raises.

    A child that fails in the very turn in which the task of its group is cancelled makes the group raise the child's error alone
    (Python 3.11 and 3.12): the cancellation would be lost, and a loop that catches the error runs for ever. Here it is raised.
    """
    task = asyncio.ensure_future(work)
    try:
        await asyncio.wait([task])
    except asyncio.CancelledError:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        raise
    return task.result()
