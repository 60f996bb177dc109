"""The versions of a model that may answer: manifests of which every VNode has a released state, with the graph and the job that say what these are.

Read in the background and kept by digest; a question never waits for the store. A digest that cannot be read is not tried again for a while, so
that what PNodes report costs no reads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from dataservice.released import released
from dcnr.errors import DcnrError, NotFound
from dcnr.stages import Stage
from dcnr.v1 import model_pb2
from orchestrator.view import JobFacts, ModelView, ViewLoader

MAX_VERSIONS: Final = 16
MAX_FAILED: Final = 256
LOADS_AT_ONCE: Final = 2
"""Manifests read in one round."""
RETRY_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Version:
    """A manifest that can be served."""

    manifest_digest: str
    number: int
    is_cleared: bool
    """Whether its states are those that passed audits; False where audits are not in force."""
    job: JobFacts
    states: Mapping[str, model_pb2.Checkpoint]
    """By VNode: what serves."""

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In topological order."""
        return self.job.stages

    @property
    def batch_size(self) -> int:
        """Samples of a question at most."""
        return int(self.job.graph.train.batch_size)

    def serves(self, vnode: str, state_digest: str) -> bool:
        """Whether that state is this version's."""
        return vnode in self.states and self.states[vnode].digest == state_digest


class Versions:
    """Of one model."""

    def __init__(self, model: str, loader: ViewLoader) -> None:
        self._model, self._loader = model, loader
        self._known: OrderedDict[str, Version] = OrderedDict()
        self._failed: OrderedDict[str, tuple[float, str]] = OrderedDict()

    def get(self, manifest_digest: str) -> Version | None:
        """As far as it has been read."""
        return self._known.get(manifest_digest)

    def why_not(self, manifest_digest: str) -> str:
        """Why a version cannot be served; empty where that is not known."""
        return self._failed.get(manifest_digest, (0.0, ""))[1]

    async def read(self, wanted: Iterable[str], view: ModelView, now: float) -> None:
        """Reads what is not known yet, a few at a time, the first named first."""
        num_read = 0
        for digest in dict.fromkeys(wanted):
            if digest in self._known:
                self._known.move_to_end(digest)
                continue
            failed = self._failed.get(digest)
            if num_read >= LOADS_AT_ONCE or not digest or (failed is not None and now - failed[0] < RETRY_S):
                continue
            num_read += 1
            try:
                self._known[digest] = await read_version(self._loader, self._model, digest, view.job)
                self._failed.pop(digest, None)
            except DcnrError as error:
                self._failed[digest] = (now, error.message)
                self._failed.move_to_end(digest)
        while len(self._known) > MAX_VERSIONS:
            self._known.popitem(last=False)
        while len(self._failed) > MAX_FAILED:
            self._failed.popitem(last=False)


async def read_version(loader: ViewLoader, model: str, digest: str, job: JobFacts | None) -> Version:
    """The manifest with everything that serving it takes. ``job``: one that is known, used where its graph is the manifest's.

    Raises NotFound (``not_cleared``, ``not_trained``, ``no_job``, ``not_whole``), and what reading raises.
    """
    manifest, _ = await loader.manifest(model, digest)
    states = released(manifest)
    fresh = sorted(vnode for vnode, checkpoint in states.items() if not checkpoint.job_id)
    if fresh:
        raise NotFound(f"nothing that {fresh[0]} learned is released yet", code="not_trained")
    if job is None or job.request.graph_digest != manifest.graph_digest:
        if not manifest.job_id:
            raise NotFound("no job of this manifest's graph is known", code="no_job")
        job = await loader.job(model, manifest.job_id)
    lacking = sorted({stage.id for stage in job.stages} - states.keys())
    if job.request.graph_digest != manifest.graph_digest or lacking:
        raise NotFound(f"the manifest is not of the job's graph, or lacks {', '.join(lacking) or 'nothing'}", code="not_whole")
    return Version(digest, int(manifest.number), manifest.audits != "none", job, states)
