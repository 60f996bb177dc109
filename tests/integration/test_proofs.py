"""Goal: a network of real processes keeps what it promises while its parts die, lie and are looked into: secrets, authority, lineages."""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from network_rig import BATCH_SIZE, SAMPLES, Rig, running_network
from rogue import FAR_EPOCH, rogue_at

from dcnr.testing import LocalPNode, Process
from dcnr.v1 import identity_pb2, model_pb2
from pnode.courtesy import NICE
from pnode.home import read_message
from trust.envelope import open_single, parse
from trust.identity import NodeKey

PER_PASS = SAMPLES // BATCH_SIZE
PNODES = tuple(LocalPNode(f"p{number}", 1.0, 360) for number in range(1, 5))
"""Each has room for two VNodes."""
BATCHES_PER_S = 5.0
"""So a job of few batches outlasts what is done to the network, on any machine."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with running_network(PNODES, num_orchestrators=3, forked=False) as running:
        yield running


def holder_of(rig: Rig, job_id: str) -> Process:
    process = rig.network.process_of(rig.job(job_id).holder)
    assert process is not None
    return process


def written_forms(key_file: Path) -> list[bytes]:
    """A signing key as it could lie in memory or in a file: its number raw, in hexadecimal, and as PEM has it."""
    key = load_pem_private_key(key_file.read_bytes(), None)
    assert isinstance(key, EllipticCurvePrivateKey)
    number = key.private_numbers().private_value.to_bytes(32, "big")
    return [number, number.hex().encode(), b"".join(key_file.read_bytes().splitlines()[1:-1])[48:88]]


def secrets_of(rig: Rig) -> dict[str, list[bytes]]:
    """What must be nowhere on a volunteer's machine: the store's secret key, everybody else's signing keys."""
    found = {"the store's secret key": [rig.network.store.file.secret_key.encode()]}
    for process in (*rig.network.orchestrators, *rig.network.pnodes):
        found[process.name] = written_forms(process.home / "key.pem")
    return {**found, "maintainer": written_forms(rig.network.maintainer_key)}


def held_in(data: bytes, wanted: dict[str, list[bytes]]) -> set[str]:
    """Whose secrets ``data`` holds."""
    joined = data.replace(b"\n", b"")
    return {name for name, forms in wanted.items() if any(form in data or form in joined for form in forms)}


def files_below(directory: Path) -> Iterator[Path]:
    """Every file; directories may come and go meanwhile."""
    for folder, _, names in os.walk(directory):
        yield from (path for name in names if (path := Path(folder, name)).is_file() and not path.is_symlink())


def killed(pid: int) -> float:
    """When it was dead, in Unix seconds: beside others, the kernel lets a process that gives way to them die seconds after its signal."""
    process = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([process], [], [], 30)[0], "it does not die"
        return time.time()
    finally:
        os.close(process)


def test_workers_give_way_to_whatever_else_runs(rig: Rig) -> None:
    """Goal: what computes is nice beside every other program, also where the scheduler shares the processor among sessions first."""
    for process in rig.network.pnodes:
        worker = psutil.Process(rig.told(process).worker_pid)
        assert worker.nice() == NICE
        group = Path(f"/proc/{worker.pid}/autogroup")
        if group.exists():  # only where the kernel has such groups
            assert group.read_text(encoding="ascii").endswith(f"nice {NICE}\n")
            assert psutil.Process(process.pid).nice() == 0, "the daemon answers at once"


def test_no_secret_leaves_its_owner(rig: Rig) -> None:
    """Goal: neither environment, arguments nor files of any PNode hold a store key or a signing key, but its own key, which the worker never opens."""
    job_id = rig.submit("secrets", passes=1, batches_per_s=BATCHES_PER_S)
    rig.learning(job_id, 10, 60)
    wanted = secrets_of(rig)
    for process in rig.network.pnodes:
        told = rig.told(process)
        assert told.worker_pid
        assert (process.home / "key.pem").stat().st_mode & 0o777 == 0o600
        for pid in (process.pid, told.worker_pid):
            seen = b"".join(Path(f"/proc/{pid}/{name}").read_bytes() for name in ("environ", "cmdline"))
            assert not held_in(seen, wanted), (process.name, pid)
            assert b"AWS_" not in seen
        opened = {item.path for item in psutil.Process(told.worker_pid).open_files()}
        assert str(process.home / "key.pem") not in opened
        for path in files_below(process.home):
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # a temporary file
                continue
            own_key = path == process.home / "key.pem"
            assert held_in(data, wanted) == ({process.name} if own_key else set()), path
            assert own_key or b"PRIVATE KEY" not in data, path
    rig.ended(job_id, 120)


