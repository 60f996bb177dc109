"""Goal: whoever may not, does not: keys, scopes, rates, signatures, hosts; and no key is found where it does not belong."""

from __future__ import annotations

import secrets
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Town, in_base64, town
from service_rig import CLOCK

from dcnr.settings import GatewaySettings
from dcnr.v1 import orchestrator_pb2
from gateway.access import SIGNATURE_WINDOW_S, signature_of
from gateway.keys import FILE, KeyFile
from gateway.views import Views

FREE = GatewaySettings(public_requests_per_s=1e5, requests_per_s=1e5)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, FREE) as made:
        yield made


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_work_needs_a_key_in_force(here: Town) -> None:
    file = KeyFile(here.home / FILE)
    revoked, expired = here.key(), here.key(days=-1.0)
    file.revoke(revoked[5:13], CLOCK.wall())
    with here.client() as client:
        here.until(
            lambda: client.get("/v1/stats", headers={"Authorization": f"Bearer {revoked}"}).status_code == 401, "it is revoked"
        )
        good = here.key()
        changed = good[:-1] + ("A" if good[-1] != "A" else "B")
        for header in (
            "", "Bearer", "Bearer x", f"Bearer {revoked}", f"Bearer {expired}", f"Bearer {changed}", f"Basic {good}", good, f"Bearer {good} x",
            "Bearer dcnr_00000000_" + "A" * 43, "Bearer \xe9",
        ):  # fmt: skip
            headers = {"Authorization": header.encode("latin-1")} if header else {}
            answer = client.post("/v1/jobs", json={}, headers=headers)  # type: ignore[arg-type]
            assert code_of(answer) == (401, "UNAUTHORIZED_KEY"), header
            assert answer.headers["WWW-Authenticate"].startswith("Bearer")
            if header:
                assert client.get("/v1/stats", headers=headers).status_code == 401, "a wrong key is told, also where none is needed"  # type: ignore[arg-type]
        assert client.post("/v1/jobs", json={}, headers={"Authorization": f"bearer {good}"}).status_code == 400


def test_a_rotated_key_is_another(here: Town) -> None:
    old = here.key()
    new = KeyFile(here.home / FILE).rotate(old[5:13], secrets.token_bytes)
    with here.client(new) as client:
        here.until(lambda: client.get("/v1/stats").status_code == 200, "the new key is known")
    with here.client(old) as client:
        assert code_of(client.get("/v1/stats")) == (401, "UNAUTHORIZED_KEY")


def test_scopes(here: Town) -> None:
    for scope, submits, administers in (("client", 400, 403), ("admin", 400, 404), ("node-owner", 403, 403)):
        with here.client(here.key(scope)) as client:
            assert client.get("/v1/stats").status_code == 200
            assert client.post("/v1/jobs", json={}).status_code == submits, scope
            assert client.get("/v1/admin/none").status_code == administers, scope
    with here.client() as client:
        assert code_of(client.get("/v1/admin/none")) == (401, "UNAUTHORIZED_KEY")


