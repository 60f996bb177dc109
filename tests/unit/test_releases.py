"""Goal: what k maintainers said last of a model counts, once; nothing is released that could not be served, and no look goes back behind an earlier one."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

import pytest
from releases_rig import ALICE, BOB, CLOCK, MODEL, STRANGER, Shelf

from dataservice import keys
from dataservice.memory import Fault, MemoryStore, Operation, PlannedFaults
from dcnr.errors import Corrupt, DcnrError, InvalidInput, Refused, Stale, TimedOut, Unavailable
from dcnr.ports import ObjectInfo
from dcnr.sdk import releasing
from dcnr.sdk.releasing import Released, released_of
from dcnr.v1 import identity_pb2, model_pb2, orchestrator_pb2
from orchestrator import releases
from orchestrator.releases import ReleaseBook, number_in, record_release
from trust.identity import NodeKey


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def refused(shelf: Shelf, envelope: identity_pb2.Envelope) -> DcnrError:
    with pytest.raises(DcnrError) as caught:
        asyncio.run(shelf.told(envelope))
    return caught.value


def test_the_newest_statement_counts_and_an_empty_one_follows_training(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)
    assert shelf.book().in_force == ""
    for number, digest in ((1, second), (2, first), (3, "")):
        assert shelf.say(number, digest)
        book = shelf.book()
        assert book.newest is not None
        assert (book.newest.release.number, book.in_force) == (number, digest)


def test_what_is_in_force_is_not_recorded_again_and_an_old_statement_changes_nothing(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)
    assert asyncio.run(shelf.told(shelf.envelope(1, ""))) == (None, False), "nobody ever said anything: training is followed"
    old = shelf.envelope(1, second)
    assert asyncio.run(shelf.told(old))[1]
    assert not asyncio.run(shelf.told(old))[1]
    assert not shelf.say(2, second)
    assert shelf.store.peek(keys.release(MODEL, 2)) is None
    assert shelf.say(2, first)
    error = refused(shelf, old)
    assert (error.code, error.details["number"]) == ("release_not_next", "3")
    assert refused(shelf, shelf.envelope(4, second)).code == "release_not_next"
    assert shelf.book().in_force == first


def test_a_look_that_lacks_statements_takes_nothing_for_granted(shelf: Shelf) -> None:
    first = shelf.manifest(1)
    shelf.say(1, first)
    shelf.store.faults = PlannedFaults([(Operation.LIST, "", Fault.STALE_READ)])
    assert refused(shelf, shelf.envelope(2, "")).code == "release_not_next", "that training is followed is no news to that look"
    assert shelf.say(2, "")


def test_of_two_at_once_one_is_first_and_the_other_is_told_its_number(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)

    def slow(theirs: identity_pb2.Envelope) -> MemoryStore:
        class Slow(MemoryStore):
            """Somebody writes their statement between our look and our write."""

            async def put(self, key: str, data: bytes, **conditions: object) -> str:
                await shelf.store.put(key, theirs.SerializeToString(deterministic=True))
                return await shelf.store.put(key, data, **conditions)  # type: ignore[arg-type]

        made = Slow(CLOCK, random.Random(1))
        for name in ("get", "head", "list"):
            setattr(made, name, getattr(shelf.store, name))
        return made

    def said(number: int, ours: str, theirs: str) -> tuple[str, bool]:
        store = slow(shelf.envelope(number, theirs, reason="theirs"))
        envelope = shelf.envelope(number, ours)
        found, is_new = asyncio.run(
            record_release(envelope, policy=shelf.policy, store=store, loader=shelf.loader, newest=lambda _: None)
        )
        assert found is not None
        return found.release.reason, is_new

    assert said(1, first, first) == ("theirs", False)
    with pytest.raises(Stale) as lost:
        said(2, second, "")
    assert lost.value.details["number"] == "3"


def test_only_k_maintainers_of_this_network_release() -> None:
    shelf = Shelf(ALICE, BOB)
    first = shelf.manifest(1)
    for signers in ((ALICE,), (ALICE, STRANGER), (STRANGER,)):
        assert refused(shelf, shelf.envelope(1, first, *signers)).code == "unsigned_job"
    assert refused(shelf, shelf.envelope(1, first, network_id="0" * 40)).code == "wrong_network"
    assert shelf.say(1, first)


def test_another_kind_of_statement_releases_nothing(shelf: Shelf) -> None:
    envelope = shelf.envelope(1, shelf.manifest(1))
    envelope.domain = identity_pb2.DOMAIN_JOB_PAUSE
    with pytest.raises(Corrupt):
        asyncio.run(shelf.told(envelope))


@pytest.mark.parametrize(
    ("digest", "code"),
    [
        (lambda shelf: "f" * 64, "no_manifest"),
        (lambda shelf: shelf.manifest(1, model="other"), "no_manifest"),
        (lambda shelf: shelf.manifest(1, job_id=""), "not_trained"),
        (lambda shelf: shelf.manifest(1, job_id="job-9"), "no_such_object"),
        (lambda shelf: "not a digest", "bad_id"),
    ],
)
def test_what_could_not_be_served_is_not_released(shelf: Shelf, digest: Callable[[Shelf], str], code: str) -> None:
    assert refused(shelf, shelf.envelope(1, digest(shelf))).code == code
    assert shelf.book().newest is None


def test_a_manifest_of_another_model_that_was_read_before_is_not_released(shelf: Shelf) -> None:
    other = shelf.manifest(1, model="other")
    asyncio.run(shelf.loader.manifest("other", other))
    assert refused(shelf, shelf.envelope(1, other)).code == "no_manifest"


def test_where_audits_are_drawn_only_cleared_states_are_released() -> None:
    shelf = Shelf(audits="drawn")
    assert refused(shelf, shelf.envelope(1, shelf.manifest(1, are_cleared=False))).code == "not_cleared"
    assert refused(shelf, shelf.envelope(1, shelf.manifest(2, audits="none"))).code == "not_cleared", "of a job before audits"
    assert shelf.say(1, shelf.manifest(3))


def test_what_is_gone_from_the_store_or_is_to_go_or_was_taken_back_is_not_released(shelf: Shelf) -> None:
    first, second, third = (shelf.manifest(number) for number in (1, 2, 3))
    shelf.store.rewind(keys.state(MODEL, "b", shelf.state(1, "b")), None)
    gone = refused(shelf, shelf.envelope(1, first))
    assert (gone.code, "of b" in gone.message, "job list" in gone.remedy) == ("states_gone", True, True)
    shelf.newest = model_pb2.Manifest(condemned=[shelf.state(2, "a")], retracted=[shelf.state(3, "a")])
    assert refused(shelf, shelf.envelope(1, second)).code == "states_gone"
    assert refused(shelf, shelf.envelope(1, third)).code == "taken_back"
    shelf.newest = None
    assert shelf.say(1, second)
    assert shelf.say(2, "")
    shelf.newest = model_pb2.Manifest(condemned=[shelf.state(2, "a")])
    assert shelf.say(3, second), "the release before keeps what another orchestrator condemned at the same moment"


def test_what_an_earlier_job_took_back_is_not_released_though_the_newest_manifest_says_nothing_of_it(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)
    shelf.ended(shelf.manifest(3, retracted=[shelf.state(1, "a")]), newest=shelf.manifest(4))
    assert refused(shelf, shelf.envelope(1, first)).code == "taken_back"
    assert shelf.say(1, second)


def test_reasons_and_statements_are_bounded(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    first = shelf.manifest(1)
    with pytest.raises(InvalidInput) as long:
        asyncio.run(shelf.told(shelf.envelope(1, first, reason="x" * (releases.MAX_REASON + 1))))
    assert long.value.code == "reason_too_long"
    monkeypatch.setattr(releases, "MAX_RELEASES", 1)
    assert shelf.say(1, first)
    with pytest.raises(Refused) as full:
        shelf.say(2, "")
    assert full.value.code == "too_many_releases"


def test_what_lies_under_another_number_or_bears_no_signature_does_not_count(shelf: Shelf) -> None:
    first = shelf.manifest(1)
    shelf.say(1, first)
    forged = (shelf.envelope(3, ""), shelf.envelope(3, "", STRANGER), shelf.envelope(4, "", model="other"))
    for number, envelope in enumerate(forged, 2):
        shelf.store.rewind(keys.release(MODEL, number), envelope.SerializeToString())
    shelf.store.rewind(keys.release(MODEL, 5), b"no envelope")
    assert shelf.book().in_force == first


def test_a_listing_that_went_back_takes_nothing_back(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)
    shelf.say(1, first)
    shelf.say(2, second)
    book = shelf.book()
    shelf.store.rewind(keys.release(MODEL, 2), None)
    asyncio.run(book.refresh())
    assert book.in_force == second
    assert shelf.book().in_force == first
    found, _ = asyncio.run(shelf.told(shelf.envelope(1, first)))
    assert found is not None
    book.heard(found)
    assert book.in_force == second


def test_a_process_knows_nothing_before_it_has_read(shelf: Shelf) -> None:
    first, second = shelf.manifest(1), shelf.manifest(2)
    book = ReleaseBook(MODEL, shelf.store, lambda: shelf.policy)
    assert book.in_force is None
    shelf.say(1, first)
    found, _ = asyncio.run(shelf.told(shelf.envelope(2, second)))
    assert found is not None
    book.heard(found)
    assert (book.in_force, book.kept) == (second, (second,))
    asyncio.run(book.refresh())
    assert book.kept == (second, first), "what was said before counts too"


def test_who_is_asked_looks_anew_and_tells_what_it_knows_where_the_store_is_away(shelf: Shelf) -> None:
    def away() -> PlannedFaults:
        return PlannedFaults([(Operation.LIST, "", Fault.UNAVAILABLE)])

    first, fresh, book = shelf.manifest(1), ReleaseBook(MODEL, shelf.store, lambda: shelf.policy), shelf.book()
    shelf.say(1, first)
    shelf.store.faults = away()
    with pytest.raises(Unavailable):
        asyncio.run(fresh.current())
    shelf.store.faults = away()
    assert asyncio.run(book.current()) is None, "as it was known"
    for one in (fresh, book):
        found = asyncio.run(one.current())
        assert found is not None
        assert found.release.manifest_digest == first


def test_a_store_that_stands_still_keeps_nobody_from_what_is_known(shelf: Shelf, monkeypatch: pytest.MonkeyPatch) -> None:
    class Still(MemoryStore):
        """Never says what it has."""

        num_asked = 0

        async def list(self, prefix: str, **how: object) -> list[ObjectInfo]:  # type: ignore[override]
            self.num_asked += 1
            await asyncio.Event().wait()
            return []

    monkeypatch.setattr(releases, "LOOK_S", 0.01)
    first, still = shelf.manifest(1), Still(CLOCK, random.Random(1))
    shelf.say(1, first)
    book, fresh = shelf.book(), ReleaseBook(MODEL, still, lambda: shelf.policy)
    book._store = still

    async def asked() -> list[str]:
        async with asyncio.timeout(30):
            found = [await book.current() for _ in range(3)] + await asyncio.gather(*(book.current() for _ in range(3)))
            with pytest.raises(TimedOut):
                await fresh.current()
        return [one.release.manifest_digest for one in found if one is not None]

    assert asyncio.run(asked()) == [first] * 6
    assert still.num_asked == 2, "one look of each book, for all who ask"


def test_states_of_the_last_two_manifests_that_were_named_are_kept(shelf: Shelf) -> None:
    first, second, third = (shelf.manifest(number) for number in (1, 2, 3))
    book = shelf.book()
    for number, (digest, kept) in enumerate(
        [(first, [first]), ("", [first]), (second, [second, first]), ("", [second, first]), (third, [third, second])], 1
    ):
        shelf.say(number, digest)
        asyncio.run(book.refresh())
        assert (list(book.kept), list(shelf.book().kept)) == (kept, kept)


@pytest.mark.parametrize(
    ("name", "number"), [("0001", 1), ("1024", 1024), ("1025", 0), ("0000", 0), ("", 0), ("1", 0), ("00001", 0), ("a001", 0), ("\u0661001", 0)]
)  # fmt: skip
def test_only_numbers_of_statements_are_read_from_keys(name: str, number: int) -> None:
    assert number_in(name) == number


# -- whoever signs, and whoever is shown what is in force ------------------------------------------------------------------------------


class Direct:
    """An orchestrator's own rules, for whoever signs."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf

    async def call(
        self, stub: object, method: str, request: orchestrator_pb2.ReleaseModelRequest
    ) -> orchestrator_pb2.ReleaseModelResponse:
        assert method == "ReleaseModel"
        said, _ = await self.shelf.told(request.release)
        return orchestrator_pb2.ReleaseModelResponse(recorded=True, release=said.envelope if said is not None else None)


