"""`LocalNetwork`: a whole network of separate processes on this machine, with the real parts: embedded store, orchestrators, PNodes.

For tests, for `dcnr demo` and for `dcnr local`. Everything it makes lies below one directory; every process it starts is ended by it, also when the process
that uses it is killed (each child watches its standard input, a pipe that closes with us).
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from dataservice.embedded import EmbeddedStore, read_store_file
from dcnr.children import Child, Starting, executed
from dcnr.errors import DcnrError, Refused, TimedOut, Unavailable
from dcnr.ids import NodeId
from dcnr.rpc.options import QUIET, VERBOSITY
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, draft_successor, sign_document, verify_chain
from trust.network_file import load_policy, save_policy
from trust.standing import ORDINARY, Terms

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 25.0
POLL_S = 0.05
ORCHESTRATOR = "dcnr.cli.orchestrator"
PNODE = ("-m", "dcnr.cli.pnode")


@dataclass(frozen=True, slots=True)
class LocalPNode:
    """Limits of one PNode of a local network."""

    name: str
    cores: float = 1.0
    memory_mb: int = 1024
    flags: tuple[str, ...] = ()
    host: str = "127.0.0.1"
    """Where it listens."""
    prefix: tuple[str, ...] = ()
    """What its command is put behind: another namespace, say. The process must keep the id with which it was started."""
    program: tuple[str, ...] = PNODE
    """What Python runs; the daemon's own command."""


@dataclass(slots=True)
class Process:
    """One child: how to start it again, and where it writes."""

    name: str
    command: list[str]
    log: Path
    home: Path
    node_id: NodeId
    popen: Child | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    starting: Starting = executed

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return self.popen is not None and self.popen.poll() is None

    @property
    def pid(self) -> int:
        """Its process id; 0 if it was never started."""
        return self.popen.pid if self.popen is not None else 0

    def start(self) -> None:
        """Starts it in a session of its own, so that Ctrl-C in a terminal reaches only us."""
        with self.log.open("ab") as log:
            self.popen = self.starting(self.command, self.environment, log.fileno())

    @property
    def end(self) -> str:
        """How it ended by itself, with the end of its log; empty: it runs, or was never started."""
        code = self.popen.poll() if self.popen is not None else None
        if code is None:
            return ""
        how = f"was killed ({signal.Signals(-code).name})" if code < 0 else f"ended with {code}"
        return f"{self.name} {how}:\n{self.tail()}"

    @property
    def by_hand(self) -> str:
        """The line that starts it again in a terminal."""
        return shlex.join(word for word in self.command if word != "--until-stdin-closes")

    def send(self, number: int) -> None:
        """Signals it, if it runs."""
        if self.popen is not None and self.popen.poll() is None:
            self.popen.send_signal(number)

    def tail(self, num_lines: int = 15) -> str:
        """The end of its log."""
        try:
            return "\n".join(self.log.read_text(errors="replace").splitlines()[-num_lines:])
        except OSError:
            return ""


