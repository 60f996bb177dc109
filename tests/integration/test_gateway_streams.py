"""Goal: streams of events go on where they were, say that they live, cost the network one question, and end for who does not read."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from gateway_rig import Town, cancelled, in_base64, town
from service_rig import CLOCK
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

from dcnr.settings import GatewaySettings
from gateway.feeds import KEPT, Feed, Item, Overtaken
from gateway.keys import FILE, KeyFile
from gateway.server import bound

JOB = "watched"


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """A network with a job."""
    directory: Path = tmp_path_factory.mktemp("town")
    with town(directory, GatewaySettings(public_requests_per_s=1e5, requests_per_s=1e5, max_watchers=3)) as made:
        with made.client(made.key()) as client:
            assert client.post("/v1/jobs", json=in_base64(made.staged(JOB))).status_code == 201
        yield made


def events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """Server-sent events as they come; comments as such."""
    current: dict[str, Any] = {}
    for line in lines:
        if line.startswith(":"):
            yield {"comment": line}
        elif line:
            name, _, value = line.partition(": ")
            current[name] = json.loads(value) if name == "data" else value
        elif current:
            yield current
            current = {}


def watch(client: httpx.Client, path: str, **headers: str) -> Any:
    return client.stream("GET", path, headers=headers)


@pytest.mark.parametrize("linger_s", [10.0, 0.001])
def test_a_watcher_goes_on_behind_the_last_event_that_it_saw(here: Town, linger_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nobody has watched for so long that the feed is made anew, as that of an ended job always is."""
    monkeypatch.setattr("gateway.feeds.LINGER_S", linger_s)
    with here.client() as client:
        with watch(client, f"/v1/jobs/{JOB}/events") as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            told = events(stream.iter_lines())
            assert next(told) == {"retry": "2000"}
            seen = [event for event, _ in zip((item for item in told if item.get("event") == "event"), range(3), strict=False)]
        assert len({event["id"] for event in seen}) == 3
        here.until(lambda: "dcnr_gateway_watchers 0.0" in client.get("/metrics").text, "nobody watches")
        with watch(client, f"/v1/jobs/{JOB}/events", **{"Last-Event-ID": seen[0]["id"]}) as stream:
            again = next(item for item in events(stream.iter_lines()) if item.get("event") == "event")
        assert again["id"] == seen[1]["id"]
        assert again["data"] == seen[1]["data"]


def test_the_network_tells_its_figures(here: Town) -> None:
    with here.client() as client, watch(client, "/v1/events") as stream:
        found: dict[str, Any] = {}
        for item in events(stream.iter_lines()):
            found.setdefault(item.get("event", ""), item)
            if {"event", "stats"} <= set(found):
                break
    assert found["stats"]["data"]["network_id"] == here.policy.network_id
    assert found["event"]["data"]["kind"]


def test_a_websocket_tells_the_same(here: Town) -> None:
    """Events go on behind the last one; a client's words are of no interest; an end comes from either side."""
    url = here.url.replace("http://", "ws://")
    with connect(f"{url}/v1/jobs/{JOB}/events") as socket:
        socket.send("hello")
        told = (json.loads(message) for message in socket)
        seen = [item for item, _ in zip((item for item in told if item["event"] == "event"), range(2), strict=False)]
    with connect(f"{url}/v1/jobs/{JOB}/events?last_event_id={seen[0]['id']}") as socket:
        again = next(item for item in map(json.loads, socket) if item["event"] == "event")
    assert again == seen[1]
    with connect(f"{url}/v1/events") as socket:
        stats = next(item for item in map(json.loads, socket) if item["event"] == "stats")
    assert stats["data"]["network_id"] == here.policy.network_id
    with here.client() as client:
        here.until(lambda: "dcnr_gateway_watchers 0.0" in client.get("/metrics").text, "the places are free")


@pytest.mark.parametrize(
    ("path", "headers", "status", "code"),
    [
        ("/v1/events", {"Origin": "http://evil.example"}, 421, "WRONG_HOST"),
        ("/v1/events", {"Origin": "null"}, 421, "WRONG_HOST"),
        ("/v1/events", {"Authorization": "Bearer x"}, 401, "UNAUTHORIZED_KEY"),
        ("/v1/events?token=x", {}, 400, "KEY_IN_URL"),
        ("/v1/jobs/none/events", {}, 404, "JOB_NOT_FOUND"),
        ("/v1/jobs/NONE/events", {}, 400, "INVALID_PAYLOAD"),
    ],
)
def test_a_websocket_is_judged_as_a_request_is(here: Town, path: str, headers: dict[str, str], status: int, code: str) -> None:
    with pytest.raises(InvalidStatus) as refused:
        connect(here.url.replace("http://", "ws://") + path, additional_headers=headers)
    assert refused.value.response.status_code == status
    assert json.loads(refused.value.response.body)["error"]["code"] == code


