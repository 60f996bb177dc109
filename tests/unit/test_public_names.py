"""Goal: what `import dcnr` offers is there, typed and lazy: the stub that type checkers read and the names that Python finds are the same."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import dcnr
import dcnr.sdk

STUB = Path(dcnr.__file__).with_suffix(".pyi")
HOMES = {
    alias.name: node.module
    for node in ast.parse(STUB.read_text()).body
    if isinstance(node, ast.ImportFrom) and node.module
    for alias in node.names
}


def test_the_package_says_that_it_is_typed() -> None:
    assert STUB.with_name("py.typed").is_file()
    assert sorted(HOMES) == sorted(dcnr.__all__)


@pytest.mark.parametrize("name", dcnr.__all__)
def test_every_public_name_is_the_one_that_the_stub_names(name: str) -> None:
    assert getattr(dcnr, name) is getattr(importlib.import_module(HOMES[name]), name)


@pytest.mark.parametrize("name", dcnr.sdk.__all__)
def test_the_sdk_has_what_it_lists(name: str) -> None:
    assert getattr(dcnr.sdk, name) is not None
    with pytest.raises(AttributeError):
        getattr(dcnr.sdk, f"no_{name}")


def test_importing_loads_neither_grpc_nor_torch() -> None:
    program = "import sys, dcnr, dcnr.sdk; dcnr.Graph; print([name for name in ('grpc', 'torch', 'boto3') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "[]\n"
