"""Statements by which maintainers pause a job and let it go on: numbered from 1, each stored once; of a job's statements the newest counts.

A number is used once, so a statement that was answered is of no use a second time: whoever repeats an old pause changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Stale
from dcnr.ids import check_name
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.documents import open_end, put_once
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_PAUSES: Final = 64
"""Statements about one job; none is ever deleted."""
MAX_REASON: Final = 1000
"""Characters: the newest reason is part of every view of the job."""


async def record_pause(
    envelope: identity_pb2.Envelope, *, policy: NetworkPolicy, store: ObjectStore
) -> tuple[model_pb2.JobPause, bool]:
    """The statement that counts now, and whether this one was new; a wish that is in force already is not stored again.

    Raises Refused (``unsigned_job``, ``wrong_network``, ``too_many_pauses``), NotFound (``job_not_found``), Stale (``job_ended``, ``pause_not_next``),
    InvalidInput (``reason_too_long``), Unavailable.
    """
    pause = policy.open_pause(envelope)
    if len(pause.reason) > MAX_REASON:
        raise InvalidInput(
            f"a reason of {len(pause.reason)} characters",
            code="reason_too_long",
            remedy=f"say it in {MAX_REASON} characters at most",
        )
    model, job_id = check_name(pause.model), check_name(pause.job_id)
    await _check_open(store, policy, model, job_id)
    newest = await newest_pause(store, policy, model, job_id, await _numbers(store, model, job_id))
    number = newest.number + 1 if newest is not None else 1
    has_missed_some = pause.number > number  # whoever signed it knew later statements than this look has shown
    if is_paused(newest) == pause.paused and not has_missed_some:
        return newest or pause, False
    if number > MAX_PAUSES:
        raise Refused(
            f"job {job_id} was paused and resumed {MAX_PAUSES} times",
            code="too_many_pauses",
            remedy="cancel it, and submit another",
        )
    if pause.number != number:
        raise _not_next(pause, number)
    data = envelope.SerializeToString(deterministic=True)
    found = await put_once(store, keys.job_pause(model, job_id, number), data)
    reached("pause.stored")
    if found == data:
        return pause, True
    other = policy.read_pause(parse_envelope(found))
    if other.paused != pause.paused:
        raise _not_next(pause, number + 1)
    return other, False


async def newest_pause(
    store: ObjectStore, policy: NetworkPolicy, model: str, job_id: str, numbers: Iterable[int]
) -> model_pb2.JobPause | None:
    """Of the statements with these numbers the newest that maintainers signed for this place. Raises Unavailable."""
    found = await newest_stored(store, policy, model, job_id, numbers)
    return found[0] if found is not None else None


async def newest_stored(
    store: ObjectStore, policy: NetworkPolicy, model: str, job_id: str, numbers: Iterable[int]
) -> tuple[model_pb2.JobPause, bytes] | None:
    """As `newest_pause`, with what is stored."""
    for number in sorted(numbers, reverse=True):
        try:
            stored = await store.get(keys.job_pause(model, job_id, number), max_bytes=limits.MAX_ENVELOPE_BYTES)
            pause = policy.read_pause(parse_envelope(stored.data))
        except (Corrupt, Refused, InvalidInput, NotFound):
            continue  # whoever holds the store's keys can put anything there
        if (pause.model, pause.job_id, pause.number) == (model, job_id, number):
            return pause, stored.data
    return None


def is_paused(newest: model_pb2.JobPause | None) -> bool:
    """What the newest statement says; a job of which nobody said anything goes on."""
    return newest is not None and newest.paused


def number_in(kind: str) -> int | None:
    """The number of the statement that an object of a job is, by the last part of its key; None for another object."""
    text = kind.removeprefix(keys.PAUSE)
    number = int(text) if text != kind and len(text) == 4 and text.isascii() and text.isdigit() else 0
    return number if 1 <= number <= MAX_PAUSES else None


async def _numbers(store: ObjectStore, model: str, job_id: str) -> list[int]:
    prefix = keys.job_prefix(model, job_id)
    rows = await store.list(prefix + keys.PAUSE, max_keys=MAX_PAUSES)
    return [number for row in rows if (number := number_in(row.key.removeprefix(prefix))) is not None]


async def _check_open(store: ObjectStore, policy: NetworkPolicy, model: str, job_id: str) -> None:
    try:
        await store.head(keys.job_request(model, job_id))
    except NotFound as error:
        raise NotFound(f"there is no job {job_id}", code="job_not_found", remedy="dcnr job list shows all jobs") from error
    try:
        stored = await store.get(keys.job_end(model, job_id), max_bytes=limits.MAX_ENVELOPE_BYTES)
        open_end(stored.data, policy, model, job_id)
    except (NotFound, Corrupt):  # whoever holds the store's keys can put anything there
        return
    raise Stale(f"job {job_id} has ended", code="job_ended", remedy=f"dcnr job watch {job_id} says how")


def _not_next(pause: model_pb2.JobPause, number: int) -> DcnrError:
    return Stale(
        f"statement {pause.number} about job {pause.job_id} is not the next one, {number} is", code="pause_not_next",
        remedy="look where the job stands, and sign again", number=number,
    )  # fmt: skip