def signed(there: object, shelf: Shelf, before: Released, manifest: str, *signers: NodeKey) -> Released:
    return asyncio.run(
        releasing.say(there, shelf.policy, before, signers, manifest=manifest, reason="worse", now_wall=1.0)  # type: ignore[arg-type]
    )


def test_a_maintainer_whose_view_is_older_signs_the_number_that_is_next() -> None:
    shelf = Shelf(ALICE, BOB)
    first, second = shelf.manifest(1), shelf.manifest(2)
    shelf.say(1, first)
    found = signed(Direct(shelf), shelf, Released(MODEL), second, ALICE, BOB)
    both = tuple(sorted((ALICE.node_id, BOB.node_id)))
    assert found == Released(MODEL, 2, second, "worse", 1000, both)
    with pytest.raises(Refused) as alone:
        signed(Direct(shelf), shelf, found, first, ALICE)
    assert alone.value.code == "unsigned_job"
    assert signed(Direct(shelf), shelf, found, "", ALICE, BOB).manifest == ""


@pytest.mark.parametrize(("told", "numbers"), [([9], [5]), ([5], [5]), ([""], [5]), ([6, 7, 8], [5, 6])])
def test_an_orchestrator_that_names_numbers_collects_no_signatures_for_later_ones(
    shelf: Shelf, told: list[object], numbers: list[int]
) -> None:
    seen: list[int] = []

    class Liar:
        async def call(self, stub: object, method: str, request: orchestrator_pb2.ReleaseModelRequest) -> None:
            seen.append(shelf.policy.open_release(request.release).number)
            raise Stale("not the next", code="release_not_next", number=told[len(seen) - 1])

    with pytest.raises(Stale):
        signed(Liar(), shelf, Released(MODEL, 4), "", ALICE)
    assert seen == numbers


def test_who_is_shown_a_release_verifies_it() -> None:
    shelf = Shelf(ALICE, BOB)
    first = shelf.manifest(1)
    assert released_of(shelf.policy, MODEL, None) == Released(MODEL)
    shown = released_of(shelf.policy, MODEL, shelf.envelope(3, first, ALICE, BOB, STRANGER))
    assert (shown.number, shown.manifest, STRANGER.node_id in shown.signers) == (3, first, False)
    for forged in (shelf.envelope(3, first, ALICE), shelf.envelope(3, first, ALICE, STRANGER)):
        with pytest.raises(Refused):
            released_of(shelf.policy, MODEL, forged)
    with pytest.raises(Corrupt):
        released_of(shelf.policy, MODEL, shelf.envelope(3, first, model="other"))
