"""Which stored states may go: listed now and then by the holder, condemned by a manifest, deleted only after that manifest is under the head."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import Final

from dataservice import keys
from dataservice.manifests import StoredState
from dcnr.crashpoints import reached
from dcnr.errors import DcnrError, InvalidInput, NotFound, Unavailable, for_others
from dcnr.groups import apart, first_cause
from dcnr.ids import Digest, check_digest
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.jobs import JobRecord
from orchestrator.view import ModelView, ViewLoader

MAX_LISTED: Final = 20_000
CALLS_AT_ONCE: Final = 8
"""To the store, while nothing is decided."""
MAX_DELETED: Final = 2048
"""Objects deleted in one go; with more the next sweep comes soon (`orchestrator.naming.SWEEP_AGAIN_S`)."""


async def stored_states(store: ObjectStore, model: str, vnodes: Iterable[str]) -> list[StoredState]:
    """All state objects of these VNodes, with the store's own times. Raises Unavailable."""
    found: list[StoredState] = []
    for vnode in vnodes:
        prefix = keys.state_prefix(model, vnode)
        for row in await store.list(prefix, max_keys=MAX_LISTED):
            name = row.key.removeprefix(prefix).removesuffix(".safetensors")
            try:
                found.append(StoredState(vnode, check_digest(name), row.size_bytes, int(row.last_modified * 1000)))
            except InvalidInput:
                continue  # not one of ours: never touched
    return found


async def kept_states(
    view: ModelView, loader: ViewLoader, jobs: Mapping[str, JobRecord], released: Iterable[str], unknown: Collection[str] = ()
) -> frozenset[Digest]:
    """States that are never condemned: those that any job of the model began with or ended in, and those of ``released`` manifests. ``unknown``: jobs that the
    store has beside ``jobs``.

    Raises what reading a manifest raises, and Unavailable where a job is there of which nobody here knows what it began with: nothing is deleted for that.
    """
    if (unread := next((record for record in jobs.values() if record.unread), None)) is not None:
        raise Unavailable(f"what job {unread.job_id} began with is not known: {unread.unread}", code="jobs_unread")
    if unknown:
        raise Unavailable(f"what job {min(unknown)} begins with is not known: it was not read yet", code="jobs_unread")
    ends = [*view.head.decided, *(record.end for record in jobs.values() if record.end is not None)]
    digests = {item.manifest_digest for item in ends if item.state == model_pb2.JOB_STATE_COMPLETED} | set(released)
    digests |= {
        record.request.initial_manifest_digest for record in jobs.values() if record.request is not None and not record.problem
    }
    kept: set[Digest] = set()
    for digest in sorted(digests - {""}):
        manifest, _ = await loader.manifest(view.model, digest)
        for entry in manifest.entries:
            kept.update(Digest(item.digest) for item in (*entry.working, entry.cleared) if item.digest)
    return frozenset(kept)


async def missing_states(store: ObjectStore, model: str, states: Iterable[tuple[str, str]]) -> frozenset[str]:
    """Digests out of these (VNode, digest) of which the store plainly says that it does not have them. Raises Unavailable without a plain answer."""
    gate = asyncio.Semaphore(CALLS_AT_ONCE)
    missing: set[str] = set()

    async def look(vnode: str, digest: str) -> None:
        async with gate:
            try:
                await store.head(keys.state(model, vnode, digest))
            except NotFound:
                missing.add(digest)

    async def look_each() -> None:
        async with asyncio.TaskGroup() as group:
            for vnode, digest in states:
                group.create_task(look(vnode, digest))

    try:
        await apart(look_each())
    except* DcnrError as errors:
        raise Unavailable(
            f"the store does not say what it has: {for_others(first_cause(errors))}", code="store_unavailable"
        ) from None
    return frozenset(missing)


def unlisted_states(manifest: model_pb2.Manifest, listed: Iterable[StoredState]) -> list[tuple[str, str]]:
    """(VNode, digest) of working states that a listing lacks."""
    there = {(state.vnode, str(state.digest)) for state in listed}
    return sorted({(entry.vnode, item.digest) for entry in manifest.entries for item in entry.working} - there)


async def delete_condemned(
    store: ObjectStore, model: str, manifest: model_pb2.Manifest, states: Iterable[StoredState], kept: frozenset[Digest]
) -> bool:
    """Deletes states that the manifest under an acknowledged head condemns and does not name, but for ``kept``; whether some are left."""
    named = {item.digest for entry in manifest.entries for item in (*entry.working, entry.cleared)}
    condemned = set(manifest.condemned) - named - kept

    async def delete(key: str) -> None:
        reached("condemned.chosen")
        await store.delete(key)
        reached("condemned.deleted")

    return await deleted((keys.state(model, one.vnode, one.digest) for one in states if one.digest in condemned), delete)


async def deleted(doomed: Iterable[str], delete: Callable[[str], Awaitable[None]]) -> bool:
    """Deletes a bounded number of these objects; whether some are left. One that cannot be deleted now holds nothing else up: whoever sweeps comes again."""
    chosen, gate, failed = list(doomed), asyncio.Semaphore(CALLS_AT_ONCE), False

    async def one(key: str) -> None:
        nonlocal failed
        async with gate:
            if failed:
                return
            try:
                await delete(key)
            except DcnrError:
                failed = True

    async with asyncio.TaskGroup() as group:
        for key in chosen[:MAX_DELETED]:
            group.create_task(one(key))
    return failed or len(chosen) > MAX_DELETED
