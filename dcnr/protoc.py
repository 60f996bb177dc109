"""Regenerates ``dcnr/v1`` from ``proto/`` and adds what is new to ``proto/contract.binpb``: ``python -m dcnr.protoc`` (needs grpcio-tools and mypy-protobuf).

Refuses what an older node would misread (`dcnr.contract`).
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from google.protobuf import descriptor_pb2

from dcnr.contract import SNAPSHOT, breaking


def generate(root: Path, out: Path) -> int:
    """Runs protoc over ``root/proto`` into ``out`` and returns its exit code. Needs the development dependencies."""
    return _protoc(root, [f"--{kind}_out={out}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")])


def described(root: Path) -> descriptor_pb2.FileDescriptorSet:
    """What ``root/proto`` declares, in the order of its files' names. Raises ValueError where protoc refuses it."""
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "made"
        if _protoc(root, [f"--descriptor_set_out={made}"]):
            raise ValueError("proto/ does not compile: see above")
        return descriptor_pb2.FileDescriptorSet.FromString(made.read_bytes())


def main(root: Path) -> int:
    """Exit code: 1 where protoc, or an older node, would not understand ``proto/``; then nothing is written."""
    snapshot = root / "proto" / SNAPSHOT
    try:
        new = described(root)
    except ValueError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    wrong = breaking(descriptor_pb2.FileDescriptorSet.FromString(snapshot.read_bytes()), new) if snapshot.exists() else []
    if wrong:
        told = ["older nodes would misread this; keep the old and add beside it (CONTRIBUTING.md):", *wrong]
        sys.stderr.write("\n  ".join(told) + "\n")
        return 1
    code = generate(root, root)
    if not code:
        snapshot.write_bytes(new.SerializeToString(deterministic=True))
    return code


def _protoc(root: Path, outputs: list[str]) -> int:
    from importlib.resources import files

    from grpc_tools import protoc

    os.environ["PATH"] = os.pathsep.join(
        [str(Path(sys.executable).parent), os.environ.get("PATH", "")]
    )  # where the mypy plug-ins lie
    protos = sorted(str(path.relative_to(root / "proto")) for path in (root / "proto").rglob("*.proto"))
    well_known = str(files("grpc_tools") / "_proto")
    return int(protoc.main(["protoc", f"-I{root / 'proto'}", f"-I{well_known}", *outputs, *protos]))


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
