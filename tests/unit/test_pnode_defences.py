"""Goal: neither what an orchestrator says nor a full or damaged disk ends the daemon, keeps it from attaching, or makes it act for
something unsigned.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dataservice import keys
from dataservice.addresses import AddressRule
from dataservice.datasets import LocalCache
from dataservice.objects import ObjectClient
from dcnr.errors import Corrupt, DcnrError, InvalidInput, NotFound, Refused, Unavailable
from dcnr.ids import Digest, NodeId, digest_of
from dcnr.v1 import identity_pb2, local_pb2, model_pb2, orchestrator_pb2
from pnode import control
from pnode.authority import Accepted, Authority, Source, Unconfirmed
from pnode.control import ControlStreams
from pnode.duties import Duties
from pnode.headcheck import HeadCheck
from pnode.home import Home
from pnode.lent import rule_of
from pnode.orders import HostingOptions
from pnode.pipe import LocalPipe
from pnode.provision import Job, Provisioner
from pnode.snapshots import Shelf
from pnode.supervisor import Supervisor, Worker, WorkerOptions
from pnode.uploads import Uploads
from trust.envelope import open_single, seal
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain

WALL = 1_700_000_000.0
MAINTAINER, FIRST, SECOND = (NodeKey.generate() for _ in range(3))
ME = NodeId("0" * 40)


async def until(condition: Callable[[], bool]) -> None:
    deadline = asyncio.get_running_loop().time() + 20
    while not condition():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.005)


def policy() -> NetworkPolicy:
    document = create_document(
        MAINTAINER, name="test", now_wall=WALL, orchestrator_ids=[FIRST.node_id, SECOND.node_id], store_address="store.example:7790",
        store_bucket="b", store_scheme="http",
    )  # fmt: skip
    return verify_chain([document])


def head_check() -> HeadCheck:
    nobody: Any = SimpleNamespace(known=list)
    return HeadCheck(policy=policy, orchestrators=nobody, rule=lambda: AddressRule(stores=("http://store.example:7790",)))


def duties(tmp_path: Path, said: list[tuple[str, str, str]], group: asyncio.TaskGroup) -> Duties:
    home = Home(tmp_path / "home")
    home.open()

    async def sent(message: local_pb2.ToWorker) -> bool:
        return True

    unused: Any = SimpleNamespace()
    provisioner: Any = SimpleNamespace(placed=lambda *facts: None)
    return Duties(
        node_id=ME, policy=policy, home=home, provisioner=provisioner, budget=unused, heads=head_check(),
        options=HostingOptions(threads=1, spool_bytes=0, free_disk_bytes=lambda: 0), send=sent, hosted_changed=lambda: None,
        say=lambda *event: said.append(event), clock=unused, group=group,
    )  # fmt: skip


def desired(key: NodeKey, sequence: int, epoch: int = 1, model: str = "m") -> identity_pb2.Envelope:
    state = model_pb2.DesiredState(
        network_id=policy().network_id, model=model, epoch=epoch, holder=key.node_id, sequence=sequence, pnode_id=ME
    )
    return seal(identity_pb2.DOMAIN_DESIRED_STATE, state, key)


def head(key: NodeKey, epoch: int = 1, model: str = "m", sequence: int = 1) -> identity_pb2.Envelope:
    content = model_pb2.Head(network_id=policy().network_id, model=model, epoch=epoch, holder=key.node_id, sequence=sequence)
    return seal(identity_pb2.DOMAIN_HEAD, content, key)


@pytest.mark.parametrize(
    "url",
    [
        "http://[x", "http://[::1", "http://store.example:7790/b/models/m/head#", "http://store.example:99999/b", "//", "\0", "http://a]b/",
        "http://store.example:7790/other/models/m/head.pb", "http://127.0.0.1/b/models/m/head.pb",
    ],
)  # fmt: skip
def test_a_grant_that_is_no_url_is_refused_and_raises_nothing_else(url: str) -> None:
    with pytest.raises(Refused):
        head_check().granted("m", url)


def test_a_head_that_comes_with_its_grant_is_verified_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every orchestrator sends one every few seconds; a grant is checked by what it reads, whoever signed the head beside it."""
    verified: list[bytes] = []

    def counted(envelope: identity_pb2.Envelope, *rest: Any, **more: Any) -> Any:
        verified.append(envelope.payload)
        return open_single(envelope, *rest, **more)

    monkeypatch.setattr("pnode.duties.open_single", counted)

    async def story() -> None:
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, [], group)
            url = f"http://{policy().document.store_address}/{policy().document.store_bucket}/{keys.head('m')}?signed"
            mine.head_granted(orchestrator_pb2.HeadNews(head=head(FIRST), head_url=url))
            await mine.head_received(head(FIRST), Source.OWN_GET)

    asyncio.run(story())
    assert len(verified) == 1


