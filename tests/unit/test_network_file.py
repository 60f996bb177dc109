"""Goal: the network file holds the whole chain and nothing in it is believed but what is signed."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from dcnr.errors import Corrupt, NotFound, Refused, Stale
from trust.identity import NodeKey
from trust.network import MAX_HISTORY, create_document, draft_successor, sign_document, verify_chain
from trust.network_file import MAX_FILE_BYTES, load_policy, newest_policy, save_policy

NOW = 1_700_000_000.0
ALICE, BOB, ORCHESTRATOR = NodeKey.generate(), NodeKey.generate(), NodeKey.generate()


def saved(path: Path, lifetime_s: float = 0) -> Path:
    document = create_document(ALICE, name="gärtchen", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id], lifetime_s=lifetime_s)
    first = verify_chain([document])
    second = sign_document(draft_successor(first), ALICE)
    save_policy(path, first.successor([document, second]))
    return path


def test_round_trip_keeps_the_chain(tmp_path: Path) -> None:
    path = tmp_path / "far" / "deep" / "network.json"
    policy = load_policy(saved(path), NOW)
    assert (policy.document.version, policy.document.name, len(policy.history)) == (2, "gärtchen", 2)
    assert load_policy(path, NOW, network_id=policy.network_id) == policy
    assert [one.name for one in path.parent.iterdir()] == ["network.json"], "no draft is left behind"
    assert '"name": "gärtchen"' in path.read_text(encoding="utf-8"), "people can read it"


def test_a_first_version_alone_is_a_chain(tmp_path: Path) -> None:
    first = create_document(ALICE, name="garden", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id])
    save_policy(tmp_path / "network.json", verify_chain([first]))
    assert load_policy(tmp_path / "network.json", NOW).history == (first,)


def test_the_summary_is_never_believed(tmp_path: Path) -> None:
    path = saved(tmp_path / "network.json")
    table = json.loads(path.read_text())
    table["summary"]["orchestrators"] = ["0" * 40]
    table["network_id"] = "0" * 40
    path.write_text(json.dumps(table))
    assert load_policy(path, NOW).orchestrator_ids == {ORCHESTRATOR.node_id}


def test_changed_or_damaged_files_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path / "network.json")
    table = json.loads(path.read_text())
    bad = bytearray(base64.b64decode(table["documents"][0]))
    bad[40] ^= 1
    for content in (
        "", "[]", "{}", "{" * 100_000, json.dumps({**table, "format": "other"}), json.dumps(table) + " " * MAX_FILE_BYTES,
        *(json.dumps({**table, "documents": documents}) for documents in (
            None, 5, "AAAA", {}, [], ["?"], ["\u00ff"], [1], [None], table["documents"] * MAX_HISTORY,
        )),
    ):  # fmt: skip
        path.write_text(content)
        with pytest.raises(Corrupt) as damaged:
            load_policy(path, NOW)
        assert damaged.value.code == "damaged_file"
    for documents in ([base64.b64encode(bytes(bad)).decode(), table["documents"][1]], table["documents"][1:]):
        path.write_text(json.dumps({**table, "documents": documents}))
        with pytest.raises((Corrupt, Refused)):
            load_policy(path, NOW)
    assert len(json.dumps(table["documents"] * MAX_HISTORY)) < MAX_FILE_BYTES


def test_a_place_that_cannot_be_read_or_written_is_told_and_no_draft_is_left(tmp_path: Path) -> None:
    policy = load_policy(saved(tmp_path / "network.json"), NOW)
    (tmp_path / "place").mkdir()
    with pytest.raises(Corrupt) as damaged:
        load_policy(tmp_path / "place")
    assert damaged.value.code == "damaged_file"
    for path in (tmp_path / "place", tmp_path / "network.json" / "below"):
        with pytest.raises(Refused) as refused:
            save_policy(path, policy)
        assert refused.value.code == "disk_trouble"
    assert sorted(one.name for one in tmp_path.iterdir()) == ["network.json", "place"]


def test_a_start_takes_the_newest_version_of_the_given_network(tmp_path: Path) -> None:
    """Neither a file from the day of the installation nor a restart takes back what came in force meanwhile."""
    kept = saved(tmp_path / "home" / "network.json", lifetime_s=10)
    second = load_policy(kept)
    first, third = verify_chain(second.history[:1]), sign_document(draft_successor(second), ALICE)
    old, new, other, none = (tmp_path / name for name in ("old.json", "new.json", "other.json", "none.json"))
    save_policy(old, first)
    save_policy(new, second.successor([*second.history, third]))
    save_policy(other, verify_chain([create_document(ALICE, name="n", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id])]))
    assert [newest_policy(given, kept, NOW).document.version for given in (None, old, kept, new)] == [2, 2, 2, 3]
    assert newest_policy(other, kept, NOW).document.name == "n", "a home is given to another network by naming its file"
    assert newest_policy(old, none, NOW) == first
    for given, where, error in ((None, none, NotFound), (none, kept, NotFound), (old, kept, Stale)):
        with pytest.raises(error):
            newest_policy(given, where, NOW + (11 if error is Stale else 0))
    kept.write_text("damaged")
    assert newest_policy(old, kept, NOW) == first


def test_what_is_kept_stands_above_a_given_file_only_where_it_follows_from_it(tmp_path: Path) -> None:
    """Who joined with the id alone and met those who had old keys is brought back by a recent file, not kept where it was led."""
    document = create_document(ALICE, name="garden", now_wall=NOW, orchestrator_ids=[ORCHESTRATOR.node_id])
    first = verify_chain([document])
    rotated = draft_successor(first)
    rotated.maintainer_keys[:] = [BOB.public_der]
    recent = first.successor([document, sign_document(rotated, ALICE, BOB)])
    astray = draft_successor(first)
    astray.version, astray.name = 9, "astray"
    given, kept = tmp_path / "given.json", tmp_path / "home" / "network.json"
    save_policy(given, recent)
    save_policy(kept, first.successor([document, sign_document(astray, ALICE)]))
    with pytest.raises(Refused) as refused:
        newest_policy(given, kept, NOW)
    assert refused.value.code == "too_few_signatures"
    assert str(kept) in refused.value.message + refused.value.remedy
    assert load_policy(kept).document.name == "astray", "it is for the owner to say which one is right"
    kept.unlink()
    assert newest_policy(given, kept, NOW) == recent


def test_missing_expired_and_foreign(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        load_policy(tmp_path / "none.json", NOW)
    path = saved(tmp_path / "network.json", lifetime_s=10)
    with pytest.raises(Stale):
        load_policy(path, NOW + 11)
    with pytest.raises(Refused):
        load_policy(path, NOW, network_id="0" * 40)


def test_what_a_file_holds_already_is_not_written_again(tmp_path: Path) -> None:
    """Goal: a start with the network that the last one had writes nothing, and needs no disk that takes it."""
    path = tmp_path / "network.json"
    first = load_policy(saved(path), NOW)
    before = path.stat()
    save_policy(path, first)
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    path.write_bytes(path.read_bytes()[:-1])
    save_policy(path, first)
    assert load_policy(path).network_id == first.network_id
    assert path.stat().st_ino != before.st_ino