class LocalNetwork:
    """Use as a context manager. ``directory`` should be short: Unix sockets lie below it. ``way_to_store`` turns the store's endpoint into the one that
    everybody is told, for a proxy in between; ``public_way`` into what the network document says of it instead, where only orchestrators have that way:
    an empty one says nothing. On the directory of an earlier start the same network goes on, by the document that it has.
    """

    def __init__(
        self, directory: Path, *, num_orchestrators: int = 3, pnodes: Sequence[LocalPNode] = (LocalPNode("p1"), LocalPNode("p2"), LocalPNode("p3")),
        name: str = "local", say: Callable[[str], None] = lambda text: None, environment: Mapping[str, str] | None = None,
        orchestrator_flags: Sequence[str] = (), host: str = "127.0.0.1", additions: Mapping[str, Mapping[str, str]] | None = None,
        orchestrator_module: str = ORCHESTRATOR, way_to_store: Callable[[str], str] = lambda endpoint: endpoint,
        audits: str = "none", trusted: Sequence[str] = (), terms: Terms = ORDINARY,
        locality: identity_pb2.Locality.ValueType = identity_pb2.LOCALITY_SINGLE_HOST, starting: Starting = executed, store_file: Path | None = None,
        public_way: Callable[[str], str] | None = None, start_limit_s: float = START_TIMEOUT_S,
    ) -> None:  # fmt: skip
        """``host``: the address of this machine on which orchestrators and store are reached; ``additions``: by name of a process, what its
        environment has besides; ``audits``: none or drawn; ``trusted``: names of PNodes that the network document trusts; ``terms``:
        what it has a fault cost; ``locality``: what it says about where nodes are; ``starting``: how its processes are started; ``store_file``:
        of a store that runs already and goes on afterwards, in place of the embedded one; ``start_limit_s``: how long each process may take to serve.
        """
        self.directory, self.start_limit_s = directory.resolve(), start_limit_s
        self.name, self._say, self._audits = name, say, audits
        self._trusted, self._terms, self._locality, self._starting = tuple(trusted), terms, locality, starting
        self._num_orchestrators, self._pnode_specs = num_orchestrators, tuple(pnodes)
        self._orchestrator_flags, self.host, self._way_to_store = tuple(orchestrator_flags), host, way_to_store
        self._public_way = public_way or way_to_store
        self._environment = clean_environment(os.environ if environment is None else environment)
        self._additions, self._orchestrator_module = dict(additions or {}), orchestrator_module
        self.orchestrators: list[Process] = []
        self.pnodes: list[Process] = []
        self.store = EmbeddedStore(self.directory / "store", port=0, listen=host)
        self._runs_store, self._store_file = store_file is None, store_file or self.store.path
        self.maintainer_home = self.directory / "maintainer"
        self.network_file = self.directory / "network.json"
        self.policy: NetworkPolicy | None = None
        self._interrupted = threading.Event()

    def __enter__(self) -> LocalNetwork:
        try:
            self.start()
        except BaseException:
            self.stop(hand_over=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(hand_over=False)

    # -- life ------------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Store, keys, network document, orchestrators, PNodes; returns when every orchestrator serves.

        Raises Unavailable, TimedOut, and before anything starts Refused (``network_kept``) where the directory's network cannot go on.
        """
        kept = self._kept_network()
        self.directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._runs_store:
            self._say("starting the embedded object store")
            self.store.start(timeout_s=self.start_limit_s, go_on=self._go_on)
        self._go_on()
        self._say("making keys and the signed network document" if kept is None else "going on with the network of this directory")
        self._make_network(kept)
        for process in self.orchestrators:
            self._go_on()
            self._say(f"starting orchestrator {process.name} ({process.node_id[:8]})")
            process.start()
        for process in self.orchestrators:
            self._wait_listening(process)
        for process in self.pnodes:
            self._go_on()
            self._say(f"starting PNode {process.name} ({process.node_id[:8]})")
            process.start()

    def interrupt(self) -> None:
        """Makes a `start` in another thread end soon, with Unavailable; `stop` then ends what it has started."""
        self._interrupted.set()

    def stop(self, *, hand_over: bool = True) -> None:
        """Ends everything: PNodes first, then orchestrators, then the store. Whoever does not go in time is killed."""
        for group in (self.pnodes, self.orchestrators):
            for process in group:
                process.send(signal.SIGTERM if hand_over else signal.SIGKILL)
            deadline = time.monotonic() + STOP_TIMEOUT_S
            for process in group:
                self._reap(process, deadline)
        if self.store.running():
            self._say("stopping the store")
            if hand_over:
                self.store.stop(note=self._say)
            else:
                self.store.kill()

    def add_pnode(self, spec: LocalPNode) -> Process:
        """Starts one more PNode."""
        process = self._pnode(spec)
        self.pnodes.append(process)
        process.start()
        return process

    def kill(self, process: Process) -> None:
        """SIGKILL, as a power cut would: the worker ends by itself when its daemon is gone."""
        process.send(signal.SIGKILL)
        self._reap(process, time.monotonic() + 5)

    def restart(self, process: Process) -> None:
        """Starts a dead process again on the same home."""
        if process.alive:
            raise Unavailable(f"{process.name} still runs", code="still_running")
        process.start()

    # -- addresses -------------------------------------------------------------------------------------------------------------

    @property
    def bootstrap(self) -> list[str]:
        """Where clients may begin: id@host:port of every orchestrator."""
        return [f"{process.node_id}@{self.host}:{port}" for process, port in zip(self.orchestrators, self._ports, strict=True)]

    @property
    def maintainer_key(self) -> Path:
        """The maintainer's key file."""
        return self.maintainer_home / "key.pem"

    def process_of(self, node_id: str) -> Process | None:
        """The process of a node."""
        return next((p for p in (*self.orchestrators, *self.pnodes) if p.node_id == node_id), None)

    def trouble(self) -> str:
        """Which processes ended by themselves, with the ends of their logs."""
        ends = [self.store.end, *(process.end for process in (*self.orchestrators, *self.pnodes))]
        return "\n".join(end for end in ends if end)

    # -- inside ----------------------------------------------------------------------------------------------------------------

    @property
    def _orchestrator_homes(self) -> list[Path]:
        return [self.directory / f"o{number + 1}" for number in range(self._num_orchestrators)]

    def _kept_network(self) -> NetworkPolicy | None:
        """The network that an earlier start left here. Under another document its store would be read by nobody."""
        if not self.network_file.exists():
            return None
        try:
            policy = load_policy(self.network_file, SystemClock().wall())
            maintainer = NodeKey.load(self.maintainer_key)
            ids = {NodeKey.load(home / "key.pem").node_id for home in self._orchestrator_homes}
        except DcnrError as error:
            raise self._cannot_go_on(error.message) from error
        if list(policy.document.maintainer_keys) != [maintainer.public_der]:
            raise self._cannot_go_on(f"{self.maintainer_key} is not the key that signed {self.network_file}")
        if ids != policy.orchestrator_ids:
            raise self._cannot_go_on(f"it has {len(policy.orchestrator_ids)} orchestrators, and not these {len(ids)}")
        return policy

    def _cannot_go_on(self, why: str) -> Refused:
        return Refused(
            f"the network in {self.directory} cannot go on: {why}", code="network_kept",
            remedy="start it with the orchestrators and keys that it had, choose another directory, or remove this one with all its jobs",
        )  # fmt: skip

    def _make_network(self, kept: NetworkPolicy | None) -> None:
        homes = self._orchestrator_homes
        for home in (*homes, self.maintainer_home, self.directory / "log"):
            home.mkdir(parents=True, exist_ok=True, mode=0o700)
        ids = [NodeKey.load_or_create(home / "key.pem").node_id for home in homes]
        maintainer = NodeKey.load_or_create(self.maintainer_key)
        trusted = [NodeKey.load_or_create(self._home(name) / "key.pem").node_id for name in self._trusted]
        store = read_store_file(self._store_file)
        endpoint = self._way_to_store(store.endpoint)
        scheme, _, address = self._public_way(store.public_endpoint or store.endpoint).partition("://")
        if kept is None:
            envelope = create_document(
                maintainer, name=self.name, now_wall=SystemClock().wall(), orchestrator_ids=ids, locality=self._locality,
                store_address=address, store_scheme=scheme, store_bucket=store.bucket, audits=self._audits, trusted=trusted,
                terms=self._terms,
            )  # fmt: skip
            self.policy = verify_chain([envelope])
        else:
            self.policy = _with_store(kept, maintainer, scheme, address)
        save_policy(self.network_file, self.policy)
        self._add_processes(homes, ids, endpoint)

    def _add_processes(self, homes: Sequence[Path], ids: Sequence[NodeId], endpoint: str) -> None:
        assert self.policy is not None
        self._ports = free_ports(self._num_orchestrators, self.host)
        for home, node_id, port in zip(homes, ids, self._ports, strict=True):
            first = [] if port == self._ports[0] else ["--bootstrap", f"{self.host}:{self._ports[0]}"]
            first += ["--verifier"] if self.policy.audits_drawn else []
            command = [
                sys.executable, "-m", self._orchestrator_module, "start", "--home", str(home), "--network", str(self.network_file),
                "--store-url", endpoint, "--store-bucket", self.policy.document.store_bucket, "--store-file", str(self._store_file),
                "--listen-host", self.host, "--control-port", str(port), "--dht-port", "0", "--until-stdin-closes", *first, *self._orchestrator_flags,
            ]  # fmt: skip
            self.orchestrators.append(self._process(home.name, command, home, node_id))
        self.pnodes.extend(self._pnode(spec) for spec in self._pnode_specs)

    def _pnode(self, spec: LocalPNode) -> Process:
        home = self._home(spec.name)
        node_id = NodeKey.load_or_create(home / "key.pem").node_id
        assert self.policy is not None
        first = self._ports[len(self.pnodes) % len(self._ports)]
        command = [
            *spec.prefix, sys.executable, *spec.program, "start", "--home", str(home), "--bootstrap", f"{self.host}:{first}",
            "--network-id", self.policy.network_id, "--listen-host", spec.host, "--control-port", "0", "--data-port", "0", "--dht-port", "0",
            "--cores", str(spec.cores), "--memory-mb", str(spec.memory_mb), "--until-stdin-closes", *spec.flags,
        ]  # fmt: skip
        return self._process(spec.name, command, home, node_id)

    def _home(self, name: str) -> Path:
        home = self.directory / name
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
        return home

    def _process(self, name: str, command: list[str], home: Path, node_id: NodeId) -> Process:
        environment = {**self._environment, **self._additions.get(name, {})}
        log = self.directory / "log" / f"{name}.log"
        return Process(name, command, log, home, node_id, environment=environment, starting=self._starting)

    def _go_on(self) -> None:
        if self._interrupted.is_set():
            raise Unavailable("the start was interrupted", code="interrupted")

    def _wait_listening(self, process: Process) -> None:
        port = self._ports[self.orchestrators.index(process)]
        deadline = time.monotonic() + self.start_limit_s
        while time.monotonic() < deadline:
            self._go_on()
            if ended := self.trouble():
                raise Unavailable(f"the network does not start: {ended}", code="start_failed")
            with socket.socket() as probe:
                probe.settimeout(1.0)
                if probe.connect_ex((self.host, port)) == 0:
                    return
            time.sleep(POLL_S)
        raise TimedOut(
            f"orchestrator {process.name} does not listen after {self.start_limit_s:g} s:\n{process.tail()}", code="start_timeout"
        )

    def _reap(self, process: Process, deadline: float) -> None:
        if process.popen is None:
            return
        try:
            process.popen.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._say(f"{process.name} does not stop: killing it")
            process.popen.kill()
            process.popen.wait(5)
        if process.popen.stdin is not None:
            process.popen.stdin.close()


def _with_store(policy: NetworkPolicy, maintainer: NodeKey, scheme: str, address: str) -> NetworkPolicy:
    """The network with its store there: a new version of the document where the store's port was taken meanwhile."""
    if (policy.document.store_scheme, policy.document.store_address) == (scheme, address):
        return policy
    draft = draft_successor(policy)
    draft.store_scheme, draft.store_address = scheme, address
    return policy.successor([*policy.history, sign_document(draft, maintainer)])


def clean_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """What children inherit: no store credential, no setting of this user but which accelerators programs may see."""
    kept = (
        "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "VIRTUAL_ENV", "LD_LIBRARY_PATH", "SYSTEMROOT",
        "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "HIP_VISIBLE_DEVICES",
    )  # fmt: skip
    return {
        **{name: environment[name] for name in kept if name in environment},
        "OMP_NUM_THREADS": "1",
        "NO_COLOR": "1",
        "PYTHONUNBUFFERED": "1",
        VERBOSITY: QUIET,
    }


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """``count`` different TCP ports of an address of this machine that are free now, below those that a system gives to whoever asks for any; else OSError."""
    found: list[int] = []
    for port in secrets.SystemRandom().sample(range(20_000, 32_000), 1_000):
        with socket.socket() as item, contextlib.suppress(OSError):
            item.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            item.bind((host, port))
            found.append(port)
        if len(found) >= count:
            return found[:count]
    raise OSError(f"{host} has no {count} free ports")
