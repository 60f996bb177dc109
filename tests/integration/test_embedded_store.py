"""Goal: the embedded store is private, keeps acknowledged objects over a kill, refuses a second start, and never outlives its owner."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import urllib3

from dataservice import keys
from dataservice.embedded import EmbeddedStore, read_store_file
from dataservice.s3 import S3Store, StoreAddress
from dcnr.errors import Corrupt, NotRunning, Refused
from dcnr.ids import digest_of

OWNER = """
import sys, time
from pathlib import Path
from dataservice.embedded import EmbeddedStore
store = EmbeddedStore(Path(sys.argv[1]), port=0)
store.start()
print(store._process.pid, flush=True)
time.sleep(300)
"""


def wait_for(what: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def put(address: StoreAddress, key: str, data: bytes) -> None:
    store = S3Store(address)
    asyncio.run(store.put(key, data, if_none_match=True))
    store.close()


def get(address: StoreAddress, key: str) -> bytes:
    store = S3Store(address)
    try:
        return asyncio.run(store.get(key, max_bytes=10**6)).data
    finally:
        store.close()


def test_private_exclusive_and_durable_over_a_kill(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s", port=0)
    first = store.start()
    try:
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o700
        assert store.path.stat().st_mode & 0o777 == 0o600
        assert read_store_file(store.path) == first
        assert first.secret_key not in " ".join(store._process.args if store._process else ())  # type: ignore[arg-type]
        put(first.address(), keys.head("m"), b"kept")

        with pytest.raises(Refused) as caught:
            EmbeddedStore(tmp_path / "s", port=0).start(lock_s=0.2)
        assert caught.value.code == "store_in_use"
        assert str(store._process.pid if store._process else "?") in str(caught.value)

        taken = int(first.endpoint.rsplit(":", 1)[1])
        with pytest.raises(Refused) as caught:
            EmbeddedStore(tmp_path / "other", port=taken).start()
        assert caught.value.code == "port_taken"
    finally:
        store.kill()
    (tmp_path / "s" / "store.pid").write_text("1\n")  # a stale pid of somebody else's process
    (tmp_path / "s" / "ports.json").unlink()  # and other ports than before
    notes: list[str] = []
    try:
        second = store.start()
        assert (second.access_key, second.secret_key) == (first.access_key, first.secret_key)
        assert get(second.address(), keys.head("m")) == b"kept"
    finally:
        store.stop(note=notes.append)
    assert len(notes) == 2
    assert not store.running()
    with pytest.raises(NotRunning):
        _ = store.file


def test_a_port_that_another_program_takes_meanwhile_costs_another_try(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = EmbeddedStore(tmp_path / "s", port=0)
    choose, tried = store._ports, list[int]()
    with socket.socket() as other:

        def chosen_and_taken() -> dict[str, int]:
            ports = choose()
            tried.append(ports["master.port"])
            if len(tried) == 1:
                other.bind(("127.0.0.1", ports["master.port"]))
                other.listen()
            return ports

        monkeypatch.setattr(store, "_ports", chosen_and_taken)
        try:
            file = store.start()
            put(file.address(), keys.head("m"), b"kept")
        finally:
            store.kill()
    assert len(set(tried)) == 2


@pytest.mark.parametrize("victim", ["owner", "supervisor"])
def test_nothing_survives_a_sigkill_of_its_owner(tmp_path: Path, victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the server nor its scratch directory, which the next start removes from under another ``$TMPDIR``, too."""
    if victim == "supervisor" and sys.platform != "linux":
        pytest.skip("only Linux signals the death of a parent")
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)], stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": os.getcwd()}
    )
    try:
        assert owner.stdout is not None
        supervisor = psutil.Process(int(owner.stdout.readline()))
        (server,) = supervisor.children()
        assert os.getsid(supervisor.pid) != os.getsid(owner.pid), "Ctrl-C in the owner's terminal must not reach the store"
        (owner if victim == "owner" else supervisor).send_signal(signal.SIGKILL)
        wait_for(lambda: not server.is_running() or server.status() == psutil.STATUS_ZOMBIE, 40)
    finally:
        owner.kill()
        owner.communicate()
    again = EmbeddedStore(tmp_path, port=0)
    left = Path((tmp_path / "scratch").read_text())
    with tempfile.TemporaryDirectory(prefix="t") as elsewhere:
        monkeypatch.setattr(tempfile, "tempdir", elsewhere)
        again.start()
        again.kill()
        monkeypatch.undo()
    assert not left.exists()


