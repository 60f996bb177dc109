"""Goal: a snapshot is brought into the store until a manifest names it, again if the store loses it, and a trouble is told once, not at every try."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dcnr.errors import Corrupt, DcnrError, NotFound, Refused, Unavailable
from dcnr.ids import Digest, NodeId, digest_of
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode import refusals
from pnode import uploads as module
from pnode.snapshots import MAX_LEFT, Shelf
from pnode.uploads import ASK_HOLDER_AFTER, MOST_LOST, Uploads

PENDING, NAMED, MISSING = data_pb2.RECORD_STATUS_PENDING, data_pb2.RECORD_STATUS_NAMED, data_pb2.RECORD_STATUS_MISSING
HOLDER = NodeId("1" * 40)
REFUSED, NOTHING_NEW = data_pb2.RECORD_STATUS_REFUSED, data_pb2.RECORD_STATUS_NOTHING_NEW


class Network:
    """Orchestrators and the store behind them: ``trouble`` is raised by every write, ``torn`` commits fail once, and ``answers`` are given one after the
    other, the last for ever; REFUSED to whoever lacks a commit that is ``needed``. The trouble ends when ``only`` is asked.
    """

    def __init__(self) -> None:
        self.trouble: list[DcnrError] = []
        self.answers: list[int] = [NAMED]
        self.states: list[str] = []
        self.commits: list[bytes] = []
        self.torn, self.needed = set[bytes](), set[bytes]()
        self.only: str | None = None
        self.asked = self.num_refused = 0
        self.listed: list[str] = ["an orchestrator"]

    def known(self) -> list[str]:
        return self.listed

    async def write_bytes(self, ref: data_pb2.ObjectRef, data: bytes, *, directory: Path, prefer: str | None = None) -> Digest:
        if self.only is not None and prefer == self.only:
            self.trouble = []
        self._raise_trouble()
        payload = identity_pb2.Envelope.FromString(data).payload
        if payload in self.torn:
            self.torn.remove(payload)
            raise Unavailable("away for a moment", code="store_unavailable")
        self.commits.append(payload)
        return digest_of(data)

    async def write_file(self, ref: data_pb2.ObjectRef, path: Path, *, size_bytes: int, sha256: Digest) -> None:
        self._raise_trouble()
        self.states.append(digest_of(path.read_bytes()))

    def _raise_trouble(self) -> None:
        if self.trouble:
            self.num_refused += 1
            self.trouble.append(error := self.trouble.pop(0))
            raise error

    async def call(self, stub: Any, method: str, request: data_pb2.RecordCheckpointRequest, **options: Any) -> Any:
        self.asked += 1
        status = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        status = REFUSED if self.needed - set(self.commits) else status
        return data_pb2.RecordCheckpointResponse(status=status, reason="it is not there")  # type: ignore[arg-type]


class Scene:
    def __init__(self, directory: Path) -> None:
        self.directory, self.network = directory, Network()
        self.said: list[tuple[str, str, str]] = []
        self.anew: list[str] = []
        self.moved = 0
        network: Any = self.network

        async def durable(replica: str, lineage: object, digest: str) -> None:
            return None

        async def again(replica: str, why: str) -> None:
            self.anew.append(replica)

        self.shelf = Shelf(directory)
        self.uploads = Uploads(
            network_id="n", shelf=self.shelf, objects=network, orchestrators=network, holder=lambda: HOLDER, durable=durable, anew=again,
            say=lambda *event: self.said.append(event), directory=directory, moved=lambda: self.moved,
        )  # fmt: skip

    def snapshot(self, step: int) -> local_pb2.SnapshotReady:
        data = f"state {step}".encode()
        path = self.directory / f"{step}.state"
        path.write_bytes(data)
        checkpoint = model_pb2.Checkpoint(
            vnode="v", digest=digest_of(data), size_bytes=len(data), step=step, incarnation=1, replica="v.1", job_id="j"
        )
        commit = identity_pb2.Envelope(payload=f"commit {step}".encode())
        return local_pb2.SnapshotReady(replica="v.1", model="m", job_id="j", path=str(path), checkpoint=checkpoint, commit=commit)

    def kinds(self) -> list[str]:
        return [kind for kind, _, _ in self.said]


def news(model: str, checkpoint: model_pb2.Checkpoint) -> orchestrator_pb2.DurableNews:
    return orchestrator_pb2.DurableNews(model=model, checkpoints=[checkpoint])


def play(tmp_path: Path, story: Callable[[Scene], Any]) -> None:
    async def whole() -> None:
        scene = Scene(tmp_path)
        running = asyncio.create_task(scene.uploads.run())
        try:
            await story(scene)
            assert not running.done(), running
        finally:
            running.cancel()

    asyncio.run(whole())


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RETRY_S", 0.001)
    monkeypatch.setattr(module, "LONGEST_RETRY_S", 0.002)
    monkeypatch.setattr(refusals, "ANEW_FIRST_S", 0.001)


def test_what_the_store_lost_before_it_was_named_is_brought_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.answers = [MISSING, PENDING, NAMED]
        await scene.uploads.added(ready := scene.snapshot(3))
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.states == [ready.checkpoint.digest] * 2
        assert scene.kinds() == ["upload_lost"]

    play(tmp_path, story)


def test_a_store_that_loses_it_every_time_gets_a_new_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.answers = [MISSING]
        await scene.uploads.added(scene.snapshot(3))
        await until(lambda: scene.anew == ["v.1"])
        assert len(scene.network.states) == MOST_LOST
        assert scene.uploads.num_pending == 0

    play(tmp_path, story)


def test_what_a_manifest_named_and_names_no_more_is_brought_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        for step in (3, 7):
            await scene.uploads.added(ready := scene.snapshot(step))
            await until(lambda: scene.uploads.num_pending == 0)
        before = len(scene.network.states)
        for same in (ready.checkpoint, model_pb2.Checkpoint(vnode="v", digest="e" * 64, step=9, job_id="j")):
            await scene.uploads.heard(news("m", same))
            assert scene.uploads.num_pending == 0, "it is named, or a newer one is"
        await scene.uploads.heard(news("other model", model_pb2.Checkpoint(vnode="v", step=3, job_id="j")))
        assert scene.uploads.num_pending == 0
        await scene.uploads.heard(news("m", model_pb2.Checkpoint(vnode="v", digest="f" * 64, step=3, job_id="j")))
        assert scene.uploads.num_pending == 1
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.states[before:] == [ready.checkpoint.digest]

    play(tmp_path, story)


# What is named next, who is placed here by then, and whether the old state stays.
NEXT: dict[str, tuple[dict[str, Any], list[str], bool]] = {
    "another replica of the VNode": ({"replica": "v.2", "step": 9, "job_id": "j"}, ["v.2"], False),
    "another job": ({"replica": "v.2", "step": 1, "job_id": "k"}, [], False),
    "another one, and it is still placed here": ({"replica": "v.2", "step": 9, "job_id": "j"}, ["v.1"], True),
    "an older one": ({"replica": "v.2", "step": 2, "job_id": "j"}, ["v.2"], True),
    "what the job began with": ({"replica": "v.0", "step": 20, "job_id": "i"}, [], True),
    "its own": ({"replica": "v.1", "step": 7, "job_id": "j"}, [], True),
}


@pytest.mark.parametrize("named", NEXT)
def test_what_a_replica_left_that_is_placed_here_no_more_goes_when_a_later_one_is_named(tmp_path: Path, named: str) -> None:
    facts, placed, stays = NEXT[named]

    async def story(scene: Scene) -> None:
        for step in (3, 7):
            await scene.uploads.added(scene.snapshot(step))
            await until(lambda: scene.uploads.num_pending == 0)
        await until(lambda: states_on_disk(scene) == ["7.state"])
        scene.shelf.places("m", "k" if named == "another job" else "j", placed)
        scene.shelf.places("other model", "j", [])
        await scene.uploads.heard(news("other model", model_pb2.Checkpoint(vnode="v", digest="f" * 64, **facts)))
        await scene.shelf.tidy()
        assert states_on_disk(scene) == ["7.state"]
        await scene.uploads.heard(news("m", model_pb2.Checkpoint(vnode="v", digest="f" * 64, **facts)))
        await scene.shelf.tidy()
        assert states_on_disk(scene) == (["7.state"] if stays else [])
        assert len(list(scene.directory.glob("*.snapshot"))) == stays

    play(tmp_path, story)


def test_of_vnodes_that_have_gone_from_here_few_states_stay(tmp_path: Path) -> None:
    """No news comes of them: the disk would fill with each that had ever been here."""

    async def story(scene: Scene) -> None:
        for step in range(1, 9):
            ready = scene.snapshot(step)
            ready.replica = ready.checkpoint.replica = f"v{step}.1"
            ready.checkpoint.vnode = f"v{step}"
            await scene.uploads.added(ready)
        await until(lambda: scene.uploads.num_pending == 0)
        assert len(states_on_disk(scene)) == 8, "before the plan is known nothing goes"
        scene.shelf.places("m", "j", ["v2.1", "v9.1"])
        await scene.uploads.added(scene.snapshot(9))
        stay = ["2.state", *(f"{step}.state" for step in range(10 - MAX_LEFT, 10))]
        await until(lambda: scene.uploads.num_pending == 0 and len(states_on_disk(scene)) <= len(stay))
        assert states_on_disk(scene) == stay

    play(tmp_path, story)


def test_a_trouble_is_told_once_with_its_remedy_and_a_new_kind_again(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.trouble = [
            Unavailable(f"full for the {number}. time", code="store_full", remedy="free space") for number in range(5)
        ]
        await scene.uploads.added(scene.snapshot(3))
        await until(lambda: "4." in scene.uploads.trouble)
        await until(lambda: "2." in scene.uploads.trouble)
        assert scene.said == [("upload_waits", "v.1", "full for the 0. time; free space")]
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        await until(lambda: len(scene.said) == 2)
        scene.network.trouble = []
        await until(lambda: scene.uploads.num_pending == 0 and not scene.uploads.trouble)
        assert len(scene.said) == 2

    play(tmp_path, story)


def test_who_leaves_waits_for_an_upload_that_goes_on_and_not_for_a_store_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TROUBLED_S", 0.0)

    async def story(scene: Scene) -> None:
        arrives, bring = asyncio.Event(), scene.network.write_file

        async def slow(*words: Any, **more: Any) -> None:
            await arrives.wait()
            await bring(*words, **more)

        scene.network.write_file = slow  # type: ignore[method-assign]
        await scene.uploads.added(scene.snapshot(1))
        leaving = asyncio.create_task(scene.uploads.flush(60.0, lambda: True))
        await asyncio.wait([leaving], timeout=0.3)
        assert not leaving.done()
        arrives.set()
        assert await leaving
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        await scene.uploads.added(scene.snapshot(2))
        await until(lambda: bool(scene.uploads.trouble))
        async with asyncio.timeout(20.0):
            assert not await scene.uploads.flush(60.0, lambda: True)

    play(tmp_path, story)


@pytest.mark.parametrize("is_new", [True, False], ids=["its commit is there meanwhile", "its bytes move"])
def test_a_trouble_that_has_passed_takes_no_time_from_what_goes_up_as_a_machine_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """The store was away for a second, and a state takes eight."""
    monkeypatch.setattr(module, "TROUBLED_S", 0.2)

    async def story(scene: Scene) -> None:
        arrives, bring, fails = asyncio.Event(), scene.network.write_file, [not is_new]

        async def slow(*words: Any, **more: Any) -> None:
            if fails.pop() if fails else False:
                raise Unavailable("away", code="store_unavailable")
            scene.moved += not is_new
            await arrives.wait()
            await bring(*words, **more)

        scene.network.write_file = slow  # type: ignore[method-assign]
        scene.network.trouble = [Unavailable("away", code="store_unavailable")] if is_new else []
        await scene.uploads.added(scene.snapshot(1))
        await until(lambda: bool(scene.uploads.trouble))
        scene.network.trouble = []
        leaving = asyncio.create_task(scene.uploads.flush(60.0, lambda: True))
        await asyncio.wait([leaving], timeout=0.6)
        assert not leaving.done()
        arrives.set()
        assert await leaving

    play(tmp_path, story)


def test_who_leaves_and_has_never_found_an_orchestrator_waits_no_longer_than_where_none_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was started again without a network."""
    monkeypatch.setattr(module, "TROUBLED_S", 0.0)

    async def story(scene: Scene) -> None:
        scene.network.listed = []
        scene.network.trouble = [Unavailable("nobody", code="no_orchestrator")]
        await scene.uploads.added(scene.snapshot(1))
        async with asyncio.timeout(20.0):
            assert not await scene.uploads.flush(60.0, lambda: True)

    play(tmp_path, story)


