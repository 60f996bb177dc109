"""Statements by which maintainers say which manifest of a model serves: numbered from 1, each stored once; the newest counts, and one that names none has
what training brings followed again.

A number is used once, so a statement that was answered is of no use a second time. What one process has read is never taken back by a listing that is stale.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from dataservice import keys
from dataservice.memory import timed_out
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Stale
from dcnr.ids import check_digest, check_name
from dcnr.ports import ObjectStore
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator.documents import put_once
from orchestrator.looks import Looks
from orchestrator.retention import missing_states
from orchestrator.taken_back import in_force, taken_back
from orchestrator.versions import Version, read_version
from orchestrator.view import ViewLoader
from trust.envelope import parse_envelope
from trust.network import NetworkPolicy

MAX_RELEASES: Final = 1024
"""Statements about one model; none is ever deleted."""
MAX_REASON: Final = 1000
"""Characters: the newest statement is part of every answer about the model."""
KEPT: Final = 2
"""Statements that name a manifest whose states stay in the store: the last one, and the one before it."""
MAX_TOLD: Final = 8
"""VNodes in an error."""

LOOK_S: Final = 1.0
"""Who asks waits so long for the store; what is known is told then, long before the time of a call is over."""


@dataclass(frozen=True, slots=True)
class Said:
    """A statement that k maintainers signed, and the envelope that shows it."""

    release: model_pb2.Release
    envelope: identity_pb2.Envelope


class ReleaseBook:
    """What maintainers have said of one model, as far as it was read here: it only grows."""

    def __init__(self, model: str, store: ObjectStore, policy: Callable[[], NetworkPolicy]) -> None:
        self._model, self._store, self._policy = model, store, policy
        self._said: tuple[Said, ...] = ()
        self._looks = Looks(self.refresh)
        self.is_read = False
        """Whether what was said before this process began is known."""

    @property
    def newest(self) -> Said | None:
        """The statement that counts; None where none is known."""
        return self._said[0] if self._said else None

    @property
    def in_force(self) -> str | None:
        """Digest of the manifest that serves; empty: what training brings is followed; None: what was said has not been read yet."""
        return self._said[0].release.manifest_digest if self._said else "" if self.is_read else None

    @property
    def kept(self) -> tuple[str, ...]:
        """Manifests whose states stay."""
        return named_last(self._said)

    async def refresh(self) -> None:
        """Reads what is new. Raises Unavailable."""
        above = self._said[0].release.number if self._said and self.is_read else 0
        self.heard(*await _read(self._store, self._policy(), self._model, above))
        self.is_read = True

    async def current(self) -> Said | None:
        """The statement that counts, looked for anew, by one look for all who ask at the same time; where the store does not answer within `LOOK_S`, as it is
        known. Raises Unavailable, TimedOut where nothing is.
        """
        try:
            async with asyncio.timeout(LOOK_S):
                await self._looks.anew()
        except TimeoutError:
            if not self.is_read:
                raise timed_out("list", keys.releases_prefix(self._model)) from None
        except DcnrError:
            if not self.is_read:
                raise
        return self.newest

    def heard(self, *said: Said) -> None:
        """Statements that are in the store; an older one than is known takes nothing back."""
        known = {one.release.number: one for one in (*said, *self._said)}
        self._said = _needed(tuple(known[number] for number in sorted(known, reverse=True)))


async def record_release(
    envelope: identity_pb2.Envelope, *, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader,
    newest: Callable[[str], model_pb2.Manifest | None],
) -> tuple[Said | None, bool]:  # fmt: skip
    """The statement that counts now, and whether this one was new; what is in force already is not stored again, and nothing where nobody ever said anything.

    ``newest``: the manifest under a model's head, as far as it is known. Raises Refused (``unsigned_job``, ``wrong_network``, ``too_many_releases``,
    ``not_cleared``, ``taken_back``), Stale (``release_not_next``), NotFound (``no_manifest``, ``states_gone``, and as `read_version`), InvalidInput
    (``reason_too_long``, ...), Unavailable.
    """
    release = policy.open_release(envelope)
    if len(release.reason) > MAX_REASON:
        raise InvalidInput(
            f"a reason of {len(release.reason)} characters",
            code="reason_too_long",
            remedy=f"say it in {MAX_REASON} characters at most",
        )
    model, digest = check_name(release.model), check_digest(release.manifest_digest) if release.manifest_digest else ""
    known = await _read(store, policy, model, 0)
    number = known[0].release.number + 1 if known else 1
    has_missed_some = release.number > number  # whoever signed it knew later statements than this look has shown
    if digest == (known[0].release.manifest_digest if known else "") and not has_missed_some:
        return known[0] if known else None, False
    if number > MAX_RELEASES:
        raise Refused(
            f"{MAX_RELEASES} statements were made about {model}",
            code="too_many_releases",
            remedy="what the last one says stays in force",
        )
    if release.number != number:
        raise _not_next(release, number)
    if digest:
        await _check_servable(release, policy, store, loader, newest(model), is_kept=digest in named_last(known))
    data = envelope.SerializeToString(deterministic=True)
    found = await put_once(store, keys.release(model, number), data)
    reached("release.stored")
    if found == data:
        return Said(release, envelope), True
    other = parse_envelope(found)
    said = Said(policy.read_release(other), other)
    if said.release.manifest_digest != digest:
        raise _not_next(release, number + 1)
    return said, False


def recorded(said: Said | None) -> orchestrator_pb2.ReleaseModelResponse:
    """The answer to who recorded a statement: which one counts."""
    if said is None:
        return orchestrator_pb2.ReleaseModelResponse(recorded=True)
    return orchestrator_pb2.ReleaseModelResponse(
        recorded=True, number=said.release.number, manifest_digest=said.release.manifest_digest, release=said.envelope
    )


def named_last(said: Iterable[Said]) -> tuple[str, ...]:
    """The manifests that were named last, `KEPT` at most. ``said``: the newest first."""
    return tuple(one.release.manifest_digest for one in said if one.release.manifest_digest)[:KEPT]


async def _read(store: ObjectStore, policy: NetworkPolicy, model: str, above: int) -> tuple[Said, ...]:
    """Statements with higher numbers than ``above`` that maintainers signed for this place, the newest first, as many as are needed."""
    prefix = keys.releases_prefix(model)
    rows = await store.list(prefix, max_keys=MAX_RELEASES, after=keys.release(model, above) if above else "")
    found: tuple[Said, ...] = ()
    for number in sorted((number_in(row.key.removeprefix(prefix)) for row in rows), reverse=True):
        if number <= above or len(named_last(found)) == KEPT:
            break
        try:
            stored = await store.get(keys.release(model, number), max_bytes=limits.MAX_ENVELOPE_BYTES)
            envelope = parse_envelope(stored.data)
            release = policy.read_release(envelope)
        except (Corrupt, Refused, InvalidInput, NotFound):
            continue  # whoever holds the store's keys can put anything there
        if (release.model, release.number) == (model, number):
            found = (*found, Said(release, envelope))
    return found


def number_in(name: str) -> int:
    """The number of a statement, by the last part of its key; 0 for another object."""
    number = int(name) if len(name) == 4 and name.isascii() and name.isdigit() else 0
    return number if number <= MAX_RELEASES else 0


def _needed(said: tuple[Said, ...]) -> tuple[Said, ...]:
    """From the newest back to the last manifest that is kept."""
    return next((said[:count] for count in range(1, len(said)) if len(named_last(said[:count])) == KEPT), said)


async def _check_servable(
    release: model_pb2.Release, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader, newest: model_pb2.Manifest | None, *, is_kept: bool
) -> None:  # fmt: skip
    """That everybody who is asked to serve the manifest could: it is cleared, was not taken back, and is all in the store.

    ``is_kept``: a release before this one has the store keep its states.
    """
    model, digest = release.model, release.manifest_digest
    version = await _version(loader, model, digest)
    if policy.audits_drawn and not version.is_cleared:
        raise Refused(
            f"manifest {version.number} is of a job without audits, and they are in force here", code="not_cleared",
            remedy="name a manifest whose states passed audits: dcnr job list --json names that of each job",
        )  # fmt: skip
    states = {checkpoint.digest: vnode for vnode, checkpoint in version.states.items()}
    known = taken_back(await in_force(model, policy, store, loader)).keys() | set(newest.retracted if newest is not None else ())
    if back := states.keys() & known:
        raise Refused(
            f"states of manifest {version.number} were taken back: of {_told(states[one] for one in back)}", code="taken_back",
            remedy="name another manifest: dcnr job list --json names that of each job",
        )  # fmt: skip
    doomed = states.keys() & set(newest.condemned if newest is not None and not is_kept else ())
    gone = doomed | await missing_states(store, model, [(vnode, one) for one, vnode in states.items()])
    if gone:
        raise NotFound(
            f"the store does not keep every state of manifest {version.number}: it lacks that of {_told(states[one] for one in gone)}",
            code="states_gone", remedy="name a manifest with which a job completed, these are kept: dcnr job list --json",
        )  # fmt: skip


async def _version(loader: ViewLoader, model: str, digest: str) -> Version:
    try:
        manifest, _ = await loader.manifest(model, digest)
    except NotFound:
        manifest = None
    if manifest is None or manifest.model != model:
        raise NotFound(
            f"{model} has no manifest {digest[:12]}",
            code="no_manifest",
            remedy="dcnr job list --json names the manifest of each job",
        )
    return await read_version(loader, model, digest, None)


def _told(vnodes: Iterable[str]) -> str:
    return ", ".join(sorted(vnodes)[:MAX_TOLD])


def _not_next(release: model_pb2.Release, number: int) -> DcnrError:
    return Stale(
        f"statement {release.number} about {release.model} is not the next one, {number} is", code="release_not_next",
        remedy=f"look at what is in force, dcnr model release {release.model}, and sign again", number=number,
    )  # fmt: skip
