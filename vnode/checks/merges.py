"""What a bundle says of merges: the states that the statements of an interval name, with the deltas that were taken in before each, and what a contributor
moved. Torch-free.

Everything is held against signed words, as in `vnode.checks.opening`: raises Corrupt, Refused where it is not what they name, NotFound where it is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from dcnr.errors import Corrupt
from dcnr.ids import Digest, digest_of
from dcnr.v1 import model_pb2
from trust.commits import Place, ends_with, open_delta
from trust.step_logs import Statement
from vnode.bundle import Bundle, places_of_states
from vnode.checks.claims import Anchored, Displacement, Taken

_STATE, _DISPLACEMENT, _MEASURED = (
    model_pb2.EVIDENCE_KIND_STATE,
    model_pb2.EVIDENCE_KIND_DISPLACEMENT,
    model_pb2.EVIDENCE_KIND_MEASURED,
)
MAX_REPLICAS = 64
"""Of one VNode, that learn together."""


def anchored_in(
    bundle: Bundle, statements: Sequence[Statement], entries: Sequence[int], place: Place
) -> dict[int, tuple[Anchored, ...]]:
    """By number of entries before them, the states that commits name, where there is more than one or a delta was taken in; ``entries``: of each one's log."""
    commits = [one for one in statements if isinstance(one, model_pb2.Commit)]
    places = places_of_states(entries)
    total = places[-1][0]
    num_taken = 0
    found: dict[int, list[Anchored]] = {}
    for number, (commit, (entry, port)) in enumerate(zip(commits, places, strict=False)):
        taken = tuple(_taken(bundle, num_taken + at, merged, commit, place) for at, merged in enumerate(commit.merges))
        num_taken += len(taken)
        is_last = number == len(commits) - 1
        if is_last and total and total not in found and not taken:
            continue  # one state after the last entry, as everywhere
        state = _state_of(bundle, number, commit, entry, port)
        found.setdefault(entry, []).append(Anchored(taken, state))
    return {entry: tuple(states) for entry, states in found.items()}


def _state_of(bundle: Bundle, number: int, statement: Statement, entry: int, port: int) -> memoryview:
    state = bundle.data(_STATE, entry=entry, port=port)
    if digest_of(state) != named_by(statement):
        raise Corrupt(f"the state of statement {number} is not the one that it names", code="wrong_digest")
    return state


def restated_in(bundle: Bundle, statements: Sequence[Statement], entries: Sequence[int]) -> tuple[Anchored, ...]:
    """The states that commits name which learned and merged nothing, in order: each is the first state again. What such an interval computed again, its log
    tells; inputs and outputs of that are not looked at.
    """
    places = zip(statements, places_of_states(entries), strict=True)
    return tuple(Anchored((), _state_of(bundle, number, one, *place)) for number, (one, place) in enumerate(places))


def is_idle(statements: Sequence[Statement]) -> bool:
    """Whether nothing was learned and nothing merged."""
    return not any(isinstance(one, model_pb2.Delta) or one.merges or one.batches for one in statements)


def displacement_in(bundle: Bundle, statements: Sequence[Statement]) -> Displacement | None:
    """What the delta that ends the interval moved; None where a state ends it."""
    last = statements[-1]
    if not isinstance(last, model_pb2.Delta):
        return None
    measured = None
    if last.measured_digest not in ("", last.anchor_digest):
        measured = bundle.data(_MEASURED)
        if digest_of(measured) != last.measured_digest:
            raise Corrupt("the anchor that a delta was measured against is not the one that it names", code="wrong_digest")
    return Displacement(bytes(_weights(bundle, 0, last)), last.codec, measured)


def named_by(statement: Statement) -> Digest:
    """What a statement ends with: a state, an anchor that is a whole state, or a displacement."""
    if isinstance(statement, model_pb2.Delta):
        return Digest(statement.digest)
    return Digest(ends_with(statement))


def _taken(bundle: Bundle, number: int, merged: model_pb2.Merged, commit: model_pb2.Commit, place: Place) -> Taken:
    if merged.after != len(commit.batches) or not 1 < merged.replicas <= MAX_REPLICAS:
        raise Corrupt("a merge that does not say where it lies, or how many replicas learned", code="bad_merge")
    found = open_delta(merged.delta, place)
    return Taken(_weights(bundle, number, found.delta), found.delta.codec, found.batches, int(merged.replicas))


def _weights(bundle: Bundle, number: int, delta: model_pb2.Delta) -> memoryview:
    data = bundle.data(_DISPLACEMENT, entry=number)
    if digest_of(data) != delta.digest:
        raise Corrupt("a displacement that is not the one that its delta names", code="wrong_digest")
    return data
