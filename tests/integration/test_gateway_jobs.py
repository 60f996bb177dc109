"""Goal: work is asked for over REST as safely as over gRPC: signed by maintainers, by a key of the right scope, once however often it is sent."""

from __future__ import annotations

import base64
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gateway_rig import MODEL, Town, cancelled, in_base64, paused, town

from dcnr.ids import job_id_of
from dcnr.settings import GatewaySettings
from dcnr.v1 import identity_pb2, model_pb2
from trust.envelope import seal
from trust.identity import NodeKey

BY_KEY = "a job by its key"
"""Of the job that is submitted first, and is therefore at work while the others wait."""
NUM_TWINS = 64


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, GatewaySettings(public_requests_per_s=1e5, requests_per_s=1e5)) as made:
        yield made


def in_json(envelope: identity_pb2.Envelope) -> dict[str, Any]:
    def text(data: bytes) -> str:
        return base64.b64encode(data).decode()

    signatures = [{"public_key": text(one.public_key), "signature": text(one.signature)} for one in envelope.signatures]
    return {
        "envelope": {
            "domain": identity_pb2.Domain.Name(envelope.domain),
            "payload": text(envelope.payload),
            "signatures": signatures,
        }
    }


def code_of(answer: Any) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


def test_many_twins_of_a_request_are_one_job(here: Town) -> None:
    """Sent at once, over connections of their own, in both forms, under one Idempotency-Key."""
    job_id = job_id_of(MODEL, BY_KEY)
    envelope = here.staged(job_id)
    bodies = [in_base64(envelope), in_json(envelope)]
    start = threading.Barrier(8)
    key = here.key()

    def send(_: int) -> list[tuple[int, str]]:
        with here.client(key, headers={"Idempotency-Key": BY_KEY}) as client:
            start.wait(30)
            answers = [client.post("/v1/jobs", json=bodies[turn % 2]) for turn in range(NUM_TWINS // 8)]
        return [(answer.status_code, answer.json()["job_id"]) for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        answered = Counter(row for rows in pool.map(send, range(8)) for row in rows)
    assert sum(answered.values()) == NUM_TWINS
    assert {job for _, job in answered} == {job_id}
    assert {status for status, _ in answered} <= {200, 201}
    with here.client() as reader:
        here.until(lambda: job_id in [job["job_id"] for job in reader.get("/v1/jobs").json()["jobs"]], "the job is listed")
        assert [job["job_id"] for job in reader.get("/v1/jobs").json()["jobs"]].count(job_id) == 1


def test_a_job_ends_and_has_a_result(here: Town) -> None:
    """Not ready, then called off by its maintainer over REST, then its outcome with the manifest."""
    envelope = here.staged("to-end")
    with here.client(here.key()) as client:
        assert client.post("/v1/jobs", json=in_base64(envelope)).status_code == 201
        again = client.post("/v1/jobs", json=in_base64(envelope))
        assert (again.status_code, again.json()["existed"]) == (200, True)
        assert again.headers["Location"] == "/v1/jobs/to-end"
        early = client.get("/v1/jobs/to-end/result")
        assert code_of(early) == (425, "JOB_NOT_READY")
        assert int(early.headers["Retry-After"]) >= 1
        stranger = client.post("/v1/jobs/to-end/cancel", json=in_base64(cancelled(here, "to-end", NodeKey.generate())))
        assert code_of(stranger) == (403, "REFUSED")
        other = client.post("/v1/jobs/to-end/cancel", json=in_base64(cancelled(here, "another", here.maintainer)))
        assert (code_of(other), other.json()["error"]["details"]["reason"]) == ((400, "INVALID_PAYLOAD"), "wrong_job")
        called_off = client.post("/v1/jobs/to-end/cancel", json=in_json(cancelled(here, "to-end", here.maintainer)))
        assert called_off.json()["recorded"]
        here.until(lambda: client.get("/v1/jobs/to-end/result").status_code == 200, "the job has ended")
        result = client.get("/v1/jobs/to-end/result").json()
        assert (result["state"], result["outcome"]["job_id"]) == ("JOB_STATE_CANCELLED", "to-end")


def test_a_job_is_called_to_a_halt_and_goes_on(here: Town) -> None:
    """Signed by its maintainers, over the route that says the same; the state follows, and saying it again changes nothing."""
    job_id = job_id_of(MODEL, BY_KEY)
    with here.client(here.key()) as client:

        def stands(state: str) -> bool:
            return bool(client.get(f"/v1/jobs/{job_id}").json()["state"] == f"JOB_STATE_{state}")

        here.until(lambda: stands("RUNNING"), "the job runs")
        halt = in_base64(paused(here, job_id, 1, True, here.maintainer))
        assert code_of(client.post(f"/v1/jobs/{job_id}/resume", json=halt)) == (400, "INVALID_PAYLOAD")
        assert code_of(client.post(f"/v1/jobs/{job_id}/pause", json=in_base64(paused(here, job_id, 1, True, NodeKey.generate())))) == (
            403, "REFUSED",
        )  # fmt: skip
        assert client.post(f"/v1/jobs/{job_id}/pause", json=halt).json()["paused"]
        here.until(lambda: stands("PAUSED"), "the job is paused")
        assert client.post(f"/v1/jobs/{job_id}/pause", json=halt).json()["recorded"]
        here.until(lambda: client.get(f"/v1/jobs/{job_id}").json()["pause"]["reason"] == "a test", "the reason is shown")
        late = client.post(f"/v1/jobs/{job_id}/resume", json=in_base64(paused(here, job_id, 1, False, here.maintainer)))
        assert (code_of(late), late.json()["error"]["details"]["reason"]) == ((409, "CONFLICT_STATE"), "pause_not_next")
        assert client.post(f"/v1/jobs/{job_id}/resume", json=in_base64(paused(here, job_id, 2, False, here.maintainer))).json()[
            "recorded"
        ]
        here.until(lambda: stands("RUNNING"), "the job goes on")


def test_a_result_has_its_manifest_inline_or_by_reference(here: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job that is at work is called off: its last good manifest is given whole, or named where it is large."""
    job_id = job_id_of(MODEL, BY_KEY)
    with here.client(here.key()) as client:
        here.until(lambda: bool(client.get(f"/v1/jobs/{job_id}").json()["manifest_digest"]), "the job is at work")
        client.post(f"/v1/jobs/{job_id}/cancel", json=in_base64(cancelled(here, job_id, here.maintainer)))
        here.until(lambda: client.get(f"/v1/jobs/{job_id}/result").status_code == 200, "the job has ended")
        whole = client.get(f"/v1/jobs/{job_id}/result").json()
        monkeypatch.setattr("gateway.jobs.MAX_INLINE_BYTES", 10)
        referred = client.get(f"/v1/jobs/{job_id}/result").json()
    assert (whole["state"], whole["manifest"]["model"]) == ("JOB_STATE_CANCELLED", MODEL)
    assert "manifest" not in referred
    assert referred["manifest_ref"]["object"]["digest"] == whole["manifest_digest"]
    assert referred["manifest_ref"]["size_bytes"] > 10


def test_a_key_for_another_job_is_told(here: Town) -> None:
    with here.client(here.key()) as client:
        answer = client.post("/v1/jobs", json=in_base64(here.staged("mine")), headers={"Idempotency-Key": "x"})
    assert (code_of(answer), answer.json()["error"]["details"]["reason"]) == ((400, "INVALID_PAYLOAD"), "idempotency_key_mismatch")


def test_an_idempotency_key_is_not_used_for_two_jobs(here: Town) -> None:
    """Another job under a name that is taken is told so, and the first one stays what it was."""
    envelope = here.staged(job_id_of(MODEL, "reused"))
    other = model_pb2.JobRequest.FromString(envelope.payload)
    other.num_batches -= 4
    reused = in_base64(seal(identity_pb2.DOMAIN_JOB_REQUEST, other, here.maintainer))
    with here.client(here.key(), headers={"Idempotency-Key": "reused"}) as client:
        assert client.post("/v1/jobs", json=in_base64(envelope)).status_code == 201
        answer = client.post("/v1/jobs", json=reused)
        assert (code_of(answer), answer.json()["error"]["details"]["reason"]) == ((409, "CONFLICT_STATE"), "job_id_taken")
        assert client.post("/v1/jobs", json=in_base64(envelope)).status_code == 200


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"7", b'"x"', b"{}", b'{"envelope": 7}', b'{"envelope": "!"}', b'{"envelope": ""}', b'{"envelope": "AAAA"}',
        b'{"envelope": "AAAA", "more": 1}', b'{"envelope": {}}', b'{"envelope": {"domain": "X", "payload": "", "signatures": []}}',
        b'{"envelope": {"domain": "DOMAIN_JOB_REQUEST", "payload": "AA==", "signatures": []}}',
        b'{"envelope": {"domain": "DOMAIN_JOB_CANCEL", "payload": "AA==", "signatures": [{"public_key": "AA==", "signature": "AA=="}]}}',
        b"\xff\xfe{}", b"[" * 100_000, b'{"envelope": "' + b"A" * 2_000_000 + b'"}', b'{"envelope": {"domain": 1e999}}',
        b'{"envelope": "\\ud800"}',
    ],
    ids=lambda body: repr(body[:48]),
)  # fmt: skip
def test_what_is_no_signed_request_is_refused(here: Town, body: bytes) -> None:
    with here.client(here.key()) as client:
        for route in ("/v1/jobs", "/v1/jobs/to-end/cancel"):
            answer = client.post(route, content=body, headers={"Content-Type": "application/json"})
            assert code_of(answer) == (400, "INVALID_PAYLOAD")


def test_signatures_of_strangers_and_of_other_statements_are_refused(here: Town) -> None:
    envelope = here.staged("strange")
    stranger = seal(identity_pb2.DOMAIN_JOB_REQUEST, envelope.payload, NodeKey.generate())
    broken = identity_pb2.Envelope()
    broken.CopyFrom(envelope)
    broken.signatures[0].signature = broken.signatures[0].signature[:-1] + bytes([broken.signatures[0].signature[-1] ^ 1])
    with here.client(here.key()) as client:
        assert code_of(client.post("/v1/jobs", json=in_base64(stranger))) == (403, "REFUSED")
        assert code_of(client.post("/v1/jobs", json=in_base64(broken))) == (400, "INVALID_PAYLOAD")
        cancel = cancelled(here, "strange", here.maintainer)
        assert code_of(client.post("/v1/jobs", json=in_base64(cancel))) == (400, "INVALID_PAYLOAD")
        assert client.get("/v1/jobs/strange").status_code == 404
        taken = here.staged(job_id_of(MODEL, BY_KEY))
        other = model_pb2.JobRequest.FromString(taken.payload)
        other.num_batches += 1
        answer = client.post("/v1/jobs", json=in_base64(seal(identity_pb2.DOMAIN_JOB_REQUEST, other, here.maintainer)))
        assert code_of(answer) == (409, "CONFLICT_STATE")
