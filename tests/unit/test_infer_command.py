"""``dcnr infer`` reads an array, waits for seats that are being loaded, and shows what an answer is worth; --json has all of it."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from schemas_rig import check_value
from typer.testing import CliRunner

from dcnr.cli.dcnr import app
from dcnr.cli.session import Session
from dcnr.errors import InvalidInput, Unavailable
from dcnr.sdk import asking
from dcnr.sdk.asking import Answer, Ask, patiently
from dcnr.v1 import orchestrator_pb2


def answer(**changes: Any) -> Answer:
    rows = np.array([[0.1, 0.9, 0.0], [2.0, 1.0, 0.0]], np.float32)
    stage = orchestrator_pb2.StageAnswer(vnode="deep", pnode_id="ab" * 20, step=7, computed_s=0.001)
    known: dict[str, Any] = {
        "output": rows, "model": "toy", "manifest": "cd" * 32, "exit": "deep", "deepest": "deep", "degraded": False, "degraded_reason": "",
        "stages": (stage,), "total_s": 0.012, "num_ways": 1, "num_agreeing": 1,
    }  # fmt: skip
    return Answer(**(known | changes))


class Client:
    """Answers when the seats are there."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes, self.asked = list(outcomes), []  # type: ignore[var-annotated]

    async def forward(self, array: Any, asked: Ask) -> Answer:
        async def ask(one: Ask) -> Answer:
            self.asked.append((array, one))
            found = self.outcomes.pop(0)
            if isinstance(found, Exception):
                raise found
            result: Answer = found
            return result

        return await patiently(ask, asked)


def call(monkeypatch: pytest.MonkeyPatch, client: Client, *arguments: str, data: bytes = b"") -> Any:
    import asyncio

    monkeypatch.setattr(asking, "LOOK_S", 0.01)
    monkeypatch.setattr(Session, "run", lambda _, work: asyncio.run(work(client)))
    return CliRunner().invoke(app, ["infer", *arguments], input=data, catch_exceptions=True)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def npz(**arrays: Any) -> bytes:
    out = io.BytesIO()
    np.savez(out, **arrays)
    return out.getvalue()


def test_inputs_of_several_sources_come_as_npz(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    client, data = Client(answer(), answer()), npz(left=np.ones((2, 4), np.float32), right=np.zeros((2, 3), np.float32))
    path = tmp_path / "x.npz"
    path.write_bytes(data)
    for arguments in (["--input", str(path)], ["--input", "-"]):
        assert call(monkeypatch, client, "toy", *arguments, data=data).exit_code == 0
        sent = asking.request_of(client.asked[-1][0], client.asked[-1][1])
        assert [(one.vnode, list(one.shape)) for one in sent.inputs] == [("left", [2, 4]), ("right", [2, 3])]


WHOLE = npz(left=np.arange(4000, dtype=np.float32))
PACKED = WHOLE.replace(b"\0\0\0\0\0\0!\0", b"\0\0c\0\0\0!\0")
"""By a method that nobody knows."""


@pytest.mark.parametrize(
    "data",
    [WHOLE[:-30], WHOLE[:30], WHOLE[:300] + bytes(400) + WHOLE[700:], b"PK", npz(left=np.array([{}, None], object)), PACKED],
    ids=["without its end", "its beginning", "changed", "two bytes", "objects", "packed otherwise"],
)
def test_a_broken_npz_and_one_with_objects_are_refused_before_anybody_is_asked(
    data: bytes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    client, path = Client(answer()), tmp_path / "x.npz"
    path.write_bytes(data)
    shown = call(monkeypatch, client, "toy", "--input", str(path))
    assert isinstance(shown.exception, InvalidInput), shown.exception
    assert (shown.exception.code, str(path) in shown.exception.message) == ("bad_input", True)
    assert not client.asked


def test_the_answer_is_shown_with_version_depth_and_nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(npy(np.ones((2, 4), np.float32)))
    loading = Unavailable("not yet", code="no_server")
    client = Client(loading, loading, answer())
    shown = call(monkeypatch, client, "toy", "--input", str(path))
    assert shown.exit_code == 0, shown.output
    assert len(client.asked) == 3
    assert shown.stderr.count("not yet: asked again for at most 30 s") == 1, "whoever waits is told for what, once"
    assert client.asked[-1][1].model == "toy"
    assert "0: 1" in shown.output
    assert "1: 0" in shown.output
    assert "cdcdcdcd" in shown.output
    assert "exit deep of deep" in shown.output


def test_json_has_every_value_and_a_degraded_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    degraded = answer(exit="wide", degraded=True, degraded_reason="nobody serves deep now")
    shown = call(monkeypatch, Client(degraded), "toy", "--input", "-", "--json", data=npy(np.ones((2, 4), np.float32)))
    found = json.loads(shown.stdout)
    check_value("dcnr infer", found)
    np.testing.assert_allclose(found["output"], degraded.output)
    assert (found["exit"], found["degraded"], found["stages"][0]["step"]) == ("wide", True, 7)
    text = call(monkeypatch, Client(degraded), "toy", "--input", "-", data=npy(np.ones((2, 4), np.float32)))
    assert "nobody serves deep now" in text.output


def test_what_is_no_array_and_what_nobody_waits_for_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    for data in (b"no array", npy(np.array([{}], dtype=object)), b""):
        shown = call(monkeypatch, Client(), "toy", "--input", "-", data=data)
        assert isinstance(shown.exception, InvalidInput)
    refused = Unavailable("", code="depth_unavailable")
    shown = call(monkeypatch, Client(refused), "toy", "--input", "-", "--full-depth", data=npy(np.ones((2, 4), np.float32)))
    assert shown.exception is refused


def test_only_who_is_patient_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    import asyncio

    monkeypatch.setattr(asking, "LOOK_S", 0.01)
    client = Client(Unavailable("not yet", code="no_server"), answer())
    with pytest.raises(Unavailable, match="not yet"):
        asyncio.run(client.forward(np.ones(4), Ask("toy")))
    loading = [Unavailable("not yet", code="no_server")] * 1000
    with pytest.raises(Unavailable, match="not yet"):
        asyncio.run(Client(*loading).forward(np.ones(4), Ask("toy", deadline_s=0.05, patient=True)))
