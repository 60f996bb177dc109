"""Object keys are built here and nowhere else, from ids that have passed their check: no stranger's text reaches a path.

Every function raises InvalidInput (the caller's fault) for an argument outside its alphabet; the result holds only
``a-z 0-9 _ - . /``, has no empty, ``.`` or ``..`` segment and never starts with a slash.
"""

from __future__ import annotations

from typing import Final

from dcnr.errors import InvalidInput
from dcnr.ids import check_digest, check_name, check_node_id

PAUSE: Final = "pause-"
"""How the last part of the key of a job's pauses begins."""


def _model(model: str) -> str:
    return f"models/{check_name(model)}"


def head(model: str) -> str:
    """The one object of a model that decides, changed by compare-and-swap."""
    return f"{_model(model)}/head"


def plan(model: str, digest: str) -> str:
    """An immutable plan."""
    return f"{_model(model)}/plans/{check_digest(digest)}"


def plans_prefix(model: str) -> str:
    """What all plans of a model, and what they tell PNodes, have in common."""
    return f"{_model(model)}/plans/"


def desired(model: str, plan_digest: str, pnode: str) -> str:
    """The signed desired state of one PNode under one plan."""
    return f"{desired_prefix(model, plan_digest)}{check_node_id(pnode)}"


def desired_prefix(model: str, plan_digest: str) -> str:
    """What the desired states of a plan have in common."""
    return f"{_model(model)}/plans/{check_digest(plan_digest)}/desired/"


def manifest(model: str, digest: str) -> str:
    """An immutable manifest."""
    return f"{_model(model)}/manifests/{check_digest(digest)}"


def state(model: str, vnode: str, digest: str) -> str:
    """The safetensors bytes of one VNode's state."""
    return f"{_model(model)}/state/{check_name(vnode)}/{check_digest(digest)}.safetensors"


def state_prefix(model: str, vnode: str) -> str:
    """All states of one VNode."""
    return f"{_model(model)}/state/{check_name(vnode)}/"


def commit(model: str, vnode: str, digest: str) -> str:
    """A signed chain of commits that a checkpoint refers to."""
    return f"{_model(model)}/commits/{check_name(vnode)}/{check_digest(digest)}"


def jobs_prefix(model: str) -> str:
    """All objects of all jobs of a model."""
    return f"{_model(model)}/jobs/"


def job_prefix(model: str, job: str) -> str:
    """All objects of one job."""
    return f"{jobs_prefix(model)}{check_name(job)}/"


def job_request(model: str, job: str) -> str:
    """What was asked; written once."""
    return f"{job_prefix(model, job)}request"


def job_pause(model: str, job: str, number: int) -> str:
    """One statement that the job pauses or goes on; written once. Their keys sort by number."""
    if not 1 <= number <= 9999:
        raise InvalidInput(f"{number} is no number of a statement", code="bad_number")
    return f"{job_prefix(model, job)}{PAUSE}{number:04d}"


def releases_prefix(model: str) -> str:
    """All statements which manifest of a model serves."""
    return f"{_model(model)}/releases/"


def release(model: str, number: int) -> str:
    """One statement which manifest serves; written once. Their keys sort by number."""
    if not 1 <= number <= 9999:
        raise InvalidInput(f"{number} is no number of a statement", code="bad_number")
    return f"{releases_prefix(model)}{number:04d}"


def job_cancel(model: str, job: str) -> str:
    """That the job was called off; written once."""
    return f"{job_prefix(model, job)}cancel"


def job_end(model: str, job: str) -> str:
    """How the job ended; written once, repeats what a head write decided."""
    return f"{job_prefix(model, job)}end"


def graph(digest: str) -> str:
    """A model graph, by the digest of its bytes."""
    return f"graph/{check_digest(digest)}"


def evidence(model: str, vnode: str, digest: str) -> str:
    """A bundle of evidence or a fault record, by the digest of its bytes."""
    return f"{evidence_prefix(model, vnode)}{check_digest(digest)}"


def evidence_prefix(model: str, vnode: str) -> str:
    """All evidence about one VNode."""
    return f"{all_evidence_prefix(model)}{check_name(vnode)}/"


def all_evidence_prefix(model: str) -> str:
    """All evidence in one model, by VNode."""
    return f"{_model(model)}/evidence/"


def desk_memory(model: str, job: str, orchestrator: str) -> str:
    """What the audit desk of one orchestrator heard about a job, written by that one alone and again and again."""
    return f"{_model(model)}/desk/{check_name(job)}/{check_node_id(orchestrator)}"


def dataset_prefix(name: str) -> str:
    """All objects of a data set."""
    return f"datasets/{check_name(name)}/"


def dataset_manifest(name: str, digest: str) -> str:
    """The manifest of a data set, by the digest of its bytes."""
    return f"{dataset_prefix(name)}manifests/{check_digest(digest)}"


def dataset_manifests_prefix(name: str) -> str:
    """All manifests of a data set; the newest by the store's own clock is the one last staged."""
    return f"{dataset_prefix(name)}manifests/"


def shard(name: str, digest: str) -> str:
    """One shard of a data set, by the digest of its bytes."""
    return f"{dataset_prefix(name)}shards/{check_digest(digest)}"


def probe(name: str) -> str:
    """A scratch object with which a store is tried out at start."""
    return f"probe/{check_name(name)}"


def model_index(model: str) -> str:
    """Says that a model exists: listing these is cheap however many objects models have."""
    return f"{model_index_prefix()}{check_name(model)}"


def model_index_prefix() -> str:
    """All models."""
    return "index/models/"


def dataset_index(name: str) -> str:
    """Says that a data set may exist."""
    return f"{dataset_index_prefix()}{check_name(name)}"


def dataset_index_prefix() -> str:
    """All data sets."""
    return "index/datasets/"
