"""`dcnr.v1.DataService`: grants for single objects, streams for those who cannot reach the store, and the record of durable checkpoints."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final, Protocol

from dataservice import keys
from dataservice.dataset_manifest import DatasetManifest, parse_manifest
from dcnr import limits
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, InvalidInput, NotFound, Refused, Stale, Unavailable
from dcnr.ids import Digest, check_name
from dcnr.rpc.guard import caller_of as call_of
from dcnr.rpc.guard import peer_of
from dcnr.v1 import data_pb2, data_pb2_grpc
from orchestrator.access import (
    MAINTAINERS_WRITE,
    MAX_DATASET_MANIFEST_BYTES,
    Caller,
    CallLimits,
    caller_of,
    check_read,
    check_write,
    key_of,
)
from orchestrator.decider import GRANT_LIFETIME_S
from orchestrator.evidence_rights import evidence_bound, hourly_bytes
from orchestrator.proxies import Lane, Proxies
from orchestrator.runtime import ModelRuntime, Shared
from orchestrator.view import ModelView
from orchestrator.write_budget import WriteBudget
from trust.evidence import MAX_RECORD_BYTES

MAX_ITEMS: Final = 256
MAX_DATASETS: Final = 256
READ_LIFETIME_S: Final = 6 * 3600
AT_ONCE: Final = 16
MAX_PROXIED_BYTES: Final = 512 * limits.MIB
"""An object that passes through an orchestrator is held in memory once: larger ones need the store itself."""


class SignedPut(Protocol):
    """See `dataservice.s3.PresignedPut`."""

    @property
    def url(self) -> str: ...
    @property
    def headers(self) -> tuple[tuple[str, str], ...]: ...


class Presigner(Protocol):
    """Signs URLs by local arithmetic."""

    def presign_get(self, key: str, expires_s: int) -> str:
        """A URL that reads exactly this object."""
        ...

    def presign_put(self, key: str, size_bytes: int, sha256: Digest, expires_s: int) -> SignedPut:
        """A URL that writes exactly these bytes if the object is absent."""
        ...


def _info_of(name: str, manifest: DatasetManifest) -> data_pb2.DatasetInfo:
    return data_pb2.DatasetInfo(
        name=name,
        digest=manifest.digest,
        splits=dict(manifest.splits),
        fields={field: f"{spec.dtype}{list(spec.shape)}" for field, spec in manifest.fields.items()},
        size_bytes=manifest.size_bytes(),
        licence=manifest.licence,
        source=manifest.source,
    )


def _is_made(caller: Caller, item: data_pb2.GrantItem) -> bool:
    """Whether it is a maintainer's to make, whoever hosts what."""
    return caller.maintainer and item.object.kind in MAINTAINERS_WRITE


