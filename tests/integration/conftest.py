"""One real object store for the whole run, killed at its end; every test gets its own bucket-wide prefix by naming its own model."""

from __future__ import annotations

import itertools
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from nursery import forked

from dataservice.embedded import EmbeddedStore
from dataservice.s3 import StoreAddress
from dcnr.testing import LocalNetwork


@pytest.fixture(scope="session")
def embedded_store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreAddress]:
    """Endpoint, bucket and credentials of a running store; open a `dataservice.s3.S3Store` over it and close that yourself."""
    store = EmbeddedStore(tmp_path_factory.mktemp("store"), port=0)
    address = store.start().address()
    yield address
    store.kill()


@pytest.fixture(scope="session")
def small_network() -> Iterator[LocalNetwork]:
    """One orchestrator and its store, shared by modules that need somebody to talk to and nobody to train; whoever stops a part of it starts it again."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    with LocalNetwork(directory / "n", num_orchestrators=1, pnodes=(), starting=forked) as running:
        yield running
    shutil.rmtree(directory)


_numbers = itertools.count()


@pytest.fixture
def fresh_model(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Makes model names that no other test of this run uses: the prefix under which a test may write in the shared store."""
    return lambda: f"t{next(_numbers)}-{abs(hash(request.node.nodeid)) % 10**6}"


@pytest.fixture(scope="session", autouse=True)
def interruptible() -> None:
    """Processes started here can be interrupted, also where the tests themselves run in the background of a shell, which ignores SIGINT for all."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
