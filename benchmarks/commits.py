"""What writing down costs a replica that learns: a step with audits in force against the same step without, frames raw and in int8, at width 1024.

Everything is real but the links: the stage in torch, its outbox, the books, their files. Inputs lie there as they would have come, with their digests, so that
what is measured is the way from one step to the next: how long a step waits for its entry, and how much longer a step takes when the thread of the
books works beside it. The end of an interval, its log and signature, is part of it.

A replica learns one batch after the other, so what stands between one step and the next is the whole step as the clock sees it: that is held against the
limits, whether it goes by waiting for an entry or by a processor or disk that the thread of the books takes from the step. What was waited is a part of it,
told beside it.

The thread of the books digests nothing in a step, since frames come with the digests that they travelled under: its time is the copy of a step's frames into
files, and waking the loop. Where it has a processor of its own, a step feels no more of that than memory that two threads read; where all are busy, a step
pays for it in full, which is the most that can come out here. What an interval has written may reach the disk after it has ended: so the disk has all of it
before the next one begins, and the two of a round take turns in going first, else the interval without audits would pay for the one before it.
"""

from __future__ import annotations

import asyncio
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from benchmarks.result import Options, Result, Row, Target, median, median_of
from benchmarks.tolerance_cases import REGISTRY, Case
from dcnr import limits
from dcnr.ids import ReplicaId, VNodeId, digest_of
from dcnr.tensor import decode, encode_final
from dcnr.v1 import identity_pb2, local_pb2, model_pb2
from pnode.arrivals import Arrival
from pnode.books import Books
from pnode.chain import CommitChain, Standing
from pnode.no_books import NoBooks
from pnode.outbox import Outbox
from pnode.spool import Spool
from trust.identity import NodeKey
from vnode.checks.plan import checks_of_stage
from vnode.signed_frames import FrameNumber
from vnode.state import StateInfo
from vnode.torch_compute import TorchCompute
from vnode.vocabulary import TRAIN_LANE, Mode, Peer

WIDTH: Final = 1024
BATCH: Final = 256
STEPS: Final = 256
CODECS: Final = {"int8": 0.01, "raw": 0.03}
"""With the largest share by which a step may be longer."""
_NETWORK: Final = "5" * 40


def run(options: Options) -> Result:
    """``rounds`` times, in turns: an interval of every codec with audits and without."""
    torch.set_num_threads(1)
    settings: Row = {"width": WIDTH, "batch_size": BATCH, "steps": STEPS, "optimizer": "sgd"}
    result = Result("commits", "What logs of steps and evidence cost a replica that learns", settings)
    for number in range(options.rounds):
        for codec in CODECS:
            for audited in (False, True) if number % 2 == 0 else (True, False):
                os.sync()
                folder = options.scratch / f"{number}-{codec}-{audited}"
                row = asyncio.run(_interval(codec, folder, steps=16 if options.quick else STEPS, audited=audited))
                result.rounds.append({"codec": codec, "audited": audited, **row})
    conclude(result)
    return result


def conclude(result: Result) -> None:
    """By codec the medians, what a step waits of itself, and how much longer it is: each interval against the one without audits in its round."""
    for codec, limit in CODECS.items():
        rows = {
            audited: [row for row in result.rounds if (row["codec"], row["audited"]) == (codec, audited)]
            for audited in (False, True)
        }
        plain, audited_s = (median_of(rows[audited], "step_s") for audited in (False, True))
        waited = median_of(rows[True], "waited_s")
        longer = median([after["step_s"] / before["step_s"] - 1.0 for before, after in zip(rows[False], rows[True], strict=True)])
        assert plain is not None
        assert waited is not None
        assert longer is not None
        result.medians[codec] = {"step_s": plain, "audited_step_s": audited_s, "waited_s": waited, "longer": round(longer, 4)}
        result.ratios[codec] = {"waited_of_step": round(waited / plain, 5), "longer": round(longer, 5)}
        name = f"a step with audits is longer by this share, {codec}"
        result.targets.append(Target(name, result.ratios[codec]["longer"], limit, "", at_least=False))
    result.notes.append(
        "`longer` is the median over rounds, and all that audits add between one step and the next: what a step waits for its entry (`waited_s`), and what the "
        "thread of the books and the disk take of a machine whose processors are all busy. On one with a processor to spare the second part is less."
    )


