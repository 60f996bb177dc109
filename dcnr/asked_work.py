"""What a job's request says is to be learned. Once a store that went back has lost a request, one under the same name may ask for the same again or for
something else; what was learned for the first counts only for the same.
"""

from __future__ import annotations

from dcnr.ids import Digest, digest_of
from dcnr.v1 import model_pb2


def work_digest(asked: model_pb2.JobRequest) -> Digest:
    """Of the job's name, graph, data set, beginning and number of batches."""
    parts = asked.job_id, asked.graph_digest, asked.dataset_digest, asked.initial_manifest_digest, str(asked.num_batches)
    return digest_of(" ".join(parts).encode())
