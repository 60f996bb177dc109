"""Goal: a disk that refuses what an orchestrator's own check lays out is a typed error: it is told, and the check is made again when the disk is back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2, model_pb2
from orchestrator.own_eyes import OwnEyes
from orchestrator.view import JobFacts
from vnode.checks.verifying import Evidence

MODEL, VNODE, BUNDLE, MANIFEST, SHARD = "m", "a", b"bundle", b"manifest", b"shard"


class Reader:
    """A verifier that reads everything it is given, and finds nothing."""

    def __init__(self) -> None:
        self.num_audits, self.breaks = 0, False

    async def audit(self, task: model_pb2.AuditTask, evidence: Evidence) -> local_pb2.WorkerAudited:
        assert (evidence.bundle.read_bytes(), evidence.dataset_manifest.read_bytes()) == (BUNDLE, MANIFEST)
        await evidence.bring("dots", digest_of(SHARD))
        assert (evidence.shard_dir / digest_of(SHARD)).read_bytes() == SHARD
        self.num_audits += 1
        if self.breaks:
            evidence.bundle.unlink()
            evidence.bundle.mkdir()
        return local_pb2.WorkerAudited()

    async def measure(self, record: bytes, evidence: Evidence) -> float:
        return 0.0

    async def close(self) -> None:
        return None


class Rig:
    """Eyes on a directory, with a store that has what they read."""

    def __init__(self, directory: Path) -> None:
        store = MemoryStore(SystemClock(), random.Random(1))
        store.rewind(keys.evidence(MODEL, VNODE, digest_of(BUNDLE)), BUNDLE)
        store.rewind(keys.dataset_manifest("dots", digest_of(MANIFEST)), MANIFEST)
        store.rewind(keys.shard("dots", digest_of(SHARD)), SHARD)
        self.verifier = Reader()
        self._eyes = OwnEyes(store, "n", directory, self.verifier)

    def look(self) -> None:
        request = model_pb2.JobRequest(dataset_name="dots", dataset_digest=digest_of(MANIFEST), num_batches=1)
        job = JobFacts(request, "", model_pb2.ModelGraph(), b"", (), ())
        task = model_pb2.AuditTask(model=MODEL, vnode=VNODE, bundle_digest=digest_of(BUNDLE))
        asyncio.run(self._eyes.audit(task, job))

    def refused(self) -> None:
        with pytest.raises(Unavailable) as failed:
            self.look()
        assert failed.value.code == "disk_trouble"


def test_directories_that_cannot_be_made_are_told_and_tried_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "audits")
    (tmp_path / "audits").write_bytes(b"in the way")
    rig.refused()
    (tmp_path / "audits").unlink()
    rig.look()
    assert rig.verifier.num_audits == 1


def test_a_bundle_that_cannot_be_removed_costs_no_finding_and_is_never_taken_for_another_one(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    rig.verifier.breaks = True
    rig.look()
    [left] = (tmp_path / "bundles").iterdir()
    rig.refused()
    left.rmdir()
    left.write_bytes(b"half of it, as a crash would leave it")
    rig.verifier.breaks = False
    rig.look()
    assert rig.verifier.num_audits == 2
    assert list((tmp_path / "bundles").iterdir()) == []


def test_a_disk_that_says_nothing_about_a_shard_ends_no_check_untyped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rig, met = Rig(tmp_path), list[Path]()

    def refuse(path: Path, **options: object) -> bool:
        met.append(path)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Path, "exists", refuse)
    rig.refused()
    assert met