def test_an_admin_makes_changes_and_watches_keys(here: Town) -> None:
    """What is changed is in force at once; each use is in the log; a key of scope admin is neither made nor changed from afar."""
    admin = here.key("admin")
    with here.client(admin) as client:
        made = client.post("/v1/admin/keys", json={"name": "alice", "days": 1})
        assert (made.status_code, set(made.json())) == (201, {"id", "key"})
        key_id, text = made.json()["id"], made.json()["key"]
        assert asks(here, text) == 200
        [row] = [row for row in client.get("/v1/admin/keys").json()["keys"] if row["id"] == key_id]
        assert (row["name"], row["scope"], row["in_force"], row["owner"]) == ("alice", "client", True, "")
        assert not {"salt", "hash", "key"} & set(row)
        turned = client.post(f"/v1/admin/keys/{key_id}/rotate").json()["key"]
        assert (asks(here, text), asks(here, turned)) == (401, 200)
        assert client.post(f"/v1/admin/keys/{key_id}/revoke").json() == {"id": key_id, "revoked": True}
        assert asks(here, turned) == 401
        assert code_of(client.post(f"/v1/admin/keys/{key_id}/revoke")) == (404, "NOT_FOUND"), "it is revoked already"
        assert code_of(client.post("/v1/admin/keys/00000000/rotate")) == (404, "NOT_FOUND")
        for change in ("rotate", "revoke"):
            assert code_of(client.post(f"/v1/admin/keys/{admin[5:13]}/{change}")) == (403, "REFUSED")
        for wrong in (
            {"name": "eve", "scope": "admin"},
            {"name": ""},
            {"name": "a\nb"},
            {"name": "x", "owner": "0" * 40},
            {"name": "x", "days": -1},
        ):
            assert code_of(client.post("/v1/admin/keys", json=wrong)) == (400, "INVALID_PAYLOAD"), wrong

        def used() -> list[tuple[str, str, int]]:
            uses = client.get("/v1/admin/uses", params={"key_id": key_id}).json()["uses"]
            assert all(use["key"] == key_id for use in uses)
            return [(use["method"], use["route"], use["status"]) for use in uses]

        here.until(lambda: len(used()) == 3, "its two uses are written, and the one after its end")
        assert used() == [("GET", "/v1/stats", 401), *[("GET", "/v1/stats", 200)] * 2]
        here.until(lambda: "/v1/admin/keys/{key_id}/revoke" in client.get("/v1/admin/uses").text, "and those of the admin")
        assert client.get("/v1/admin/quarantine").json() == {"nodes": [], "num_nodes": 0}


def test_what_a_key_may_not_do_or_no_longer_is_in_the_log(here: Town) -> None:
    """A stolen key that tries what it may not leaves a trace."""
    file, key, signed = KeyFile(here.home / FILE), here.key(), here.key(signed=True)
    with here.client(key) as client:
        assert client.get("/v1/admin/keys").status_code == 403
        assert client.post("/v1/none", json={}).status_code == 404
        file.revoke(key[5:13], CLOCK.wall())
        here.until(lambda: client.get("/v1/jobs").status_code == 401, "it is revoked")
    with here.client(signed) as client:
        assert client.post("/v1/jobs", json={}).status_code == 401

    def uses(text: str) -> set[tuple[str, str, int]]:
        return {(use.method, use.route, use.status) for use in file.uses(1000, text[5:13])}

    wanted = {("GET", "/v1/admin/keys", 403), ("POST", "/v1/none", 404), ("GET", "/v1/jobs", 401)}
    here.until(
        lambda: uses(key) >= wanted and ("POST", "/v1/jobs", 401) in uses(signed), f"all are in the log, {wanted} among them"
    )


def asks(here: Town, key: str) -> int:
    with here.client(key) as client:
        return client.get("/v1/stats").status_code


