"""Goal: a job gets its k of n signatures step by step, each signer signs what the file shows, and no half-signed job passes."""

from __future__ import annotations

import asyncio
import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from dataservice.dataset_manifest import DatasetManifest, FieldSpec
from dataservice.released import released
from dcnr.errors import InvalidInput, Refused
from dcnr.graph import Graph, graph_digest, graph_to_bytes
from dcnr.ids import job_id_of
from dcnr.sdk.client import AsyncClient
from dcnr.sdk.signing import Draft
from dcnr.sdk.submission import JobOptions, Planned, planned, request_of, unit_batches
from dcnr.specs import TensorSpec
from dcnr.v1 import model_pb2
from trust.identity import NodeKey
from trust.network import NetworkPolicy, create_document, verify_chain
from vnode.registry import default_registry

NOW = 1_700_000_000.0
ALICE, BOB, CAROL, MALLORY = (NodeKey.generate() for _ in range(4))


def policy_of(*keys: NodeKey, threshold: int) -> NetworkPolicy:
    document = create_document(*keys, name="n", now_wall=NOW, orchestrator_ids=[MALLORY.node_id], threshold=threshold)
    return verify_chain([document])


def graph() -> model_pb2.ModelGraph:
    head = {"name": "local_ce"}
    return (
        Graph(
            "tiny", input=TensorSpec("float32", (8,)), target=TensorSpec("int64", ()), num_classes=4, train={"passes": 2, "batch_size": 5},
            data={use: f"dataset:toy#{use}" for use in ("train", "validation", "test")},
        )
        .vnode("a", "linear", {"out_features": 4}, inputs=["input"], objective=head, optimizer={"name": "sgd", "lr": 0.1})
        .build()
    )  # fmt: skip


def toy(num_classes: int = 4, **splits: int) -> DatasetManifest:
    splits = splits or {"train": 52, "validation": 5, "test": 5}
    fields = {"input": FieldSpec("float32", (8,), "float32"), "target": FieldSpec("int64", (), "uint8", num_classes=num_classes)}
    return DatasetManifest("toy", 1, fields, splits, {(name, split): () for name in fields for split in splits}, "none", "made up")


def draft(policy: NetworkPolicy, from_manifest: str = "") -> Draft:
    plan = planned(graph(), default_registry(), toy())
    options = JobOptions("key", from_manifest=from_manifest)
    request = request_of(graph(), plan, options, network_id=policy.network_id, seconds_per_batch=0.1, now_wall=NOW)
    manifest = None
    if not from_manifest:
        checkpoint = model_pb2.Checkpoint(vnode="a", digest="c" * 64, size_bytes=1)
        manifest = model_pb2.Manifest(
            network_id=policy.network_id, model="tiny", audits="none", graph_digest=request.graph_digest,
            entries=[model_pb2.ManifestEntry(vnode="a", working=[checkpoint], cleared=checkpoint)],
        )  # fmt: skip
    return Draft(graph_to_bytes(graph()), request, manifest)


def test_a_key_that_nobody_counts_is_told_before_anything_is_uploaded() -> None:
    class Uploading:
        """A client that may only be asked for its policy."""

        policy = policy_of(ALICE, threshold=1)

    client: Any = Uploading()
    with pytest.raises(Refused) as refused:
        asyncio.run(AsyncClient.submit(client, graph(), [MALLORY], JobOptions("key")))
    assert refused.value.code == "not_a_maintainer"


