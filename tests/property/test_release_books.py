"""Goal: whoever says what through whom, also again and over listings that are stale: numbers are used once and in a row, no process goes back to a lower one,
and in the end all agree on the last.
"""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st
from releases_rig import MODEL, Shelf

from dataservice import keys
from dataservice.memory import Fault, NoFaults, Operation, PlannedFaults
from dcnr.errors import Stale
from dcnr.v1 import identity_pb2
from orchestrator.releases import ReleaseBook

STEPS = st.lists(st.tuples(st.sampled_from(["say", "again", "refresh"]), st.integers(0, 5), st.booleans()), max_size=20)


def number(book: ReleaseBook) -> int:
    return book.newest.release.number if book.newest is not None else 0


@given(STEPS)
def test_no_process_goes_back_and_all_agree_in_the_end(steps: list[tuple[str, int, bool]]) -> None:
    shelf = Shelf()
    digests, signed = (shelf.manifest(1), shelf.manifest(2), ""), list[identity_pb2.Envelope]()
    books = [ReleaseBook(MODEL, shelf.store, lambda: shelf.policy) for _ in range(2)]

    def tell(book: ReleaseBook, envelope: identity_pb2.Envelope) -> None:
        try:
            said, _ = asyncio.run(shelf.told(envelope))
        except Stale:
            return
        if said is not None:
            book.heard(said)

    for what, which, is_stale in steps:
        shelf.store.faults = PlannedFaults([(Operation.LIST, "", Fault.STALE_READ)] if is_stale else [])
        book, before = books[which % 2], [number(one) for one in books]
        if what == "refresh":
            asyncio.run(book.refresh())
        elif what == "say" or not signed:
            signed.append(shelf.envelope(number(book) + 1 + which // 3, digests[which % 3]))
            tell(book, signed[-1])
        else:
            tell(book, signed[which % len(signed)])
        assert all(now >= was for now, was in zip([number(one) for one in books], before, strict=True))
    shelf.store.faults = NoFaults()
    everything = shelf.store.keys()
    there = [key for key in everything if key.startswith(keys.releases_prefix(MODEL))]
    assert there == [keys.release(MODEL, one) for one in range(1, len(there) + 1)]
    for book in (*books, shelf.book()):
        asyncio.run(book.refresh())
        assert (number(book), book.in_force) == (len(there), shelf.book().in_force)
