"""The directory inside one process: the same rules on records as the DHT, without a network. For the simulator and tests."""

from __future__ import annotations

from dcnr.ports import Clock
from membership.dht_storage import RecordStore
from membership.directory import Verify, best_answer, checked_record, record_key


class MemoryDirectory:
    """A `membership.directory.Directory` over ``stores``: each stands for one peer that keeps records, shared by the nodes of one network."""

    def __init__(self, stores: list[RecordStore], *, clock: Clock, verify: Verify) -> None:
        self._stores, self._clock, self._verify = stores, clock, verify

    async def put(self, key: bytes | str, record: bytes) -> int:
        """Number of stores that hold exactly these bytes now. Raises InvalidInput."""
        name, now = record_key(key), self._clock.wall()
        checked_record(name, record, self._verify, now)
        return sum(store.offer(name, record, subnet="", now_wall=now).holds for store in self._stores)

    async def get(self, key: bytes | str) -> bytes | None:
        """The newest valid record over all stores."""
        name, now = record_key(key), self._clock.wall()
        answers = []
        for store in self._stores:
            record = store.read(name, now)
            facts = self._verify(name, record, now) if record is not None else None
            if record is not None and facts is not None:
                answers.append((facts, record))
        return best_answer(answers)
