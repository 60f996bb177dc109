"""Random numbers that are a pure function of
(seed, VNode, batch, purpose): the same on every machine, in every mode, on every replay.

Counter-based (Philox 4x64, Salmon et al. 2011), made as integers outside torch: no global generator is read or moved.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Draws:
    """The random numbers of one batch at one VNode. Asking twice for one purpose gives the same numbers."""

    seed: int
    vnode: str
    batch: int

    def words(self, purpose: str, count: int) -> npt.NDArray[np.uint32]:
        """``count`` uniform 32-bit words."""
        name = f"dcnr draws 1\0{self.seed}\0{self.vnode}\0{self.batch}\0{purpose}".encode()
        key = np.frombuffer(hashlib.sha256(name).digest()[:16], dtype="<u8").astype(np.uint64)
        raw = np.random.Philox(key=key).random_raw((count + 1) // 2)
        return np.asarray(raw, dtype="<u8").view("<u4")[:count]

    def integers(self, purpose: str, count: int, *, low: int, high: int) -> npt.NDArray[np.int64]:
        """``count`` integers in [low, high], both included (bias below 2⁻³² per value)."""
        span = np.uint64(high - low + 1)
        return ((self.words(purpose, count).astype(np.uint64) * span) >> np.uint64(32)).astype(np.int64) + low

    def keep(self, purpose: str, count: int, *, drop: float) -> npt.NDArray[np.bool_]:
        """A mask that is False with probability ``drop`` (rounded to 32 bits)."""
        return self.words(purpose, count) >= np.uint32(round(drop * 2**32))
