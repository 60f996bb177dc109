"""What was taken back in any job of a model that is remembered: also where the newest one began from a fresh manifest, which says nothing of the others'."""

from __future__ import annotations

from collections.abc import Mapping

from dataservice import keys
from dcnr import limits
from dcnr.errors import Corrupt, NotFound, Refused
from dcnr.ports import ObjectStore
from dcnr.v1 import model_pb2
from orchestrator.documents import open_stored_head
from orchestrator.view import ViewLoader
from trust.network import NetworkPolicy


async def in_force(model: str, policy: NetworkPolicy, store: ObjectStore, loader: ViewLoader) -> list[model_pb2.Manifest]:
    """The manifest under the head, and those with which the jobs ended whose outcomes it keeps, the newest first: sixteen more at most. One that is gone,
    or cannot be read, says nothing; nor does a model without a head. Raises Unavailable, and Refused where the one under the head is not signed as it must be.
    """
    try:
        head = open_stored_head((await store.get(keys.head(model), max_bytes=limits.MAX_HEAD_BYTES)).data, policy, model, None)
    except (NotFound, Corrupt):
        return []
    found: list[model_pb2.Manifest] = []
    for digest in dict.fromkeys((head.manifest_digest, *(item.manifest_digest for item in reversed(head.decided)))):
        try:
            found += [(await loader.manifest(model, digest))[0]] if digest else []
        except (NotFound, Corrupt):
            continue
        except Refused:  # of a holder or maintainers that are not listed any more
            if digest == head.manifest_digest:
                raise
    return found


def taken_back(manifests: list[model_pb2.Manifest]) -> Mapping[str, int]:
    """By digest of a state that they take back, the number of the newest manifest that does."""
    return {digest: int(one.number) for one in reversed(manifests) for digest in one.retracted}