def test_a_lying_orchestrator_moves_nobody(rig: Rig) -> None:
    """Goal: no PNode obeys a key that the network does not list, nor a listed one that the head does not name, and each says why."""
    job_id = rig.submit("rogues", passes=4, batches_per_s=BATCHES_PER_S)
    before = rig.learning(job_id, 5, 60)
    view = rig.job(job_id)
    liar = next(o for o in rig.network.orchestrators if o.node_id != view.holder and o is not rig.network.orchestrators[0])
    place = rig.network.orchestrators.index(liar)
    hosting = before["a"][0]
    stored = read_message(hosting.home / "desired-dots.pb", identity_pb2.Envelope)
    assert stored is not None
    desired = parse(model_pb2.DesiredState, open_single(stored, identity_pb2.DOMAIN_DESIRED_STATE)[0])
    stranger = NodeKey.generate()
    rig.network.kill(liar)
    port = int(rig.network.bootstrap[place].rpartition(":")[2])
    try:
        with rogue_at(port, NodeKey.load(liar.home / "key.pem"), stranger, desired) as rogue:
            everybody = {process.node_id for process in rig.network.pnodes}
            rig.until(lambda: everybody <= rogue.deceived, "every PNode has heard the lies", 30)

            def told(process: Process) -> bool:
                events = rig.events(process)
                return any(f"{stranger.node_id} is not listed" in item for item in events) and any(
                    item.startswith("claim_not_supported") and liar.node_id in item for item in events
                )

            for process in rig.network.pnodes:
                rig.until(lambda: told(process), f"{process.name} says why it does not obey: {rig.events(process)[-6:]}", 30)  # noqa: B023
    finally:
        rig.network.restart(liar)
    for process in rig.network.pnodes:
        status = rig.told(process)
        assert status.epoch < FAR_EPOCH
        assert status.holder != stranger.node_id
        accepted = [item for item in rig.events(process) if item.startswith("plan_accepted ")]
        wrong = (f" of {stranger.node_id[:8]},", f"epoch {FAR_EPOCH}")
        assert not [item for item in accepted if any(words in item for words in wrong)], accepted
    after = rig.hosted(60)
    assert after["a"][1].num_learned > before["a"][1].num_learned
    rig.ended(job_id, 120)
    assert all(item.exact for item in rig.audit())


def test_a_killed_worker_is_back_with_its_state(rig: Rig) -> None:
    """Goal: the daemon says within a second that its worker died, starts another with a higher incarnation, and no durable batch is lost."""
    job_id = rig.submit("worker", passes=3, batches_per_s=BATCHES_PER_S)
    rig.learning(job_id, 15, 90)
    vnode, (process, _) = next(iter(sorted(rig.hosts().items())))
    rig.until(lambda: rig.durable(vnode), "a checkpoint is durable", 60)
    process, report = rig.hosted(60)[vnode]
    status = rig.told(process)
    durable = sum(int(item.end - item.first) for item in report.durable.intervals)
    dead_s, answers_s = killed(status.worker_pid), [0.0]

    def reports() -> list[float]:
        asked_s = time.monotonic()
        events = rig.told(process).events
        answers_s.append(time.monotonic() - asked_s)
        return [item.time_unix_ms / 1000 for item in events if item.kind == "worker_ended" and "SIGKILL" in item.reason]

    rig.until(lambda: bool(reports()), "the daemon says so", 30)
    assert reports()[-1] - dead_s < 1.0 + max(answers_s), "beside what it takes here to answer at all"

    def restored() -> bool:
        now = rig.hosts().get(vnode)
        return now is not None and (now[1].incarnation > report.incarnation or now[0] is not process)

    rig.until(restored, f"{vnode} is hosted again", 60)
    new = rig.told(process)
    assert not new.worker_pid or new.incarnation > status.incarnation
    assert rig.hosted(60)[vnode][1].num_learned >= durable
    view = rig.ended(job_id, 120)
    assert view.num_batches == 3 * PER_PASS
    assert all(item.exact and item.num_batches == 3 * PER_PASS for item in rig.audit())


def test_lineages_are_exact_after_kills(rig: Rig) -> None:
    """Goal: two PNodes and the deciding orchestrator are killed on the way, and every stored lineage holds each batch exactly once."""
    passes = 6
    job_id = rig.submit("kills", passes=passes, batches_per_s=BATCHES_PER_S)
    rig.learning(job_id, 15, 90)
    first = rig.learning(job_id, 15, 90)["b"][0]
    rig.network.kill(first)

    def elsewhere() -> bool:
        found = rig.hosts().get("b")
        return found is not None and found[0] is not first

    rig.until(elsewhere, "b is hosted elsewhere", 60)
    deciding = holder_of(rig, job_id)
    rig.network.kill(deciding)
    rig.network.restart(first)
    rig.until(lambda: rig.holder(job_id) not in ("", deciding.node_id), "another orchestrator decides", 60, pause_s=0.5)
    rig.network.restart(deciding)
    second = rig.hosted(60)["c"][0]
    rig.network.kill(second)
    rig.ended(job_id, 180)
    for item in rig.audit():
        assert item.exact, (item.vnode, item.reason)
        assert item.num_batches == passes * PER_PASS