def test_places_are_bounded_and_given_back(here: Town) -> None:
    with here.client() as client:
        here.until(lambda: "dcnr_gateway_watchers 0.0" in client.get("/metrics").text, "watchers of other tests are gone")
        opened = [watch(client, "/v1/events") for _ in range(3)]
        for stream in opened:
            stream.__enter__()
        refused = client.get("/v1/events")
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "TOO_MANY_WATCHERS")
        assert "dcnr_gateway_watchers 3.0" in client.get("/metrics").text
        for stream in opened:
            stream.__exit__(None, None, None)
        here.until(lambda: "dcnr_gateway_watchers 0.0" in client.get("/metrics").text, "the places are free")
        with watch(client, "/v1/events") as stream:
            assert stream.status_code == 200


def test_a_quiet_stream_says_that_it_lives_and_a_stalled_one_is_cut(
    here: Town, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.watching.HEARTBEAT_S", 0.05)
    monkeypatch.setattr("gateway.watching.WATCH_INTERVAL_S", 0.2)
    monkeypatch.setattr("gateway.watching.STALLED_S", 1.0)
    with here.client() as client, watch(client, f"/v1/jobs/{JOB}/events") as stream:
        assert {"comment": ": here"} in events(stream.iter_lines())
    listening = bound("127.0.0.1:0")
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    with (
        here.another(GatewaySettings(public_requests_per_s=1e5), tmp_path, listening) as url,
        socket.socket() as deaf,
        httpx.Client(base_url=url, timeout=30.0) as client,
    ):
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(listening.getsockname())
        deaf.sendall(f"GET /v1/jobs/{JOB}/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        here.until(lambda: 'dcnr_gateway_watchers_dropped_total{reason="stalled"} 1.0' in client.get("/metrics").text, "it is cut")
        here.until(lambda: "dcnr_gateway_watchers 0.0" in client.get("/metrics").text, "its place is free")


def test_a_stream_ends_with_its_job(here: Town) -> None:
    """Last in this file: the job is called off."""
    with here.client(here.key()) as client, watch(client, f"/v1/jobs/{JOB}/events") as stream:
        told = events(stream.iter_lines())
        next(item for item in told if item.get("event") == "job")
        with here.client(here.key()) as other:
            assert other.post(f"/v1/jobs/{JOB}/cancel", json=in_base64(cancelled(here, JOB, here.maintainer))).json()["recorded"]
        last = list(told)[-1]
    assert (last["event"], last["data"]["state"]) == ("end", "JOB_STATE_CANCELLED")


@pytest.mark.parametrize("ends", ["revoke", "rotate"])
def test_a_stream_ends_with_the_key_that_it_was_opened_with(here: Town, ends: str) -> None:
    """Whoever had a key once would else hear of everything for as long as its connection lives."""
    key = here.key()
    file, key_id = KeyFile(here.home / FILE), key[5:13]
    with here.client(key) as client, watch(client, "/v1/events") as stream:
        told = events(stream.iter_lines())
        next(item for item in told if item.get("event") == "stats")
        with connect(
            f"{here.url.replace('http://', 'ws://')}/v1/events", additional_headers={"Authorization": f"Bearer {key}"}
        ) as socket:
            socket.recv()
            file.revoke(key_id, CLOCK.wall()) if ends == "revoke" else file.rotate(key_id, secrets.token_bytes)
            until = CLOCK.monotonic() + 30.0
            for _ in told:
                assert CLOCK.monotonic() < until, "it goes on"
            for _ in socket:
                assert CLOCK.monotonic() < until, "it goes on"
        assert client.get("/v1/events").status_code == 401


def test_who_falls_out_of_the_ring_is_overtaken() -> None:
    async def nothing() -> Any:
        yield Item("job", {})

    feed = Feed(nothing)
    place = feed.place("")
    for number in range(KEPT + 1):
        feed.tell(Item("event", {"n": number}, f"o.{number}"))
        feed.tell(Item("job", {"n": number}))
    with pytest.raises(Overtaken):
        feed.since(place, 0)
    frames, _, version = feed.since(feed.place("o.1022"), 0)
    assert [frame.text for frame in frames] == ['{"n":1023}', '{"n":1024}', '{"n":1024}'], "two events, and only the newest view"
    feed.tell(Item("event", {}, "o.1024"))
    assert feed.since(feed.place("o.1024"), version)[0] == [], "an event that was told is not told again"
