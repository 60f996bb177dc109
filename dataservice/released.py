"""What of a manifest counts for serving, export and credit. Pure."""

from __future__ import annotations

from dcnr.errors import NotFound
from dcnr.v1 import model_pb2


def released(manifest: model_pb2.Manifest) -> dict[str, model_pb2.Checkpoint]:
    """The checkpoint of each VNode that serving, export and credit use: the newest cleared one.

    Where the manifest says that there are no audits, every sane durable checkpoint counts as cleared. Raises NotFound (``not_cleared``).
    """
    result: dict[str, model_pb2.Checkpoint] = {}
    for entry in manifest.entries:
        if manifest.audits == "none" and entry.working:
            result[entry.vnode] = entry.working[0]
        elif entry.HasField("cleared"):
            result[entry.vnode] = entry.cleared
        else:
            raise NotFound(
                f"{entry.vnode} has no cleared checkpoint in this manifest", code="not_cleared", remedy="name another manifest"
            )
    return result
