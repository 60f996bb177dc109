"""Goal: a model that got worse is a command away from what it was: questions, exports and evaluations get what maintainers released, also from a version that
no chain under the head leads to, and whoever decides; until training is followed again.
"""

from __future__ import annotations

import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_rig import MODEL, Rig, running_network
from schemas_rig import check_output

from dcnr.cli import dcnr as maintainer
from dcnr.cli import errors
from dcnr.errors import DcnrError
from dcnr.sdk.asking import Ask
from dcnr.testing import LocalPNode

WITHIN_S = 180.0
WIDTH = 16
PNODES = (LocalPNode("p1", memory_mb=512), LocalPNode("p2", memory_mb=512))


@pytest.fixture
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=2, vnodes=("a", "b"), width=WIDTH) as running:
        yield running


def typed(rig: Rig, *words: str, code: int = 0) -> Any:
    """What ``dcnr model release`` says."""
    entries = [word for entry in rig.network.bootstrap for word in ("--bootstrap", entry)]
    line = ["model", "release", MODEL, *words, "--json", "--home", str(rig.network.maintainer_home)]
    line += ["--network", str(rig.network.network_file), *entries]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        ended = errors.exit_code(maintainer.app, "dcnr", line)
    assert ended == code, err.getvalue()
    if code:
        return err.getvalue()
    check_output(" ".join(["dcnr", *line]), out.getvalue())
    return json.loads(out.getvalue())


def answered_by(rig: Rig) -> str:
    """Manifest whose weights answer a question that names none."""
    asked = Ask(model=MODEL, full_depth=True)
    with contextlib.suppress(DcnrError):
        return rig.ask(lambda client: client.forward(np.zeros((1, WIDTH), np.float32), asked)).manifest
    return ""


def check(rig: Rig, manifest: str, directory: Path) -> None:
    """What is asked, taken home and judged is of that manifest."""
    rig.until(lambda: answered_by(rig) == manifest, f"{manifest[:12]} answers", WITHIN_S)
    rig.until(
        lambda: rig.ask(lambda client: client.export(MODEL, directory))[0] == manifest, f"{manifest[:12]} is exported", WITHIN_S
    )
    assert rig.ask(lambda client: client.evaluate(MODEL))[0] == manifest


def trained(rig: Rig, passes: int) -> str:
    """Manifest of a job that begins anew, of a graph of its own."""
    return rig.ended(rig.submit(f"job {passes}", passes=passes), WITHIN_S).outcome.manifest_digest


def test_the_way_back_holds_while_orchestrators_die_and_training_goes_on(rig: Rig, tmp_path: Path) -> None:
    first, second = trained(rig, 1), trained(rig, 2)
    check(rig, second, tmp_path / "second")
    assert typed(rig) == {"model": MODEL, "number": 0, "manifest": "", "reason": "", "created_unix_ms": 0, "signers": []}
    assert "no_manifest" in typed(rig, "--manifest", "f" * 64, code=1)
    assert "bad_arguments" in typed(rig, "--manifest", first, "--follow-training", code=2)

    said = typed(rig, "--manifest", first, "--reason", "the second is worse")
    assert (said["number"], said["manifest"], said["reason"]) == (1, first, "the second is worse")
    assert said["signers"] == [rig.key.node_id]
    assert typed(rig, "--manifest", first) == typed(rig) == said, "said again it changes nothing"
    check(rig, first, tmp_path / "first")

    for process in rig.network.orchestrators:
        rig.network.kill(process)
    for process in rig.network.orchestrators:
        rig.network.restart(process)
    rig.until(lambda: bool(answered_by(rig)), "they are back, and the model answers", WITHIN_S)
    third = trained(rig, 3)
    check(rig, first, tmp_path / "again")
    assert typed(rig) == said

    assert typed(rig, "--follow-training")["number"] == 2
    check(rig, third, tmp_path / "third")
