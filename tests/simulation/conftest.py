"""Simulated worlds make millions of objects and leave hardly a circle: garbage is searched for more rarely while they run."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

OBJECTS = 20_000
"""New ones between two searches."""


@pytest.fixture(scope="module", autouse=True)
def _rare_searches() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(OBJECTS, *before[1:])
    yield
    gc.set_threshold(*before)
