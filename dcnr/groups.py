"""Errors that leave a task group."""

from __future__ import annotations

import asyncio

from dcnr.errors import DcnrError


def first_cause(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error that stands for a group: a typed one where there is one."""
    leaves: list[BaseException] = []
    for error in group.exceptions:
        leaves.append(first_cause(error) if isinstance(error, BaseExceptionGroup) else error)
    return next((error for error in leaves if isinstance(error, DcnrError)), leaves[0])


def heed_cancellation() -> None:
    """Raises CancelledError where the running task was asked to end. Called by whoever catches what a task group raised, and goes on.

    A child that fails in the very turn in which its task group is cancelled makes the group raise the child's error alone: before
    Python 3.13 the cancellation is forgotten then (CPython gh-116720), and a loop that catches the error would run for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError
