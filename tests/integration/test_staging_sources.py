"""Goal: a data set comes in by command from every kind of source, whole and with its digest; what is nobody's to give is asked of nobody."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import gzip
import http.server
import io
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from safetensors.numpy import save as safetensors_of

from dataservice import staging
from dataservice.addresses import AddressRule
from dataservice.dataset_manifest import DatasetManifest
from dataservice.s3 import S3Store
from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors
from dcnr.errors import Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.sdk.client import AsyncClient, connect_async
from dcnr.sdk.staging import Source, described, read_splits, stage_source
from dcnr.testing import LocalNetwork
from trust.identity import NodeKey

HOST = "data.example.org"
PUBLIC = "8.8.4.4"
RNG = np.random.default_rng(0)
TOY = safetensors_of({
    f"{split}_{name}": array
    for split, count in (("train", 30), ("validation", 5), ("test", 6))
    for name, array in (("x", RNG.standard_normal((count, 4)).astype(np.float32)), ("y", np.arange(count) % 3))
})  # fmt: skip


class Desk:
    """`dcnr data stage` as a maintainer of the network types it, in this process."""

    def __init__(self, network: LocalNetwork) -> None:
        self.network = network

    def run(self, *arguments: str, code: int = 0, network_file: Path | None = None) -> Any:
        """What it says in JSON, or on standard error where it must end with another code than 0."""
        file = str(network_file or self.network.network_file)
        where = ("--network", file, "--bootstrap", self.network.bootstrap[0], "--home", str(self.network.maintainer_home))
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            ended = errors.exit_code(maintainer.app, "dcnr", ["data", "stage", *arguments, "--licence", "CC0", "--json", *where])
        assert ended == code, f"{ended}: {out.getvalue()}{err.getvalue()}"
        return json.loads(out.getvalue()) if code == 0 else err.getvalue()

    def manifest(self, name: str) -> DatasetManifest:
        """The verified manifest of what was staged."""

        async def work() -> DatasetManifest:
            async with await connect_async(self.network.bootstrap, network=self.network.network_file) as client:
                return await client.dataset(name)

        return asyncio.run(work())


@pytest.fixture(scope="module")
def desk(small_network: LocalNetwork) -> Desk:
    return Desk(small_network)


def idx(path: Path, array: np.ndarray[Any, Any]) -> str:
    path.write_bytes(gzip.compress(bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()))
    return str(path)


def test_idx_files_as_they_are_published(desk: Desk, tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    parts: list[str] = []
    for split, start, count in (("train", "train", 50), ("test", "t10k", 8)):
        images, labels = rng.integers(0, 256, (count, 6, 6), np.uint8), (np.arange(count) % 10).astype(np.uint8)
        parts.append(f"{split}_x={idx(tmp_path / f'{start}-images-idx3-ubyte.gz', images)}")
        parts.append(f"{split}_y={idx(tmp_path / f'{start}-labels-idx1-ubyte.gz', labels)}")
    staged = desk.run(*parts, "--name", "digits", "--as-bytes", "--share", "validation=0.1")
    assert staged["splits"] == {"train": 45, "validation": 5, "test": 8}
    assert staged["fields"] == {"input": {"dtype": "float32", "shape": [1, 6, 6]}, "target": {"dtype": "int64", "shape": []}}
    found = desk.manifest("digits")
    assert found.digest == staged["digest"]
    assert (found.fields["input"].scale, found.fields["target"].num_classes) == (1 / 255, 10)


def test_a_text(desk: Desk, tmp_path: Path) -> None:
    (tmp_path / "play.txt").write_bytes(b"to be, or not to be; " * 50)
    staged = desk.run(
        str(tmp_path / "play.txt"), "--name", "play", "--window", "16", "--share", "validation=0.1", "--share", "test=0.2"
    )
    assert staged["splits"] == {"train": 46, "validation": 6, "test": 13}
    assert staged["fields"] == {name: {"dtype": "uint8", "shape": [16]} for name in ("input", "target")}
    (tmp_path / "play").write_bytes(b"\0\xff" * 40)
    again = desk.run(
        f"train={tmp_path / 'play.txt'}", f"test={tmp_path / 'play'}", "--name", "play2", "--format", "bytes", "--window", "8"
    )
    assert again["splits"] == {"train": 131, "test": 9}
    for wrong in (
        (str(tmp_path / "play.txt"),), (str(tmp_path / "play"), "--window", "8"), (str(tmp_path / "play.txt"), "--window", "8", "--share", "test"),
        (f"train={tmp_path / 'play.txt'}", str(tmp_path / "play"), "--window", "8"),
        (str(tmp_path / "play.txt"), "--window", "8", "--share", "train=0.5"), (str(tmp_path / "play.txt"), "--window", "8", "--sha256", "a", "--sha256", "b"),
    ):  # fmt: skip
        assert "  next: " in desk.run(*wrong, "--name", "wrong", code=2)


def test_content_that_was_staged_before_another_is_not_said_to_be_what_jobs_read(desk: Desk, tmp_path: Path) -> None:
    """Versions of ascending digests: of two that come in one second, which is as fine as a store's clock may be, the greater digest is the newer."""
    (tmp_path / "play.txt").write_bytes(b"to be, or not to be; " * 50)

    async def digest(version: int) -> str:
        async def nowhere(key: str, data: bytes) -> None:
            pass

        source = Source(str(tmp_path / "play.txt"), "again", "CC0", "", version=version, window=16)
        content = described(source, read_splits("bytes", {"": tmp_path / "play.txt"}, window=16))
        return (await staging.stage(nowhere, *content, seed=0)).digest

    digests = [asyncio.run(digest(version)) for version in range(1, 99)]
    first = next(at for at in range(1, 97) if sorted(digests[at - 1 : at + 2]) == digests[at - 1 : at + 2])

    def stage(version: int, code: int = 0) -> Any:
        return desk.run(str(tmp_path / "play.txt"), "--name", "again", "--window", "16", "--version", str(version), code=code)

    for version in (first, first, first + 1):
        assert stage(version)["digest"] == digests[version - 1] == desk.manifest("again").digest
    assert f"--version {first + 2}" in stage(first, code=1)
    assert desk.manifest("again").digest == digests[first]
    assert stage(first + 2)["digest"] == desk.manifest("again").digest


@contextlib.contextmanager
def somewhere_inside() -> Iterator[tuple[str, Callable[[], int]]]:
    """The URL of a port of this machine, and how often it was connected to so far."""
    count = 0
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)

        def connections() -> int:
            nonlocal count
            with contextlib.suppress(BlockingIOError):
                while True:
                    server.accept()[0].close()
                    count += 1
            return count

        yield f"http://127.0.0.1:{server.getsockname()[1]}", connections


def put(network: LocalNetwork, key: str, data: bytes) -> None:
    store = S3Store(network.store.file.address())
    asyncio.run(store.put(key, data))
    store.close()


def test_an_object_of_the_networks_store(desk: Desk, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Goal: it is read with the store's credentials, from no other store, and only what has its digest."""
    network = desk.network
    put(network, "incoming/toy set.safetensors", TOY)
    uri, digest = f"s3://{network.store.file.bucket}/incoming/toy set.safetensors", digest_of(TOY)
    asked = ("--name", "toy", "--sha256", digest)
    known = ("--store-file", str(network.store.path))
    staged = desk.run(uri, *asked, *known)
    assert staged["splits"] == {"train": 30, "validation": 5, "test": 6}
    monkeypatch.setenv("DCNR_STORE_FILE", str(network.store.path))
    assert desk.run(uri, *asked) == staged
    monkeypatch.delenv("DCNR_STORE_FILE")

    assert "--store-file" in desk.run(uri, *asked, code=2)
    assert "--sha256" in desk.run(uri, "--name", "toy", *known, code=2)
    assert "wrong_digest" in desk.run(uri, "--name", "toy", "--sha256", "0" * 64, *known, code=1)
    assert "no_such_object" in desk.run(uri.replace("toy set", "toys"), *asked, *known, code=1)
    with somewhere_inside() as (elsewhere, connections):
        for changed, why in (
            ({"secret_key": "another"}, "store_denied"),
            ({"endpoint": elsewhere, "public_endpoint": ""}, "address_not_allowed"),
        ):
            (tmp_path / "store.json").touch(mode=0o600)
            (tmp_path / "store.json").write_text(json.dumps(asdict(replace(network.store.file, **changed))))
            assert why in desk.run(uri, *asked, "--store-file", str(tmp_path / "store.json"), code=5)
        assert connections() == 0
    (tmp_path / "store.json").write_text(json.dumps(asdict(replace(network.store.file, endpoint="nonsense", public_endpoint=""))))
    assert "bad_store_file" in desk.run(uri, *asked, "--store-file", str(tmp_path / "store.json"), code=1)


def test_several_objects_have_their_digests_in_order(desk: Desk, tmp_path: Path) -> None:
    network, sources, digests = desk.network, list[str](), list[str]()
    for name, array in (("train_x", np.zeros((9, 2, 2), np.uint8)), ("train_y", np.arange(9, dtype=np.uint8))):
        content = Path(idx(tmp_path / name, array)).read_bytes()
        put(network, f"incoming/{name}-ubyte.gz", content)
        sources.append(f"{name}=s3://{network.store.file.bucket}/incoming/{name}-ubyte.gz")
        digests += ["--sha256", digest_of(content)]
    known = ("--name", "pair", "--store-file", str(network.store.path))
    assert desk.run(*sources, *digests, *known)["splits"] == {"train": 9}
    assert "wrong_digest" in desk.run(*reversed(sources), *digests, *known, code=1)


def amended(desk: Desk, file: Path, *changes: str) -> Path:
    """That network file with changes by its maintainer; the one of the network where there is none yet."""
    if not file.exists():
        file.write_bytes(desk.network.network_file.read_bytes())
    with contextlib.redirect_stdout(io.StringIO()):
        arguments = ["network", "amend", str(file), *changes, "--key", str(desk.network.maintainer_key)]
        assert errors.exit_code(maintainer.app, "dcnr", arguments) == 0
    return file


def test_hosts_are_allowed_by_the_network_document(desk: Desk, tmp_path: Path) -> None:
    """Goal: maintainers list a host by command, and unlist it; one that is listed is still not looked for inside."""
    file = tmp_path / "network.json"
    with somewhere_inside() as (url, connections):
        address = url.removeprefix("http://")
        asked = (f"https://{address}/toy.safetensors", "--name", "toy", "--sha256", digest_of(TOY))
        told = desk.run(*asked, code=5)
        assert "address_not_allowed" in told
        assert "dcnr network amend --add-data-host" in told
        amended(desk, file, "--add-data-host", address)
        assert "address_not_public" in desk.run(*asked, code=5, network_file=file)
        amended(desk, file, "--remove-data-host", address)
        assert "address_not_allowed" in desk.run(*asked, code=5, network_file=file)
        assert connections() == 0


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a server with a certificate for `HOST` that this process believes, and with the toy set."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, HOST)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1)).not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(HOST)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True).sign(key, hashes.SHA256())
    )  # fmt: skip
    (tmp_path / "certificate.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "toy.safetensors").write_bytes(TOY)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate.pem", tmp_path / "key.pem")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "files"))) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_a_file_over_https(desk: Desk, https: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it is read for what its name says, and only from whom the certificate names. The server is taken for the network's store: it lies inside."""
    url = f"https://{HOST}:{https}"
    rule = AddressRule(stores=(url,), resolver=lambda host, port: ["127.0.0.1"])
    source = Source(f"{url}/toy.safetensors?download=1", "far", "CC0", "", sha256=digest_of(TOY))

    async def staged(client: AsyncClient) -> DatasetManifest:
        return await stage_source(source, client.objects, rule, scratch=client.scratch, progress=lambda what, done, total: None)

    async def work() -> None:
        key = NodeKey.load(desk.network.maintainer_key)
        async with await connect_async(desk.network.bootstrap, network=desk.network.network_file, key=key) as client:
            manifest = await staged(client)
            assert dict(manifest.splits) == {"train": 30, "validation": 5, "test": 6}
            assert (await client.dataset("far")).digest == manifest.digest
            with pytest.raises(Refused):  # as a host of the list it would have to be public
                await stage_source(
                    source, client.objects, replace(rule, stores=(), data_hosts=(f"{HOST}:{https}",)), scratch=client.scratch,
                    progress=lambda what, done, total: None,
                )  # fmt: skip
            monkeypatch.delenv("SSL_CERT_FILE")
            with pytest.raises(Unavailable, match="certificate"):
                await staged(client)

    asyncio.run(work())


def test_a_file_of_a_listed_host_becomes_the_data_set_that_the_file_is(
    desk: Desk, https: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Goal: by command, from a public host that maintainers list, to a data set in the store: the very one that the same file gives from a disk.

    The internet is stood in for: the name has a public address, and what is sent there comes out at the server of this test.
    """
    by_system = socket.getaddrinfo
    ways = {HOST: PUBLIC, PUBLIC: "127.0.0.1"}

    def found(host: Any, *where: Any, **how: Any) -> Any:
        return by_system(ways.get(host, host), *where, **how)

    monkeypatch.setattr(socket, "getaddrinfo", found)
    file = amended(desk, tmp_path / "network.json", "--add-data-host", f"{HOST}:{https}")
    known = ("--name", "listed", "--origin", "a place", "--sha256", digest_of(TOY))
    address = f"https://{HOST}:{https}/toy.safetensors"
    assert "wrong_digest" in desk.run(address, *known[:-1], "0" * 64, code=1, network_file=file)
    staged = desk.run(address, *known, network_file=file)
    assert staged["splits"] == {"train": 30, "validation": 5, "test": 6}
    assert desk.manifest("listed").digest == staged["digest"]
    assert desk.run(str(tmp_path / "files" / "toy.safetensors"), *known)["digest"] == staged["digest"]
    monkeypatch.setitem(ways, HOST, "127.0.0.1")
    assert "address_not_public" in desk.run(address, *known, code=5, network_file=file)
