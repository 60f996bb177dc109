"""A primary and a contributor of one VNode as their workers run them where audits are drawn, without the network: real maths, books, chains and bundles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from test_opening import DATA, NETWORK, NUM_BATCHES, REGISTRY, SOURCE_STAGE, Party, assigned, work_of

from dcnr.ids import ReplicaId, VNodeId, digest_of
from dcnr.intervals import IntervalSet
from dcnr.system import SystemClock
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.anchors import Anchor
from pnode.books import Books
from pnode.chain import CommitChain, Standing
from pnode.gathering import Means, gather
from pnode.pace import Pace
from trust.comparison import judge
from trust.envelope import digest_of_envelope
from vnode.bundle import BundleWriter, places_of_states, read_bundle
from vnode.checks.opening import Opened, Stated, open_claim, read_stated
from vnode.checks.torch_check import Checker
from vnode.merging import counts_of
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute
from vnode.torch_merging import DeltaValues, encode
from vnode.vocabulary import Mode, Peer

STAGE = SOURCE_STAGE
FIRST_STATE = work_of(STAGE).first_state
NUM_LEARNING = 3
_STEPS = model_pb2.EVIDENCE_KIND_STEPS


def is_contributor(name: str) -> bool:
    return not name.endswith(".1")


class Member:
    """One replica; ``lie`` changes what is merged into it, or what it says that it moved."""

    def __init__(
        self, name: str, root: Path, lie: Callable[[DeltaValues], DeltaValues] = lambda delta: delta, max_bytes: int = 1 << 26,
        span_steps: int = 256,
    ) -> None:  # fmt: skip
        self.party, self.root, self.lie = Party(NETWORK), root / name, lie
        self.root.mkdir()
        (self.root / "first.state").write_bytes(FIRST_STATE)
        self.compute = TorchCompute(STAGE, REGISTRY, num_batches=NUM_BATCHES, seed=7, whole_anchors=True)
        self.info = self.first = self.compute.restore(FIRST_STATE)
        if is_contributor(name):
            self.compute.follow()
        standing = Standing(NETWORK, "m", "j", VNodeId(STAGE.id), Peer(ReplicaId(name), 3), self.party.node.node_id)
        self.chain = CommitChain(standing, self.party.worker, self.party.delegation, digest_of(FIRST_STATE), "")
        order = local_pb2.HostReplica(
            evidence_dir=str(self.root / "evidence"), evidence_bytes=max_bytes, state_path=str(self.root / "first.state")
        )
        self.crowded = list[str]()
        self.books = Books(
            standing,
            order,
            self.info,
            inputs=[],
            is_read=True,
            span_steps=span_steps,
            capture=self._capture,
            held=lambda _: None,
            crowded=self.crowded.append,
        )
        self.named = list[str]()
        self.left = list[str]()
        """Statements of anchors: with each of them an interval ends where another replica goes on from it."""
        self.deltas = 0
        self.merge_lie: Callable[[DeltaValues], DeltaValues] = lambda delta: delta
        """Changes its own delta as it leads."""

    async def _capture(self, info: StateInfo) -> bytes:
        return self.compute.snapshot(info)

    async def learn(self, *batches: int) -> None:
        for batch in batches:
            num_learned = len(self.info.lineage)
            await self.books.before_learning()
            result = self.compute.learn(batch, [DATA.read_input(batch)], DATA.read_target(batch), num_learned)
            await self.books.learned(batch, [DATA.read_input(batch)], result, num_learned, None)
            self.chain.learned(batch, result.loss)
            self.info = replace(self.info, lineage=self.info.lineage.add(batch))

    async def forward(self, batch: int) -> None:
        result = self.compute.forward(batch, [DATA.read_input(batch)], Mode.FORWARD_ONLY)
        await self.books.forwarded(batch, [DATA.read_input(batch)], result.output, len(self.info.lineage), None)

    # ---- a contributor

    async def stand_on(self, anchor: Anchor) -> None:
        self.compute.rebase(anchor.data, keep_after=False)
        self.chain.rebase(anchor.digest, anchor.commits, keep_open=False, keep_after=False)
        await self.books.rebased(anchor.data, anchor.info)
        self.info = anchor.info

    async def delta(
        self, anchor: Anchor, codec: str = "raw", *, is_late: bool = False
    ) -> tuple[identity_pb2.Envelope, bytes, IntervalSet]:
        """Measured against that anchor, from which it goes on, or against what it stood on."""
        data = self.compute.delta(codec, anchor.data, is_late=is_late)
        data = encode(self.lie(self.compute.check_delta(data, codec)), codec) if self.lie is not None else data
        log = await self.books.log(self.chain.state_digest)
        self.deltas += 1
        envelope = self.chain.delta(
            self.deltas,
            codec,
            digest_of(data),
            len(data),
            anchor=anchor.digest,
            commits=anchor.commits,
            steps=digest_of(log),
            is_late=is_late,
        )
        ended = self.books.ended(envelope, log, anchor.info, displacement=data, anchor=anchor.data, is_measured=not is_late)
        self.info = anchor.info
        await self.books.keep(ended, digest_of_envelope(envelope), None)
        self.named.append(digest_of_envelope(envelope))
        batches = IntervalSet.of(*((batch, batch + 1) for batch in model_pb2.Delta.FromString(envelope.payload).batches))
        return envelope, data, batches

    async def take_in(self, envelope: identity_pb2.Envelope, data: bytes, batches: IntervalSet) -> None:
        """Its own open delta, as it is about to lead."""
        share, centred = counts_of(NUM_LEARNING)
        self.compute.merge([self.merge_lie(self.compute.check_delta(data, "raw"))], [len(batches)], [share], centred=centred)
        self.chain.merged(envelope, NUM_LEARNING)
        await self.books.merged([data])
        self.info = replace(self.info, lineage=self.info.lineage | batches)

    # ---- a primary

    def _next_info(self, lineage: IntervalSet) -> StateInfo:
        return replace(self.first, parent=self.chain.state_digest, step=self.info.step + 1, lineage=lineage)

    async def merge(self, *brought: tuple[identity_pb2.Envelope, bytes, IntervalSet], codec: str = "raw") -> Anchor:
        """With nothing brought: an anchor alone."""
        lineage = self.info.lineage
        share, centred = counts_of(NUM_LEARNING)
        for envelope, data, batches in brought:
            self.compute.merge([self.lie(self.compute.check_delta(data, codec))], [len(batches)], [share], centred=centred)
            self.chain.merged(envelope, NUM_LEARNING)
            lineage |= batches
        self.info = self._next_info(lineage)
        anchor = self.compute.anchor(self.info)
        await self.books.merged([data for _, data, _ in brought])
        log = await self.books.log(self.chain.state_digest)
        link = self.chain.close(anchor=digest_of(anchor), steps=digest_of(log))
        self.books.anchored(link.commit, log, anchor, self.info)
        self.left.append(link.digest)
        return Anchor(anchor, digest_of(anchor), self.info, self.chain.commits)

    async def snapshot(self) -> None:
        info = self._next_info(self.info.lineage)
        data = self.compute.snapshot(info)
        log = await self.books.log(self.chain.state_digest)
        link = self.chain.close(state=digest_of(data), steps=digest_of(log))
        ended = self.books.ended(link.commit, log, info)
        path = self.root / f"{digest_of(data)}.state"
        path.write_bytes(data)
        await self.books.keep(ended, link.digest, path)
        self.named.append(link.digest)
        self.info = info

    # ---- an auditor

    async def gathered(self, interval: str) -> Path:
        path = self.root / f"{interval}.bundle"
        await gather(self.root / "evidence", "r", interval, path, Means(_never, _never, Pace(SystemClock(), lambda: 0.0)))
        return path

    async def opened(self, interval: str) -> tuple[Stated, Opened]:
        with read_bundle(await self.gathered(interval)) as bundle:
            stated = read_stated(bundle, assigned(STAGE))
            assert stated.broken is None, stated.broken
            return stated, open_claim(stated, bundle, assigned(STAGE), DATA)

    async def ratio(self, interval: str) -> float:
        """How far the worst comparison of a replay is over its tolerance."""
        return ratio_of((await self.opened(interval))[1])


def ratio_of(claimed: Opened) -> float:
    """Of a claim: how far the worst comparison of a replay is over its tolerance."""
    checker = Checker(assigned(STAGE), REGISTRY, 7, "")
    outcome = judge(checker.comparisons(claimed.claim, model_pb2.CHECK_KIND_REPLAY, b"s" * 32), to_the_end=True)
    assert outcome.worst is not None
    return outcome.worst.ratio


def without_its_beginning(whole: Path, path: Path) -> Path:
    """The same bundle without its first statement and what led to the anchor that this names, with which it now begins."""
    with read_bundle(whole) as bundle, BundleWriter(path) as writer:
        logs = [model_pb2.StepLog.FromString(bytes(bundle.data(_STEPS, entry=one.entry))) for one in bundle.parts(_STEPS)]
        entries = [len(log.steps) for log in logs]
        for kind in (model_pb2.EVIDENCE_KIND_STATEMENT, _STEPS):
            for at in range(1, len(entries)):
                writer.add(model_pb2.EvidencePart(kind=kind, entry=at - 1), bundle.data(kind, entry=at))
        places = [(0, 0), *places_of_states(entries[1:])]
        for (entry, port), (to, at) in zip(places_of_states(entries), places, strict=True):
            state = bundle.data(model_pb2.EVIDENCE_KIND_STATE, entry=entry, port=port)
            writer.add(model_pb2.EvidencePart(kind=model_pb2.EVIDENCE_KIND_STATE, entry=to, port=at), state)
        for kind in (model_pb2.EVIDENCE_KIND_INPUT, model_pb2.EVIDENCE_KIND_OUTPUT):
            for part in bundle.parts(kind):
                data = bundle.data(kind, entry=part.entry, batch=part.batch, port=part.port)
                if part.entry >= entries[0]:
                    part.entry -= entries[0]
                    writer.add(part, data)
                data.release()
        writer.close()
    return path


def _never(*given: Any) -> Any:
    raise AssertionError("no state in between is asked for")


def scaled(factor: float) -> Callable[[DeltaValues], DeltaValues]:
    return lambda delta: DeltaValues({name: np.float32(factor) * value for name, value in delta.weights.items()}, delta.buffers)
