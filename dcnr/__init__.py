"""DCNR: a volunteer-run network that trains and serves one model owned by its community.

Importing this package is cheap: no grpc, no torch. Public names are resolved on first use.
"""

__all__ = [
    "Answer", "Ask", "AsyncClient", "Chosen", "Client", "Draft", "Graph", "Imported", "JobOptions", "Part", "Source", "TensorSpec", "Write", "connect",
    "connect_async", "from_torch", "read_weights",
]  # fmt: skip
__version__ = "0.1.0"

_ELSEWHERE = {"Graph": "dcnr.graph", "TensorSpec": "dcnr.specs"}
"""All others are names of `dcnr.sdk`."""


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'dcnr' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_ELSEWHERE.get(name, "dcnr.sdk")), name)


def __dir__() -> list[str]:
    """With the names that are resolved on first use, so that notebooks complete them."""
    return sorted({*globals(), *__all__})
