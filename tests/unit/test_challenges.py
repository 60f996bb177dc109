"""Goal: only the holder of the confirmed head is shown evidence, within the time that it has set; what cannot be had is said."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from dcnr.errors import Refused, Unavailable
from dcnr.ids import NodeId, digest_of
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode.authority import Term
from pnode.challenges import Challenges
from trust.envelope import seal
from trust.identity import NodeKey
from trust.network import create_document, verify_chain

NOW = 1_700_000_000.0
NODE, HOLDER, OTHER = (NodeKey.generate() for _ in range(3))
POLICY = verify_chain(
    [create_document(NODE, name="n", now_wall=NOW, orchestrator_ids=[HOLDER.node_id, OTHER.node_id], audits="drawn")]
)
INTERVAL, BUNDLE = digest_of(b"interval"), b"the bundle"
SHORT_S = 0.05


def challenge(key: NodeKey = HOLDER, *, epoch: int = 4, seconds: float = 60, **changes: Any) -> identity_pb2.Envelope:
    facts: dict[str, Any] = {
        "network_id": POLICY.network_id, "model": "m", "job_id": "j", "vnode": "a", "replica": "a.1", "interval": INTERVAL,
        "pnode_id": NODE.node_id, "epoch": epoch, "until_unix_ms": int((NOW + seconds) * 1000), **changes,
    }  # fmt: skip
    return seal(identity_pb2.DOMAIN_CHALLENGE, model_pb2.Challenge(**facts), key)


def answer_to(wish: local_pb2.GatherEvidence) -> local_pb2.EvidenceGathered:
    return local_pb2.EvidenceGathered(interval=wish.interval, path=wish.path, digest=digest_of(BUNDLE), size_bytes=len(BUNDLE))


class Rig:
    """The daemon around challenges: a worker that answers with ``reason``, or not, and a store that is away for some uploads."""

    def __init__(self, evidence: Path, *, worker: str = "answers", refused: bool = False, num_away: int = 0) -> None:
        self.evidence, self._worker, self._refused, self._num_away = evidence, worker, refused, num_away
        self.said, self.told, self.stored = list[model_pb2.Evidence](), list[str](), list[tuple[str, bytes]]()
        self.num_gathered, self.wishes = 0, list[local_pb2.GatherEvidence]()
        self.news = asyncio.Event()
        self.challenges: Challenges

    async def send(self, message: local_pb2.ToWorker) -> bool:
        if self._worker == "gone":
            return False
        self.num_gathered += 1
        wish = message.gather
        answer = answer_to(wish)
        if self._worker == "lacks":
            reason = "no evidence of that interval is kept here"
            answer = local_pb2.EvidenceGathered(interval=wish.interval, path=wish.path, reason=reason)
        if self._worker in ("answers", "lacks"):
            Path(wish.path).write_bytes(BUNDLE)
            asyncio.get_running_loop().call_soon(self.challenges.gathered, answer)
        if self._worker == "long":
            Path(wish.path).write_bytes(BUNDLE)
            self.challenges.asked(HOLDER.node_id, challenge(seconds=3600))
            asyncio.get_running_loop().call_later(2 * SHORT_S, self.challenges.gathered, answer)
        self.wishes.append(wish)
        self.news.set()
        if self._worker == "dies":
            asyncio.get_running_loop().call_soon(self.challenges.worker_down, "killed")
        return True

    async def write_file(self, ref: data_pb2.ObjectRef, path: Path, *, size_bytes: int, sha256: str) -> None:
        if self._refused:
            raise Refused("no", code="not_allowed")
        if self._num_away:
            self._num_away -= 1
            raise Unavailable("the store is away")
        assert (ref.kind, ref.model, ref.owner, ref.digest) == (data_pb2.OBJECT_KIND_EVIDENCE, "m", "a", sha256)
        self.stored.append((sha256, path.read_bytes()[:size_bytes]))

    def say(self, orchestrator: NodeId, message: orchestrator_pb2.PNodeMessage) -> bool:
        assert orchestrator == HOLDER.node_id
        self.said.append(message.evidence)
        self.news.set()
        return True

    def tell(self, kind: str, subject: str, reason: str) -> None:
        self.told.append(kind)
        self.news.set()

    async def until(self, what: Callable[[], bool]) -> None:
        async with asyncio.timeout(60):
            while not what():
                self.news.clear()
                await self.news.wait()


def run(rig: Rig, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with asyncio.TaskGroup() as group:
            rig.challenges = Challenges(
                node_id=NODE.node_id, policy=lambda: POLICY, evidence=rig.evidence, objects=rig,  # type: ignore[arg-type]
                term=lambda model: Term(4, HOLDER.node_id) if model == "m" else None, send=rig.send, say=rig.say, tell=rig.tell,
                now_wall=lambda: NOW, group=group,
            )  # fmt: skip
            await scenario(rig)
            rig.challenges.stop()

    asyncio.run(whole())


def test_the_holder_is_shown_a_bundle_once_made_and_told_again(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        for _ in range(3):
            rig.challenges.asked(HOLDER.node_id, challenge())
        await rig.until(lambda: bool(rig.said))
        rig.challenges.asked(HOLDER.node_id, challenge())
        assert [(one.interval, one.digest, one.size_bytes) for one in rig.said] == 2 * [(INTERVAL, digest_of(BUNDLE), len(BUNDLE))]
        assert rig.stored == [(digest_of(BUNDLE), BUNDLE)]
        assert rig.num_gathered == 1
        assert list(tmp_path.iterdir()) == []

    run(Rig(tmp_path), scenario)


@pytest.mark.parametrize(
    ("sealed", "code"),
    [
        (challenge(OTHER), "another orchestrator"),
        (challenge(NODE), "no orchestrator"),
        (challenge(epoch=5), "a term that nobody has confirmed"),
        (challenge(network_id="5" * 40), "another network"),
        (challenge(pnode_id=OTHER.node_id), "another PNode"),
        (challenge(model="other"), "a model that is not served here"),
        (challenge(interval="../../etc/passwd"), "no digest"),
        (challenge(replica="../a"), "no replica"),
        (challenge(vnode="a/b"), "no VNode"),
        (seal(identity_pb2.DOMAIN_AUDIT_TASK, model_pb2.Challenge(), HOLDER), "another domain"),
        (identity_pb2.Envelope(payload=b"\xff"), "nothing"),
    ],
)
def test_nobody_else_is(tmp_path: Path, sealed: identity_pb2.Envelope, code: str) -> None:
    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, sealed)
        assert rig.told == ["challenge_refused"], code
        assert (rig.said, rig.num_gathered) == ([], 0)

    run(Rig(tmp_path), scenario)


@pytest.mark.parametrize(("worker", "refused"), [("gone", False), ("lacks", False), ("dies", False), ("answers", True)])
def test_what_cannot_be_had_is_said_and_asked_for_again(tmp_path: Path, worker: str, refused: bool) -> None:
    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, challenge())
        await rig.until(lambda: len(rig.said) == 1)
        rig.challenges.asked(HOLDER.node_id, challenge())
        await rig.until(lambda: len(rig.said) == 2)
        assert all(not one.digest and one.reason for one in rig.said)
        assert list(tmp_path.iterdir()) == []

    run(Rig(tmp_path, worker=worker, refused=refused), scenario)


def test_a_challenge_whose_time_is_over_is_not_answered(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, challenge(seconds=SHORT_S))
        await rig.until(lambda: "challenge_late" in rig.told)
        assert rig.said == []

    run(Rig(tmp_path, worker="silent"), scenario)


def test_who_is_asked_again_while_it_gathers_has_the_time_that_the_newest_challenge_gives(tmp_path: Path) -> None:
    """Each gives 45 s, and ten minutes are promised: what takes longer never arrived."""

    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, challenge(seconds=SHORT_S))
        await rig.until(lambda: bool(rig.said) or "challenge_late" in rig.told)
        assert [one.digest for one in rig.said] == [digest_of(BUNDLE)]
        assert rig.num_gathered == 1

    run(Rig(tmp_path, worker="long"), scenario)


def test_what_the_worker_answers_to_an_attempt_that_is_over_counts_for_no_later_one(tmp_path: Path) -> None:
    """It may still write to that attempt's file."""

    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, challenge(seconds=SHORT_S))
        await rig.until(lambda: "challenge_late" in rig.told)
        rig.challenges.asked(HOLDER.node_id, challenge())
        await rig.until(lambda: len(rig.wishes) == 2)
        first, second = rig.wishes
        assert first.path != second.path
        Path(first.path).write_bytes(BUNDLE[:3])
        rig.challenges.gathered(answer_to(first))
        Path(second.path).write_bytes(BUNDLE)
        rig.challenges.gathered(answer_to(second))
        await rig.until(lambda: bool(rig.said))
        assert rig.stored == [(digest_of(BUNDLE), BUNDLE)]
        assert list(tmp_path.iterdir()) == [], "nothing of either is left"

    run(Rig(tmp_path, worker="silent"), scenario)


def test_an_upload_waits_for_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pnode.challenges.UPLOAD_AGAIN_S", 0.0)

    async def scenario(rig: Rig) -> None:
        rig.challenges.asked(HOLDER.node_id, challenge())
        await rig.until(lambda: bool(rig.said))
        assert rig.said[0].digest

    run(Rig(tmp_path, num_away=3), scenario)
