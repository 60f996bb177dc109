"""Every bound and every waiting time that crosses a process border, in one place. Units are in the names."""

from __future__ import annotations

from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB

# Messages
MAX_MESSAGE_BYTES: Final = 8 * MIB
"""Explicit gRPC bound in both directions."""
MAX_CHUNK_BYTES: Final = 1 * MIB
"""Payload of one chunk of a tensor or object."""
MAX_TENSOR_BYTES: Final = 256 * MIB
"""Largest tensor accepted from the wire, encoded or decoded."""
MAX_TENSOR_RANK: Final = 8
MAX_TENSOR_RMS: Final = 1e6
"""Largest root of the mean square of a floating-point tensor's values from the wire, so its norm is at most this times the root of their number.

No honest stage comes near it: a readout of such outputs has a loss far above `trust.late_draw.BURST_LOSS`, from which nobody learns. Squares, summed over the
largest tensor, stay finite in float32.
"""
MAX_ENVELOPE_BYTES: Final = 1 * MIB
MAX_ADVERT_BYTES: Final = 4 * KIB
MAX_INTERVALS: Final = 4096
"""Intervals in one interval set from the wire."""
MAX_COMMIT_BATCHES: Final = 32_768
"""Batches between two checkpoints, so that a commit fits an envelope."""
MAX_DELTA_BATCHES: Final = MAX_COMMIT_BATCHES // 2
"""Batches of one delta: a contributor that is made the primary puts the open one, and what it learned after it, into one commit."""
MAX_AHEAD_BATCHES: Final = 2 * MAX_INTERVALS - 2
"""How far above the lowest batch that a state lacks its replica learns: even with every second batch missing the lineage is one set on the wire."""
MAX_ADVERTS_PER_EXCHANGE: Final = 64
MAX_BOOTSTRAP_ENTRIES: Final = 64
MAX_REDUNDANCY: Final = 16
"""Executions of an interval that a graph may ask for: each is somebody else's, of another owner and subnet."""
MAX_GRAPH_VNODES: Final = 4096
MAX_GRAPH_BYTES: Final = 1 * MIB
MAX_DHT_RECORD_BYTES: Final = 1 * KIB
MAX_HEAD_BYTES: Final = 64 * KIB
MAX_PLAN_BYTES: Final = 4 * MIB
MAX_MANIFEST_BYTES: Final = 4 * MIB
MAX_OBJECT_BYTES: Final = 4 * 1024 * MIB
"""Largest single object (state or shard) that a grant may name."""
MAX_SHARD_SAMPLES: Final = 2**24
"""Of one shard of a data set, twice what staging makes of samples of one byte: a worker holds the order of a few shards, eight bytes a sample."""
MAX_SAFETENSORS_HEADER_BYTES: Final = 1 * MIB

# What PNodes write into the store, in bytes an hour; half an hour's at once
WRITTEN_BYTES_H: Final = 16 * 1024 * MIB
"""By one PNode: states, commits and evidence of small VNodes never come near it."""
WRITTEN_STATES_H: Final = 240
"""The same for large VNodes: so many times the states of what the PNode hosts; at `CHECKPOINT_S` it is a quarter of that, and evidence takes its part."""
MAX_WRITTEN_BYTES_H: Final = 256 * 1024 * MIB
"""By one PNode, whatever it hosts."""
RECORD_BYTES_H: Final = 64 * MIB
"""Fault records by one PNode that does not host what they are about: they take kilobytes each."""
SUBNET_RECORD_BYTES_H: Final = 512 * MIB
"""The same by all PNodes of one subnet, since keys cost nothing."""
BUNDLE_STATES: Final = 512
"""States of its VNode that a bundle of evidence may hold beside `EVIDENCE_BYTES`: those between its ends are made again where they are too large to be kept."""