def test_other_machines_reach_the_s3_port_and_nothing_else(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.2", 0))
        port = free.getsockname()[1]
    store = EmbeddedStore(tmp_path, listen="127.0.0.2", port=port)
    file = store.start()
    try:
        assert file.public_endpoint == f"http://127.0.0.2:{port}"
        outside = S3Store(file.address())
        asyncio.run(outside.put(keys.head("m"), b"x" * 300_000))
        url = outside.presign_get(keys.head("m"), 60)
        assert url.startswith(file.public_endpoint)
        with urllib3.PoolManager(retries=False) as pool:
            assert pool.request("GET", url, timeout=10).data == b"x" * 300_000
            assert pool.request("GET", url[:-1] + ("0" if url[-1] != "0" else "1"), timeout=10).status == 403
        outside.close()
        family = _family(store)
        listening = [
            tuple(row.laddr) for row in psutil.net_connections("tcp") if row.status == psutil.CONN_LISTEN and row.pid in family
        ]
        assert [port for host, port in listening if host != "127.0.0.1"] == [port]
    finally:
        store.kill()


def _family(store: EmbeddedStore) -> set[int]:
    assert store._process is not None
    process = psutil.Process(store._process.pid)
    return {process.pid, *(child.pid for child in process.children(recursive=True))}


def test_presigned_puts_bind_size_digest_and_absence(embedded_store: StoreAddress, fresh_model: Callable[[], str]) -> None:
    store = S3Store(embedded_store)
    data = b"state bytes"
    key = keys.state(fresh_model(), "conv1", digest_of(data))
    signed = store.presign_put(key, len(data), digest_of(data), 60)
    with urllib3.PoolManager(retries=False) as pool:

        def send(body: bytes, **changed: str) -> int:
            return pool.request("PUT", signed.url, body=body, headers=dict(signed.headers) | changed, timeout=10).status

        assert send(b"State bytes") == 400
        assert send(data + b"!", **{"content-length": str(len(data) + 1)}) == 403
        without = {name: value for name, value in signed.headers if name != "if-none-match"}
        assert pool.request("PUT", signed.url, body=data, headers=without, timeout=10).status == 403
        assert send(data) == 200
        assert send(data) == 412
    assert asyncio.run(store.get(key, max_bytes=99)).data == data
    store.close()


def test_a_store_file_that_others_may_read_or_that_is_damaged_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.json"
    with pytest.raises(NotRunning):
        read_store_file(path)
    path.write_text(json.dumps({"endpoint": 1}))
    path.chmod(0o644)
    with pytest.raises(Refused):
        read_store_file(path)
    path.chmod(0o600)
    with pytest.raises(Corrupt):
        read_store_file(path)


@pytest.mark.parametrize("content", ["{}", "[" * 50_000, '{"access_key": ' + "9" * 5000, None])
def test_keys_of_ones_own_that_cannot_be_read_are_not_to_be_removed(content: str | None, tmp_path: Path) -> None:
    """Goal: only where the embedded store makes a new file of its own is the remedy to remove the old one."""
    path = tmp_path / "store.json"
    path.mkdir(mode=0o700) if content is None else path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(Corrupt, match=r"store\.json") as refused:
        read_store_file(path)
    assert (refused.value.code, "--store-file" in refused.value.remedy) == ("bad_store_file", True)
    with pytest.raises(Corrupt) as refused:
        EmbeddedStore(tmp_path, port=0).start(lock_s=0.2)
    assert refused.value.remedy.startswith("remove it")


def test_a_start_is_ended_by_whoever_waits_for_it(tmp_path: Path) -> None:
    """Goal: a start that may take long goes on no longer than anybody wants it to, and leaves no server."""
    store = EmbeddedStore(tmp_path / "s", port=0)
    seen = list[int]()

    def go_on() -> None:
        seen.append(int((tmp_path / "s" / "store.pid").read_text()))
        raise Refused("enough", code="enough")

    with pytest.raises(Refused, match="enough"):
        store.start(go_on=go_on)
    assert not store.running()
    assert not psutil.pid_exists(seen[0])


def test_how_a_store_ended_by_itself_is_told(tmp_path: Path) -> None:
    store = EmbeddedStore(tmp_path / "s", port=0)
    store.start()
    assert store.end == ""
    assert store._process is not None
    for server in psutil.Process(store._process.pid).children():
        server.kill()
    wait_for(lambda: not store.running())
    assert store.end.startswith("the object store ended with ")
    store.stop()
    assert store.end == "", "who is told to stop does not end by itself"
