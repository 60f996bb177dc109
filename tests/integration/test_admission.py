"""Goal: a job begins with what its maintainers signed or what audits have cleared, and with nothing else: what it begins with is never looked at again.

Nor does a job begin on data that its graph was not made for: every volunteer would fail at its first batch.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from orchestrator_parts import BATCHES, stage
from runtime_rig import CLOCK, JOB, MAINTAINER, MODEL, World, until, world

from dataservice import keys
from dataservice.dataset_manifest import FieldSpec, parse_manifest
from dcnr.errors import InvalidInput, Refused
from dcnr.ids import digest_of
from dcnr.v1 import identity_pb2, model_pb2
from orchestrator.admission import admit
from orchestrator.documents import sealed
from trust.amendment import Changes, amend
from trust.envelope import digest_of_envelope, seal
from trust.folding import AUDITS_DRAWN
from trust.network import draft_successor, sign_document

WALL_MS = 1_800_000_000_000


@pytest.mark.parametrize(("audits", "is_cleared"), [(AUDITS_DRAWN, False), (AUDITS_DRAWN, True), ("none", False)])
def test_a_job_goes_on_from_audited_training_where_all_of_it_is_cleared(audits: str, is_cleared: bool) -> None:
    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader
        envelope = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        request = model_pb2.JobRequest.FromString(envelope.payload)
        manifest, _ = await loader.manifest(MODEL, request.initial_manifest_digest)
        half_way = model_pb2.Manifest()
        half_way.CopyFrom(manifest)
        half_way.audits = audits
        if not is_cleared:
            half_way.entries[1].ClearField("cleared")
        sealed = seal(identity_pb2.DOMAIN_MANIFEST, half_way, MAINTAINER)
        request.initial_manifest_digest = digest_of_envelope(sealed)
        await made.store.put(keys.manifest(MODEL, request.initial_manifest_digest), sealed.SerializeToString(deterministic=True))
        wish = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER)
        if audits != AUDITS_DRAWN or is_cleared:
            assert (await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0))[0] == request
            return
        with pytest.raises(Refused, match=half_way.entries[1].vnode) as refused:
            await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0)
        assert refused.value.code == "not_cleared"
        assert "dcnr job watch JOB" in refused.value.remedy, "lists of jobs cut digests short, and --from-manifest takes whole ones"
        assert made.store.peek(keys.job_request(MODEL, JOB)) is None

    asyncio.run(story())


def test_no_job_goes_on_from_what_another_one_of_its_name_has_learned() -> None:
    """The store may have lost that one's request: by its lineages, which are told by the job's name, the new one was complete before it began."""

    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader
        request = model_pb2.JobRequest.FromString((await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)).payload)
        manifest = model_pb2.Manifest.FromString(
            (await loader.manifest(MODEL, request.initial_manifest_digest))[0].SerializeToString()
        )
        for name, code in (("another", ""), (JOB, "own_beginning")):
            manifest.entries[1].working[0].job_id = manifest.entries[1].cleared.job_id = name
            sealed = seal(identity_pb2.DOMAIN_MANIFEST, manifest, MAINTAINER)
            request.initial_manifest_digest = digest_of_envelope(sealed)
            await made.store.put(
                keys.manifest(MODEL, request.initial_manifest_digest), sealed.SerializeToString(deterministic=True)
            )
            wish = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER)
            if not code:
                assert (await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0))[0] == request
                await made.store.delete(keys.job_request(MODEL, JOB))
                continue
            with pytest.raises(InvalidInput) as refused:
                await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0)
            assert refused.value.code == code

    asyncio.run(story())


@pytest.mark.parametrize(("given_up", "code"), [("condemned", "condemned"), ("retracted", "taken_back")])
def test_no_job_begins_with_what_the_manifest_in_force_condemns_or_takes_back(given_up: str, code: str) -> None:
    """It may be there now and be gone in a moment: the job would wait for ever for what it begins with."""

    async def story() -> None:
        made = World(1, 0)
        holder, loader = made.orchestrators[0].shared.key, made.orchestrators[0].runtime.loader
        wish = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        first, _ = await loader.manifest(MODEL, model_pb2.JobRequest.FromString(wish.payload).initial_manifest_digest)
        doomed = first.entries[1]
        for digest in ("f" * 64, doomed.working[0].digest):
            newest = model_pb2.Manifest(network_id=made.policy.network_id, model=MODEL, number=7, epoch=1, holder=holder.node_id)
            getattr(newest, given_up).append(digest)
            named = sealed(identity_pb2.DOMAIN_MANIFEST, newest, holder)
            head = model_pb2.Head(network_id=made.policy.network_id, model=MODEL, epoch=1, holder=holder.node_id, sequence=9)
            head.manifest_digest = named.digest
            await made.store.put(keys.manifest(MODEL, named.digest), named.data)
            await made.store.put(keys.head(MODEL), sealed(identity_pb2.DOMAIN_HEAD, head, holder).data)
            if digest == doomed.working[0].digest:
                with pytest.raises(Refused, match=f"manifest 7.*{doomed.vnode}") as refused:
                    await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0)
                assert refused.value.code == code
                assert made.store.peek(keys.job_request(MODEL, JOB)) is None
        head.ClearField("manifest_digest")
        await made.store.put(keys.head(MODEL), sealed(identity_pb2.DOMAIN_HEAD, head, holder).data)
        assert not (await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0))[1]

    asyncio.run(story())


def test_what_an_earlier_job_took_back_is_not_begun_with_though_one_from_a_fresh_manifest_came_in_between() -> None:
    async def story() -> None:
        made = World(1, 0)
        holder, loader = made.orchestrators[0].shared.key, made.orchestrators[0].runtime.loader
        wish = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        first, _ = await loader.manifest(MODEL, model_pb2.JobRequest.FromString(wish.payload).initial_manifest_digest)
        ours = model_pb2.Manifest(network_id=made.policy.network_id, model=MODEL, number=7, epoch=1, holder=holder.node_id)
        ours.retracted.append(first.entries[0].working[0].digest)
        fresh = model_pb2.Manifest(network_id=made.policy.network_id, model=MODEL)
        stranger = model_pb2.Manifest(
            network_id=made.policy.network_id, model=MODEL, retracted=["d" * 64]
        )  # of who is no maintainer now
        head = model_pb2.Head(network_id=made.policy.network_id, model=MODEL, epoch=1, holder=holder.node_id, sequence=9)
        for job_id, manifest, key in (("earlier", ours, holder), ("unlisted", stranger, holder), ("in-between", fresh, MAINTAINER)):
            named = sealed(identity_pb2.DOMAIN_MANIFEST, manifest, key)
            await made.store.put(keys.manifest(MODEL, named.digest), named.data)
            head.decided.add(job_id=job_id, state=model_pb2.JOB_STATE_FAILED, manifest_digest=named.digest)
            head.manifest_digest = named.digest
        head.decided.add(job_id="gone", state=model_pb2.JOB_STATE_FAILED, manifest_digest="e" * 64)  # its manifest was deleted
        await made.store.put(keys.head(MODEL), sealed(identity_pb2.DOMAIN_HEAD, head, holder).data)
        with pytest.raises(Refused, match=f"manifest 7.*{first.entries[0].vnode}") as refused:
            await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0)
        assert refused.value.code == "taken_back"

    asyncio.run(story())


def test_a_job_is_built_from_what_the_network_allows_and_from_nothing_else() -> None:
    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader
        wish = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        policy = made.policy
        for name in ("mean_pool", "linear"):
            policy = amend(policy, Changes(add_components=[name]), [MAINTAINER], now_wall=CLOCK.wall()).policy()
            if name == "mean_pool":
                with pytest.raises(Refused, match="'linear'") as refused:
                    await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0)
                assert refused.value.code == "component_not_allowed"
                assert "use one of mean_pool" in refused.value.remedy
                assert "dcnr network amend --add-component" in refused.value.remedy
        assert not (await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0))[1]

    asyncio.run(story())


def test_a_queued_job_whose_states_were_taken_back_ends_while_another_one_runs() -> None:
    async def story() -> None:
        async with world(workers=0) as made:
            wishes = list[identity_pb2.Envelope]()
            for job in ("job-1", "job-2"):
                request = model_pb2.JobRequest.FromString(
                    (await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, job)).payload
                )
                loader = made.orchestrators[0].runtime.loader
                manifest = model_pb2.Manifest()
                manifest.CopyFrom((await loader.manifest(MODEL, request.initial_manifest_digest))[0])
                manifest.retracted[:] = [manifest.entries[0].working[0].digest]
                sealed = seal(identity_pb2.DOMAIN_MANIFEST, manifest, MAINTAINER)
                request.initial_manifest_digest = digest_of_envelope(sealed)
                await made.store.put(
                    keys.manifest(MODEL, request.initial_manifest_digest), sealed.SerializeToString(deterministic=True)
                )
                wishes.append(seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER))
            runtime = made.orchestrators[0].runtime
            for wish in wishes:  # before either has begun: the second is accepted, and waits
                await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=0)
            runtime.refresh_jobs.fire()
            await until(lambda: made.end("job-2") is not None, "the second one ends")
            ended = made.end("job-2")
            assert ended is not None
            assert (ended.state, made.end("job-1")) == (model_pb2.JOB_STATE_FAILED, None)
            assert "taken back" in ended.reason

    asyncio.run(story())


@pytest.mark.parametrize(
    ("field", "spec", "named"),
    [
        ("target", FieldSpec("int64", (), "uint8", num_classes=3), "model.num_classes"),
        ("target", FieldSpec("uint8", (), "uint8", num_classes=2), "model.target"),
        ("input", FieldSpec("float32", (9,), "float32"), "model.input"),
    ],
)
def test_a_job_on_data_that_its_graph_was_not_made_for_is_refused(field: str, spec: FieldSpec, named: str) -> None:
    async def story() -> None:
        made = World(1, 0)
        envelope = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        request = model_pb2.JobRequest.FromString(envelope.payload)
        found = await made.store.get(keys.dataset_manifest("toy", request.dataset_digest), max_bytes=1 << 20)
        dataset = parse_manifest(found.data)
        other = replace(dataset, fields={**dataset.fields, field: spec})
        await made.store.put(keys.dataset_manifest("toy", other.digest), other.to_bytes())
        request.dataset_digest = other.digest
        wish = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER)
        with pytest.raises(InvalidInput) as refused:
            await admit(wish, policy=made.policy, store=made.store, loader=made.orchestrators[0].runtime.loader, wall_unix_ms=0)
        assert refused.value.details["field"] == named
        assert made.store.peek(keys.job_request(MODEL, JOB)) is None

    asyncio.run(story())


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"model": "other"}, "wrong_model"), ({"num_batches": BATCHES + 1}, "wrong_num_batches"), ({"dataset_name": "other"}, "wrong_dataset"),
        ({"num_batches": 0}, "bad_request"), ({"unit_batches": 0}, "bad_request"), ({"expires_unix_ms": WALL_MS}, "request_expired"),
    ],
)  # fmt: skip
def test_a_request_that_does_not_fit_what_it_names_is_refused(changes: dict[str, Any], code: str) -> None:
    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader
        envelope = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        request = model_pb2.JobRequest.FromString(envelope.payload)
        found = await made.store.get(keys.dataset_manifest("toy", request.dataset_digest), max_bytes=1 << 20)
        await made.store.put(keys.dataset_manifest("other", request.dataset_digest), found.data)
        for name, value in changes.items():
            setattr(request, name, value)
        wish = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER)
        with pytest.raises(InvalidInput) as refused:
            await admit(wish, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=WALL_MS)
        assert refused.value.code == code
        assert made.store.peek(keys.job_request(request.model, JOB)) is None
        assert not (await admit(envelope, policy=made.policy, store=made.store, loader=loader, wall_unix_ms=WALL_MS))[1]

    asyncio.run(story())


def test_no_vnode_has_more_state_than_the_network_document_allows() -> None:
    async def story() -> None:
        made = World(1, 0)
        loader = made.orchestrators[0].runtime.loader
        wish = await stage(made.store, made.policy, MAINTAINER, MODEL, CLOCK, JOB)
        largest = max(cost.state_bytes for cost in (await loader.job_from_bytes(wish.SerializeToString(deterministic=True))).costs)
        for max_bytes in (largest - 1, largest):
            draft = draft_successor(made.policy)
            draft.max_vnode_state_bytes = max_bytes
            policy = made.policy.successor([*made.policy.history, sign_document(draft, MAINTAINER)])
            if max_bytes < largest:
                with pytest.raises(Refused) as refused:
                    await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0)
                assert refused.value.code == "vnode_too_large"
                assert made.store.peek(keys.job_request(MODEL, JOB)) is None
        assert not (await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0))[1]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("redundancy", "audits", "said"),
    [(2, "none", "audits = none"), (17, AUDITS_DRAWN, "at most 16"), (16, AUDITS_DRAWN, ""), (1, "none", "")],
)
def test_executions_that_nobody_would_make_are_not_promised(redundancy: int, audits: str, said: str) -> None:
    """The field was ignored where nothing is audited."""

    async def story() -> None:
        made = World(1, 0)
        loader, policy = made.orchestrators[0].runtime.loader, made.policy
        if policy.document.audits != audits:
            policy = amend(policy, Changes(audits=audits), [MAINTAINER], now_wall=CLOCK.wall()).policy()
        request = model_pb2.JobRequest.FromString((await stage(made.store, policy, MAINTAINER, MODEL, CLOCK, JOB)).payload)
        stored = made.store.peek(keys.graph(request.graph_digest))
        assert stored is not None
        graph = model_pb2.ModelGraph.FromString(stored)
        graph.vnodes[0].redundancy = redundancy
        data = graph.SerializeToString(deterministic=True)
        request.graph_digest = digest_of(data)
        await made.store.put(keys.graph(request.graph_digest), data)
        wish = seal(identity_pb2.DOMAIN_JOB_REQUEST, request, MAINTAINER)
        if not said:
            assert not (await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0))[1]
            return
        with pytest.raises(InvalidInput, match=said) as refused:
            await admit(wish, policy=policy, store=made.store, loader=loader, wall_unix_ms=0)
        assert refused.value.code == "bad_redundancy"
        assert made.store.peek(keys.job_request(MODEL, JOB)) is None

    asyncio.run(story())
