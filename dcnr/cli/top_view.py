"""What ``pnode top`` shows, as text and as JSON: pure functions of two looks at a daemon."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from dcnr.cli.output import duration, short, size, table
from dcnr.cli.screens import role_word, seats_table, single_host, state_word, uplink
from dcnr.sdk.plain import plain, word
from dcnr.sdk.reported import loss_text
from dcnr.v1 import common_pb2, local_pb2, orchestrator_pb2

BAR: Final = 20
MAX_EVENTS: Final = 8
MBIT: Final = 125_000


@dataclass(frozen=True, slots=True)
class Look:
    """A daemon's word on itself, and when it was heard (monotonic seconds)."""

    at_s: float
    status: local_pb2.StatusResponse


@dataclass(frozen=True, slots=True)
class Rates:
    """What was used per second between two looks."""

    cores: float
    questions: float
    upload_bytes: float
    download_bytes: float


def rates_between(before: Look | None, now: Look) -> Rates:
    """``before``: None for the first look, which shows the mean since the daemon began. What counts from 0 again was restarted in between."""
    old = before.status if before is not None else local_pb2.StatusResponse()
    seconds = max(1e-3, now.at_s - before.at_s if before is not None else now.status.uptime_s)

    def rate(name: str) -> float:
        had, has = float(getattr(old, name)), float(getattr(now.status, name))
        return (has - had if has >= had else has) / seconds

    return Rates(rate("cpu_s"), rate("num_questions"), rate("uploaded_bytes"), rate("downloaded_bytes"))


def top_data(now: Look, rates: Rates, time_unix_ms: int) -> dict[str, Any]:
    """One moment as JSON."""
    status, lent = now.status, now.status.capability
    return {
        "time_unix_ms": time_unix_ms, "node_id": status.node_id, "network_id": status.network_id, "uptime_s": status.uptime_s,
        "state": status.state, "reason": status.reason, "next_action": status.next_action, "epoch": status.epoch, "holder": status.holder,
        "attached": [contact.node_id for contact in status.orchestrators if contact.attached],
        "cpu": {"cores": rates.cores, "limit_cores": lent.cores},
        "memory": {"bytes": status.memory_bytes, "limit_bytes": lent.memory_bytes},
        "disk": {"bytes": status.disk_bytes, "limit_bytes": _disk_limit(status)},
        "upload": {
            "bytes_per_s": rates.upload_bytes, "limit_bytes_per_s": status.upload_limit_bytes_s, "uplink_bytes_per_s": lent.uplink_mbit * MBIT,
        },
        "download": {"bytes_per_s": rates.download_bytes, "limit_bytes_per_s": status.download_limit_bytes_s},
        "questions_per_s": rates.questions,
        "replicas": [_replica(report, int(status.num_batches[report.replica])) for report in status.replicas],
        "seats": [_seat(seat) for seat in status.seats],
        "events": [plain(event) for event in _newest(status)],
    }  # fmt: skip


def top_screen(now: Look, rates: Rates) -> str:
    """One moment for people, a screen high."""
    status, lent = now.status, now.status.capability
    attached = [short(contact.node_id) for contact in status.orchestrators if contact.attached]
    decides = f"; {short(status.holder)} decides, epoch {status.epoch}" if status.epoch else ""
    lines = [
        headline(status),
        f"attached   to {len(attached)} of {len(status.orchestrators)}: {' '.join(attached) or '-'}{decides}; {status.num_known} nodes known",
        f"cpu        {_bar(rates.cores, lent.cores)} {rates.cores:.2f} of {lent.cores:g} cores",
        f"memory     {_bar(status.memory_bytes, lent.memory_bytes)} {size(status.memory_bytes)} of {size(lent.memory_bytes)}",
        f"disk       {_bar(status.disk_bytes, _disk_limit(status))} {size(status.disk_bytes)} of {size(_disk_limit(status))}",
        f"upload     {_flow(rates.upload_bytes, status.upload_limit_bytes_s)}{uplink(lent)}",
        f"download   {_flow(rates.download_bytes, status.download_limit_bytes_s)}",
        f"questions  {rates.questions:.1f} per second",
    ]
    if status.next_action:
        lines.append(f"next       {status.next_action}")
    if status.replicas:
        lines += ["", _replicas_table(status)]
    if status.seats:
        lines += ["", seats_table(list(status.seats))]
    if status.events:
        lines += ["", *(f"{event.kind} {_about(event)}: {event.reason}" for event in _newest(status))]
    return "\n".join(lines)


