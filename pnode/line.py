"""What of this machine's line bulk may take: its owner's limits always, and of the measured uplink a share, unless somebody waits for it.

Checkpoints leave from the daemon, anchors, deltas and donated states from the worker, and together they take at most `limits.UPLINK_SHARE` of the measured
uplink. Each of the two processes keeps a rate that is fixed in advance: where this machine has a primary and a replica with siblings, half of the share each,
else the whole share for the one that there is. Halves that one side leaves unused stay unused: lending them would take a word between the processes for each
upload, and be wrong for as long as that word is under way.

Nothing measured holds back a machine that leaves, or a replica that goes elsewhere: others stand still until its last state is there. Nor evidence for
auditors: its time is set, and an honest machine that sends too slowly counts as one that shows nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

from dataservice.pacing import BYTES_PER_MBIT, Pace, Sent
from dcnr import limits
from dcnr.ports import Clock
from dcnr.settings import LimitSettings
from dcnr.v1 import local_pb2, model_pb2
from pnode.measured import MeasuredUplink, rounded
from pnode.models import Hosted


class Line:
    """One per daemon. ``lent``: the owner's limits. ``leaves``: whether this machine, or by the worker's word a replica, is leaving.

    ``unnamed``: replicas whose snapshots no manifest names yet. ``tell`` records what was measured, and tells everybody what is lent now.
    """

    def __init__(
        self, lent: LimitSettings, clock: Clock, *, hosted: Callable[[], Sequence[Hosted]], leaves: Callable[[], bool],
        unnamed: Callable[[], Collection[str]], tell: Callable[[str, str], None],
    ) -> None:  # fmt: skip
        self._upload_mbit, self._clock, self._hosted, self._leaves = lent.upload_mbit, clock, hosted, leaves
        self._unnamed, self._tell = unnamed, tell
        self._measured = MeasuredUplink()
        self.up, self.down = Pace(lent.upload_mbit, clock.monotonic), Pace(lent.download_mbit, clock.monotonic)
        """Of everything that the daemon uploads, or downloads."""
        self._share = Pace(0.0, clock.monotonic)
        self.exchange_bytes_s = lent.upload_mbit * BYTES_PER_MBIT * limits.UPLINK_SHARE
        """For what the worker's replicas exchange, as it was reviewed last; 0: no limit."""
        self._told_mbit = self.uplink_mbit

    @property
    def uplink_mbit(self) -> float:
        """What the advert says: as measured, or the owner's limit where that is lower or nothing was measured; 0: not known."""
        mbit = self._measured.mbit(self._clock.monotonic())
        return min(mbit, self._upload_mbit) if mbit and self._upload_mbit else mbit or rounded(self._upload_mbit)

    def held(self, num_bytes: int) -> Sequence[Pace]:
        """What a checkpoint of so many bytes whose upload begins now keeps besides `up`. One that begins free stays free."""
        self._review_share()
        if not self._share.limit_bytes_s or self._measured.tries(num_bytes, self._clock.monotonic()):
            return ()
        return (self._share,)

    def sent(self, sent: Sent) -> None:
        """An upload is done."""
        self._measured.uploaded(sent, self._clock.monotonic())
        self._tell_if_new()

    def review(self) -> bool:
        """Once a second: sets the rates; whether the worker is to be told another one."""
        self._tell_if_new()
        self._review_share()
        rates = (self._upload_mbit * BYTES_PER_MBIT * limits.UPLINK_SHARE, self._part_bytes_s())
        before, self.exchange_bytes_s = self.exchange_bytes_s, min(filter(None, rates), default=0.0)
        return self.exchange_bytes_s != before

    def drain(self, within_s: float) -> local_pb2.WorkerDrain:
        """The order to hand everything over: this machine leaves, and the rates are at once what they are then."""
        self.review()
        return local_pb2.WorkerDrain(within_s=within_s, bulk_bytes_s=self.exchange_bytes_s)

    def _tell_if_new(self) -> None:
        if (mbit := self.uplink_mbit) != self._told_mbit:
            self._told_mbit = mbit
            self._tell(
                "uplink_measured",
                f"{mbit:g} Mbit/s are told; of what is measured checkpoints and merges take {limits.UPLINK_SHARE:.0%}",
            )

    def _review_share(self) -> None:
        self._share.limit(self._part_bytes_s())

    def _part_bytes_s(self) -> float:
        """For checkpoints, and the same again for what replicas exchange; 0: no limit."""
        hosted = self._hosted()
        if self._is_awaited(hosted):
            return 0.0
        uploads = any(one.assignment.role == model_pb2.ROLE_PRIMARY for one in hosted)
        exchanges = any(len(one.assignment.siblings) > 1 for one in hosted)
        parts = 2 if uploads and exchanges else 1
        return self._measured.mbit(self._clock.monotonic()) * BYTES_PER_MBIT * limits.UPLINK_SHARE / parts

    def _is_awaited(self, hosted: Sequence[Hosted]) -> bool:
        """Whether this machine leaves, or anything of it goes elsewhere: by the plan, or by a last state that is not durable yet."""
        here = {one.assignment.replica for one in hosted}
        return (
            self._leaves()
            or any(one.assignment.hand_over_s > 0.0 for one in hosted)
            or any(replica not in here for replica in self._unnamed())
        )
