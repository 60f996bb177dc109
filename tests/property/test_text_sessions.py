"""Goal: what is kept of texts stays within its bounds whatever is asked, the one used longest ago goes first, and nobody is ever served a beginning that is not
the one of its text.
"""

from __future__ import annotations

from functools import cache
from random import Random
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from dcnr.limits import MAX_DRAFT
from dcnr.system import SystemClock
from dcnr.tensor import encode_final
from dcnr.v1 import identity_pb2
from orchestrator.answered import Answered
from orchestrator.generation import Generation, Wanted
from orchestrator.questions import Question
from orchestrator.routing import Candidate, Table, Way
from orchestrator.text_session import MAX_REPLAYS, TextSession
from orchestrator.trying import Answer
from pnode.infer_places import Wish
from pnode.infer_sessions import infer_on
from pnode.infer_words import Made
from pnode.text_sessions import FRESH_S, IDLE_S, SessionKey, TextSessions

SEATS = (("m", "a", "1" * 64), ("m", "b", "2" * 64))
CALLERS = ("x", "y")
MAX_KEPT, MAX_OF_A_CALLER = 6, 4
KEYS = st.builds(SessionKey, st.sampled_from(CALLERS), st.binary(min_size=1, max_size=1), st.sampled_from(SEATS))


class Books(RuleBasedStateMachine):
    """Beside the books: what was begun last under each key, and when each was used."""

    def __init__(self) -> None:
        super().__init__()
        self.books = TextSessions[object](max_kept=MAX_KEPT, max_of_a_caller=MAX_OF_A_CALLER)
        self.now_s = 0.0
        self.begun: dict[SessionKey, object] = {}
        self.used_s: dict[SessionKey, float] = {}

    def here(self) -> set[SessionKey]:
        return {key for key in self.begun if key in self.books._kept}

    @initialize(max_bytes=st.integers(0, 50))
    def lent(self, max_bytes: int) -> None:
        self.books.limit(max_bytes)

    @rule(seconds=st.floats(0, IDLE_S))
    def time_goes_by(self, seconds: float) -> None:
        self.now_s += seconds

    @rule(key=KEYS, num_bytes=st.integers(0, 20))
    def begins(self, key: SessionKey, num_bytes: int) -> None:
        before, thing = self.here() - {key}, object()
        is_kept = self.books.begin(key, thing, num_bytes, self.now_s)
        gone = before - self.here()
        assert all(self.now_s - self.used_s[one] >= FRESH_S for one in gone), "used a moment ago"
        if is_kept:
            self.begun[key], self.used_s[key] = thing, self.now_s
        else:
            assert self.books.find(key, self.now_s) is None

    @rule(key=KEYS)
    def goes_on(self, key: SessionKey) -> None:
        found = self.books.find(key, self.now_s)
        if found is not None:
            assert found is self.begun[key]
            self.used_s[key] = self.now_s

    @rule(key=KEYS)
    def ends(self, key: SessionKey) -> None:
        before = self.here()
        self.books.end(key.caller, key.session)
        assert before - self.here() == {one for one in before if (one.caller, one.session) == (key.caller, key.session)}

    @rule(seat=st.sampled_from(SEATS))
    def seat_goes(self, seat: Any) -> None:
        before = self.here()
        self.books.leave(seat)
        assert before - self.here() == {one for one in before if one.seat == seat}

    @rule(max_bytes=st.integers(0, 50))
    def less_or_more_is_lent(self, max_bytes: int) -> None:
        self.books.limit(max_bytes)

    @rule()
    def looked_through(self) -> None:
        self.books.review(self.now_s)
        assert all(self.now_s - self.used_s[key] < IDLE_S for key in self.here())

    @invariant()
    def within_bounds(self) -> None:
        self.books.check()
        assert sum(count for count, _ in self.books.by_seat().values()) == self.books.num_kept


TestBooks = Books.TestCase
TestBooks.settings = settings(max_examples=40, stateful_step_count=30)


def test_ten_thousand_sessions_take_no_more_than_is_lent() -> None:
    books, room = TextSessions[int](), 40
    books.limit(room * 100)
    for number in range(10_000):
        key = SessionKey("x", number.to_bytes(16, "big"), SEATS[0])
        assert books.begin(key, number, 100, FRESH_S * number)
        assert books.num_bytes <= room * 100
    books.check()
    assert [key.session for key in books._kept] == [number.to_bytes(16, "big") for number in range(10_000 - room, 10_000)]
    assert books.num_evicted == 10_000 - room
    books.review(FRESH_S * 10_000 + IDLE_S)
    assert (books.num_kept, books.num_bytes) == (0, 0)


# ---- a text on what is kept --------------------------------------------------------------------------------------------------


