"""Goal: a disk that refuses what an orchestrator's own check lays out is a typed error: it is told, and the check is made again when the disk is back."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from dataservice import keys
from dataservice.memory import MemoryStore
from dcnr import limits
from dcnr.errors import Corrupt, Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.ports import StoredObject
from dcnr.system import SystemClock
from dcnr.v1 import local_pb2, model_pb2
from orchestrator.evidence_rights import bundle_bound
from orchestrator.own_eyes import OwnEyes
from orchestrator.view import JobFacts, ModelView
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


class PartsOnly(MemoryStore):
    """A store whose objects are too large to be read as a whole."""

    async def get(self, key: str, *, max_bytes: int) -> StoredObject:
        raise Corrupt(f"{key} is too large", code="object_too_large")


class Rig:
    """Eyes on a directory, with a store that has what they read."""

    def __init__(self, directory: Path) -> None:
        self.store = store = PartsOnly(SystemClock(), random.Random(1))
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


@pytest.mark.parametrize(
    "changes", [{"network_id": "other"}, {"model": "other"}, {"vnode": "b"}], ids=["network", "model", "vnode"]
)
def test_a_fault_record_counts_for_what_its_place_says_alone(tmp_path: Path, changes: dict[str, str]) -> None:
    """It holds true elsewhere, where it was found, and is brought under a place of another's."""
    rig = Rig(tmp_path)
    place: dict[str, Any] = {"network_id": "n", "model": MODEL, "vnode": VNODE}
    store = MemoryStore(SystemClock(), random.Random(1))
    eyes = OwnEyes(store, "n", tmp_path, rig.verifier)

    def read(**said: Any) -> model_pb2.FaultRecord:
        data = model_pb2.FaultRecord(**said).SerializeToString()
        store.rewind(keys.evidence(MODEL, VNODE, digest_of(data)), data)
        return asyncio.run(eyes.record(MODEL, VNODE, digest_of(data)))[0]

    assert read(**place) == model_pb2.FaultRecord(**place)
    with pytest.raises(Refused) as refused:
        read(**place | changes)
    assert refused.value.code == "wrong_place"


def test_what_is_large_is_brought_in_pieces_and_checked_as_anything_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.own_eyes.PIECE_BYTES", len(BUNDLE) // 2)
    rig = Rig(tmp_path)
    rig.look()
    assert rig.verifier.num_audits == 1
    rig.store.rewind(keys.evidence(MODEL, VNODE, digest_of(BUNDLE)), BUNDLE[:-1] + b"!")
    with pytest.raises(Corrupt, match="digest"):
        rig.look()
    assert [one for one in tmp_path.rglob("*") if BUNDLE[:3] in (one.read_bytes() if one.is_file() else b"")] == []


def test_a_bundle_may_be_as_large_as_pnodes_may_hand_over_and_one_that_is_larger_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An eighth of that was the most here: whoever was rightly accused by a larger one was acquitted."""
    monkeypatch.setattr(limits, "MAX_OBJECT_BYTES", len(BUNDLE))
    assert bundle_bound(ModelView("m", model_pb2.Head(), b""), VNODE) == len(BUNDLE)
    rig = Rig(tmp_path)
    rig.look()
    monkeypatch.setattr(limits, "MAX_OBJECT_BYTES", len(BUNDLE) - 1)
    with pytest.raises(Unavailable) as refused:
        rig.look()
    assert refused.value.code == "object_too_large"
    assert rig.verifier.num_audits == 1
    assert list((tmp_path / "bundles").iterdir()) == []


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