# Waiting times (seconds)
CONNECT_TIMEOUT_S: Final = 5.0
"""TCP and TLS handshake, session included."""
CALL_TIMEOUT_S: Final = 10.0
"""A small unary call between nodes."""
STORE_TIMEOUT_S: Final = 10.0
"""A small request to the object store (head, plan, manifest)."""
BULK_TIMEOUT_S: Final = 120.0
"""Upload or download of one state or shard, beside what its bytes take at `SLOWEST_BYTES_S`."""
SLOWEST_BYTES_S: Final = 256 * KIB
"""A line that carries less than this, over `BULK_TIMEOUT_S`, carries no bulk."""
DRAIN_TIMEOUT_S: Final = 20.0
"""SIGTERM until a process stops by itself."""

# Head (PROTOCOL.md, "Control plane")
HEAD_TTL_S: Final = 8.0
HEAD_RENEW_S: Final = 2.0
HEAD_STOP_FRACTION: Final = 0.8
HEAD_TAKE_FRACTION: Final = 1.2
HEAD_POLL_S: Final = HEAD_TTL_S / 4

# Liveness
HEARTBEAT_S: Final = 2.0
SILENT_BEATS: Final = 3
"""Silent = this many told intervals without a beat."""
DHT_REQUEST_TIMEOUT_S: Final = 1.0
DHT_RECORD_LIFETIME_S: Final = 600.0
DHT_REPUBLISH_S: Final = 180.0
DELEGATION_LIFETIME_S: Final = 24 * 3600.0
ADVERT_LIFETIME_S: Final = 600.0
MAX_CLOCK_SKEW_S: Final = 300.0

# Training
HORIZON_S: Final = 600.0
LEAD_BATCHES: Final = 256
MIN_BATCHES_PER_S: Final = 1e-4
MAX_BATCHES_PER_S: Final = 1e5
WINDOW_BATCHES: Final = 16
WINDOW_BYTES: Final = 16 * MIB
SPOOL_BYTES: Final = 1024 * MIB
EVIDENCE_BYTES: Final = 1024 * MIB
"""Kept for auditors per replica."""
CHECKPOINT_S: Final = 60.0
CHECKPOINT_STEPS: Final = 256
KEPT_WORKING_CHECKPOINTS: Final = 3
MERGE_EVERY: Final = 50
"""Own steps between two deltas of a contributor, where the graph sets none."""
UPLINK_SHARE: Final = 0.25
"""Of the measured uplink: what checkpoints, anchors, deltas and donated states may take together. Of a volunteer's limit: the last three."""
ANCHOR_S: Final = 10.0
"""A replica that learns nothing takes the primary's anchor this often."""
SETTLING_DEADLINE_S: Final = 600.0

# Questions
MAX_QUESTION_BYTES: Final = 16 * MIB
"""Of the tensors of one question, decoded."""
MAX_QUESTION_HOPS: Final = 256
MAX_QUESTION_TENSORS: Final = 16
MAX_NEIGHBOURS: Final = 16
"""Workers to which questions may soon go on, named in one message."""
MAX_DRAFT: Final = 16
"""Tokens by which the first stage extends one question."""
MAX_PROMPT_BYTES: Final = 64 * KIB
MAX_WRITTEN: Final = 4096
"""Tokens of one text."""
MAX_STOPS: Final = 4
MAX_STOP_BYTES: Final = 64
MAX_TEXT_S: Final = 600.0
"""For one text."""
MAX_QUESTION_S: Final = 120.0
"""From a question to its answer."""
WARM_BYTES: Final = 10 * 1460
"""What a TCP connection sends at once when it begins. One that was silent for a retransmission timeout begins so again (RFC 5681, 4.1), and larger
tensors then wait for further round trips: an Infer stream that carried such tensors says something empty now and then."""
WARM_BEAT_S: Final = 0.15
"""Below the shortest retransmission timeout of Linux."""
WARM_BEATS: Final = 66
"""About ten seconds, unless further tensors follow."""
MAX_QUESTIONS: Final = 64
"""That one worker has taken and not computed yet; more are answered with ``busy``."""