CONTEXT = 16
TABLE = Table("manifest", (), {})
WAY = Way(TABLE, (Candidate("p", "a", identity_pb2.Envelope(), state_digest="1" * 64),))


class Told:
    """A stage whose logits at a place are a function of all tokens up to it."""

    def extend(self, memory: Any, inputs: list[Any]) -> Any:
        rows = []
        for token in bytes(inputs[0][0]):
            memory.tokens.append(token)
            rows.append(logits_after(bytes(memory.tokens)))
        return np.stack(rows)[None]

    def readout(self, output: Any) -> Any:
        return output


class Tokens:
    """What such a stage keeps: the tokens themselves."""

    def __init__(self) -> None:
        self.tokens = bytearray()

    @property
    def length(self) -> int:
        return len(self.tokens)

    def back_to(self, length: int) -> None:
        del self.tokens[length:]


@cache
def logits_after(text: bytes) -> Any:
    rng, logits = Random(text), np.full(256, -50.0, np.float32)
    logits[list(b"abcd")] = [rng.gauss(0.0, 3.0) for _ in range(4)]
    return logits


def computed(question: Question, memory: Tokens) -> tuple[bytes, Any, int]:
    """Drafts, logits of the places that were asked, and how many places are kept."""
    stage: Any = Told()
    kept: Any = memory
    (encoded,) = question.inputs.values()
    asked = [Made("a", np.frombuffer(bytes(encoded.payload), np.uint8)[None])]
    found = infer_on(
        stage, kept, question.offset, asked, 0, SystemClock(),
        Wish(answers=True, draft=question.draft, last=question.last, drawing=question.drawing),
    )  # fmt: skip
    return found.drafted, found.readout[0], found.kept


class Writer:
    """A text, and the one stage that keeps what its books have room for."""

    def __init__(self, wanted: Wanted) -> None:
        self.generation, self.session, self.books = Generation(wanted, CONTEXT), TextSession(), TextSessions[Tokens]()
        self.text, self.num_passes = b"", 0

    def passes(self) -> None:
        """The next pass, as `orchestrator.answering` and a seat make it."""
        self.num_passes += 1
        asked, now_s = self.generation.ask(), float(self.num_passes)
        window = encode_final(np.frombuffer(asked.window, np.uint8)[None], "raw")
        whole = self.session.asks(Question({"a": window}, 1, "a", False, 1.0, 1, asked.draft, asked.last, asked.drawing))
        first = self.session.goes_on(whole, [TABLE])
        left = first[1] if first is not None else None
        memory = self.books.find(key_of(left.session), now_s) if left is not None else None
        if left is not None and memory is not None:
            id_, (drafted, readout, kept) = left.session, computed(left, memory)
        else:
            id_, begun = self.num_passes.to_bytes(16, "big") if whole.begins_session else b"", Tokens()
            has_room = bool(id_) and self.books.begin(key_of(id_), begun, 1, now_s)
            drafted, readout, kept = computed(whole, begun)
            kept = kept if has_room else 0
        answer = Answer(readout, "1" * 64, "", 0, {}, drafted, id_, kept)
        gone = self.session.answered(whole, left, Answered(WAY, answer, 1))
        if gone is not None:
            self.books.end("x", gone.session)
        self.text += self.generation.take(drafted, readout)


def key_of(session: bytes) -> SessionKey:
    return SessionKey("x", session, SEATS[0])


@settings(max_examples=60)
@given(
    st.binary(min_size=1, max_size=24), st.integers(1, 60), st.integers(0, MAX_DRAFT), st.lists(st.sampled_from(["kept", "lost", "full"]), max_size=30),
    st.sampled_from([0.0, 1.5]),
)  # fmt: skip
def test_a_text_is_the_same_whatever_is_kept_and_lost(
    prompt: bytes, num_tokens: int, draft: int, fates: list[str], temperature: float
) -> None:
    plain, other = (Writer(Wanted(prompt, num_tokens, temperature, seed=3, draft=most)) for most in (0, draft))
    while not plain.generation.finish_reason:
        plain.passes()
    while not other.generation.finish_reason:
        fate = fates[other.num_passes] if other.num_passes < len(fates) else "kept"
        if fate != "kept":
            other.books.limit(0)
        if fate != "full":
            other.books.limit(100)
        other.passes()
        other.books.check()
        assert other.books.num_kept <= 1, "what nobody goes on from was let go"
    assert (plain.session.num_kept, plain.session.num_replays) == (0, 0)
    assert other.text == plain.text
    assert other.generation.num_accepted == other.generation.num_drafted, "the one stage drafts what it writes, also when it draws"
    assert other.session.num_replays <= min(MAX_REPLAYS, len([fate for fate in fates if fate != "kept"]))
    if not fates and other.num_passes > 1 and len(prompt) + num_tokens <= CONTEXT:
        assert other.session.num_kept > 0
