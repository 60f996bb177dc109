"""The maintainers of the control world: jobs one after the other, some called off, some expiring, some paused and let go on, and one that rests for good."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from dataservice import keys
from dcnr import limits
from dcnr.errors import DcnrError, InvariantBroken, Stale, Unavailable
from dcnr.v1 import identity_pb2, orchestrator_pb2
from orchestrator.documents import put_once
from simulation.control_identity import EPOCH_WALL_S, MODEL, job_cancel, job_pause, job_request
from simulation.control_loop import ProcessLoop
from simulation.control_store import StoreClient
from simulation.kernel import Process
from trust.identity import NodeKey

if TYPE_CHECKING:
    from simulation.control_world import ControlWorld

RESTS: Final = "rests"
"""The job that is paused for good."""
ACTIVE_SHARE: Final = 0.8
"""So often it is the active job that pauses; else any that has not ended."""
LOOK_S: Final = 0.3
PAUSE_S: Final = (0.3, 3.0, 12.0, 30.0)


class Maintainers:
    """One process with their key. What it says it repeats until the store, or an orchestrator, has it."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._process = Process(world.kernel, "maintainer")
        self._loop = ProcessLoop(world.kernel, self._process, world.failed)
        self._store = StoreClient(world, self._process)
        self._rng = world.kernel.rng("pauses")
        self._said: dict[str, int] = {}
        """By job: number of the last statement that it pauses or goes on."""
        self._speaking: list[asyncio.Task[None]] = []
        self.signed: set[str] = set()
        """Jobs that they ask for; the network may act on one before they hear that the store has it."""
        self.accepted: dict[str, bytes] = {}
        self.num_lost = 0
        """Accepted jobs that the store has no more since it went back: nobody asks for them again."""
        self.resting = ""
        """The job that they have paused for good."""

    def start(self) -> None:
        """They begin to ask."""
        self._loop.spawn(self._submit())
        if self._world.knobs.job_pauses:
            self._speaking.append(self._loop.spawn(self._pause_now_and_then()))
        if self._world.knobs.rests:
            self._speaking.append(self._loop.spawn(self._rest()))

    def end(self) -> None:
        """Their process ends."""
        self._process.kill()
        self._loop.bury()

    @property
    def is_done(self) -> bool:
        """Whether they have said everything that they will say."""
        return self._all_asked() and all(task.done() for task in self._speaking)

    def _all_asked(self) -> bool:
        return len(self.accepted) + self.num_lost >= self._world.knobs.jobs + self._world.knobs.short_jobs

    def unfinished(self) -> list[str]:
        """Accepted jobs that have not ended in the store."""
        store = self._world.store.store
        return [name for name in self.accepted if store.peek(keys.job_end(MODEL, name)) is None]

    def restored(self) -> None:
        """The store went back: what it has no more was never accepted."""
        store = self._world.store.store
        for name in [name for name in self.accepted if store.peek(keys.job_request(MODEL, name)) is None]:
            del self.accepted[name]
            self.num_lost += 1

    # -- jobs ------------------------------------------------------------------------------------------------------------------

    async def _submit(self) -> None:
        knobs, rng = self._world.knobs, self._world.kernel.rng("maintainer")
        names = [f"job-{index}" for index in range(knobs.jobs)]
        for index, name in enumerate(names):
            now_s = self._world.kernel.now_s
            await self._accept(name, int((EPOCH_WALL_S + now_s + rng.uniform(15.0, 60.0)) * 1000) if name == names[-1] else 0)
            await asyncio.sleep(rng.uniform(*knobs.jobs_every_s))
            if index == len(names) - 2:
                self._loop.spawn(self._call_off(name, rng.uniform(0.0, 40.0)))
        for index in range(knobs.short_jobs):
            await self._accept(f"short-{index}", 0)
            await self._call_off(f"short-{index}", 0.0)
        for index in range(knobs.strange_jobs):
            name = f"strange-{index}"
            await self._insist(keys.job_request(MODEL, name), self._request(name, 0, self._world.stranger))

    def _request(self, name: str, expires_unix_ms: int, signer: NodeKey | None = None) -> bytes:
        knobs = self._world.knobs
        return job_request(
            self._world.community, name, num_batches=knobs.num_batches, expires_unix_ms=expires_unix_ms,
            checkpoint_s=knobs.checkpoint_s, settling_deadline_s=knobs.settling_deadline_s, signer=signer,
        )  # fmt: skip

    async def _accept(self, name: str, expires_unix_ms: int) -> None:
        data = self._request(name, expires_unix_ms)
        self.signed.add(name)
        await self._insist(keys.job_request(MODEL, name), data)
        self.accepted[name] = data
        self.restored()  # while the answer was on its way, perhaps

    async def _call_off(self, name: str, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await self._insist(keys.job_cancel(MODEL, name), job_cancel(self._world.community, name))

    async def _insist(self, key: str, data: bytes) -> None:
        while True:
            try:
                if await put_once(self._store, key, data) != data:
                    raise InvariantBroken("another object lies there", code="object_differs")
                return
            except Unavailable:
                await asyncio.sleep(0.5)
            except DcnrError:
                await asyncio.sleep(0.2)

    # -- pauses ----------------------------------------------------------------------------------------------------------------

    async def _pause_now_and_then(self) -> None:
        """One job after the other stands still for some seconds: mostly the active one, else one in the queue."""
        knobs, rng = self._world.knobs, self._rng
        for begins_s in sorted(rng.uniform(3.0, knobs.faults_s - 1.0) for _ in range(knobs.job_pauses)):
            await asyncio.sleep(max(0.0, begins_s - self._world.kernel.now_s))
            name = self._candidate()
            if name and await self._say(name, paused=True):
                await asyncio.sleep(rng.choice(PAUSE_S) * rng.uniform(0.8, 1.2))
                await self._say(name, paused=False)

    def _candidate(self) -> str:
        names, head = [name for name in self.unfinished() if name != RESTS], self._world.head()
        if head is not None and head.active.job_id in names and self._rng.random() < ACTIVE_SHARE:
            return head.active.job_id
        return self._rng.choice(names) if names else ""

    async def _rest(self) -> None:
        """When all others have ended, a last job begins; it is paused, let go on, and paused again for good."""
        await self._until(lambda: self._all_asked() and not self.unfinished())
        await self._accept(RESTS, 0)
        for paused in (True, False, True):
            await self._until(lambda: not self.unfinished() or self._is_active(RESTS))
            await asyncio.sleep(self._rng.uniform(0.0, 8.0))
            if not await self._say(RESTS, paused=paused):
                return
        self.resting = RESTS

    async def _until(self, holds: Callable[[], bool]) -> None:
        while True:
            if holds():
                return
            await asyncio.sleep(LOOK_S)

    def _is_active(self, name: str) -> bool:
        head = self._world.head()
        return head is not None and head.active.job_id == name

    async def _say(self, name: str, *, paused: bool) -> bool:
        """Signs the next statement about a job and asks one orchestrator after the other until it is recorded; False where the job has ended."""
        number = self._said.get(name, 0) + 1
        wish = job_pause(self._world.community, name, number, paused=paused)
        request = orchestrator_pb2.PauseJobRequest(pause=identity_pb2.Envelope.FromString(wish))
        self._world.kernel.note("maintainers say", name, number, "pause" if paused else "go on")
        while True:
            shell = self._rng.choice(self._world.orchestrators)
            data = self._world.on_the_wire(request)
            try:
                await self._world.ask_orchestrator(self._process, shell.node_id, "pause_job", data, limits.CALL_TIMEOUT_S)
            except Stale as error:
                if error.code == "job_ended":
                    return False
            except DcnrError:
                pass  # another one is asked
            else:
                self._said[name] = number
                return True
            await asyncio.sleep(self._rng.uniform(0.2, 1.0))