def test_what_an_orchestrator_says_never_ends_the_daemons_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "FIRST_PAUSE_S", 0.001)
    calls = 0

    class Dialer:
        async def connect(self, node_id: str, addresses: object, *, own_connection: bool) -> None:
            nonlocal calls
            calls += 1
            raise ValueError("nobody thought of this")

    async def story() -> None:
        running = asyncio.create_task(streams_of(Dialer(), [FIRST]).run())
        await until(lambda: calls >= 3 or running.done())
        assert not running.done(), running
        running.cancel()

    asyncio.run(story())


def streams_of(dialer: Any, known: list[NodeKey], clock: Any = None) -> ControlStreams:
    async def heard(node_id: NodeId, message: orchestrator_pb2.OrchestratorMessage) -> None:
        return None

    clock = clock or SimpleNamespace(monotonic=lambda: 0.0)
    return ControlStreams(
        dialer, lambda: [(key.node_id, ("127.0.0.1:1",)) for key in known], hello=orchestrator_pb2.Hello,
        beat=lambda sequence: orchestrator_pb2.Beat(sequence=sequence), on_message=heard, holders=list, clock=clock, rng=random.Random(1),
    )  # fmt: skip


def test_orchestrators_that_never_answer_do_not_keep_the_others_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REVIEW_S", 0.005)
    now = 100.0
    asked: set[str] = set()

    class Dialer:
        async def connect(self, node_id: str, addresses: object, *, own_connection: bool) -> None:
            asked.add(node_id)
            await asyncio.Event().wait()

    known = [NodeKey.generate() for _ in range(5)]

    async def story() -> None:
        nonlocal now
        running = asyncio.create_task(streams_of(Dialer(), known, SimpleNamespace(monotonic=lambda: now)).run())
        await until(lambda: len(asked) >= control.ATTACHED)
        await asyncio.sleep(0.05)
        assert len(asked) == control.ATTACHED
        now += control.TRYING_S + 1
        await until(lambda: len(asked) == len(known))
        running.cancel()

    asyncio.run(story())


def test_a_damaged_head_on_disk_does_not_keep_the_pnode_from_attaching(tmp_path: Path) -> None:
    async def story() -> None:
        said: list[tuple[str, str, str]] = []
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, said, group)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            await mine.desired_received(desired(FIRST, 1))
            mine.load()
            assert len(mine.heads_seen()) == 1
            (tmp_path / "home" / "head-m.pb").write_bytes(b"\xff\xff\xff")
            mine.load()
            assert mine.heads_seen() == []
            assert said[-1][0] == "head_damaged"

    asyncio.run(story())


def test_what_is_persisted_is_the_desired_state_that_was_accepted(tmp_path: Path) -> None:
    async def story() -> None:
        said: list[tuple[str, str, str]] = []
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, said, group)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            await mine.head_received(head(FIRST, model="n"), Source.OWN_GET)
            await mine.desired_received(desired(FIRST, 5))
            await mine.desired_received(desired(FIRST, 3))  # older: another orchestrator is behind
            await mine.desired_received(desired(FIRST, 9, model="n"))
            mine.stop()
        for model, sequence in (("m", 5), ("n", 9)):
            stored = identity_pb2.Envelope.FromString((tmp_path / "home" / f"desired-{model}.pb").read_bytes())
            kept = model_pb2.DesiredState.FromString(stored.payload)
            assert (kept.model, kept.sequence) == (model, sequence)

    asyncio.run(story())


