"""Objects are read and written only by those whose they are, and written only under the digest of their bytes."""

from __future__ import annotations

import pytest

from dcnr import limits
from dcnr.errors import DcnrError, InvalidInput, Refused, Unavailable
from dcnr.ids import digest_of
from dcnr.v1 import data_pb2
from orchestrator.access import Caller, check_read, check_write, key_of

KINDS = [value for value in data_pb2.ObjectKind.values() if value]
ME = "a" * 40
STRANGER = Caller(ME, maintainer=False, orchestrator=False, pnode=False)
PNODE = Caller(ME, maintainer=False, orchestrator=False, pnode=True)
MAINTAINER = Caller(ME, maintainer=True, orchestrator=False, pnode=False)
DIGEST = digest_of(b"x")


def ref(kind: int, owner: str = "toy", digest: str = DIGEST) -> data_pb2.ObjectRef:
    return data_pb2.ObjectRef(kind=kind, model="m", owner=owner, digest=digest)  # type: ignore[arg-type]


def item(kind: int, **fields: object) -> data_pb2.GrantItem:
    values: dict[str, object] = {"size_bytes": 1, "sha256": DIGEST, "object": ref(kind), "access": data_pb2.ACCESS_WRITE} | fields
    return data_pb2.GrantItem(**values)  # type: ignore[arg-type]


def nothing(vnode: str) -> int:
    raise Refused(f"nobody awaits evidence about {vnode}", code="not_asked")


PUBLISHED = {"HEAD", "PLAN", "MANIFEST", "GRAPH", "JOB_REQUEST", "JOB_END", "DATASET_MANIFEST"}
"""What everybody may read: written out here, since a table that is compared with itself may say anything."""
OF_MAINTAINERS = {"STATE", "COMMIT", "GRAPH", "MANIFEST", "DATASET_MANIFEST", "SHARD"}
OF_PNODES = {"STATE", "COMMIT", "EVIDENCE"}
ALL = PUBLISHED | OF_MAINTAINERS | OF_PNODES | {"DESIRED"}


def name_of(kind: int) -> str:
    return data_pb2.ObjectKind.Name(kind).removeprefix("OBJECT_KIND_")  # type: ignore[arg-type]


def test_every_kind_of_object_is_in_the_tables() -> None:
    assert {name_of(kind) for kind in KINDS} == ALL


@pytest.mark.parametrize("kind", KINDS)
def test_strangers_read_public_documents_only_and_write_nothing(kind: int) -> None:
    owner = ME if kind == data_pb2.OBJECT_KIND_DESIRED else "toy"
    if name_of(kind) in PUBLISHED:
        check_read(STRANGER, ref(kind, owner))
    else:
        with pytest.raises(Unavailable) as unknown:
            check_read(STRANGER, ref(kind, owner))
        assert (unknown.value.code, "key=" in unknown.value.remedy) == ("unknown_caller", True), "another orchestrator may know it"
        check_read(PNODE, ref(kind, owner))
    with pytest.raises(DcnrError) as refused:
        check_write(STRANGER, item(kind), lambda vnode: True, nothing, 0)
    assert (refused.value.code == "unknown_caller") == (name_of(kind) in OF_PNODES), "what no PNode may write is refused for good"


def test_who_is_known_and_may_not_is_refused() -> None:
    """Another orchestrator would say the same."""
    with pytest.raises(Refused):
        check_read(PNODE, ref(data_pb2.OBJECT_KIND_DESIRED, "b" * 40))
    with pytest.raises(Refused) as refused:
        check_write(MAINTAINER, item(data_pb2.OBJECT_KIND_EVIDENCE), lambda vnode: True, nothing, 0)
    assert refused.value.code == "not_allowed"


@pytest.mark.parametrize("kind", KINDS)
def test_nobody_writes_what_orchestrators_decide(kind: int) -> None:
    if name_of(kind) in OF_MAINTAINERS:
        check_write(MAINTAINER, item(kind), lambda vnode: False, nothing, 0)
    else:
        with pytest.raises((Refused, InvalidInput)):
            check_write(MAINTAINER, item(kind, object=ref(kind, ME)), lambda vnode: True, nothing, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pnode_reads_all_but_others_desired_states_and_writes_what_it_makes(kind: int) -> None:
    check_read(PNODE, ref(kind, ME))
    wanted = item(kind, object=ref(kind, ME))
    if name_of(kind) in OF_PNODES:
        assert check_write(PNODE, wanted, lambda vnode: vnode == ME, lambda vnode: 1, 0) >= 1
        return
    with pytest.raises(Refused) as refused:
        check_write(PNODE, wanted, lambda vnode: True, lambda vnode: 1, 0)
    assert refused.value.code == "not_allowed"


def test_a_pnode_writes_states_of_what_it_hosts() -> None:
    wanted = item(data_pb2.OBJECT_KIND_STATE)
    check_write(PNODE, wanted, lambda vnode: vnode == "toy", nothing, 0)
    with pytest.raises(Refused):
        check_write(PNODE, wanted, lambda vnode: False, nothing, 0)
    with pytest.raises(Refused):
        check_write(PNODE, item(data_pb2.OBJECT_KIND_SHARD), lambda vnode: True, nothing, 0)


def test_evidence_is_written_by_whom_it_is_awaited_from_and_not_more_than_that() -> None:
    """The accused may host what it is about no more; an auditor never did."""
    kind = data_pb2.OBJECT_KIND_EVIDENCE
    assert check_write(PNODE, item(kind, size_bytes=7), lambda vnode: False, lambda vnode: 7, 0) == 7
    with pytest.raises(InvalidInput):
        check_write(PNODE, item(kind, size_bytes=8), lambda vnode: False, lambda vnode: 7, 0)
    with pytest.raises(Refused):
        check_write(PNODE, item(kind), lambda vnode: True, nothing, 0)
    with pytest.raises(InvalidInput):
        check_write(PNODE, item(kind, sha256="0" * 64), lambda vnode: False, lambda vnode: 7, 0)


@pytest.mark.parametrize(
    "fields", [{"size_bytes": 0}, {"size_bytes": limits.MAX_OBJECT_BYTES + 1}, {"sha256": "0" * 64}, {"sha256": ""}]
)
def test_size_and_digest_are_exact(fields: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        check_write(PNODE, item(data_pb2.OBJECT_KIND_STATE, **fields), lambda vnode: True, nothing, 0)
    with pytest.raises(InvalidInput):
        check_write(PNODE, item(data_pb2.OBJECT_KIND_STATE, size_bytes=11), lambda vnode: True, nothing, 10)


@pytest.mark.parametrize("name", ["../x", "a/b", "", "A", "x" * 64, "head\n"])
def test_hostile_names_reach_no_key(name: str) -> None:
    for kind in KINDS:
        made = data_pb2.ObjectRef(kind=kind, model=name, owner=name, digest=name)
        with pytest.raises(InvalidInput):
            key_of(made)
