"""DCNR: a volunteer-run network that trains and serves one model owned by its community.

Importing this package is cheap: no grpc, no torch. Public names are resolved on first use.
"""

__version__ = "0.1.0"

_PUBLIC = {
    "Answer": "dcnr.sdk",
    "Ask": "dcnr.sdk",
    "AsyncClient": "dcnr.sdk",
    "Client": "dcnr.sdk",
    "Draft": "dcnr.sdk",
    "Graph": "dcnr.graph",
    "JobOptions": "dcnr.sdk",
    "Part": "dcnr.sdk",
    "Source": "dcnr.sdk",
    "TensorSpec": "dcnr.specs",
    "Write": "dcnr.sdk",
    "connect": "dcnr.sdk",
    "connect_async": "dcnr.sdk",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module 'dcnr' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)