def test_an_owner_sees_the_own_machines_and_nobody_elses(here: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = "ab" * 20, "cd" * 20
    file = KeyFile(here.home / FILE)
    _, key = file.add("o", "node-owner", expires=0.0, signed=False, now_wall=CLOCK.wall(), rng=secrets.token_bytes, owner=mine)
    here.until(lambda: asks(here, key) == 200, "the key is known")
    found = Views.nodes

    async def owned(views: Views) -> list[orchestrator_pb2.NodeView]:
        nodes = []
        for number, node in enumerate(await found(views)):
            nodes.append(orchestrator_pb2.NodeView.FromString(node.SerializeToString()))
            nodes[-1].owner = (mine, theirs, "")[number % 3]
        return nodes

    monkeypatch.setattr(Views, "nodes", owned)
    with here.client(key) as client:
        told = client.get("/v1/owner/nodes").json()
        assert (told["owner"], told["num_nodes"], told["next_cursor"]) == (mine, 1, "")
        assert [row["node"]["owner"] for row in told["nodes"]] == [mine]
        assert told["nodes"][0]["account"] is None, "there is no ledger yet"
        assert code_of(client.get("/v1/owner/nodes", params={"owner": theirs})) == (403, "REFUSED")
    with here.client(here.key("admin")) as client:
        assert [row["node"]["owner"] for row in client.get("/v1/owner/nodes", params={"owner": theirs}).json()["nodes"]] == [theirs]
        assert code_of(client.get("/v1/owner/nodes")) == (400, "INVALID_PAYLOAD")
    with here.client(here.key("node-owner")) as client:
        assert code_of(client.get("/v1/owner/nodes")) == (403, "REFUSED"), "a key that names no owner"
    with here.client(here.key()) as client:
        assert code_of(client.get("/v1/owner/nodes")) == (403, "SCOPE_MISSING")
    with here.client() as client:
        assert code_of(client.get("/v1/owner/nodes")) == (401, "UNAUTHORIZED_KEY")


def test_a_file_of_keys_from_before_owners_is_read(tmp_path: Path) -> None:
    file = KeyFile(tmp_path / FILE)
    key, _ = file.add("a", "client", expires=0.0, signed=False, now_wall=1.0, rng=secrets.token_bytes)
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("ALTER TABLE keys DROP COLUMN owner")
    database.close()
    assert file.keys() == {key.id: key}


@pytest.mark.parametrize(
    "target", ["/v1/stats?key={key}", "/v1/stats?API_KEY=x", "/v1/stats?a=1&access_token=", "/v1/nodes/{key}", "/healthz?x={key}", "/v1/stats?x=%64cnr_{tail}"]
)  # fmt: skip
def test_a_key_in_a_url_is_refused(here: Town, target: str) -> None:
    key = here.key()
    with here.client() as client:
        answer = client.get(target.format(key=key, tail=key.removeprefix("dcnr_")))
    assert code_of(answer) == (400, "KEY_IN_URL")
    assert key not in answer.text


def test_reading_without_a_key_is_for_those_who_are_let(here: Town, tmp_path: Path) -> None:
    settings = GatewaySettings(public_reads="no", public_requests_per_s=1e5)
    with here.another(settings, here.home) as url, httpx.Client(base_url=url, timeout=30.0) as client:
        for path in ("/v1/stats", "/v1/nodes", "/metrics", "/v1/events"):
            assert code_of(client.get(path)) == (401, "UNAUTHORIZED_KEY")
        for path in ("/healthz", "/readyz", "/version", "/openapi.json"):
            assert client.get(path).status_code == 200
        headers = {"Authorization": f"Bearer {here.key('node-owner')}"}
        here.until(lambda: client.get("/v1/stats", headers=headers).status_code == 200, "its key is known")
        assert client.get("/metrics", headers=headers).status_code == 200


def test_each_key_and_each_subnet_has_its_own_rate(here: Town) -> None:
    settings = GatewaySettings(public_requests_per_s=0.1, requests_per_s=0.1)
    one, two = here.key(), here.key()
    with here.another(settings, here.home) as url, httpx.Client(base_url=url, timeout=30.0) as client:
        first = client.get("/v1/stats")
        assert (first.status_code, first.headers["RateLimit-Limit"], first.headers["RateLimit-Remaining"]) == (200, "1", "0")
        second = client.get("/v1/stats")
        assert code_of(second) == (429, "RATE_LIMITED")
        assert int(second.headers["Retry-After"]) >= 1
        assert int(second.headers["RateLimit-Reset"]) >= 1
        for key in (one, two):
            headers = {"Authorization": f"Bearer {key}"}
            assert client.get("/v1/stats", headers=headers).status_code == 200
            assert client.get("/v1/stats", headers=headers).status_code == 429


def test_a_signature_binds_key_time_path_and_body(here: Town) -> None:
    key = here.key(signed=True)
    now = int(CLOCK.wall())
    body = b'{"envelope": "AAAA"}'

    def send(signature: str, content: bytes = body, path: str = "/v1/jobs") -> tuple[int, str]:
        with here.client(key, headers={"Content-Type": "application/json", "X-DCNR-Signature": signature}) as client:
            return code_of(client.post(path, content=content))

    with here.client(key) as client:
        assert code_of(client.get("/v1/stats")) == (401, "BAD_SIGNATURE"), "this key wants one"
    right = signature_of(key, now, "POST", "/v1/jobs", body)
    assert send(right) == (400, "INVALID_PAYLOAD"), "the signature is right, the envelope is none"
    assert send(right) == (401, "BAD_SIGNATURE"), "used before"
    fresh = signature_of(key, now - 1, "POST", "/v1/jobs", body)
    assert send(fresh, body + b" ") == (401, "BAD_SIGNATURE")
    assert send(fresh, path="/v1/jobs?x=1") == (401, "BAD_SIGNATURE")
    assert send(fresh.replace(f"t={now - 1}", f"t={now}")) == (401, "BAD_SIGNATURE")
    for wrong in ("", "t=,v1=", "v1=" + "0" * 64, f"t={now},v1=" + "0" * 64, "x" * 2000):
        assert send(wrong) == (401, "BAD_SIGNATURE")
    for moment in (now - int(SIGNATURE_WINDOW_S) - 60, now + int(SIGNATURE_WINDOW_S) + 60):
        assert send(signature_of(key, moment, "POST", "/v1/jobs", body)) == (401, "BAD_SIGNATURE")
    assert send(fresh) == (400, "INVALID_PAYLOAD"), "refused ones did not use it up"


def test_only_names_of_this_machine_are_answered_on_loopback(here: Town, tmp_path: Path) -> None:
    port = here.url.rpartition(":")[2]
    with here.client() as client:
        for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "", "localhost@evil", "127.0.0.2"):
            assert code_of(client.get("/v1/stats", headers={"Host": host})) == (421, "WRONG_HOST"), host
        for host in ("localhost", f"localhost:{port}", "127.0.0.1", "LOCALHOST", f"[::1]:{port}"):
            assert client.get("/v1/stats", headers={"Host": host}).status_code == 200, host
    with here.another(GatewaySettings(hosts=("dcnr.example",)), tmp_path) as url, httpx.Client(base_url=url) as client:
        assert client.get("/healthz", headers={"Host": "dcnr.example"}).status_code == 200


