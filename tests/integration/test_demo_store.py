"""Goal: the demo runs on a store that others run: in a bucket of its own, which is gone afterwards, and not on one that ignores preconditions."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import boto3.session
import pytest
from nursery import lent
from test_store_probe import Careless
from trouble_rig import Command, graph_text, nothing_left, run, told, write_data

from dataservice.borrowed import PREFIX
from dataservice.s3 import StoreAddress

DEMO = str(Path(__file__).with_name("trouble_demo.py"))
COMMAND = ("-m", "dcnr.cli.dcnr", "demo", "--no-reference")
PREPARE = "import shutil, sys\nfrom pathlib import Path\nshutil.copy(Path(__file__).with_name('tiny.npz'), sys.argv[1])\n"
MANY_BITS = "print('{\"bits_per_byte\": 9.5}')\n"


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path is short enough for sockets."""
    directory = Path(tempfile.mkdtemp(prefix="dcnr-t-"))
    (directory / "tmp").mkdir()
    yield directory
    shutil.rmtree(directory)


def keys_file(path: Path, **content: str) -> Path:
    """As one writes it for a store of others."""
    path.touch(mode=0o600)
    path.write_text(json.dumps(content))
    return path


def held(store: StoreAddress) -> dict[str, set[str]]:
    """Every bucket of a store with its keys, as its administrator sees them."""
    session = boto3.session.Session(
        aws_access_key_id=store.access_key, aws_secret_access_key=store.secret_key, region_name=store.region
    )
    client: Any = session.client("s3", endpoint_url=store.endpoint)
    try:
        names = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
        return {name: {one["Key"] for one in client.list_objects_v2(Bucket=name).get("Contents", ())} for name in names}
    finally:
        client.close()


def test_the_demo_runs_on_a_store_of_others_and_leaves_nothing_there(short: Path, embedded_store: StoreAddress) -> None:
    """Goal: a whole run, from the probe to the table; its export script says other bits than the network, so that it ends with 1 and names that point."""
    folder = short / "example"
    folder.mkdir()
    (folder / "model.toml").write_text(graph_text(passes=2))
    (folder / "prepare.py").write_text(PREPARE)
    (folder / "use_export.py").write_text(MANY_BITS)
    write_data(folder / "tiny.npz")
    keys = keys_file(short / "keys.json", access_key=embedded_store.access_key, secret_key=embedded_store.secret_key)
    before = held(embedded_store)
    with (
        nothing_left(short / "demo", short / "tmp"),
        Command(
            DEMO, str(folder), str(short / "demo"), "--no-kills", lent(), embedded_store.endpoint, str(keys), cwd=short,
            environment={"TMPDIR": str(short / "tmp")},
        ) as demo,
    ):  # fmt: skip
        bucket = demo.line("making the bucket").split()[3]
        assert bucket.startswith(PREFIX)
        demo.line("the store honours preconditions; it checks uploads itself")
        demo.line("staged:")
        assert held(embedded_store)[bucket], "what is staged is there"
        assert demo.end() == 1, demo.text
    assert "[ok] job completed" in demo.text
    assert "[ok] every stored lineage is exactly [0, N), each batch once: N = 80, 2 VNodes" in demo.text
    for state in ("learned", "durable", "needed still"):
        [line] = [line for line in demo.text.splitlines() if line.startswith(f"  batches {state}  ")]
        assert line.endswith(f"{0 if state == 'needed still' else 80} of 80 in every VNode")
    [line] = [line for line in demo.text.splitlines() if line.startswith("  DHT look-ups of PNodes ")]
    assert line.split()[-1].isdigit(), "every PNode told"
    assert "[FAILED] the export in plain torch gives the same bits per byte: 9.5000" in demo.text
    assert f"removed the bucket {bucket}" in demo.text
    assert "starting the embedded object store" not in demo.text
    assert not (short / "demo" / "store").exists()
    assert not (short / "demo" / "store.json").exists(), "nor are its keys kept here"
    after = held(embedded_store)
    assert set(after) == set(before)
    assert all(before[name] <= after[name] for name in before), "what others have there is not touched"


class NeverConditional(Careless):
    """Believes every request."""

    objects: ClassVar[dict[str, bytes]] = {}
    honours: ClassVar[set[str]] = set()


def test_a_store_that_ignores_preconditions_is_refused_before_anything_starts(short: Path) -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), NeverConditional)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        keys = keys_file(short / "keys.json", access_key="key", secret_key="secret")
        url = f"http://127.0.0.1:{server.server_address[1]}"
        text = run(
            *COMMAND, "--directory", str(short / "demo"), "--store-url", url, code=5, environment={"DCNR_STORE_FILE": str(keys)}
        )
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    told(
        text,
        code="store_without_preconditions",
        what="the store ignores If-None-Match",
        remedy="use a store with conditional writes",
    )
    assert "fetching" not in text
    assert NeverConditional.objects == {}, "the bucket is removed again"


@pytest.mark.parametrize(
    ("url", "content", "ended", "code", "what"),
    [
        ("http://127.0.0.1:1/elsewhere", {"access_key": "a", "secret_key": "b"}, 2, "bad_address", "is not the address of a store"),
        ("127.0.0.1:1", {"access_key": "a", "secret_key": "b"}, 2, "bad_address", "is not the address of a store"),
        ("http://127.0.0.1", {"access_key": "a", "secret_key": "b"}, 2, "bad_address", "is not the address of a store"),
        ("http://127.0.0.1:1", {"access_key": "a", "secret_key": "b"}, 4, "store_unavailable", "the store could not serve"),
        ("http://127.0.0.1:1", {"access_key": "a"}, 1, "bad_store_file", "is not a store file"),
        ("http://127.0.0.1:1", None, 2, "no_store_keys", "no keys for that store are given"),
    ],
)
def test_a_wrong_store_says_what_is_wrong(
    short: Path, url: str, content: dict[str, str] | None, ended: int, code: str, what: str
) -> None:
    flags = ("--store-file", str(keys_file(short / "keys.json", **content))) if content else ()
    text = run(
        *COMMAND, "--directory", str(short / "demo"), "--store-url", url, *flags, code=ended, environment={"DCNR_HOME": str(short)}
    )
    told(text, code=code, what=what)


def test_keys_that_open_nothing_are_refused(short: Path, embedded_store: StoreAddress) -> None:
    keys = keys_file(short / "keys.json", access_key=embedded_store.access_key, secret_key="wrong")
    flags = ("--store-url", embedded_store.endpoint, "--store-file", str(keys))
    text = run(*COMMAND, "--directory", str(short / "demo"), *flags, code=5)
    told(text, code="store_denied", what="the store refused", remedy="check the store's credentials")
