"""Rounds whose process is a command: it is run with its crash point set and must die by SIGKILL; run again it must do its whole work."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from chaos.rounds import Round, Where
from chaos.stand import Stand
from chaos.work import Clouds
from dcnr import crashpoints
from dcnr.demo.run import MARK
from dcnr.errors import DcnrError, TimedOut, Unavailable
from dcnr.graph_text import graph_table
from dcnr.home_lock import LOCK_FILE
from dcnr.ids import Digest, digest_of
from dcnr.sdk.client import connect_async
from dcnr.testing import clean_environment, free_ports
from dcnr.v1 import data_pb2
from dcnr.v1.data_pb2_grpc import DataServiceStub
from orchestrator.service import DRAW_FILE
from trust.identity import NodeKey

COMMAND_S: Final = 120.0
COMPLETE_S: Final = 180.0
POLL_S: Final = 0.1
PASSED_BYTES: Final = 100_000
MODULE: Final = """import torch
from torch import nn


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
"""
Row = dict[str, Any]


class Drives:
    """What the rounds of commands do, each in a directory of its own. ``stand``: the network that they talk to, where they need one."""

    def __init__(self, stand: Stand | None, number: int) -> None:
        self._stand, self._number = stand, number

    def play(self, round_: Round) -> Row:
        """Runs the command to its death and again to its end. Raises DcnrError where something is not as it must be."""
        with tempfile.TemporaryDirectory(prefix="dcnr-crash-", ignore_cleanup_errors=True) as name:
            directory = Path(name)
            setting = crashpoints.setting(round_.point, directory / "note", times=round_.times)
            match round_.where:
                case Where.KEY:
                    return self._key(directory, setting)
                case Where.STORE:
                    return self._store(directory, setting)
                case Where.DEMO:
                    return self._demo(directory, setting, round_)
                case Where.IMPORT:
                    return self._import(directory, setting)
                case Where.API_KEY:
                    return self._api_key(directory, setting, round_)
                case Where.STAGE:
                    return self._stage(directory, setting)
                case Where.SUBMIT:
                    return self._submit(directory, setting)
                case Where.DRAFT:
                    return self._draft(directory, setting)
                case Where.EXPORT:
                    return self._export(directory, setting)
                case _:
                    raise Unavailable(f"{round_.where} is no command", code="wrong_round")

    # -- without a network -----------------------------------------------------------------------------------------------------

    def _key(self, directory: Path, setting: Mapping[str, str]) -> Row:
        arguments = ("dcnr.cli.orchestrator", "key", "--home", str(directory / "o"))
        died_s = _dies(*arguments, setting=setting)
        first, again = _output(*arguments), _output(*arguments)
        if first != again or (directory / "o" / "key.pem").stat().st_mode & 0o077:
            raise Unavailable("the key changed, or others may read it", code="key_lost")
        return died_s

    def _store(self, directory: Path, setting: Mapping[str, str]) -> Row:
        """An orchestrator whose store is its own: its credentials and what it draws with are made once, and the second start serves."""
        node_id = _output("dcnr.cli.orchestrator", "key", "--home", str(directory / "o")).strip()
        port, store_port = free_ports(2)
        _output(
            "dcnr.cli.dcnr", "network", "create", "--name", "own", "--locality", "single-host", "--out", str(directory / "m"),
            "--store", f"http://127.0.0.1:{store_port}", "--orchestrator", f"{node_id}@127.0.0.1:{port}",
        )  # fmt: skip
        start = (
            "dcnr.cli.orchestrator", "start", "--home", str(directory / "o"), "--network", str(directory / "m" / "network.json"),
            "--listen-host", "127.0.0.1", "--control-port", str(port), "--dht-port", "0", "--store-port", str(store_port),
            "--until-stdin-closes",
        )  # fmt: skip
        with _started(*start, setting=setting) as first:
            row = _killed(first)
        kept = (directory / "o" / "store" / "store.json").exists()
        keys = _credentials(directory) if kept else ()
        secret = directory / "o" / DRAW_FILE
        drawn = secret.read_bytes() if secret.exists() else b""
        began = time.monotonic()
        with _started(*start, setting=setting) as second:
            while not _healthy(directory / "o"):
                if second.poll() is not None or time.monotonic() - began > COMMAND_S:
                    raise TimedOut("the orchestrator does not serve after its second start", code="chaos_timeout")
                time.sleep(POLL_S)
            if keys and keys != _credentials(directory):
                raise Unavailable("the store's credentials changed", code="credentials_lost")
            if drawn and drawn != secret.read_bytes():
                raise Unavailable("what audits are drawn with changed", code="secret_lost")
        return row | {"complete_s": round(time.monotonic() - began, 2)}

    def _demo(self, directory: Path, setting: Mapping[str, str], round_: Round) -> Row:
        """A demo that dies while it takes its directory: the next one takes it all the same."""
        where = directory / "demo"
        if round_.point == "demo.emptied":
            (where / "log").mkdir(parents=True)
            (where / "log" / "p1.log").write_text("of an earlier demo")
            (where / MARK).touch()
        arguments = ("dcnr.cli.dcnr", "demo", "--directory", str(where))
        row = _dies(*arguments, setting=setting)
        if {path.name for path in where.iterdir()} != {MARK, LOCK_FILE}:
            raise Unavailable("the directory of the demo is not as it says", code="demo_directory")
        _dies(*arguments, setting=crashpoints.setting("demo.marked", directory / "again"))
        return row

    def _import(self, directory: Path, setting: Mapping[str, str]) -> Row:
        """Weights are whole or absent, whatever else lies there; the command run again gives what one that nobody disturbed gives."""
        (directory / "net.py").write_text(MODULE)
        names = ("model.toml", "first.safetensors")

        def arguments(where: Path) -> tuple[str, ...]:
            where.mkdir(exist_ok=True)
            out, weights = (str(where / name) for name in names)
            return (
                "dcnr.cli.dcnr",
                "model",
                "import",
                f"{directory / 'net.py'}:build",
                "--input",
                "4",
                "--out",
                out,
                "--weights",
                weights,
            )

        row = _dies(*arguments(directory / "a"), setting=setting)
        if [(directory / "a" / name).exists() for name in names] != [True, False]:
            raise Unavailable("half a file of weights has the name of a whole one", code="half_weights")
        for name in ("a", "b"):
            _output(*arguments(directory / name))
        files = [[digest_of((directory / one / name).read_bytes()) for name in names] for one in ("a", "b")]
        if files[0] != files[1]:
            raise Unavailable("what was imported differs from what nobody disturbed", code="import_differs")
        return row

    def _api_key(self, directory: Path, setting: Mapping[str, str], round_: Round) -> Row:
        """A key is in the file or is not; the file serves the next command."""
        home = ("--home", str(directory / "g"), "--json")
        row = _dies("dcnr.cli.dcnr", "gateway", "key", "add", "first", *home, setting=setting)
        _output("dcnr.cli.dcnr", "gateway", "key", "add", "second", *home)
        known = [key["name"] for key in json.loads(_output("dcnr.cli.dcnr", "gateway", "key", "list", *home))]
        if known != (["first", "second"] if round_.point == "apikey.committed" else ["second"]):
            raise Unavailable(f"the keys are {known}", code="keys_lost")
        return row

    # -- with one --------------------------------------------------------------------------------------------------------------

    def _stage(self, directory: Path, setting: Mapping[str, str]) -> Row:
        """The data set has one manifest, and a job learns from it."""
        stand = self._need()
        work = Clouds("staged", num_vnodes=2, passes=2, samples=320 + 8 * self._number)
        work.write(directory / "data.npz")
        arguments = (
            "dcnr.cli.dcnr",
            "data",
            "stage",
            str(directory / "data.npz"),
            "--name",
            work.name,
            "--licence",
            "CC0-1.0",
            "--json",
        )
        row = _dies(*arguments, *self._where(), setting=setting)
        first, again = _output(*arguments, *self._where()), _output(*arguments, *self._where())
        if json.loads(first) != json.loads(again):
            raise Unavailable("staging the same file twice gave two data sets", code="dataset_lost")
        return row | self._completed(stand, work, stand.submit(work, f"staged-{self._number}"))

    def _submit(self, directory: Path, setting: Mapping[str, str]) -> Row:
        work = _small()
        arguments = self._submission(directory, work)
        row = _dies(*arguments, *self._where(), setting=setting)
        accepted = json.loads(_output(*arguments, *self._where(), "--json"))
        return row | self._completed(self._need(), work, str(accepted["job_id"]))

    def _draft(self, directory: Path, setting: Mapping[str, str]) -> Row:
        work, draft = _small(), directory / "draft.json"
        arguments = (*self._submission(directory, work), "--save-draft", str(draft))
        row = _dies(*arguments, *self._where(), setting=setting)
        if draft.exists():
            raise Unavailable("half a draft has the name of a whole one", code="half_draft")
        _output(*arguments, *self._where())
        accepted = json.loads(_output("dcnr.cli.dcnr", "model", "submit", "--draft", str(draft), *self._where(), "--json"))
        return row | self._completed(self._need(), work, str(accepted["job_id"]))

    def _export(self, directory: Path, setting: Mapping[str, str]) -> Row:
        """Exporting again gives what an export that nobody disturbed gives."""
        stand, work = self._need(), _small()
        self._completed(stand, work, stand.submit(work, f"export-{self._number}"))
        arguments = ("dcnr.cli.dcnr", "model", "export", work.name, *self._where(), "--out")
        row = _dies(*arguments, str(directory / "a"), setting=setting)
        for name in ("a", "b"):
            _output(*arguments, str(directory / name))
        files = [{path.name: digest_of(path.read_bytes()) for path in (directory / name).iterdir()} for name in ("a", "b")]
        if files[0] != files[1]:
            raise Unavailable("the export differs from one that nobody disturbed", code="export_differs")
        return row

    def passed_on(self) -> None:
        """An object passes through an orchestrator into the store. Raises Unavailable while none takes it."""
        asyncio.run(asyncio.wait_for(self._pass(os.urandom(PASSED_BYTES)), COMMAND_S))

    async def _pass(self, data: bytes) -> None:
        stand = self._need()
        ref = data_pb2.ObjectRef(kind=data_pb2.OBJECT_KIND_GRAPH, digest=digest_of(data))
        item = data_pb2.GrantItem(object=ref, access=data_pb2.ACCESS_WRITE, size_bytes=len(data), sha256=ref.digest)
        while True:
            key = NodeKey.load(stand.network.maintainer_key)
            async with await connect_async(stand.network.bootstrap, network=stand.network.network_file, key=key) as client:
                for node_id, addresses in client.orchestrators.known():
                    with contextlib.suppress(DcnrError):
                        connection = await client.orchestrators.connection(node_id, addresses)
                        await connection.call(DataServiceStub(connection.channel).Write, _parts(item, data), timeout_s=COMMAND_S)
                        found = await client.objects.read_bytes(ref, max_bytes=len(data), directory=client.scratch)
                        assert Digest(digest_of(found)) == ref.digest
                        return
            await asyncio.sleep(POLL_S)
            stand.supervisor.tend()

    def _submission(self, directory: Path, work: Clouds) -> tuple[str, ...]:
        graph = directory / "model.json"
        graph.write_text(json.dumps(graph_table(work.graph())))
        return (
            "dcnr.cli.dcnr",
            "model",
            "submit",
            str(graph),
            "--idempotency-key",
            f"command-{self._number}",
            "--checkpoint-s",
            "1",
        )

    def _completed(self, stand: Stand, work: Clouds, job_id: str) -> Row:
        began = time.monotonic()
        lineages = stand.completed(job_id, work.name, COMPLETE_S)
        return {"complete_s": round(time.monotonic() - began, 2), "lineages_exact": len(lineages)}

    def _where(self) -> tuple[str, ...]:
        network = self._need().network
        return ("--home", str(network.maintainer_home), "--network", str(network.network_file), "--bootstrap", network.bootstrap[0])

    def _need(self) -> Stand:
        if self._stand is None:
            raise Unavailable("this round needs a network", code="wrong_round")
        return self._stand


def _small() -> Clouds:
    return Clouds("crash", num_vnodes=3, passes=3)


def _dies(module: str, *arguments: str, setting: Mapping[str, str]) -> Row:
    """The seconds until a command died by SIGKILL. Raises Unavailable if it ended otherwise."""
    with _started(module, *arguments, setting=setting) as process:
        return _killed(process)


def _killed(process: subprocess.Popen[bytes]) -> Row:
    began = time.monotonic()
    try:
        code = process.wait(COMMAND_S)
    except subprocess.TimeoutExpired:
        raise TimedOut(f"the command did not die within {COMMAND_S:.0f} s", code="chaos_timeout") from None
    if code != -signal.SIGKILL:
        raise Unavailable(f"the command ended with {code}, not by SIGKILL", code="not_killed")
    return {"reached_s": round(time.monotonic() - began, 2), "complete_s": 0.0, "lineages_exact": None}


@contextlib.contextmanager
def _started(module: str, *arguments: str, setting: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env=clean_environment(os.environ) | dict(setting), start_new_session=True,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(10)
        if process.stdin is not None:
            process.stdin.close()


def _output(module: str, *arguments: str) -> str:
    """What a command that must succeed prints. Raises Unavailable, TimedOut."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=COMMAND_S, check=False,
            stdin=subprocess.DEVNULL, env=clean_environment(os.environ),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{module} {' '.join(arguments)} did not end", code="chaos_timeout") from None
    if done.returncode:
        raise Unavailable(f"{module} {' '.join(arguments)}: {done.stderr[-800:]}", code="command_failed")
    return done.stdout


def _healthy(home: Path) -> bool:
    try:
        status = json.loads(_output("dcnr.cli.orchestrator", "status", "--home", str(home), "--json"))
    except DcnrError:
        return False
    return bool(status.get("store_ok"))


def _credentials(directory: Path) -> tuple[str, str]:
    found = json.loads((directory / "o" / "store" / "store.json").read_text())
    return found["access_key"], found["secret_key"]


async def _parts(item: data_pb2.GrantItem, data: bytes) -> AsyncIterator[data_pb2.WriteRequest]:
    yield data_pb2.WriteRequest(item=item, chunk=data)