def top_line(now: Look, rates: Rates) -> str:
    """One moment on one line, for output that is piped."""
    status = now.status
    attached = sum(contact.attached for contact in status.orchestrators)
    vnodes = [
        f"{report.replica} {_progress(report, int(status.num_batches[report.replica]))} {report.rate:.1f}/s loss {loss_text(report)}"
        for report in status.replicas
    ]
    parts = [
        f"{status.state}: {status.reason}", f"attached {attached}/{len(status.orchestrators)}", f"cpu {rates.cores:.2f}/{status.capability.cores:g}",
        f"memory {size(status.memory_bytes)}", f"up {rates.upload_bytes / MBIT:.2f} Mbit/s", f"questions {rates.questions:.1f}/s", *vnodes,
    ]  # fmt: skip
    return "  ".join(parts)


def headline(status: local_pb2.StatusResponse) -> str:
    """Who it is, and how it is."""
    name = f"PNode {short(status.node_id)}  {status.network_name} {short(status.network_id)}  up {duration(status.uptime_s)}"
    return f"{name}{single_host(status.locality)}\n{status.state}: {status.reason}"


def _replicas_table(status: local_pb2.StatusResponse) -> str:
    rows = []
    for report in status.replicas:
        total = int(status.num_batches[report.replica])
        share = _bar(report.num_learned, total) if total else ""
        state = state_word(status, report)
        rows.append(
            (report.replica, role_word(report), state, share, _progress(report, total), f"{report.rate:.1f}/s", loss_text(report), report.reason)
        )  # fmt: skip
    return table(("replica", "role", "state", "", "learned", "rate", "loss", "reason"), rows)


def _replica(report: orchestrator_pb2.ReplicaReport, total: int) -> dict[str, Any]:
    return {
        "replica": report.replica, "vnode": report.vnode, "role": role_word(report), "state": word(orchestrator_pb2.AssignmentState, report.state),
        "reason": report.reason, "num_learned": report.num_learned, "num_batches": total, "batches_per_s": report.rate, "loss": report.loss,
    }  # fmt: skip


def _seat(seat: orchestrator_pb2.SeatReport) -> dict[str, Any]:
    return {
        "model": seat.model, "vnode": seat.vnode, "state_digest": seat.state_digest, "ready": seat.ready, "reason": seat.reason,
        "queued": seat.queued, "compute_s": seat.compute_s, "num_answered": seat.num_answered,
    }  # fmt: skip


def _newest(status: local_pb2.StatusResponse) -> list[common_pb2.Event]:
    return list(status.events)[-MAX_EVENTS:]


def _about(event: common_pb2.Event) -> str:
    return short(event.subject) if len(event.subject) == 40 else event.subject


def _progress(report: orchestrator_pb2.ReplicaReport, total: int) -> str:
    return f"{report.num_learned}/{total}" if total else f"{report.num_learned}"


def _disk_limit(status: local_pb2.StatusResponse) -> int:
    """Of the home directory."""
    return int(status.disk_limit_bytes or status.capability.disk_bytes)


def _flow(bytes_s: float, limit_bytes_s: float) -> str:
    limit = f"of {limit_bytes_s / MBIT:g} Mbit/s" if limit_bytes_s else "(no limit)"
    return f"{_bar(bytes_s, limit_bytes_s)} {bytes_s / MBIT:.2f} Mbit/s {limit}"


def _bar(value: float, limit: float) -> str:
    """How much of the limit is used; empty where there is none."""
    filled = min(BAR, round(BAR * value / limit)) if limit > 0 else 0
    return f"[{'#' * filled}{'.' * (BAR - filled)}]"
