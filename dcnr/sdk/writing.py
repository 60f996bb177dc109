"""What is wanted of a text that the model writes."""

from __future__ import annotations

from dataclasses import dataclass

from dcnr.errors import InvalidInput
from dcnr.sdk.asking import WEIGHTS
from dcnr.v1 import orchestrator_pb2


@dataclass(frozen=True, slots=True)
class Write:
    """What is to be written."""

    model: str = ""
    """Empty: the network's only one."""
    max_tokens: int = 128
    temperature: float = 0.0
    """0: the likeliest token each time."""
    top_p: float = 1.0
    seed: int | None = None
    """The same seed and weights give the same text; None: drawn."""
    stop: tuple[str, ...] = ()
    """The text ends before the first of them."""
    weights: str = "served"
    """As in `Ask`."""
    manifest: str = ""
    exit: str = ""
    full_depth: bool = False
    deadline_s: float = 120.0
    """For the whole text."""
    plain: bool = False
    """Without drafts: one token per pass; the same text, slower."""

    def check(self) -> None:
        """Raises InvalidInput for what cannot travel, or would say something else there."""
        if self.weights not in WEIGHTS:
            raise InvalidInput(f"weights are one of {', '.join(WEIGHTS)}, not {self.weights!r}", code="bad_weights")
        if not 0 < self.max_tokens < 1 << 32 or (self.seed is not None and not 0 <= self.seed < 1 << 64):
            raise InvalidInput("tokens are counted from 1, and a seed has 64 bits", code="bad_generation")
        if not 0.0 < self.top_p <= 1.0:  # 0 stands for 1 on the wire
            raise InvalidInput("top_p is above 0 and at most 1", code="bad_generation")


def request_of(prompt: str | bytes, wanted: Write) -> orchestrator_pb2.GenerateRequest:
    """The wish as it travels. Raises InvalidInput."""
    wanted.check()
    return orchestrator_pb2.GenerateRequest(
        model=wanted.model, prompt=prompt.encode() if isinstance(prompt, str) else prompt, max_tokens=wanted.max_tokens,
        temperature=wanted.temperature, top_p=wanted.top_p, seed=wanted.seed, stop=[text.encode() for text in wanted.stop],
        weights=WEIGHTS[wanted.weights], manifest_digest=wanted.manifest, exit=wanted.exit, full_depth=wanted.full_depth,
        deadline_s=wanted.deadline_s, plain=wanted.plain,
    )  # fmt: skip
