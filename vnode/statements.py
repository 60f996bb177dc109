"""Floors and durable sets as they are stated to predecessors: when they change, and again every few seconds. Pure."""

from __future__ import annotations

from dcnr.ids import VNodeId
from dcnr.intervals import IntervalSet
from vnode.events import Instruction, SendAck, SendDurable
from vnode.intake import Intake
from vnode.replica_config import STATEMENT_GAP_S, ReplicaConfig, lowest_intervals


class Statements:
    """What was said last; a new way makes everything news."""

    def __init__(self, config: ReplicaConfig, intake: Intake) -> None:
        self._config, self._intake = config, intake
        self.forget()

    def forget(self) -> None:
        """Somebody has heard nothing yet."""
        self._ack: tuple[int, VNodeId] | None = None
        self._durable: IntervalSet | None = None
        self._ack_s = self._durable_s = float("-inf")

    def ack(self, now_s: float, floor: tuple[int, VNodeId], num_learned: int, lead_batches: int) -> list[Instruction]:
        """Acks, when the floor changes and when they are due again; how much is learned goes with them."""
        waited_s = now_s - self._ack_s
        rise = floor[0] - self._ack[0] if self._ack else 0
        is_news = floor != self._ack and (waited_s >= STATEMENT_GAP_S or rise >= max(1, lead_batches // 4))
        if not is_news and waited_s < self._config.repeat_s:
            return []
        self._ack, self._ack_s = floor, now_s
        ways = self._intake.open_ways()
        return [SendAck(edge, source, self._intake.next_sequence(), num_learned, *floor) for edge, source in ways]

    def durable(self, now_s: float, batches: IntervalSet) -> list[Instruction]:
        """The durable set, when it changes and, less often than other statements, again."""
        waited_s, stated = now_s - self._durable_s, lowest_intervals(batches)
        is_news = stated != self._durable and waited_s >= STATEMENT_GAP_S
        if not is_news and waited_s < 5 * self._config.repeat_s:
            return []
        self._durable, self._durable_s = stated, now_s
        return [SendDurable(edge, source, stated) for edge, source in self._intake.open_ways()]
