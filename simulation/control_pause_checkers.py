"""What must hold of a job that its maintainers pause and let go on: who may move it, who learns, whose clocks run, what is left of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from dataservice import keys
from dcnr.intervals import IntervalSet
from dcnr.v1 import model_pb2
from orchestrator.jobs import intervals
from simulation.control_identity import MODEL
from trust.envelope import parse_envelope

if TYPE_CHECKING:
    from simulation.control_pnode import PNodeShell
    from simulation.control_world import ControlWorld

PAUSED: Final = model_pb2.JOB_STATE_PAUSED
KNOWN_S: Final = 2.0
"""A PNode that has written down that its job is paused learns nothing after this time."""
FOLLOWED_S: Final = 60.0
"""After the heal every worker hears within this time that its job is paused, or goes on."""


class PauseCheckers:
    """Follows the statements about every job, and who obeys them."""

    def __init__(self, world: ControlWorld) -> None:
        self._world = world
        self._obeyed: dict[str, int] = {}
        """By job: the statement that the head followed last."""
        self._halted_s: dict[str, float] = {}
        """By PNode: since when what it has to do stands still."""
        self._deaf_s: dict[tuple[str, str], float] = {}
        """By PNode and replica: since when a worker goes by what is over."""
        self.num_pauses = self.num_resumes = 0

    # ---- the head ----------------------------------------------------------------------------------------------------------

    def moved(self, was: model_pb2.ActiveJob, now: model_pb2.ActiveJob, *, may_begin_anew: bool) -> None:
        """A head about the same job landed: its state only grows, but for a pause and a way back that maintainers have signed, each obeyed once.

        ``may_begin_anew``: it names another manifest. Where audits are drawn that may take back a fault, and the time for settling begins anew.
        """
        world, told = self._world, f"{now.job_id}: {was} then {now}"
        begins_anew = may_begin_anew and world.knobs.audited and not now.settling_s
        grows = now.running_s >= was.running_s and (begins_anew or now.settling_s >= was.settling_s)
        world.require(grows, "time_used", told)
        if was.state == PAUSED:
            still = now.running_s == was.running_s and (begins_anew or now.settling_s == was.settling_s)
            world.require(still, "time_used", f"a clock runs while {told}")
        if was.state == now.state:
            return
        if now.state == PAUSED:
            self._obeys(now.job_id, paused=True)
            self.num_pauses += 1
        elif was.state == PAUSED:
            self._obeys(now.job_id, paused=False)
            self.num_resumes += 1
            forward = now.state == model_pb2.JOB_STATE_SETTLING or (now.state == model_pb2.JOB_STATE_PLACING and not now.settling_s)
            world.require(forward, "state_back", told)
        else:
            world.require(now.state > was.state, "state_back", told)

    def ended(self, was: model_pb2.ActiveJob, outcome: model_pb2.Outcome) -> None:
        """The active job ended: while it is paused it can only be called off, or fail for good."""
        may_end = was.state != PAUSED or outcome.state in (model_pb2.JOB_STATE_CANCELLED, model_pb2.JOB_STATE_FAILED)
        self._world.require(may_end, "ends_paused", f"{outcome.job_id} is paused and ends as {outcome}")

    def _obeys(self, job_id: str, *, paused: bool) -> None:
        """Some statement that says so lies in the store, signed, with a number above every one that was obeyed."""
        last = self._obeyed.get(job_id, 0)
        for said in self._stored(job_id)[last:]:
            if said.paused == paused:
                self._obeyed[job_id] = int(said.number)
                return
        does = "is paused" if paused else "goes on"
        self._world.fail("statements", f"{job_id} {does} after statement {last}, and no later one says so")

    def recorded(self, said: model_pb2.JobPause) -> None:
        """Maintainers were told that this is recorded: it is, or a later one, or what they want is in force."""
        stored = self._stored(said.job_id)
        in_force = stored[-1].paused if stored else False
        kept = len(stored) >= said.number or in_force == said.paused
        self._world.require(
            kept, "recorded", f"statement {said.number} about {said.job_id} counts as recorded, {len(stored)} are there"
        )

    def _stored(self, job_id: str) -> list[model_pb2.JobPause]:
        """The statements about a job as they lie in the store, the first first."""
        store, policy = self._world.store.store, self._world.community.policy
        found: list[model_pb2.JobPause] = []
        while (data := store.peek(keys.job_pause(MODEL, job_id, len(found) + 1))) is not None:
            found.append(policy.open_pause(parse_envelope(data)))
        return found

    # ---- PNodes ------------------------------------------------------------------------------------------------------------

    def told(self, pnode: PNodeShell, desired: model_pb2.DesiredState) -> None:
        """A PNode wrote down what it has to do."""
        if desired.halted:
            self._halted_s.setdefault(pnode.node_id, self._world.kernel.now_s)
        else:
            self._halted_s.pop(pnode.node_id, None)

    def died(self, pnode: PNodeShell) -> None:
        """A PNode lost what it had written down."""
        self._halted_s.pop(pnode.node_id, None)

    def learned(self, pnode: PNodeShell, replica: str, batches: IntervalSet) -> None:
        """A replica took steps."""
        since_s, now = self._halted_s.get(pnode.node_id), self._world.kernel.now_s
        if since_s is not None:
            knows_s = now - max(since_s, pnode.process.resumed_s)
            self._world.require(
                knows_s <= KNOWN_S, "halted", f"{replica} on {pnode.host} learns {batches}, told {knows_s:.1f} s ago to stand still"
            )

    def look(self) -> None:
        """After the heal: every worker goes by what the head says of its job."""
        world, head, now = self._world, self._world.head(), self._world.kernel.now_s
        job_id = head.active.job_id if head is not None else ""
        deaf = {
            (pnode.host, replica.replica)
            for pnode in world.pnodes
            if job_id and pnode.process.alive and pnode.worker.alive
            for replica in pnode.worker.replicas.values()
            if replica.job_id == job_id and head is not None and replica.halted != (head.active.state == PAUSED)
        }
        self._deaf_s = {key: self._deaf_s.get(key, now) for key in deaf}
        late = sorted(key for key, since_s in self._deaf_s.items() if now - since_s > FOLLOWED_S)
        world.require(not late, "pause_followed", f"{late} do not hear what became of {job_id}")

    # ---- at the end --------------------------------------------------------------------------------------------------------

    def at_end(self, head: model_pb2.Head, manifest: model_pb2.Manifest) -> None:
        """What was paused for good is paused still, and everything that it has learned is durable."""
        world, name = self._world, self._world.maintainers.resting
        if name not in world.maintainers.unfinished():
            return
        rests = (head.active.job_id, head.active.state) == (name, PAUSED)
        world.require(rests, "rests", f"{name} was paused for good, and is {head.active}")
        durable = {
            entry.vnode: intervals(entry.working[0].lineage) for entry in manifest.entries if entry.working[0].job_id == name
        }
        for pnode in world.pnodes if not world.knobs.lying_pnodes else ():
            for replica in pnode.worker.replicas.values() if pnode.process.alive else ():
                lost = replica.lineage - durable.get(replica.vnode, IntervalSet.empty()) if replica.job_id == name else None
                world.require(not lost, "rests", f"{replica.replica} on {pnode.host} alone has {lost}")