def states_on_disk(scene: Scene) -> list[str]:
    return sorted(path.name for path in scene.directory.glob("*.state"))


def test_while_the_store_is_away_one_state_waits_and_afterwards_every_commit_goes_up(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        for step in range(1, 7):
            await scene.uploads.added(newest := scene.snapshot(step))
        await until(lambda: states_on_disk(scene) == ["6.state"])
        again = Scene(tmp_path)
        assert again.shelf.load() == [], "a restart finds the commits of states that are gone, and calls none of them damaged"
        assert [int(held.ready.checkpoint.step) for held in again.shelf.pending()] == [1, 2, 3, 4, 5, 6]
        scene.network.trouble = []
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.commits == [f"commit {step}".encode() for step in range(1, 7)]
        assert scene.network.states == [newest.checkpoint.digest]
        assert states_on_disk(scene) == ["6.state"], "what is named stays until a newer one is"

    play(tmp_path, story)


def test_no_state_is_recorded_over_a_commit_that_did_not_go_up_before_it(tmp_path: Path) -> None:
    """The store heals in the middle of a pass: it takes everything but the first commit, which it takes at the next try."""

    async def story(scene: Scene) -> None:
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        for step in (1, 2, 3):
            await scene.uploads.added(newest := scene.snapshot(step))
        await until(lambda: states_on_disk(scene) == ["3.state"])
        commits = [f"commit {step}".encode() for step in (1, 2, 3)]
        scene.network.needed, scene.network.torn, scene.network.trouble = set(commits), {commits[0]}, []
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.commits == commits
        assert scene.network.states == [newest.checkpoint.digest]
        assert (states_on_disk(scene), scene.anew) == (["3.state"], [])

    play(tmp_path, story)


def test_a_snapshot_without_its_state_brings_its_commits_and_waits_for_nothing_else(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        await scene.uploads.added(ready := scene.snapshot(1))
        Path(ready.path).unlink()
        scene.network.trouble = []
        await until(lambda: scene.anew == ["v.1"])
        assert (scene.network.commits, scene.network.states) == ([b"commit 1"], [])
        assert (scene.kinds()[-1], scene.uploads.num_pending) == ("snapshot_unusable", 0)

    play(tmp_path, story)


@pytest.mark.parametrize(
    "said", [NotFound("there is no such model here"), Corrupt("the bytes do not have that digest", code="wrong_digest")]
)
def test_what_others_say_of_a_snapshot_that_is_whole_takes_nothing_away(tmp_path: Path, said: DcnrError) -> None:
    """Goal: an orchestrator that has just begun, or errs, costs no work: it waits, and is brought."""

    async def story(scene: Scene) -> None:
        scene.network.trouble = [said]
        await scene.uploads.added(ready := scene.snapshot(1))
        await until(lambda: "upload_waits" in scene.kinds() or scene.uploads.num_pending == 0)
        assert scene.kinds() == ["upload_waits"]
        scene.network.trouble = []
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.states == [ready.checkpoint.digest]
        assert scene.anew == []

    play(tmp_path, story)


def test_a_state_that_changed_on_the_disk_is_given_up_for_a_new_one(tmp_path: Path) -> None:
    async def story(scene: Scene) -> None:
        scene.network.trouble = [Corrupt("it is not the file that was granted", code="wrong_digest")]
        ready = scene.snapshot(1)
        Path(ready.path).write_bytes(b"other 1")
        await scene.uploads.added(ready)
        await until(lambda: scene.anew == ["v.1"])
        assert (scene.kinds(), scene.uploads.num_pending) == (["snapshot_unusable"], 0)

    play(tmp_path, story)


def test_what_the_next_tries_settle_by_themselves_is_no_trouble(tmp_path: Path) -> None:
    """An orchestrator whose view of the plan lags, or a job that has just ended; and a start, before anybody is found: nothing waits for the store."""

    async def story(scene: Scene) -> None:
        tried = list[DcnrError]()

        class Refusing(list[DcnrError]):
            def append(self, error: DcnrError) -> None:
                tried.append(error)
                super().append(error)

        scene.network.trouble = Refusing([Refused("not placed here", code="not_hosted")])
        await scene.uploads.added(scene.snapshot(3))
        await until(lambda: scene.uploads.num_pending == 0)
        assert len(tried) == ASK_HOLDER_AFTER + 1, "at last the holder itself"
        assert scene.said == []
        scene.network.listed, scene.network.trouble = [], Refusing([Unavailable("none is known", code="no_orchestrator")])
        await scene.uploads.added(scene.snapshot(7))
        await until(lambda: len(tried) >= ASK_HOLDER_AFTER + 3)
        assert (scene.said, scene.uploads.trouble) == ([], "")
        scene.network.listed = ["an orchestrator"]
        await until(lambda: scene.uploads.trouble != "")
        assert not scene.uploads.store_is_away
        scene.network.trouble = [Unavailable("away", code="store_unavailable")]
        await until(lambda: scene.uploads.store_is_away)

    play(tmp_path, story)


def test_what_adds_nothing_is_told_with_what_follows_and_not_asked_for_again(tmp_path: Path) -> None:
    """Each further one would add nothing either, cost a state and be looked at by auditors. Its commit is in the store: what follows goes on from it."""

    async def story(scene: Scene) -> None:
        scene.network.answers = [NOTHING_NEW]
        await scene.uploads.added(idle := scene.snapshot(1))
        await until(lambda: scene.uploads.num_pending == 0)
        assert scene.network.commits == [b"commit 1"]
        await scene.shelf.tidy()
        assert not Path(idle.path).exists()
        scene.network.answers = [REFUSED, NAMED]
        await scene.uploads.added(scene.snapshot(2))
        await until(lambda: bool(scene.anew))
        assert scene.anew == ["v.1"], "the second one, which was refused"

    play(tmp_path, story)


@pytest.mark.parametrize("answer", [REFUSED, NAMED, NOTHING_NEW])
def test_commits_that_others_do_not_let_in_are_brought_by_the_holders_leave_before_its_word_counts(
    tmp_path: Path, answer: data_pb2.RecordStatus.ValueType
) -> None:
    """Named may be another state of that replica with as many batches: later ones go on from the commits of this one."""

    async def story(scene: Scene) -> None:
        network = scene.network
        network.trouble, network.only = [Refused("not placed here", code="not_hosted")], HOLDER
        network.answers = [answer, PENDING, NAMED]
        for step in (1, 2):
            await scene.uploads.added(newest := scene.snapshot(step))
        await until(lambda: scene.uploads.num_pending == 0)
        assert network.commits == [b"commit 1", b"commit 2"]
        assert network.states == [newest.checkpoint.digest]
        assert scene.anew == []

    play(tmp_path, story)


def test_a_note_without_its_state_and_without_a_newer_one_is_damaged(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    asyncio.run(scene.shelf.add(ready := scene.snapshot(1)))
    Path(ready.path).unlink()
    again = Scene(tmp_path)
    assert len(again.shelf.load()) == 1
    assert list(again.shelf.pending()) == []


def test_a_state_that_two_snapshots_share_stays_with_the_newer_one(tmp_path: Path) -> None:
    scene = Scene(tmp_path)
    for step in (1, 2):
        ready = scene.snapshot(1)
        ready.checkpoint.step = step
        asyncio.run(scene.shelf.add(ready))
    asyncio.run(scene.shelf.thin())
    assert states_on_disk(scene) == ["1.state"]


def test_models_that_different_orchestrators_decide_for_are_both_recorded(tmp_path: Path) -> None:
    """What one model's record learned of its holder sends no other model's there: each would tell the other one wrong, for ever."""
    holders, asked = {"m": "1" * 40, "other": "2" * 40}, set[str]()

    async def call(stub: Any, method: str, request: data_pb2.RecordCheckpointRequest, *, prefer: str | None, **options: Any) -> Any:
        asked.add(request.model)
        holder = holders[request.model] if len(asked) == 2 else ""
        status = NAMED if holder and prefer == holder else data_pb2.RECORD_STATUS_NOT_HOLDER
        return data_pb2.RecordCheckpointResponse(status=status, holder=holder)

    async def story(scene: Scene) -> None:
        network: Any = scene.network
        network.call = call
        first, second = scene.snapshot(3), scene.snapshot(4)
        second.model, second.replica = "other", "w.1"
        await scene.uploads.added(first)
        await scene.uploads.added(second)
        await until(lambda: scene.uploads.num_pending == 0)

    play(tmp_path, story)