async def _interval(codec: str, folder: Path, *, steps: int, audited: bool) -> Row:
    """Learns an interval and ends it; per step the seconds, and those waited for the books."""
    case = Case(f"linear_block {WIDTH}", "linear_block", {}, (WIDTH,), "sgd", WIDTH, num_steps=steps, batch_size=BATCH)
    stage = case.stage()
    compute = TorchCompute(stage, REGISTRY, num_batches=steps, seed=0)
    first = case.first()
    info = compute.restore(first)
    key = NodeKey.generate()
    peer = Peer(ReplicaId("a.1"), 1)
    standing = Standing(_NETWORK, "m", "j", VNodeId("a"), peer, key.node_id)
    chain = CommitChain(standing, key, identity_pb2.Envelope, digest_of(first), "")
    executor, thread = ThreadPoolExecutor(4), ThreadPoolExecutor(1)
    loop = asyncio.get_running_loop()
    folder.mkdir(parents=True)
    (folder / "begin").write_bytes(first)
    outbox = Outbox(Spool(folder / "spool", max_bytes=2 * steps * BATCH * WIDTH * 4), executor, lambda: codec)

    async def capture(of: StateInfo) -> bytes:
        return await loop.run_in_executor(thread, compute.snapshot, of)

    order = local_pb2.HostReplica(
        evidence_dir=str(folder / "evidence"), evidence_bytes=64 * limits.EVIDENCE_BYTES, state_path=str(folder / "begin"),
        assignment=model_pb2.DesiredAssignment(role=model_pb2.ROLE_PRIMARY),
    )  # fmt: skip
    span = checks_of_stage(stage, REGISTRY).replay().span_steps
    books: Books | NoBooks = NoBooks()
    if audited:
        books = Books(
            standing, order, info, inputs=[0], is_read=True, span_steps=span, capture=capture, held=_ignore, crowded=_ignore
        )
    entries = [(entry, _arrival(entry.batch, entry.inputs[0], codec, peer)) for entry in case.entries()]
    begun, waited = time.perf_counter(), 0.0
    for number, (entry, arrival) in enumerate(entries):
        before = time.perf_counter()
        await books.before_learning()
        waited += time.perf_counter() - before
        learned = await loop.run_in_executor(thread, compute.learn, entry.batch, [arrival.tensor], entry.target, number)
        await outbox.keep(TRAIN_LANE, entry.batch, learned.output, number)
        before = time.perf_counter()
        await books.learned(entry.batch, [arrival], learned, number, outbox.newest(TRAIN_LANE, entry.batch))
        waited += time.perf_counter() - before
        chain.learned(entry.batch, learned.loss)
    before = time.perf_counter()
    log = await books.log(chain.state_digest)
    link = chain.close(state=digest_of(first), steps=digest_of(log) if log else "")
    books.ended(link.commit, log, info)
    now = time.perf_counter()
    waited += now - before
    books.close()
    outbox.close()
    for pool in (thread, executor):
        await loop.run_in_executor(None, pool.shutdown)
    return {"step_s": round((now - begun) / steps, 6), "waited_s": round(waited / steps, 7)}


def _arrival(batch: int, array: Any, codec: str, peer: Peer) -> Arrival:
    encoded = encode_final(np.asarray(array), codec)
    number = FrameNumber(TRAIN_LANE, batch, Mode.TRAIN)
    return Arrival(
        decode(encoded.header, encoded.payload),
        encoded,
        number,
        Peer(ReplicaId("b.1"), 1),
        peer,
        batch,
        b"s" * 72,
        identity_pb2.Envelope(),
    )


def _ignore(why: str) -> None:
    """Nobody listens."""