def test_one_of_one_signs_everything_at_once() -> None:
    policy = policy_of(ALICE, threshold=1)
    signed = draft(policy).sign(policy, ALICE)
    assert signed.missing(policy) == ("", 0)
    assert signed.signed_request is not None
    assert signed.manifest is not None
    request = policy.open_job_request(signed.signed_request)
    assert request.initial_manifest_digest == signed.manifest_digest
    assert request.num_batches == 2 * (52 // 5)
    manifest = policy.open_manifest(signed.manifest, "tiny")
    assert released(manifest)["a"].digest == "c" * 64


def test_two_of_three_one_after_the_other_through_files() -> None:
    policy = policy_of(ALICE, BOB, CAROL, threshold=2)
    step = Draft.from_json(draft(policy).sign(policy, ALICE).to_json())
    assert step.missing(policy) == ("manifest", 1)
    step = Draft.from_json(step.sign(policy, ALICE).to_json())
    assert step.missing(policy) == ("manifest", 1), "the same key counts once"
    step = Draft.from_json(step.sign(policy, BOB).to_json())
    assert step.missing(policy) == ("request", 1)
    fixed = step.manifest_digest
    step = Draft.from_json(step.sign(policy, CAROL).to_json())
    assert step.missing(policy) == ("", 0)
    assert step.manifest_digest == fixed, "a later signature must not change what the request names"
    assert step.signed_request is not None
    assert policy.open_job_request(step.signed_request).initial_manifest_digest == fixed


def test_a_job_that_goes_on_from_a_manifest_needs_only_the_request() -> None:
    policy = policy_of(ALICE, threshold=1)
    signed = draft(policy, from_manifest="e" * 64).sign(policy, ALICE)
    assert signed.manifest is None
    assert signed.signed_request is not None
    assert policy.open_job_request(signed.signed_request).initial_manifest_digest == "e" * 64


def test_strangers_and_other_networks_cannot_sign() -> None:
    policy, other = policy_of(ALICE, threshold=1), policy_of(BOB, threshold=1)
    with pytest.raises(Refused, match="not a maintainer"):
        draft(policy).sign(policy, MALLORY)
    with pytest.raises(Refused, match="another network"):
        draft(policy).sign(other, BOB)


@pytest.mark.parametrize("part", ["graph", "request", "manifest_0", "manifest", "signed_request"])
def test_a_file_whose_parts_do_not_belong_together_is_refused(part: str) -> None:
    policy = policy_of(ALICE, threshold=1)
    good = json.loads(draft(policy).sign(policy, ALICE).to_json())
    changed = draft(policy)
    changed.request.dataset_name = changed.request.job_id = "other"
    assert changed.manifest_0 is not None
    changed.manifest_0.model = "other"
    other_graph = graph()
    other_graph.train.seed = 9
    bad = json.loads(Draft(graph_to_bytes(other_graph), changed.request, changed.manifest_0).to_json())
    *whole, last = base64.b64decode(good[part])
    damaged = base64.b64encode(bytes([*whole, last ^ 1])).decode()
    for replacement in (bad[part] or damaged, damaged, "?", 7, None):
        with pytest.raises(InvalidInput):
            Draft.from_json(json.dumps({**good, part: replacement}))


def test_figures_of_a_request() -> None:
    assert job_id_of("tiny", "k") == job_id_of("tiny", "k") != job_id_of("tiny", "l")
    with pytest.raises(InvalidInput):
        job_id_of("tiny", "")
    assert [unit_batches(seconds) for seconds in (0.0, 0.0001, 0.5, 60.0)] == [16, 256, 10, 1]
    plan = planned(graph(), default_registry(), toy())
    assert isinstance(plan, Planned)
    assert plan.num_batches == 20
    request = request_of(graph(), plan, JobOptions("k"), network_id="n", seconds_per_batch=0.5, now_wall=NOW)
    assert (request.unit_batches, request.graph_digest, request.dataset_digest) == (10, graph_digest(graph()), toy().digest)


def test_a_graph_needs_data_that_fit_before_anything_is_uploaded_or_signed() -> None:
    fields = toy().fields
    narrow = replace(toy(), fields={**fields, "input": replace(fields["input"], shape=(7,))})
    bytewise = replace(toy(), fields={**fields, "target": replace(fields["target"], dtype="uint8")})
    for dataset, field in (
        (toy(train=52, test=5), "data.validation"), (narrow, "model.input"), (bytewise, "model.target"), (toy(5), "model.num_classes"),
    ):  # fmt: skip
        with pytest.raises(InvalidInput) as refused:
            planned(graph(), default_registry(), dataset)
        assert refused.value.details["field"] == field
    assert planned(graph(), default_registry(), toy(3)).num_batches == 20, "a class that no sample has does no harm"
