"""Goal: other maintainers' keys are in force exactly when enough of the old and enough of the new have signed, and what is missing is told rightly."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dcnr.errors import Refused
from trust.amendment import Amendment
from trust.identity import NodeKey
from trust.network import create_document, draft_successor, sign_document, verify_chain

KEYS = tuple(NodeKey.generate() for _ in range(5))
EVERYBODY = [set(some) for count in range(len(KEYS) + 1) for some in itertools.combinations(range(len(KEYS)), count)]
subsets = st.sets(st.sampled_from(range(len(KEYS))), min_size=1)


def of(numbers: set[int]) -> list[NodeKey]:
    return [KEYS[number] for number in sorted(numbers)]


@settings(max_examples=60)
@given(old=subsets, new=subsets, signers=subsets, data=st.data())
def test_enough_of_the_old_and_enough_of_the_new_sign(old: set[int], new: set[int], signers: set[int], data: st.DataObject) -> None:
    of_old, of_new = (data.draw(st.integers(1, len(keys)), label="threshold") for keys in (old, new))
    before = verify_chain([create_document(*of(old), name="n", now_wall=1.0, orchestrator_ids=["a" * 40], threshold=of_old)])
    draft = draft_successor(before)
    draft.maintainer_keys[:] = [key.public_der for key in of(new)]
    draft.threshold = of_new
    amendment = Amendment(before, sign_document(draft, *of(signers)))

    def enough(signed: set[int]) -> bool:
        return len(signed & old) >= of_old and len(signed & new) >= of_new

    assert amendment.missing() == min(len(more - signers) for more in EVERYBODY if enough(signers | more))
    assert (amendment.lacking() == ()) == enough(signers)
    if enough(signers):
        assert amendment.policy().document.version == 2
    else:
        with pytest.raises(Refused) as refused:
            amendment.policy()
        assert refused.value.code == "too_few_signatures"
