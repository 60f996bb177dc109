"""Looks into recorded states before a manifest names them: a state that no replica could restore would end its VNode, however well it is signed.

Torch-free and in bounded memory: the object is read in pieces and held against the tensors of a state that the manifest already names.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, NotFound, Refused, Unavailable
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.jobs import intervals
from orchestrator.view import JobFacts
from vnode.state import StateInfo, StateSchema
from vnode.state_scan import HEAD_BYTES, StateScan, schema_in

PIECE_BYTES: Final = 8 * limits.MIB
MAX_READ_BYTES: Final = 256 * limits.MIB
"""Of a larger state only this much is read: header, lineage and the first of its tensors. What lies behind is found by whoever restores it."""
MAX_SCHEMAS: Final = 4096


class StateCheck:
    """One per model."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._schemas: OrderedDict[tuple[str, str], StateSchema] = OrderedDict()

    async def check(
        self, model: str, checkpoint: model_pb2.Checkpoint, good: Sequence[model_pb2.Checkpoint], job: JobFacts
    ) -> None:
        """``good``: checkpoints of the VNode that count already, newest first. Raises Refused (``bad_state``: never), Unavailable (ask again)."""
        key = keys.state(model, checkpoint.vnode, checkpoint.digest)
        schema = await self._schema(model, checkpoint.vnode, good, job)
        try:
            scan = StateScan(schema, await self._piece(key, 0, HEAD_BYTES))
            while scan.taken < min(scan.size_bytes, max(MAX_READ_BYTES, scan.lineage_end)):
                scan.feed(await self._piece(key, scan.taken, PIECE_BYTES))
            info = scan.info
        except Corrupt as error:
            raise Refused(f"the state could not be restored: {error.message}", code="bad_state") from error
        if scan.size_bytes != checkpoint.size_bytes:
            raise Refused(f"a state of {scan.size_bytes} bytes, not {checkpoint.size_bytes}", code="bad_state")
        if scan.taken == scan.size_bytes and scan.digest != checkpoint.digest:
            raise Refused("the stored bytes do not have the digest they are named by", code="wrong_digest")
        _check_info(info, checkpoint, model, job)

    async def _schema(self, model: str, vnode: str, good: Sequence[model_pb2.Checkpoint], job: JobFacts) -> StateSchema:
        known = (vnode, str(job.request.graph_digest))
        if known not in self._schemas:
            self._schemas[known] = await self._schema_of_one(model, vnode, good)
            while len(self._schemas) > MAX_SCHEMAS:
                self._schemas.popitem(last=False)
        return self._schemas[known]

    async def _schema_of_one(self, model: str, vnode: str, good: Sequence[model_pb2.Checkpoint]) -> StateSchema:
        """As the newest that can be read says: the store may have lost one."""
        trouble = "there is none"
        for checkpoint in good:
            try:
                return schema_in(vnode, await self._piece(keys.state(model, vnode, checkpoint.digest), 0, HEAD_BYTES))
            except (Corrupt, Unavailable) as error:
                trouble = error.message
        raise Unavailable(f"no checkpoint of {vnode} that counts already can be read: {trouble}", code="no_state")

    async def _piece(self, key: str, first: int, num_bytes: int) -> bytes:
        try:
            piece = await self._store.get_range(key, first=first, num_bytes=num_bytes)
        except NotFound as error:
            raise Unavailable("the state object is not in the store", code="state_missing") from error
        if not piece:
            raise Corrupt(f"it ends after {first} bytes", code="bad_state_size")
        return piece


def _check_info(info: StateInfo, checkpoint: model_pb2.Checkpoint, model: str, job: JobFacts) -> None:
    stated = (info.model, info.graph, info.parent, info.num_batches, info.seed)
    if stated != (model, job.request.graph_digest, checkpoint.parent_digest, job.num_batches, int(job.graph.train.seed)):
        raise Refused("the state is of another model, graph, job or parent than its record says", code="bad_state")
    if info.lineage != intervals(checkpoint.lineage):
        raise Refused(f"the state holds {len(info.lineage)} batches, its record says {checkpoint.step}", code="bad_lineage")
