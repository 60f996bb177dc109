"""A network that is not there, as answers of a gateway tell it: machines, a job, audits, events, made from messages of the contract."""

from __future__ import annotations

import math
import threading
import time
from typing import Any, Final

from dcnr.v1 import common_pb2, local_pb2, membership_pb2, model_pb2, orchestrator_pb2
from gateway.shapes import shown
from trust.scores import credibility

N: Final = 4000
NETWORK_ID: Final = "5e" * 20
VNODES: Final = ("conv1", "conv2", "dense1", "dense2", "readout")
REASONS: Final = {
    orchestrator_pb2.NODE_STATE_SUSPECT: "three beats are missing",
    orchestrator_pb2.NODE_STATE_QUARANTINED: "an audit failed: conv2, residual 9.1 tolerances in weights",
    orchestrator_pb2.NODE_STATE_PROBATION: "young: everything it does is checked",
    orchestrator_pb2.NODE_STATE_OFFLINE: "it left",
}


def node_id(number: int) -> str:
    """As long and as unlike each other as real ones."""
    return f"{(number + 1) * 0x9E3779B97F4A7C15F39CC0605CEDC8341082276B % 2**160:040x}"


class Network:
    """What its orchestrator would say. Fields are changed by tests while it is being asked; ``say`` adds an event and tells streams at once."""

    def __init__(self, num_pnodes: int = 12, *, hole: bool = False, job: bool = True) -> None:
        self.started_at = time.time()
        self.nodes = [*(self._pnode(number) for number in range(num_pnodes)), *(self._orchestrator(number) for number in range(3))]
        self.nodes.sort(key=lambda node: node.node_id)
        self.events: list[common_pb2.Event] = []
        self.hole = hole
        self.state = model_pb2.JOB_STATE_RUNNING if job else model_pb2.JOB_STATE_COMPLETED
        self.learned = 1720
        self.is_paused = False
        self.held_up = ""
        self._news = threading.Condition()
        for number, (kind, reason, facts) in enumerate(HISTORY):
            self._add(kind, node_id(number % max(1, num_pnodes)), reason, facts, age_s=60.0 * (len(HISTORY) - number))

    def say(self, kind: str, subject: str, reason: str, **facts: str) -> None:
        """An event of now."""
        with self._news:
            self._add(kind, subject, reason, facts, age_s=0.0)
            self._news.notify_all()

    def wait_for_event(self, sequence: int, wait_s: float) -> None:
        """Returns when something happened after that event, or after ``wait_s``."""
        with self._news:
            self._news.wait_for(lambda: self.events[-1].sequence > sequence, wait_s)

    def _add(self, kind: str, subject: str, reason: str, facts: dict[str, str], age_s: float) -> None:
        event = common_pb2.Event(
            sequence=len(self.events) + 1, time_unix_ms=int(1000 * (time.time() - age_s)), kind=kind, subject=subject, reason=reason, facts=facts,
            reporter=node_id(10_000),
        )  # fmt: skip
        self.events.append(event)

    def _pnode(self, number: int) -> orchestrator_pb2.NodeView:
        state = {
            3: orchestrator_pb2.NODE_STATE_PROBATION, 7: orchestrator_pb2.NODE_STATE_SUSPECT, 9: orchestrator_pb2.NODE_STATE_QUARANTINED,
            11: orchestrator_pb2.NODE_STATE_OFFLINE,
        }.get(number % 20, orchestrator_pb2.NODE_STATE_ACTIVE)  # fmt: skip
        memory = (2 + number % 7) << 30
        lent = membership_pb2.Capability(
            cores=1 + number % 8, memory_bytes=memory, disk_bytes=20 << 30, device="cuda" if number % 6 == 5 else "cpu",
            device_name="an accelerator" if number % 6 == 5 else "a processor", gflops=40 + 37.5 * (number % 11), uplink_mbit=20, downlink_mbit=100,
            architecture="arm64" if number % 4 == 1 else "x86_64", system="linux", accepts_work=True,
        )  # fmt: skip
        return orchestrator_pb2.NodeView(
            node_id=node_id(number), kind=membership_pb2.NODE_KIND_PNODE, state=state, reason=REASONS.get(state, ""), capability=lent,
            replicas=[f"{VNODES[number]}-r{number}"] if number < len(VNODES) else [], last_seen_s=0.3 + number % 5, incarnation=1 + number % 3,
            address=f"127.0.0.1:{20_000 + number}", attached=number % 3 != 2, software="0.1.0", free_memory_bytes=int(memory * (0.2 + number % 5 / 7)),
            round_trip_s=0.004 * (1 + number % 30) if number % 3 != 2 else 0.0, answers=number % 4 == 0, relayed=number % 4 == 1,
            passes=float(number % 40), credibility=credibility(number % 40), reliability=1 - 0.013 * (number % 9), num_results=7 * (number % 6),
            score=round(100 * credibility(number % 40) * (1 - 0.013 * (number % 9))) if number % 6 else 0,
            load=membership_pb2.Load(cores=round((1 + number % 8) * (number % 10) / 9, 2)) if number % 3 != 2 else None,
            public_name=NAMES.get(number % 20, ""), owner=node_id(5000 + number // 3) if number % 2 else "",
        )  # fmt: skip

    def _orchestrator(self, number: int) -> orchestrator_pb2.NodeView:
        return orchestrator_pb2.NodeView(
            node_id=node_id(10_000 + number), kind=membership_pb2.NODE_KIND_ORCHESTRATOR, state=orchestrator_pb2.NODE_STATE_ACTIVE,
            reason="known by gossip", last_seen_s=1.0, incarnation=1, address=f"127.0.0.1:{7700 + 10 * number}", software="0.1.0", holder=number == 0,
        )  # fmt: skip

    def machine(self) -> dict[str, Any]:
        """As `gateway.here` has the reader's own machine."""
        status = local_pb2.StatusResponse(
            node_id=node_id(0), network_name="garden", software="0.1.0", uptime_s=7300, state="paused" if self.is_paused else "working",
            reason="paused by its owner" if self.is_paused else "trains 2 VNodes", next_action="`pnode resume`" if self.is_paused else "",
            public_name=NAMES[0], reachable="direct", capability=self._pnode(0).capability, memory_bytes=300 << 20, disk_bytes=2 << 30,
            load=membership_pb2.Load(cores=0.37),
        )  # fmt: skip
        status.orchestrators.add(
            node_id=node_id(10_000), attached=True, since_s=7290, state=orchestrator_pb2.NODE_STATE_ACTIVE, round_trip_s=0.012
        )
        status.tested.add(
            tester=node_id(10_000), host="203.0.113.7", control=membership_pb2.REACH_RESULT_REACHED, data=membership_pb2.REACH_RESULT_REACHED, age_s=40.0,
        )  # fmt: skip
        status.replicas.add(
            replica="conv1-r0", vnode="conv1", state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, num_learned=1720, rate=18.0
        )
        status.seats.add(model="digits", vnode="conv1", state_digest="ab" * 32, ready=True, num_answered=4)
        status.events.extend(self.events[:3])
        line = local_pb2.WhyLine(code=status.state, reason=status.reason, change=status.next_action)
        return {"status": shown(status), "why": [shown(line)]}

    def note(self) -> dict[str, Any]:
        """As `gateway.here.NOTE` has it."""
        now_s = time.time()
        seconds = {"working": 151_500.0, "paused": 10_800.0, "unknown": 442_500.0}
        machine = {
            "known_since_s": now_s - 604_800, "as_of_s": now_s, "contributing_s": 151_500.0, "seconds": seconds, "num_learned": 12_345,
            "num_questions": 7,
        }  # fmt: skip
        credit = {
            "audited": True, "problem": "", "cleared": 640, "of": 2560, "waiting": 32, "taken_back": 0, "passed": 5, "failed": 0,
        }  # fmt: skip
        advice = [{"code": "paused", "reason": "it was paused for 3 h 0 min", "change": "`pnode pause --for 2h` ends by itself"}]
        return {
            "pnode": node_id(0), "since_s": now_s - 604_800, "until_s": now_s, "machine": machine, "credit": credit, "credit_unknown": "",
            "advice": advice,
        }  # fmt: skip

    # ---- answers -----------------------------------------------------------------------------------------------------------------

    def stats(self) -> dict[str, Any]:
        """As `gateway.stats.Stats` has it, as far as the page reads it."""
        return {
            "as_of_unix_ms": int(1000 * time.time()), "reporter": node_id(10_000), "network_id": NETWORK_ID, "network_name": "garden",
            "num_orchestrators": 3, "holder": node_id(10_000), "store_ok": True, "store_reason": "",
        }  # fmt: skip

    def orchestrators(self) -> list[dict[str, Any]]:
        """As `gateway.witnesses` has them: one has not heard of the newest holder yet, one is silent."""
        rows = [
            ("", node_id(10_000), 4),
            ("", node_id(10_001 if self.hole else 10_000), 3 if self.hole else 4),
            ("no answer within 5 s", "", 0),
        ]
        return [
            {
                "node_id": node_id(10_000 + number), "answers": not reason, "reason": reason, "holder": holder, "epoch": epoch, "store_ok": not reason,
                "num_attached": 4, "software": "0.1.0",
            }
            for number, (reason, holder, epoch) in enumerate(rows)
        ]  # fmt: skip

    def ledger(self) -> dict[str, Any]:
        """As `gateway.reading.LEDGER` has it."""
        accounts = [
            {
                "pnode": node_id(number), "cleared": 900 - 150 * number, "waiting": 40 * number, "taken_back": 120 if number == 3 else 0, "passed": 12 - number,
                "failed": int(number == 3), "passes": 11.5 - number, "credibility": 0.97 - 0.05 * number,
            }
            for number in range(5)
        ]  # fmt: skip
        return {"manifest_digest": "ef" * 32, "audited": True, "problem": "", "accounts": accounts}

    def audits(self, pnode_id: str) -> dict[str, Any]:
        """As `gateway.reading.AUDITS` has it."""
        verdicts = ("failed", "open", "passed", "spared") if pnode_id == node_id(9) else ("passed", "spared", "spared", "passed")
        rows = [
            {
                "job": "digits-1", "interval": f"{number:02x}" * 32, "vnode": "conv2", "batches": 64, "verdict": verdict,
                "decided_s": time.time() - 90 * number, "evidence": "ce" * 32 if verdict == "failed" else "",
            }
            for number, verdict in enumerate(verdicts)
        ]  # fmt: skip
        return {"manifest_digest": "ef" * 32, "audited": True, "audits": rows}

    def graph(self) -> model_pb2.ModelGraph:
        """A line of VNodes; the second wants two replicas."""
        graph = model_pb2.ModelGraph(name="digits", version=1)
        for number, name in enumerate(VNODES):
            spec = graph.vnodes.add(id=name, inputs=[VNODES[number - 1] if number else "input"], replicas=2 if number == 1 else 1)
            spec.component.name = "conv2d" if name.startswith("conv") else "linear"
        return graph

    def plan(self) -> model_pb2.Plan:
        """Who holds what."""
        plan = model_pb2.Plan(network_id=NETWORK_ID, model="digits", number=3, job_id="digits-1", reason="a machine left")
        plan.assignments.extend(view.assignment for row in self.job().vnodes for view in row.replicas)
        if self.hole:
            plan.waiting.append(VNODES[2])
            plan.rejections.add(vnode=VNODES[2], reason="it needs 6.0 GiB of free memory; no machine has as much")
            for number in range(5, min(9, len(self.nodes))):
                plan.rejections.add(vnode=VNODES[2], pnode_id=node_id(number), reason="too little free memory: 1.9 GiB")
        return plan

    def job(self) -> orchestrator_pb2.JobView:
        """The job, VNode by VNode."""
        now_ms = int(1000 * time.time())
        job = orchestrator_pb2.JobView(
            job_id="digits-1", model="digits", state=self.state, num_batches=N, epoch=4, holder=node_id(10_000), plan_number=3, running_s=140,
            eta_s=96, as_of_unix_ms=now_ms, reporter=node_id(10_000), num_pnodes=11, audited=True,
            held_up=self.held_up,
        )  # fmt: skip
        for number, name in enumerate(VNODES):
            row = job.vnodes.add(vnode=name, report_age_s=0.4, num_open=number)
            learned = self.learned - 40 * number
            for copy in range(0 if self.hole and number == 2 else 2 if number == 3 else 1):
                self._replica(row, number, copy, learned)
            row.working.CopyFrom(
                model_pb2.Checkpoint(
                    vnode=name, digest="ab" * 32, step=learned - 128, recorded_unix_ms=now_ms - 1000 * (9 + 7 * number)
                )
            )
            row.cleared.CopyFrom(
                model_pb2.Checkpoint(vnode=name, digest="cd" * 32, step=learned - 512, recorded_unix_ms=now_ms - 60_000)
            )
            for turn in range(1, 9):
                loss = (2.2 - 0.25 * number) * math.exp(-turn / 3) + 0.12 - 0.015 * number
                accuracy = 1 - 0.85 * math.exp(-turn / (2.4 - 0.25 * number)) - 0.02
                row.curve.add(
                    vnode=name, split="validation", step=turn * 200, count=1000, correct=int(1000 * accuracy), sum_loss=1000 * loss, complete=True,
                    depth=number + 1, round=turn,
                )  # fmt: skip
        return job

    def _replica(self, row: orchestrator_pb2.VNodeView, number: int, copy: int, learned: int) -> None:
        role = model_pb2.ROLE_CONTRIBUTOR if copy else model_pb2.ROLE_PRIMARY
        assignment = model_pb2.Assignment(
            replica=f"{row.vnode}-r{number + 10 * copy}", vnode=row.vnode, pnode_id=node_id(number + 10 * copy), role=role, weight=1.0,
            reason="fastest machine with room" if not copy else "the slowest VNode gets a helper", memory_bytes=(300 + 80 * number) << 20,
        )  # fmt: skip
        report = orchestrator_pb2.ReplicaReport(
            replica=assignment.replica, vnode=row.vnode, state=orchestrator_pb2.ASSIGNMENT_STATE_ACTIVE, num_learned=learned // (copy + 1),
            rate=(18.0 + number) / (copy + 1), loss=0.4 - 0.05 * number, role=role, num_merged=14 if number == 3 else 0, num_duplicates=number,
        )  # fmt: skip
        row.replicas.add(assignment=assignment, report=report, report_age_s=0.4)
        if not copy:
            row.assignment.CopyFrom(assignment)
            row.report.CopyFrom(report)


NAMES: Final = {0: "Ada's laptop", 2: "garden shed", 4: "Ольга", 14: "Zoë"}
"""Of the machines whose number ends so; most have none."""
TOKEN: Final = "a-token-of-this-run"
HISTORY: tuple[tuple[str, str, dict[str, str]], ...] = (
    ("node_attached", "its control stream is open", {"address": "127.0.0.1:20000"}),
    ("job_accepted", "signed by 1 of 1 maintainers", {"model": "digits"}),
    ("plan_made", "the job begins", {"number": "1"}),
    ("node_state_changed", "young: everything it does is checked", {"state": "probation", "before": "joining"}),
    ("holder_changed", "the holder before was silent for 1.2 TTL", {"epoch": "4"}),
    ("replica_relocated", "its machine left; the newest checkpoint is restored", {"vnode": "conv2"}),
    ("checkpoint_refused", "its lineage is not that of its commits", {"vnode": "dense1"}),
    ("audit_reported", "pass, worst residual 0.2 tolerances", {"vnode": "conv1"}),
    (
        "node_state_changed",
        "an audit failed: conv2, residual 9.1 tolerances in weights",
        {"state": "quarantined", "before": "active"},
    ),
    ("node_left", "its worker was stopped by its owner", {}),
)
