"""Goal: the dashboard is small, plain and self-contained: vendored files are what they claim, nothing is inline or from elsewhere, headers forbid both."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from benchmarks.dashboard_network import Network
from gateway.app import description
from gateway.here import CREDIT, DONE, NOTE
from gateway.pages import FOLDER, HEADERS, mount_dashboard
from gateway.reading import ACCOUNT, LEDGER
from gateway.stats import Stats
from gateway.witnesses import WITNESS

ROOT = Path(__file__).resolve().parents[2]
MAX_COMPRESSED_BYTES = 150_000
MAX_PICTURE_BYTES = 200_000
VENDORED = (FOLDER / "vendor", ROOT / "tests" / "browser" / "vendor")
OURS = sorted(
    path for path in FOLDER.rglob("*") if path.suffix in {".js", ".css", ".html", ".svg"} and path.parent.name != "vendor"
)


@pytest.mark.parametrize("folder", VENDORED, ids=lambda folder: str(folder.relative_to(ROOT)))
def test_vendored_files_are_those_of_their_packages(folder: Path) -> None:
    listed = tomllib.loads((folder / "VENDORED.toml").read_text())["file"]
    licences = {name for entry in listed for name in entry["licence_files"]}
    assert {path.name for path in folder.iterdir()} == {entry["name"] for entry in listed} | licences | {"VENDORED.toml"}
    for entry in listed:
        assert hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest() == entry["sha256"], entry["name"]
        assert entry["licence"]
        assert entry["version"]


def test_all_of_it_is_small() -> None:
    files = [path for path in FOLDER.rglob("*") if path.is_file() and path.suffix in {".js", ".css", ".html", ".svg"}]
    assert sum(len(gzip.compress(path.read_bytes())) for path in files) < MAX_COMPRESSED_BYTES


@pytest.mark.parametrize("path", OURS, ids=lambda path: str(path.relative_to(FOLDER)))
def test_nothing_is_inline_or_from_elsewhere(path: Path) -> None:
    text = path.read_text()
    assert re.findall(r"(?:src|href|from|import\(|fetch\(|url\()\W{0,3}(?:https?:)?//\w", text) == []
    assert "innerHTML" not in text
    if path.suffix == ".html":
        assert re.findall(r"<style|style=|<script(?![^>]* src=)| on\w+=", text) == []


def test_everything_that_is_asked_for_is_described() -> None:
    """And what the rig of the browser tests makes up by hand has no field that the gateway does not have."""
    paths = {re.sub(r"\{\w+\}", "*", path) for path in description()["paths"]}
    text = "".join(path.read_text() for path in OURS if path.suffix == ".js")
    asked = {re.sub(r"\$\{.*?\}+", "*", path).rstrip(")}`") for path in re.findall(r"[\"`](v1/[^\"`?]+)", text)}
    assert {f"/{path}" for path in asked} - paths == set()
    assert len(asked) >= 8
    network = Network(1)
    assert set(network.stats()) <= set(Stats.model_fields)
    assert set(network.ledger()) == set(LEDGER["properties"])
    assert all(set(row) == set(ACCOUNT["properties"]) for row in network.ledger()["accounts"])
    note = network.note()
    for made, kind in ((note, NOTE), (note["machine"], DONE), (note["credit"], CREDIT)):
        assert set(made) == set(kind["properties"])
    assert all(set(row) == set(WITNESS["properties"]) for row in network.orchestrators())


def test_pictures_are_small_and_shown() -> None:
    text = (ROOT / "docs" / "dashboard.md").read_text()
    pictures = sorted((ROOT / "docs" / "images").glob("dashboard-*.png"))
    assert pictures
    for path in pictures:
        assert path.stat().st_size < MAX_PICTURE_BYTES, path.name
        assert path.name in text, f"docs/dashboard.md does not show {path.name}"


def test_every_module_that_is_imported_exists() -> None:
    for path in OURS:
        if path.suffix == ".js":
            for name in re.findall(r"(?:from |import\()\"(\.[^\"]+)\"", path.read_text()):
                assert (path.parent / name).is_file(), f"{path.name} imports {name}"
        if path.suffix == ".html":
            for name in re.findall(r"(?:src|href)=\"([^\"]+)\"", path.read_text()):
                assert (FOLDER.parent / name).is_file(), f"{path.name} names {name}"


@pytest.mark.parametrize("path", ["/", "/dashboard/main.js", "/dashboard/vendor/uplot.css"])
def test_every_answer_has_the_headers(path: str) -> None:
    status, headers, _ = asyncio.run(_get(path))
    assert status == 200
    assert {name: headers[name] for name in HEADERS} == HEADERS
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert set(policy.values()) <= {"'none'", "'self'"}


def test_files_leave_compressed() -> None:
    _, headers, body = asyncio.run(_get("/dashboard/vendor/uplot.js"))
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body) == (FOLDER / "vendor" / "uplot.js").read_bytes()


@pytest.mark.parametrize(
    "path", ["/dashboard/nothing.js", "/dashboard/../pages.py", "/dashboard/%2e%2e/pages.py", "/dashboard//etc/passwd"]
)
def test_nothing_but_its_own_files_is_given(path: str) -> None:
    status, _, _ = asyncio.run(_get(path))
    assert status == 404


async def _get(path: str) -> tuple[int, dict[str, str], bytes]:
    """Asks the application as a server would."""
    app = Starlette()
    mount_dashboard(app)
    sent: list[dict[str, Any]] = []

    asked = False

    async def receive() -> dict[str, Any]:
        nonlocal asked
        if asked:
            await asyncio.Event().wait()  # whoever asked stays
        asked = True
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "query_string": b"", "scheme": "http",
        "http_version": "1.1", "headers": [(b"accept-encoding", b"gzip")], "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    await app(scope, receive, send)
    headers = {key.decode().lower(): value.decode() for key, value in sent[0]["headers"]}
    return sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:])
