"""The public Python API: `connect` gives a client of a network, whichever of its orchestrators live. Names load on first use: no grpc, no torch before."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dcnr.sdk.asking import Answer, Ask
    from dcnr.sdk.blocking import Client, connect
    from dcnr.sdk.client import AsyncClient, connect_async
    from dcnr.sdk.releasing import Released
    from dcnr.sdk.signing import Draft
    from dcnr.sdk.staging import Source
    from dcnr.sdk.submission import JobOptions
    from dcnr.sdk.weights import read_weights
    from dcnr.sdk.writing import Write
    from dcnr.texts import Part
    from vnode.importing.model import Chosen, Imported, from_torch

__all__ = [
    "Answer", "Ask", "AsyncClient", "Chosen", "Client", "Draft", "Imported", "JobOptions", "Part", "Released", "Source", "Write", "connect",
    "connect_async", "from_torch", "read_weights",
]  # fmt: skip

_HOMES = {
    "Answer": "dcnr.sdk.asking",
    "Ask": "dcnr.sdk.asking",
    "AsyncClient": "dcnr.sdk.client",
    "Chosen": "vnode.importing.model",
    "Client": "dcnr.sdk.blocking",
    "Draft": "dcnr.sdk.signing",
    "Imported": "vnode.importing.model",
    "JobOptions": "dcnr.sdk.submission",
    "Part": "dcnr.texts",
    "Released": "dcnr.sdk.releasing",
    "Source": "dcnr.sdk.staging",
    "Write": "dcnr.sdk.writing",
    "connect": "dcnr.sdk.blocking",
    "connect_async": "dcnr.sdk.client",
    "from_torch": "vnode.importing.model",
    "read_weights": "dcnr.sdk.weights",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'dcnr.sdk' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_HOMES[name]), name)
