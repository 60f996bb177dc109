"""Goal: no text of a stranger reaches an object key: 100 hostile names, 0 escapes."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from dataservice import keys
from dcnr.errors import InvalidInput

DIGEST = "a1" * 32
NODE = "b2" * 20
SAFE = re.compile(r"[a-z0-9][a-z0-9_-]*(/[a-z0-9][a-z0-9_-]*)*(\.safetensors)?/?")

HOSTILE: list[object] = [
    "",
    ".",
    "..",
    "...",
    "/",
    "//",
    "\\",
    "a/b",
    "a/../b",
    "../a",
    "../../etc/passwd",
    "/etc/passwd",
    "a/",
    "/a",
    "./a",
    "a/.",
    "a/..",
    "a//b",
    "a\\b",
    "..\\..\\windows",
    "c:\\x",
    "c:",
    "~",
    "~root",
    "$HOME",
    "${HOME}",
    "$(id)",
    "`id`",
    "a;b",
    "a|b",
    "a&b",
    "a b",
    " a",
    "a ",
    "a\n",
    "\na",
    "a\r\nX-Evil: 1",
    "a\tb",
    "a\0",
    "\0",
    "a\0b",
    "a\x1b[2J",
    "a\x7f",
    "%2e%2e",
    "%2e%2e%2f",
    "..%2f",
    "%2F",
    "%00",
    "%252e",
    "a%20b",
    "a?b",
    "a?versionId=1",
    "a#b",
    "a*",
    "*",
    "?",
    "[a]",
    "{a}",
    "a<b",
    "a>b",
    '"',
    "'",
    "a'b",
    "a=b",
    "a+b",
    "a,b",
    "a:b",
    "a@b",
    "!a",
    "A",
    "Model",
    "ÄÖ",
    "ａ",
    "а",
    "a\u200b",
    "\u202ea",
    "a\u0301",
    "e\ufb01",
    "．．",
    "∕",
    "⁄",
    "a\ufeff",
    "💥",
    "-a",
    "_a",
    "-",
    "_",
    "-rf",
    "a.b",
    "a.safetensors",
    "head/../x",
    "z" * 64,
    "a" * 10_000,
    "0" * 65,
    None,
    0,
    1,
    1.5,
    True,
    b"a",
    b"../a",
    ("a",),
    ["a"],
    {"a": 1},
    object(),
]

MAKERS: list[tuple[Callable[..., str], tuple[object, ...]]] = [
    (keys.head, ("m",)),
    (keys.plan, ("m", DIGEST)),
    (keys.desired, ("m", DIGEST, NODE)),
    (keys.manifest, ("m", DIGEST)),
    (keys.state, ("m", "conv1", DIGEST)),
    (keys.state_prefix, ("m", "conv1")),
    (keys.commit, ("m", "conv1", DIGEST)),
    (keys.jobs_prefix, ("m",)),
    (keys.job_request, ("m", "job-1")),
    (keys.job_cancel, ("m", "job-1")),
    (keys.job_end, ("m", "job-1")),
    (keys.releases_prefix, ("m",)),
    (keys.graph, (DIGEST,)),
    (keys.evidence, ("m", "conv1", DIGEST)),
    (keys.evidence_prefix, ("m", "conv1")),
    (keys.desk_memory, ("m", "job-1", NODE)),
    (keys.dataset_prefix, ("mnist",)),
    (keys.dataset_manifest, ("mnist", DIGEST)),
    (keys.dataset_manifests_prefix, ("mnist",)),
    (keys.shard, ("mnist", DIGEST)),
    (keys.probe, ("start",)),
]


def test_at_least_a_hundred_hostile_names() -> None:
    assert len(HOSTILE) >= 100


@pytest.mark.parametrize(("make", "good"), MAKERS, ids=[make.__name__ for make, _ in MAKERS])
def test_hostile_names_never_make_a_key(make: Callable[..., str], good: tuple[object, ...]) -> None:
    assert SAFE.fullmatch(make(*good))
    for position in range(len(good)):
        for name in HOSTILE:
            with pytest.raises(InvalidInput):
                make(*good[:position], name, *good[position + 1 :])


def test_keys_of_different_things_differ() -> None:
    made = [make(*good) for make, good in MAKERS]
    assert len(set(made)) == len(made)


def test_the_documented_layout() -> None:
    assert keys.head("m") == "models/m/head"
    assert keys.desired("m", DIGEST, NODE) == f"models/m/plans/{DIGEST}/desired/{NODE}"
    assert keys.state("m", "conv1", DIGEST) == f"models/m/state/conv1/{DIGEST}.safetensors"
    assert keys.evidence("m", "conv1", DIGEST) == f"models/m/evidence/conv1/{DIGEST}"
    assert keys.job_end("m", "j") == "models/m/jobs/j/end"
    assert keys.release("m", 7) == "models/m/releases/0007"
