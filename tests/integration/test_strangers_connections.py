"""Goal: who has no session of a server writes nothing where its owner reads, and holds neither its memory nor its descriptors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from rpc_rig import House, connected, in_house, probe, until
from worker_rig import worker

from dcnr.open_files import WANTED
from dcnr.rpc.options import VERBOSITY
from pnode.supervisor import Supervisor, WorkerOptions, executed

SERVING = """
import asyncio
import os
import secrets
import sys

import typer

from dcnr.cli.errors import exit_code

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def main() -> None:
    from dcnr.cli import foreground
    from dcnr.rpc.server import RpcServer
    from dcnr.system import SystemClock
    from trust.identity import NodeKey

    async def serve() -> None:
        server = RpcServer(NodeKey.generate(), "a" * 40, clock=SystemClock(), rng=secrets.token_bytes)
        print(await server.start("127.0.0.1", 0), flush=True)
        while await asyncio.to_thread(sys.stdin.readline):
            print(len(os.listdir("/proc/self/fd")), flush=True)
        await server.stop(0)

    foreground.run(serve())


sys.exit(exit_code(app, "serving", []))
"""
"""A server behind the door through which all commands go. It says its port, and for each line that it hears how many files it has open."""
NAME, ESCAPES = b"plain.example", b"\x1b[31m.example"


def anybody() -> ssl.SSLContext:
    """For a stranger, who takes whatever answers."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    return context


def hello() -> bytes:
    """A ClientHello that asks for a server whose name holds what a terminal obeys."""
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        anybody().wrap_bio(coming, going, server_hostname=NAME.decode()).do_handshake()
    except ssl.SSLWantReadError:
        data = going.read()
    assert data.count(NAME) == 1
    return data.replace(NAME, ESCAPES)


def written(**environment: str) -> bytes:
    """What a server writes to standard error while a stranger asks for another one."""
    command = [sys.executable, "-c", SERVING]
    clean = {name: value for name, value in os.environ.items() if name != VERBOSITY}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**clean, **environment}
    ) as child:
        assert child.stdout is not None
        with socket.create_connection(("127.0.0.1", int(child.stdout.readline())), timeout=60) as stranger:
            stranger.sendall(hello())
            assert stranger.recv(5), "it was heard and answered"
        _, told = child.communicate(timeout=60)
    assert child.returncode == 0
    return told


def test_who_asks_for_a_server_by_a_name_of_escapes_writes_nothing_to_its_terminal() -> None:
    assert written() == b""
    assert ESCAPES in written(GRPC_VERBOSITY="ERROR"), "gRPC writes such names where its owner asks for its remarks"


def test_strangers_who_do_nothing_leave_a_process_half_of_its_files() -> None:
    """Goal: where its owner's limit is low, connections are turned away before the last descriptor is gone."""
    files = 200
    program = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({files // 2}, {files}))\n{SERVING}"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        port = int(child.stdout.readline())
        with contextlib.ExitStack() as strangers:
            num_let_in = 0
            for _ in range(files):
                with contextlib.suppress(ConnectionError, ssl.SSLError):
                    raw = strangers.enter_context(socket.create_connection(("127.0.0.1", port), timeout=60))
                    strangers.enter_context(anybody().wrap_socket(raw))
                    num_let_in += 1
            child.stdin.write("and now?\n")
            child.stdin.flush()
            assert int(child.stdout.readline()) < files
        assert files // 4 < num_let_in <= files // 2
        child.stdin.close()
        assert child.wait(60) == 0


def test_a_daemon_takes_as_many_files_as_it_may() -> None:
    program = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n{SERVING}"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        now, most = psutil.Process(child.pid).rlimit(psutil.RLIMIT_NOFILE)
        assert now == (WANTED if most == resource.RLIM_INFINITY else min(most, WANTED))
        child.stdin.close()
        assert child.wait(60) == 0


def test_who_has_no_call_is_disconnected_in_time_and_who_keeps_a_connection_for_later_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dcnr.rpc.options.IDLE_S", 0.3)

    async def scene(house: House) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", house.port, ssl=anybody())
        async with connected(house) as connection:
            before = connection.metadata
            assert await probe(connection)
            while await reader.read(1024):
                continue
            writer.transport.abort()
            await until(lambda: connection._session is None, "it is disconnected too")
            assert await probe(connection)
            assert connection.metadata != before
            assert not connection.closed

    in_house(scene)


def test_a_worker_that_can_open_nothing_goes_on_reporting(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with worker(tmp_path) as end:
            await end.until(lambda: end.rss_bytes > 0)
            process = psutil.Process(end.process.pid)
            process.rlimit(psutil.RLIMIT_NOFILE, (1, process.rlimit(psutil.RLIMIT_NOFILE)[1]))
            await end.until(lambda: end.rss_bytes == 0)
            process.rlimit(psutil.RLIMIT_NOFILE, (process.rlimit(psutil.RLIMIT_NOFILE)[1],) * 2)
            await end.until(lambda: end.rss_bytes > 0)

    asyncio.run(scenario())


def test_a_daemon_that_can_open_nothing_says_so_and_starts_its_worker_later(tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    reasons, told = list[str](), asyncio.Event()

    async def nothing(*_: object) -> None:
        return

    async def down(reason: str) -> None:
        reasons.append(reason)
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        if len(reasons) == 2:
            told.set()

    async def scenario() -> None:
        options = WorkerOptions(
            "127.0.0.1", 0, 1, "cpu", tmp_path / "worker.log", os.environ, start=executed("-c", "raise SystemExit(7)")
        )
        subject = Supervisor(options, next_incarnation=lambda: 1, on_up=nothing, on_message=nothing, on_down=down)
        resource.setrlimit(resource.RLIMIT_NOFILE, (1, before[1]))
        async with asyncio.timeout(60):
            running = asyncio.create_task(subject.run())
            await told.wait()
            await subject.stop(within_s=0.2)
            await running

    try:
        asyncio.run(scenario())
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert reasons == ["the worker cannot be started: Too many open files", "the worker ended with exit code 7"]
