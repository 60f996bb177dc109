"""Goal: contributors whose deltas can never be merged keep a job from nothing: in the end the primary has learned each batch, and each once."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dcnr.ids import ReplicaId
from tests.property import test_merges_in_any_order as merges
from tests.property.test_merges_in_any_order import ONE, OTHER, SHAPES, WAITS, Play, Replica, World
from vnode import events as ev
from vnode import merge_events as mev
from vnode.vocabulary import TRAIN_LANE

SCRIPTS = st.tuples(st.lists(st.one_of(*WAITS), max_size=20), *SHAPES)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(SCRIPTS, st.sets(st.sampled_from([ONE, OTHER]), min_size=1), st.booleans())
def test_batches_that_come_in_deltas_that_never_fit_are_learned_all_the_same(
    script: tuple[list[tuple[str, object]], int, int], never: set[ReplicaId], audited: bool
) -> None:
    class Picky(World):
        """Whatever these bring, the state is clearly worse with it."""

        def go_on(self, replica: Replica) -> None:
            if isinstance(replica.busy, mev.MergeDeltas) and never & {self.whose[request] for request in replica.busy.requests}:
                replica.busy = None
                self.feed(replica, ev.ComputeFailed(self.now_s, TRAIN_LANE, 0, "worsens", fatal=False))
            else:
                super().go_on(replica)

        def bring(self, replica: Replica) -> int | None:
            self.whose = {**getattr(self, "whose", {}), self.requests + 1: replica.name}
            return super().bring(replica)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(merges, "World", Picky)
        Play(script, audited=audited).finish(rounds=60)
