"""Goal: who has no session of a server writes nothing where its owner reads, and holds neither its memory nor its descriptors."""

from __future__ import annotations

import os
import socket
import ssl
import subprocess
import sys

from dcnr.rpc.options import VERBOSITY

SERVING = """
import asyncio
import secrets
import sys

import typer

from dcnr.cli.errors import exit_code

app = typer.Typer(pretty_exceptions_enable=False)


@app.command()
def main() -> None:
    from dcnr.rpc.server import RpcServer
    from dcnr.system import SystemClock
    from trust.identity import NodeKey

    async def serve() -> None:
        server = RpcServer(NodeKey.generate(), "a" * 40, clock=SystemClock(), rng=secrets.token_bytes)
        print(await server.start("127.0.0.1", 0), flush=True)
        await asyncio.to_thread(sys.stdin.read)
        await server.stop(0)

    asyncio.run(serve())


sys.exit(exit_code(app, "serving", []))
"""
"""A server behind the door through which all commands go."""
NAME, ESCAPES = b"plain.example", b"\x1b[31m.example"


def hello() -> bytes:
    """A ClientHello that asks for a server whose name holds what a terminal obeys."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    coming, going = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        context.wrap_bio(coming, going, server_hostname=NAME.decode()).do_handshake()
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