def test_what_the_disk_did_not_take_is_obeyed_as_soon_as_it_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pnode.duties.DISK_RETRY_S", 0.01)

    async def story() -> None:
        said: list[tuple[str, str, str]] = []
        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, said, group)
            await mine.head_received(head(FIRST), Source.OWN_GET)
            (in_the_way := tmp_path / "home" / "desired-m.pb").mkdir()
            await mine.desired_received(desired(FIRST, 5))
            await until(lambda: sum(kind == "disk_trouble" for kind, _, _ in said) >= 3)
            assert mine.term()[2] is None, "nothing is obeyed that is not on disk"
            in_the_way.rmdir()
            await until(lambda: mine.term()[2] is not None)
            mine.stop()
        stored = identity_pb2.Envelope.FromString(in_the_way.read_bytes())
        assert model_pb2.DesiredState.FromString(stored.payload).sequence == 5

    asyncio.run(story())


def test_an_old_head_that_is_told_again_is_no_news(tmp_path: Path) -> None:
    async def story() -> None:
        news: list[local_pb2.ToWorker] = []

        async def sent(message: local_pb2.ToWorker) -> bool:
            news.append(message)
            return True

        async with asyncio.TaskGroup() as group:
            mine = duties(tmp_path, [], group)
            mine._send = sent
            await mine.head_received(head(FIRST), Source.OWN_GET)
            for _ in range(3):
                await mine.head_received(head(FIRST), Source.ORCHESTRATOR)
            assert len(news) == 1, "repeating one's own words renews no horizon"
            await mine.head_received(head(FIRST, sequence=2), Source.ORCHESTRATOR)
            assert len(news) == 2

    asyncio.run(story())


def test_an_older_desired_state_does_not_replace_a_newer_one_that_waits() -> None:
    network_id = policy().network_id
    mine = Authority(network_id=network_id, pnode_id=ME, model="m", orchestrators=lambda: [FIRST.node_id, SECOND.node_id])
    for sequence in (5, 3):
        payload = model_pb2.DesiredState.FromString(desired(FIRST, sequence).payload)
        assert isinstance(mine.offered(payload, FIRST.node_id), Unconfirmed)
    [verdict] = mine.head_read(model_pb2.Head.FromString(head(FIRST).payload), FIRST.node_id, Source.OWN_GET)
    assert isinstance(verdict, Accepted)
    assert verdict.desired.sequence == 5


def test_a_verified_request_is_no_leave_for_another_model_or_job(tmp_path: Path) -> None:
    request = model_pb2.JobRequest(network_id=policy().network_id, model="m", job_id="j")
    unused: Any = SimpleNamespace()
    mine = Provisioner(policy=policy, registry=unused, fetch=unused, shelf=Shelf(tmp_path))
    mine._jobs["d"] = Job(request, model_pb2.ModelGraph(), b"", {}, tmp_path)
    wanted = model_pb2.DesiredState(model="m", job_id="j", request_digest="d")
    assert asyncio.run(mine.job(wanted, reads_data=False)).request == request
    for model, job in (("n", "j"), ("m", "k")):
        with pytest.raises(Refused) as refused:
            asyncio.run(mine.job(model_pb2.DesiredState(model=model, job_id=job, request_digest="d")))
        assert refused.value.code == "unsigned_job"


# ---- disks --------------------------------------------------------------------------------------------------------------------


class _Upload:
    """Orchestrators that are never reached: the disk fails first."""

    def known(self) -> list[object]:
        return []


def ready(tmp_path: Path, digest: str) -> local_pb2.SnapshotReady:
    checkpoint = model_pb2.Checkpoint(vnode="v", digest=digest, size_bytes=1, step=1, incarnation=1)
    return local_pb2.SnapshotReady(replica="v.1", model="m", job_id="j", path=str(tmp_path / "state"), checkpoint=checkpoint)


