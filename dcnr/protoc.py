"""Regenerates ``dcnr/v1`` from ``proto/``: ``python -m dcnr.protoc`` (needs grpcio-tools and mypy-protobuf)."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def generate(root: Path, out: Path) -> int:
    """Runs protoc over ``root/proto`` into ``out`` and returns its exit code. Needs the development dependencies."""
    from importlib.resources import files

    from grpc_tools import protoc

    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # where the mypy plug-ins lie
    protos = sorted(str(path.relative_to(root / "proto")) for path in (root / "proto").rglob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    arguments = [
        "protoc",
        f"-I{root / 'proto'}",
        f"-I{well_known}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out={out}",
        f"--mypy_grpc_out={out}",
    ]
    return int(protoc.main([*arguments, *protos]))


if __name__ == "__main__":
    here = Path(__file__).resolve().parent.parent
    sys.exit(generate(here, here))