def test_no_key_is_kept_logged_or_told(here: Town, capfd: pytest.CaptureFixture[str]) -> None:
    """The file holds hashes; its log of uses names the key by its id; answers and logs never repeat it."""
    key = here.key()
    envelope = here.staged("logged")
    with here.client(key) as client:
        answers: list[Any] = [
            client.post("/v1/jobs", json=in_base64(envelope)),
            client.get("/v1/jobs/logged"),
            client.get(f"/v1/nodes/{key}"),
        ]
        answers += [client.get("/v1/jobs/none"), client.post("/v1/jobs", content=b"{")]
    assert not any(key in answer.text or key in str(answer.headers) for answer in answers)
    file = KeyFile(here.home / FILE)
    here.until(lambda: len([use for use in file.uses(1000) if use.key == key[5:13]]) >= len(answers), "the uses are written")
    uses = [use for use in file.uses(1000) if use.key == key[5:13]]
    assert {(use.method, use.route, use.status) for use in uses} >= {("POST", "/v1/jobs", 201), ("GET", "/v1/jobs/{job_id}", 200)}
    assert oct((here.home / FILE).stat().st_mode & 0o777) == "0o600"
    secret = key[14:].encode()
    assert not any(secret in path.read_bytes() for path in here.home.glob(f"{FILE}*"))
    with sqlite3.connect(here.home / FILE) as database:
        salts = [row[0] for row in database.execute("SELECT salt FROM keys")]
    database.close()
    assert len(set(salts)) == len(salts)
    told = capfd.readouterr()
    assert key not in told.out + told.err
