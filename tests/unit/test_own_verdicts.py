"""Goal: a worker hears of verdicts on its own intervals when there is news or it begins anew, never otherwise; evidence of what was spared stays a while."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from evidence_rig import closed_in

from dcnr.errors import Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import data_pb2, identity_pb2, local_pb2, model_pb2
from pnode.evidence import EvidenceFolder
from pnode.trail import MAX_MANIFESTS
from pnode.verdicts import CALM_S, COUNT_S, Told, Verdicts, spared_of
from trust.envelope import seal
from trust.identity import NodeKey
from trust.late_draw import MAX_SPARED, SPARED_KEPT_S
from trust.network import create_document, verify_chain

NOW_S = 1_700_000_000.0
NODE, HOLDER = NodeKey.generate(), NodeKey.generate()
POLICY = verify_chain([create_document(NODE, name="n", now_wall=NOW_S, orchestrator_ids=[HOLDER.node_id], audits="drawn")])
NAMES = [digest_of(bytes([number])) for number in range(8)]
SIZE = 1000
"""Bytes of the evidence of an interval, about."""


class Rig:
    """One replica ``a.1`` with the evidence of three intervals, and a chain of manifests."""

    def __init__(self, root: Path) -> None:
        self.root, self.newest, self.number, self.now_s = root, "", 0, NOW_S
        self.lives: dict[str, object | None] = {"a.1": object()}
        self.sent: list[local_pb2.WorkerVerdicts] = []
        self.is_up, self.away = True, set[str]()
        self.left: list[int] = []
        folder = EvidenceFolder(root / "evidence" / "a.1")
        folder.load()
        for name in NAMES[:3]:
            folder.closed(folder.open(bytes(SIZE)), name)
        folder.close()
        self.verdicts = Verdicts(
            node_id=NODE.node_id, policy=lambda: POLICY, evidence=root / "evidence", fetch=self.fetch, newest=lambda: [("m", self.newest)],
            hosted=lambda: self.lives, send=self.send, tell=lambda *_: None, now_wall=lambda: self.now_s,
            left=self.left.append, max_left_bytes=2 * SIZE + 500,
        )  # fmt: skip

    async def fetch(self, ref: data_pb2.ObjectRef, max_bytes: int) -> Path:
        if ref.digest in self.away:
            raise Unavailable("the store does not answer", code="store_unavailable")
        return self.root / ref.digest

    async def send(self, message: local_pb2.ToWorker) -> bool:
        if self.is_up:
            self.sent.append(message.verdicts)
        return self.is_up

    def tells(self, **verdicts: str) -> None:
        """A manifest more; ``n0="open"``: of the first interval."""
        self.number += 1
        told = [
            model_pb2.Contribution(
                interval=NAMES[int(name[1:])], replica="a.1", vnode="a", pnode_id=NODE.node_id, verdict=verdict, decided_unix_ms=int(self.now_s * 1000)
            )
            for name, verdict in verdicts.items()
        ]  # fmt: skip
        manifest = model_pb2.Manifest(
            network_id=POLICY.network_id,
            model="m",
            number=self.number,
            holder=HOLDER.node_id,
            parent_digest=self.newest,
            contributions=told,
        )
        data = seal(identity_pb2.DOMAIN_MANIFEST, manifest, HOLDER).SerializeToString(deterministic=True)
        self.newest = digest_of(data)
        (self.root / self.newest).write_bytes(data)

    async def looks(self, times: int = 1) -> list[local_pb2.WorkerVerdicts]:
        """What is sent in so many looks."""
        before = len(self.sent)
        for _ in range(times):
            await self.verdicts.look()
        return self.sent[before:]


def run(tmp_path: Path, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(_whole(Rig(tmp_path), scenario), 60))


async def _whole(rig: Rig, scenario: Callable[[Rig], Awaitable[None]]) -> None:
    await scenario(rig)


def test_news_are_told_once_and_all_of_it_again_to_a_new_life(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        assert not await rig.looks(3)
        rig.tells(n0="open", n1="spared", n2="open")
        [told] = await rig.looks(3)
        assert (list(told.decided), list(told.spared), told.num_open) == ([], [NAMES[1]], 2)
        rig.tells(n5="open")
        rig.tells(n0="passed")
        [told] = await rig.looks(3)
        assert (list(told.decided), list(told.spared), told.num_open) == ([NAMES[0]], [NAMES[1]], 2)
        rig.lives["a.1"] = None
        assert not await rig.looks(3)
        rig.lives["a.1"] = object()
        [again] = await rig.looks(3)
        assert again == told

    run(tmp_path, scenario)


def test_what_could_not_be_sent_is_sent_again(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.tells(n0="open")
        rig.is_up = False
        assert not await rig.looks(2)
        rig.is_up = True
        assert len(await rig.looks(2)) == 1

    run(tmp_path, scenario)


def test_a_manifest_that_cannot_be_read_for_a_moment_costs_no_evidence(tmp_path: Path) -> None:
    """An interval of which it alone tells counts as passed over otherwise, and what nobody can show any more is learned again."""

    async def scenario(rig: Rig) -> None:
        rig.tells(n0="open")
        rig.away = {rig.newest}
        rig.tells(n1="open")
        assert not await rig.looks(2)
        rig.away.clear()
        [told] = await rig.looks(2)
        assert (list(told.decided), told.num_open) == ([], 2)

    run(tmp_path, scenario)


def test_a_daemon_that_begins_anew_keeps_evidence_of_what_was_named_long_ago_and_is_open_still(tmp_path: Path) -> None:
    """A large network names a manifest every second. What is found open in none of the newest ones counts as passed over otherwise."""

    async def scenario(rig: Rig) -> None:
        rig.tells(n0="open")
        for _ in range(MAX_MANIFESTS):
            rig.tells()
        rig.tells(n1="open")
        [told] = await rig.looks()
        assert (list(told.decided), told.num_open) == ([], 2)

    run(tmp_path, scenario)


def test_a_folder_stays_while_an_interval_of_it_is_open_though_another_one_is_decided(tmp_path: Path) -> None:
    """One that ends with an anchor, from which another replica went on, and the whole."""

    async def scenario(rig: Rig) -> None:
        kept = rig.root / "evidence" / "a.1"
        folder = EvidenceFolder(kept)
        folder.load()
        left = folder.open(bytes(SIZE))
        left.write("anchor-0", b"anchor")
        left.write("statement-0", bytes([4]))
        folder.closed(left, NAMES[3])
        folder.close()
        del rig.lives["a.1"]
        rig.tells(n0="passed", n1="passed", n2="passed", n3="open", n4="passed")
        await rig.looks(2)
        assert list(closed_in(kept)) == NAMES[3:4]
        rig.tells(n3="passed")
        await rig.looks(2)
        assert not closed_in(kept)

    run(tmp_path, scenario)


def test_evidence_of_what_was_spared_goes_after_its_time_also_where_the_replica_is_gone(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        rig.tells(n0="passed", n1="spared", n2="spared")
        del rig.lives["a.1"]
        assert not await rig.looks(2)
        kept = rig.root / "evidence" / "a.1"
        assert list(closed_in(kept)) == NAMES[1:3]
        rig.now_s += 60
        rig.tells(n2="open")
        rig.now_s += SPARED_KEPT_S
        await rig.looks(2)
        assert list(closed_in(kept)) == NAMES[2:3], "one that was drawn late stays"
        rig.tells(n2="failed")
        await rig.looks(2)
        assert not closed_in(kept)

    run(tmp_path, scenario)


def test_what_replicas_leave_behind_is_counted_and_the_oldest_spared_go_above_one_replicas_room(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        kept = rig.root / "evidence" / "a.1"
        rig.tells(n0="spared", n1="open", n2="spared")
        await rig.looks()
        rig.now_s += CALM_S
        await rig.looks()
        assert rig.left == [0], "a replica that is here has a reservation of its own"
        del rig.lives["a.1"]
        rig.now_s += CALM_S / 2
        await rig.looks()
        assert rig.left == [0]
        rig.now_s += CALM_S
        await rig.looks(2)
        assert list(closed_in(kept)) == NAMES[1:3]
        assert rig.left[0] == 0
        assert 2 * SIZE < rig.left[1] < 3 * SIZE
        assert len(rig.left) == 2
        rig.tells(n1="passed")
        rig.now_s += COUNT_S
        await rig.looks()
        assert SIZE < rig.left[2] < 2 * SIZE

    run(tmp_path, scenario)


def test_what_nobody_ever_decided_on_goes_above_that_room_once_it_is_as_old_as_spared_evidence_gets(tmp_path: Path) -> None:
    """Its manifest never came, or its job ended first: it must not keep this machine from working for ever."""

    async def scenario(rig: Rig) -> None:
        del rig.lives["a.1"]
        kept = rig.root / "evidence" / "a.1"
        for age, path in enumerate(closed_in(kept).values()):
            os.utime(path / "name", (rig.now_s + age, rig.now_s + age))
        rig.tells(n0="open")
        await rig.looks()
        rig.now_s += CALM_S
        await rig.looks()
        assert len(closed_in(kept)) == 3
        assert rig.left[-1] > 3 * SIZE
        rig.now_s += SPARED_KEPT_S
        await rig.looks()
        assert list(closed_in(kept)) == NAMES[1:3], "the oldest, and no more than has to"
        assert rig.left[-1] < 3 * SIZE

    run(tmp_path, scenario)


def test_a_replica_that_is_away_for_a_moment_keeps_its_evidence(tmp_path: Path) -> None:
    """A worker that begins anew hosts nothing until it is told."""

    async def scenario(rig: Rig) -> None:
        rig.tells(n0="spared", n1="spared", n2="spared")
        await rig.looks()
        rig.now_s += CALM_S
        life = rig.lives.pop("a.1")
        await rig.looks()
        rig.lives["a.1"] = life
        rig.now_s += CALM_S
        await rig.looks()
        assert len(closed_in(rig.root / "evidence" / "a.1")) == 3

    run(tmp_path, scenario)


def test_what_a_replica_that_is_gone_has_not_signed_goes_once_nobody_adds_to_it(tmp_path: Path) -> None:
    async def scenario(rig: Rig) -> None:
        del rig.lives["a.1"]
        draft = rig.root / "evidence" / "a.1" / "00000009"
        draft.mkdir()
        (draft / "parts").write_bytes(bytes(SIZE))
        os.utime(draft, (rig.now_s, rig.now_s))
        os.utime(draft / "parts", (rig.now_s + CALM_S, rig.now_s + CALM_S))
        await rig.looks()
        rig.now_s += CALM_S
        await rig.looks()
        assert draft.exists()
        assert rig.left[-1] > 4 * SIZE
        rig.now_s += COUNT_S + 1
        await rig.looks()
        assert not draft.exists()
        assert rig.left[-1] < 4 * SIZE
        assert len(closed_in(draft.parent)) == 3, "nobody has decided on these"

    run(tmp_path, scenario)


def test_of_spared_intervals_the_newest_are_kept() -> None:
    names = [f"{number:064x}" for number in range(MAX_SPARED + 3)]
    known = {name: Told("spared", NOW_S) for name in names}
    assert spared_of(names, known, NOW_S) == names[3:]
    assert spared_of(names, known, NOW_S + SPARED_KEPT_S) == []


def test_small_intervals_push_no_large_one_out() -> None:
    """Else who cheats in a large one has it out of sight by a few of a batch each; such ones together count as what they are of it."""
    names = [f"{number:064x}" for number in range(2 * MAX_SPARED)]
    known = {name: Told("spared", NOW_S, 1) for name in names} | {names[0]: Told("spared", NOW_S, 4096)}
    assert spared_of(names, known, NOW_S) == [names[0], *names[MAX_SPARED:]]
    alike = dict.fromkeys(names, Told("spared", NOW_S, 200))
    assert spared_of(names, alike, NOW_S) == names[MAX_SPARED:]
