"""Screens of the daemons as text: pure functions of the messages that they show."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from dcnr.cli.output import duration, short, size, table
from dcnr.limits import MIB
from dcnr.sdk.plain import word
from dcnr.sdk.reported import loss_text, num_durable, num_unmerged
from dcnr.v1 import identity_pb2, local_pb2, membership_pb2, model_pb2, orchestrator_pb2
from pnode.budget import DAEMON_BYTES

PAUSED: Final = "paused"
_EVENTS = 5
_SEEN_FROM_OUTSIDE: Final = "as seen from outside"


def pnode_screen(status: local_pb2.StatusResponse, home: Path) -> str:
    """One screen that tells all about a PNode; of one that looks for its network, what it waits for."""
    head = f"PNode {status.node_id}  (version {status.software}, up {duration(status.uptime_s)})"
    if not status.network_id:
        looking = [head, f"state      {status.state}: {status.reason}", f"process    daemon {status.pid}, home {home}"]
        return "\n".join([*looking, *(["", f"next: {status.next_action}"] if status.next_action else [])])
    capability = status.capability
    lent = f"{capability.cores:g} cores ({capability.gflops:.0f} GFLOP/s), {_memory_lent(capability)}"
    attached = sum(contact.attached for contact in status.orchestrators)
    lines = [
        head,
        *([f"shown as   {status.public_name}  (to everybody; pnode start --name '' shows none)"] if status.public_name else []),
        f"network    {status.network_name} {short(status.network_id)}" + single_host(status.locality),
        f"state      {status.state}: {status.reason}",
        f"lends      {lent}, {size(capability.disk_bytes)} disk{uplink(capability)}, {capability.device} on {capability.architecture} {capability.system}",
        f"uses       {_cores_used(status)}{size(status.memory_bytes)} memory, {size(status.disk_bytes)} disk in {home}",
        f"reachable  {_reached(status)}; control {status.control_address}, directory {status.dht_address or '-'}",
        *_tested(status),
        f"attached   to {attached} of {len(status.orchestrators)} orchestrators; {status.num_known} nodes known",
        f"process    daemon {status.pid}, worker {status.worker_pid or '-'}",
    ]
    if status.epoch:
        lines.append(f"decider    {short(status.holder)} in epoch {status.epoch}")
    for contact in status.orchestrators:
        if not contact.attached:
            lines.append(f"  {short(contact.node_id)} {contact.address}: {contact.reason or 'not attached'}")
        elif contact.state in (orchestrator_pb2.NODE_STATE_QUARANTINED, orchestrator_pb2.NODE_STATE_REHAB):
            proof = f", evidence {contact.evidence}" if contact.evidence else ""
            lines.append(
                f"  {short(contact.node_id)} sees it as {word(orchestrator_pb2.NodeState, contact.state)}: {contact.state_reason}{proof}"
            )
    if status.replicas:
        lines += ["", _replicas_table(status)]
    if status.seats:
        lines += ["", seats_table(list(status.seats))]
    if status.next_action:
        lines += ["", f"next: {status.next_action}"]
    if status.events:
        lines += ["", *(f"{event.kind} {event.subject}: {event.reason}" for event in list(status.events)[-_EVENTS:])]
    return "\n".join(lines)


def uplink(capability: membership_pb2.Capability) -> str:
    """What the line carries, as far as it is known."""
    return f", uplink {capability.uplink_mbit:g} Mbit/s" if capability.uplink_mbit else ""


def _reached(status: local_pb2.StatusResponse) -> str:
    """How a PNode is reached, in words. Where nobody tested it, the note below says so: what is known is what an orchestrator said in its welcome."""
    if status.reachable == "relayed":
        return "relayed through relays"
    seen = "" if status.reach_note and not status.tested else f" {_SEEN_FROM_OUTSIDE}"
    return f"{status.reachable}{seen}" + (", and no relay takes it" if status.reachable == "not" else "")


def _tested(status: local_pb2.StatusResponse) -> list[str]:
    """What testers found, and what follows."""
    seen = [
        f"  {short(one.tester)} dialled {one.host} {duration(one.age_s)} ago: "
        f"control {word(membership_pb2.ReachResult, one.control)}, data {word(membership_pb2.ReachResult, one.data)}"
        for one in status.tested
    ]
    note = [f"  {status.reach_note}"] if status.reach_note else []
    passed = [f"  passes {status.num_passed_on} connections of others on, at {status.capability.relay_mbit:g} Mbit/s"]
    return [*seen, *note, *(passed if status.capability.relay_mbit else [])]


def _memory_lent(capability: membership_pb2.Capability) -> str:
    """What VNodes may take, and why that is less than its owner allowed."""
    if not capability.memory_bytes:
        return f"no memory (the daemon itself needs {DAEMON_BYTES // MIB} MiB)"
    if capability.device not in ("", "cpu"):
        return f"{size(capability.memory_bytes)} memory (what is free of the accelerator's and of what is allowed)"
    allowed = (capability.memory_bytes + DAEMON_BYTES) // MIB
    return f"{size(capability.memory_bytes)} memory (of {allowed} MiB allowed; {DAEMON_BYTES // MIB} MiB are the daemon's own)"


def _cores_used(status: local_pb2.StatusResponse) -> str:
    lent = status.capability.cores
    return (
        f"{status.load.cores:.2f} of {lent:g} cores ({status.load.cores / lent:.0%}), "
        if status.HasField("load") and lent > 0
        else ""
    )


def _replicas_table(status: local_pb2.StatusResponse) -> str:
    """What is hosted: progress, pace and troubles."""
    rows: list[tuple[object, ...]] = [
        (report.replica, role_word(report), PAUSED, "-", "-", "-", "-", report.reason)
        if (state := state_word(status, report)) == PAUSED
        else (
            report.replica, role_word(report), state, int(report.num_learned), num_durable(report), f"{report.rate:.1f}/s", loss_text(report),
            report.reason,
        )
        for report in status.replicas
    ]  # fmt: skip
    return table(("replica", "role", "state", "learned", "durable", "rate", "loss", "reason"), rows)


def seats_table(seats: list[orchestrator_pb2.SeatReport]) -> str:
    """What answers questions besides training, and what does not yet."""
    rows = [
        (f"{seat.model} {seat.vnode}", seat.state_digest[:12] or "-", "ready" if seat.ready else "waits", int(seat.num_answered), seat.reason)
        for seat in seats
    ]  # fmt: skip
    return table(("seat", "state", "", "answered", "reason"), rows)


def state_word(status: local_pb2.StatusResponse, report: orchestrator_pb2.ReplicaReport) -> str:
    """How a replica is. One that ended with the worker, which its owner paused, has not failed: it goes on from its checkpoint."""
    is_failed = report.state == orchestrator_pb2.ASSIGNMENT_STATE_FAILED
    return PAUSED if is_failed and status.state == PAUSED else word(orchestrator_pb2.AssignmentState, report.state)


def role_word(report: orchestrator_pb2.ReplicaReport) -> str:
    """What a replica is to its VNode, with what waits to be merged."""
    role = word(model_pb2.Role, report.role) if report.role else "-"
    unmerged = num_unmerged(report)
    return f"{role}, {unmerged} unmerged" if unmerged else role


def orchestrator_screen(status: orchestrator_pb2.GetStatusResponse) -> str:
    """An orchestrator about itself."""
    holder = (
        "this one decides" if status.holder else f"{short(status.holder_id)} decides" if status.holder_id else "nobody decides yet"
    )
    store = "works" if status.store_ok else f"away: {status.store_reason}"
    lines = [
        f"orchestrator {status.node_id}  (version {status.software}, up {duration(status.uptime_s)})",
        f"network    {short(status.network_id)}",
        f"decider    {holder}" + (f", epoch {status.epoch}" if status.epoch else ""),
        f"store      {store}",
        f"attached   {status.attached} PNodes",
    ]
    if status.proxied.num_read or status.proxied.num_written:
        lines.append(f"proxied    {proxied(status.proxied)}")
    if status.events:
        lines += ["", *(f"{event.kind} {event.subject}: {event.reason}" for event in list(status.events)[-_EVENTS:])]
    return "\n".join(lines)


def proxied(figures: orchestrator_pb2.ProxyFigures) -> str:
    """What went through an orchestrator for those who do not reach the store."""
    return f"{figures.num_read} objects read ({size(figures.read_bytes)}), {figures.num_written} written ({size(figures.written_bytes)})"


def single_host(locality: int) -> str:
    """The warning that every screen carries where the rules on subnets and owners are lifted."""
    return "  [single host: rules on subnets and owners are lifted]" if locality == identity_pb2.LOCALITY_SINGLE_HOST else ""