def uploads(shelf: Shelf, directory: Path, said: list[tuple[str, str, str]]) -> Uploads:
    async def told(*arguments: object) -> None:
        return None

    orchestrators: Any = _Upload()
    return Uploads(
        network_id="n", shelf=shelf, objects=ObjectClient(orchestrators, AddressRule), orchestrators=orchestrators, holder=lambda: None,
        durable=told, anew=told, say=lambda *event: said.append(event), directory=directory,
    )  # fmt: skip


def test_a_disk_that_takes_nothing_neither_ends_uploads_nor_loses_the_snapshot(tmp_path: Path) -> None:
    async def story() -> None:
        said: list[tuple[str, str, str]] = []
        mine = uploads(Shelf(tmp_path / "missing"), tmp_path / "missing too", said)
        await mine.added(ready(tmp_path, digest_of(b"s")))
        running = asyncio.create_task(mine.run())
        await until(lambda: any(kind == "upload_waits" for kind, _, _ in said) or running.done())
        assert not running.done(), running
        assert said[0][0] == "disk_trouble"
        assert mine.num_pending == 1
        running.cancel()

    asyncio.run(story())


def test_where_the_document_names_no_store_every_grant_is_refused_as_one_for_elsewhere() -> None:
    for document in (identity_pb2.NetworkDocument(), identity_pb2.NetworkDocument(data_hosts=["data.example"])):
        with pytest.raises(Refused) as caught:
            rule_of(document).check("http://store.example:7790/bucket/key")
        assert caught.value.code == "address_not_allowed"
    assert not rule_of(document).check("https://data.example/x").is_store


@pytest.mark.parametrize("name", ["../outside", "", "a/b", "A" * 64])
def test_a_snapshots_digest_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput):
        asyncio.run(Shelf(tmp_path).add(ready(tmp_path, name)))


def test_a_cache_on_a_bad_disk_fails_with_a_typed_error(tmp_path: Path) -> None:
    async def fetch(digest: Digest, path: Path, max_bytes: int) -> None:
        path.write_bytes(b"x")

    digest = digest_of(b"x")
    cache = LocalCache(tmp_path / "cache", 100, fetch)
    (tmp_path / "cache" / digest).mkdir()  # stands for a directory entry that cannot be read
    with pytest.raises(Unavailable) as failed:
        asyncio.run(cache.path(digest))
    assert failed.value.code == "disk_trouble"


@pytest.mark.parametrize("error", [Unavailable("no space", code="disk_trouble"), Corrupt("bad"), NotFound("gone")])
def test_a_worker_whose_start_fails_is_told_as_a_reason(tmp_path: Path, error: DcnrError) -> None:
    async def story() -> None:
        ours, theirs = socket.socketpair()
        pipe = await LocalPipe.over(ours, local_pb2.FromWorker)
        worker = await LocalPipe.over(theirs, local_pb2.ToWorker)

        async def up(found: Worker) -> None:
            raise error

        async def other(*arguments: object) -> None:
            return None

        options = WorkerOptions("127.0.0.1", 0, 1, "cpu", tmp_path / "log", {})
        mine = Supervisor(options, next_incarnation=lambda: 1, on_up=up, on_message=other, on_down=other)
        await worker.send(local_pb2.FromWorker(hello=local_pb2.WorkerHello(data_port=1)))
        process: Any = SimpleNamespace(pid=1)
        assert await mine._serve(process, pipe) == error.message
        await pipe.close()
        await worker.close()

    asyncio.run(story())


def test_counting_the_home_survives_files_and_directories_that_come_and_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker removes whole directories of evidence, and the daemon would end with what it finds no more."""
    home, gone, scan, look = Home(tmp_path), tmp_path / "gone", os.scandir, os.lstat
    gone.mkdir()
    for name in ("here", "lost"):
        (tmp_path / name).write_bytes(b"12345")

    def scandir(path: Any) -> Any:
        if Path(path) == gone:
            gone.rmdir()
        return scan(path)

    def lstat(path: Any, **options: Any) -> os.stat_result:
        if Path(path) == tmp_path / "lost":
            Path(path).unlink(missing_ok=True)
        return look(path, **options)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(os, "lstat", lstat)
    assert home.disk_bytes() == 5