class DataServicer(data_pb2_grpc.DataServiceServicer):
    """``presigner`` None: everything is proxied; ``proxy_uploads``: the store would let an upload differ from its grant."""

    def __init__(
        self,
        shared: Shared,
        models: Mapping[str, ModelRuntime],
        *,
        presigner: Presigner | None,
        proxy_uploads: bool,
        known: Callable[[str], bool],
    ) -> None:
        self._shared, self._models, self._known = shared, models, known
        self._presigner, self._proxy_uploads = presigner, proxy_uploads
        self._proxies = Proxies()
        self._budget, self._read_limits = WriteBudget(), CallLimits(shared.gateways)
        self._datasets: OrderedDict[str, data_pb2.DatasetInfo] = OrderedDict()
        """By key of the manifest, whose content never changes."""

    async def Grant(self, request: data_pb2.GrantRequest, context: Any) -> data_pb2.GrantResponse:
        """One grant per item, or the refusal of all."""
        if len(request.items) > MAX_ITEMS:
            raise InvalidInput(f"at most {MAX_ITEMS} items", code="too_many_items")
        caller, subnet = self._caller(context), call_of(context).subnet
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: data_pb2.GrantItem) -> data_pb2.Grant:
            async with gate:
                return await self._grant(caller, subnet, item)

        return data_pb2.GrantResponse(grants=await asyncio.gather(*(one(item) for item in request.items)))

    async def Read(self, request: data_pb2.ReadRequest, context: Any) -> AsyncIterator[data_pb2.ReadResponse]:
        """The object in chunks."""
        caller = self._caller(context)
        check_read(caller, request.object)
        key, bound = key_of(request.object)
        max_bytes = min(bound, MAX_PROXIED_BYTES)
        async with self._proxies.passing(Lane.READ, caller.node_id, call_of(context).subnet, max_bytes) as passage:
            passage.ours(max_bytes)
            stored = await self._shared.store.get(key, max_bytes=max_bytes)
            passage.rest()
            data = memoryview(stored.data)
            yield data_pb2.ReadResponse(size_bytes=len(data), etag=stored.etag, chunk=bytes(data[: limits.MAX_CHUNK_BYTES]))
            for start in range(limits.MAX_CHUNK_BYTES, len(data), limits.MAX_CHUNK_BYTES):
                passage.moved(limits.MAX_CHUNK_BYTES)
                yield data_pb2.ReadResponse(chunk=bytes(data[start : start + limits.MAX_CHUNK_BYTES]))
            self._shared.proxied.read(len(data))

    async def Write(self, request_iterator: Any, context: Any) -> data_pb2.WriteResponse:
        """Collects the bytes, compares size and digest, and only then gives them their name."""
        caller = self._caller(context)
        messages = aiter(request_iterator)
        first = await self._next(messages)
        if first is None or not first.HasField("item"):
            raise InvalidInput("a write begins with its item", code="no_item")
        item = first.item
        bound = self._check_write(caller, item)
        if item.size_bytes > MAX_PROXIED_BYTES:
            raise Refused(
                f"objects over {MAX_PROXIED_BYTES} bytes do not pass through an orchestrator", code="too_large_to_proxy",
                remedy="make the store reachable",
            )  # fmt: skip
        subnet = call_of(context).subnet
        self._pay(caller, subnet, item, bound)
        async with self._proxies.passing(self._lane(caller, item, bound), caller.node_id, subnet, int(item.size_bytes)) as passage:
            data = bytearray(first.chunk)
            while len(data) <= item.size_bytes and (message := await self._next(messages)) is not None:
                data += message.chunk
                passage.moved(len(message.chunk))
            passage.ours(len(data))
            if len(data) != item.size_bytes:
                raise Corrupt(f"{len(data)} bytes arrived, {item.size_bytes} were announced", code="wrong_size")
            digest = await asyncio.to_thread(lambda: hashlib.sha256(data).hexdigest())
            if digest != item.sha256:
                raise Corrupt("the bytes do not have the announced digest", code="wrong_digest")
            existed = await self._put(key_of(item.object)[0], bytes(data))
            self._shared.proxied.written(len(data))
            return data_pb2.WriteResponse(existed=existed)

    async def RecordCheckpoint(self, request: data_pb2.RecordCheckpointRequest, context: Any) -> data_pb2.RecordCheckpointResponse:
        """Judges a checkpoint; the holder names it soon after."""
        caller = self._caller(context)
        if request.network_id != self._shared.policy.network_id or caller.node_id != request.checkpoint.pnode_id:
            raise Refused("a PNode records its own checkpoints, in its own network", code="not_allowed")
        runtime = self._models.get(check_name(request.model))
        if runtime is None:
            raise Unavailable("the model is not known here yet", code="unknown_model")
        return await runtime.record(request)

    async def ListDatasets(self, request: data_pb2.ListDatasetsRequest, context: Any) -> data_pb2.ListDatasetsResponse:
        """The newest manifest of each data set."""
        self._read_limits.check(self._caller(context), call_of(context).subnet, self._shared.clock.monotonic())
        if request.name:
            names = [check_name(request.name)]
        else:
            prefix = keys.dataset_index_prefix()
            names = [
                check_name(row.key.removeprefix(prefix)) for row in await self._shared.store.list(prefix, max_keys=MAX_DATASETS)
            ]
        found = [info for name in names[:MAX_DATASETS] if (info := await self._dataset(name)) is not None]
        return data_pb2.ListDatasetsResponse(datasets=found)

    def head_url(self, model: str) -> tuple[str, int]:
        """A grant for exactly the head object, and when it expires; empty where everything is proxied."""
        if self._presigner is None:
            return "", 0
        return self._presigner.presign_get(keys.head(model), READ_LIFETIME_S), self._expires_unix_ms(READ_LIFETIME_S)

    async def _dataset(self, name: str) -> data_pb2.DatasetInfo | None:
        rows = await self._shared.store.list(keys.dataset_manifests_prefix(name))
        if not rows:
            return None
        newest = max(rows, key=lambda row: (row.last_modified, row.key))
        if newest.key not in self._datasets:
            stored = await self._shared.store.get(newest.key, max_bytes=MAX_DATASET_MANIFEST_BYTES)
            self._datasets[newest.key] = _info_of(name, await asyncio.to_thread(parse_manifest, stored.data))
            while len(self._datasets) > MAX_DATASETS:
                self._datasets.popitem(last=False)
        return self._datasets[newest.key]

    def _caller(self, context: Any) -> Caller:
        peer = peer_of(context)
        return caller_of(self._shared.policy, peer.node_id, peer.pnode_id, self._known)

    async def _grant(self, caller: Caller, subnet: str, item: data_pb2.GrantItem) -> data_pb2.Grant:
        key, _ = key_of(item.object)
        match item.access:
            case data_pb2.ACCESS_READ:
                check_read(caller, item.object)
                if self._presigner is None:
                    return data_pb2.Grant(proxied=True)
                url = self._presigner.presign_get(key, READ_LIFETIME_S)
                return data_pb2.Grant(url=url, expires_unix_ms=self._expires_unix_ms(READ_LIFETIME_S))
            case data_pb2.ACCESS_WRITE:
                bound = self._check_write(caller, item)
                if item.object.kind == data_pb2.OBJECT_KIND_DATASET_MANIFEST:
                    await self._shared.store.put(keys.dataset_index(item.object.owner), b"")
                    reached("dataset.indexed")
                if await self._exists(key, int(item.size_bytes)):
                    return data_pb2.Grant(exists=True)
                if self._presigner is None or self._proxy_uploads:
                    return data_pb2.Grant(proxied=True)
                self._pay(caller, subnet, item, bound)
                signed = self._presigner.presign_put(key, int(item.size_bytes), Digest(item.sha256), GRANT_LIFETIME_S)
                return data_pb2.Grant(
                    url=signed.url, headers=dict(signed.headers), expires_unix_ms=self._expires_unix_ms(GRANT_LIFETIME_S)
                )
            case _:
                raise InvalidInput("a grant is for reading or writing", code="bad_access")

    def _check_write(self, caller: Caller, item: data_pb2.GrantItem) -> int:
        """The most bytes the object may have. Raises as `check_write`."""
        policy, runtime, view = self._shared.policy, self._models.get(item.object.model), self._view(item)

        def hosts(vnode: str) -> bool:
            """By the plan of that very model: what a PNode reports of itself gives it nothing."""
            if view is None:
                raise Unavailable("the model is not known here yet", code="unknown_model")
            return any(place.vnode == vnode for place in view.hosted_by(caller.node_id))

        def shows(vnode: str) -> int:
            is_asked = runtime.auditing.asks(caller.node_id, vnode) if runtime is not None else None
            return evidence_bound(view, caller.node_id, vnode, is_drawn=policy.audits_drawn, is_asked=is_asked)

        return check_write(caller, item, hosts, shows, int(policy.document.max_vnode_state_bytes))

    def _pay(self, caller: Caller, subnet: str, item: data_pb2.GrantItem, bound: int) -> None:
        """Counts what a PNode is about to write. Raises Unavailable (``rate_limited``)."""
        key, size_bytes, now_s = key_of(item.object)[0], int(item.size_bytes), self._shared.clock.monotonic()
        if self._lane(caller, item, bound) is Lane.HOSTED:
            self._budget.write(caller.node_id, key, size_bytes, hourly_bytes(self._view(item), caller.node_id), now_s)
        elif not _is_made(caller, item):
            self._budget.record(caller.node_id, subnet, key, size_bytes, now_s)

    def _lane(self, caller: Caller, item: data_pb2.GrantItem, bound: int) -> Lane:
        """Of a write that may be made, of at most so many bytes."""
        is_record = item.object.kind == data_pb2.OBJECT_KIND_EVIDENCE and bound <= MAX_RECORD_BYTES
        return Lane.OTHER if is_record or _is_made(caller, item) else Lane.HOSTED

    def _view(self, item: data_pb2.GrantItem) -> ModelView | None:
        runtime = self._models.get(item.object.model)
        return runtime.view if runtime is not None else None

    async def _exists(self, key: str, size_bytes: int) -> bool:
        try:
            return (await self._shared.store.head(key)).size_bytes == size_bytes
        except NotFound:
            return False

    async def _put(self, key: str, data: bytes) -> bool:
        """Whether the object was there before."""
        reached("proxy.collected")
        try:
            await self._shared.store.put(key, data, if_none_match=True)
            reached("proxy.stored")
            return False
        except Stale as error:
            if not await self._exists(key, len(data)):
                raise Unavailable("another write of the object is under way", code="conflict") from error
            return True

    async def _next(self, messages: Any) -> data_pb2.WriteRequest | None:
        try:
            async with asyncio.timeout(limits.CALL_TIMEOUT_S):
                return await anext(messages)
        except StopAsyncIteration:
            return None
        except TimeoutError:
            raise Unavailable("the bytes stopped coming", code="write_stalled") from None

    def _expires_unix_ms(self, lifetime_s: int) -> int:
        return int((self._shared.clock.wall() + lifetime_s) * 1000)
