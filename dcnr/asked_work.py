"""What a job's request says is to be learned. Once a store that went back has lost a request, one under the same name may ask for the same again or for
something else; what was learned for the first counts only for the same.
"""

from __future__ import annotations

from dcnr.ids import Digest, digest_of
from dcnr.v1 import model_pb2


def work_digest(asked: model_pb2.JobRequest, beginning: model_pb2.Manifest) -> Digest:
    """Of the job's name, graph, data set, number of batches and first states, which stand in ``beginning``, its initial manifest. Who asks for the same once
    more signs that anew, and so it has another digest.
    """
    parts = [asked.job_id, asked.graph_digest, asked.dataset_digest, str(asked.num_batches)]
    parts += [
        f"{entry.vnode}={entry.working[0].digest}"
        for entry in sorted(beginning.entries, key=lambda one: one.vnode)
        if entry.working
    ]
    return digest_of(" ".join(parts).encode())
