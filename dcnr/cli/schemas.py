"""The JSON schema of every ``--json`` output: `SCHEMAS` by command. ``docs/schemas`` holds them as files, written by ``docs/tables.py``.

Messages of the contract appear as `dcnr.sdk.plain.plain` makes them; everything else is described here beside its shape. A newer version may add
properties, and takes none away.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor

from dcnr.sdk.plain import words_of
from dcnr.v1 import common_pb2, data_pb2, identity_pb2, ledger_pb2, local_pb2, orchestrator_pb2

Schema = dict[str, Any]
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
LINES: Final = frozenset({"pnode top", "dcnr job watch", "dcnr ledger export"})
"""What prints one such value a line, for as long as it runs."""

TEXT: Final[Schema] = {"type": "string"}
WHOLE: Final[Schema] = {"type": "integer"}
NUMBER: Final[Schema] = {"type": "number"}
FLAG: Final[Schema] = {"type": "boolean"}
ANYTHING: Final[Schema] = {}
INTERVALS: Final[Schema] = {
    "type": "array", "items": {"type": "array", "items": WHOLE, "minItems": 2, "maxItems": 2}, "description": "[first, end), sorted and disjoint",
}  # fmt: skip


def holds(**properties: Schema) -> Schema:
    """An object with all of these."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def items(kind: Schema) -> Schema:
    """A list of such values."""
    return {"type": "array", "items": kind}


def by_name(kind: Schema) -> Schema:
    """An object whose values are such."""
    return {"type": "object", "additionalProperties": kind}


def or_null(kind: Schema) -> Schema:
    """That, or nothing."""
    return {"anyOf": [kind, {"type": "null"}]}


def one_of(*kinds: Schema) -> Schema:
    """Any of these."""
    return {"anyOf": list(kinds)}


def message(kind: Any) -> Schema:
    """A message of the contract."""
    return {"$ref": f"#/$defs/{kind.DESCRIPTOR.name}"}


def extended(kind: Any, **more: Schema) -> Schema:
    """A message of the contract, and these beside its own."""
    return holds(**{**_described(kind.DESCRIPTOR)["properties"], **more})


def constant(value: object) -> Schema:
    """Exactly that."""
    return {"const": value}


def schema_of(command: str) -> Schema:
    """The whole schema of one command's output: of each line where it is in `LINES`."""
    body = SCHEMAS[command]
    defined: dict[str, Schema] = {}
    waiting = _named_in(body)
    while waiting:
        name = waiting.pop()
        if name not in defined:
            defined[name] = _described(_DESCRIPTORS[name])
            waiting |= _named_in(defined[name])
    whole = {"$schema": DIALECT, "title": f"{command}{'' if command == 'dcnr ledger export' else ' --json'}", **body}
    return {**whole, "$defs": dict(sorted(defined.items()))} if defined else whole


def file_of(command: str) -> str:
    """The name of its file."""
    return f"{command.replace(' ', '-')}.json"


def _described(descriptor: Descriptor) -> Schema:
    return holds(**{field.name: _field(field) for field in descriptor.fields})


def _field(field: Any) -> Schema:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return by_name(_single(kind.fields_by_name["value"]))
    if field.is_repeated:
        return items(_single(field))
    return or_null(_single(field)) if kind is not None else _single(field)


def _single(field: Any) -> Schema:
    if field.message_type is not None:
        if field.message_type is common_pb2.IntervalSet.DESCRIPTOR:
            return INTERVALS
        return {"$ref": f"#/$defs/{field.message_type.name}"}
    if field.enum_type is not None:
        return {"anyOf": [{"enum": words_of(field.enum_type)}, {"type": "string", "pattern": "^-?[0-9]+$"}]}
    match field.cpp_type:
        case FieldDescriptor.CPPTYPE_BOOL:
            return FLAG
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return {"type": ["number", "null"]}
        case FieldDescriptor.CPPTYPE_STRING if field.type == FieldDescriptor.TYPE_BYTES:
            return {"type": "string", "pattern": "^([0-9a-f]{2})*$"}
        case FieldDescriptor.CPPTYPE_STRING:
            return TEXT
        case _:
            return WHOLE


def _named_in(schema: Any) -> set[str]:
    """Messages that it refers to."""
    if isinstance(schema, list):
        return {name for item in schema for name in _named_in(item)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["$ref"].removeprefix("#/$defs/")} if "$ref" in schema else set()
    return own | {name for value in schema.values() for name in _named_in(value)}


def _reachable(*kinds: Any) -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    waiting = [kind.DESCRIPTOR for kind in kinds]
    while waiting:
        descriptor = waiting.pop()
        if descriptor.name not in found:
            found[descriptor.name] = descriptor
            waiting += [field.message_type for field in descriptor.fields if field.message_type is not None]
    return found


_DESCRIPTORS: Final = _reachable(
    local_pb2.StatusResponse, local_pb2.WhyResponse, orchestrator_pb2.GetStatusResponse, orchestrator_pb2.WatchJobResponse,
    orchestrator_pb2.SubmitJobResponse, orchestrator_pb2.CancelJobResponse, orchestrator_pb2.PreviewPlanResponse, orchestrator_pb2.Explanation,
    orchestrator_pb2.PauseJobResponse, orchestrator_pb2.StageAnswer, data_pb2.DatasetInfo, identity_pb2.NetworkDocument, ledger_pb2.CostQuote,
    ledger_pb2.PNodeScore, ledger_pb2.ExpectedWork, ledger_pb2.UsageStatement,
)  # fmt: skip
_STOPPED: Final = holds(stopped=constant(True))
_SETTINGS: Final = by_name(holds(value=ANYTHING, origin=TEXT))
_SHAPE: Final = items(WHOLE)
_STAGE: Final = holds(
    vnode=TEXT, component=TEXT, inputs=items(TEXT), output=holds(dtype=TEXT, shape=_SHAPE), num_parameters=WHOLE, forward_flops=NUMBER,
    activation_bytes=WHOLE, replicas=WHOLE,
)  # fmt: skip
_TOP: Final = holds(
    time_unix_ms=WHOLE, node_id=TEXT, network_id=TEXT, uptime_s=NUMBER, state=TEXT, reason=TEXT, next_action=TEXT, epoch=WHOLE, holder=TEXT,
    attached=items(TEXT), cpu=holds(cores=NUMBER, limit_cores=NUMBER), memory=holds(bytes=WHOLE, limit_bytes=WHOLE),
    disk=holds(bytes=WHOLE, limit_bytes=WHOLE), upload=holds(bytes_per_s=NUMBER, limit_bytes_per_s=NUMBER, uplink_bytes_per_s=NUMBER),
    download=holds(bytes_per_s=NUMBER, limit_bytes_per_s=NUMBER), questions_per_s=NUMBER,
    replicas=items(
        holds(
            replica=TEXT, vnode=TEXT, role=TEXT, state=TEXT, reason=TEXT, num_learned=WHOLE, num_batches=WHOLE, batches_per_s=NUMBER,
            loss={"type": ["number", "null"]},
        )
    ),
    seats=items(
        holds(model=TEXT, vnode=TEXT, state_digest=TEXT, ready=FLAG, reason=TEXT, queued=WHOLE, compute_s=NUMBER, num_answered=WHOLE)
    ),
    events=items(message(common_pb2.Event)),
)  # fmt: skip
_UNNOTICED: Final = holds(steps=NUMBER, of=WHOLE, share=NUMBER)
"""How much may be wrong without anybody having noticed."""
_VERIFIED: Final = holds(
    jobs=items(holds(job=TEXT, manifests=WHOLE, intervals=WHOLE, problem=TEXT, unnoticed=_UNNOTICED)), problem=TEXT, receipts=WHOLE,
    statements_gone=WHOLE, states=WHOLE, evidence=by_name(TEXT), verdicts=by_name(WHOLE), cleared=by_name(holds(batches=WHOLE, of=WHOLE)),
    unnoticed=_UNNOTICED,
)  # fmt: skip
_STATED: Final = holds(
    audits=constant("none"), completed=FLAG, problem=TEXT,
    vnodes=items(holds(vnode=TEXT, state=TEXT, batches=WHOLE, commits=WHOLE, exact=FLAG, reason=TEXT, pnodes=items(TEXT))),
)  # fmt: skip
"""Where no audits were in force: what was signed, and whether it agrees."""
_AMENDED: Final = holds(
    network_id=TEXT, version=WHOLE, missing=WHOLE, waiting_for=items(holds(version=WHOLE, missing=WHOLE, of=items(TEXT))), file=TEXT,
    changed=by_name(ANYTHING),
)  # fmt: skip
_PROOF: Final = {
    "pnode": TEXT, "network_id": TEXT, "network_name": TEXT, "pinned": FLAG, "model": TEXT, "job": TEXT, "manifest": TEXT, "number": WHOLE,
    "as_of_s": NUMBER, "cleared": WHOLE, "of": WHOLE, "waiting": WHOLE, "taken_back": WHOLE, "passed": WHOLE, "failed": WHOLE,
    "vnodes": by_name(WHOLE),
}  # fmt: skip
_NOTE: Final = holds(
    pnode=TEXT, since_s=NUMBER, until_s=NUMBER, credit_unknown=TEXT, advice=items(holds(code=TEXT, reason=TEXT, change=TEXT)),
    machine=or_null(
        holds(
            known_since_s=NUMBER, as_of_s=NUMBER, contributing_s=NUMBER, seconds=by_name(NUMBER), num_learned=WHOLE, num_questions=WHOLE,
        )
    ),
    credit=or_null(
        holds(
            audited=FLAG, problem=TEXT, cleared=WHOLE, of=WHOLE, waiting=WHOLE, taken_back=WHOLE, passed=WHOLE, failed=WHOLE,
        )
    ),
)  # fmt: skip
_SCORE: Final = holds(
    pnode=TEXT, cleared=WHOLE, waiting=WHOLE, taken_back=WHOLE, passed=WHOLE, failed=WHOLE, passes=NUMBER, credibility=NUMBER,
    score=or_null(WHOLE), history=or_null(message(ledger_pb2.PNodeScore)),
)  # fmt: skip
_USED: Final = holds(
    kind=TEXT, users=items(TEXT), on_behalf=TEXT, vnode_batches=WHOLE, num_answers=WHOLE, num_samples=WHOLE, vnode_samples=WHOLE,
    statements=WHOLE,
)  # fmt: skip
_RECORD: Final = one_of(
    holds(record=constant("interval")),
    extended(ledger_pb2.PNodeScore, record=constant("score"), reporter=TEXT),
    extended(ledger_pb2.ExpectedWork, record=constant("expected"), reporter=TEXT),
    extended(ledger_pb2.UsageStatement, record=constant("usage"), envelope=TEXT),
)
_ANSWER: Final = {
    "model": TEXT, "manifest": TEXT, "exit": TEXT, "deepest": TEXT, "degraded": FLAG, "degraded_reason": TEXT,
    "stages": items(message(orchestrator_pb2.StageAnswer)),
}  # fmt: skip
_KEY: Final = holds(
    id=TEXT,
    name=TEXT,
    scope=TEXT,
    owner=TEXT,
    signed=FLAG,
    created=NUMBER,
    expires=NUMBER,
    revoked={"type": ["number", "boolean"]},
    in_force=FLAG,
)

SCHEMAS: Final[Mapping[str, Schema]] = {
    "pnode status": message(local_pb2.StatusResponse),
    "pnode top": _TOP,
    "pnode stop": _STOPPED,
    "pnode finish": _STOPPED,
    "pnode pause": holds(paused=constant(True), for_s=NUMBER),
    "pnode resume": holds(paused=constant(False)),
    "pnode why": message(local_pb2.WhyResponse),
    "pnode receipt": holds(**_PROOF, file=TEXT),
    "pnode note": _NOTE,
    "pnode own": holds(owner=TEXT, statement=TEXT),
    "pnode config show": {
        "type": "object", "properties": {"home": TEXT, "running": FLAG, "settings": _SETTINGS}, "required": ["home", "settings"],
    },
    "orchestrator key": holds(node_id=TEXT, key=TEXT),
    "orchestrator status": message(orchestrator_pb2.GetStatusResponse),
    "orchestrator stop": _STOPPED,
    "orchestrator config show": holds(home=TEXT, settings=_SETTINGS),
    "dcnr network create": holds(network_id=TEXT, network_file=TEXT, keys=items(TEXT)),
    "dcnr network key": holds(maintainer_id=TEXT, public_key=TEXT, key=TEXT),
    "dcnr network amend": _AMENDED,
    "dcnr network sign": _AMENDED,
    "dcnr network publish": holds(
        network_id=TEXT, version=WHOLE, told=items(holds(node_id=TEXT, address=TEXT, version=WHOLE, problem=TEXT))
    ),
    "dcnr network show": extended(identity_pb2.NetworkDocument, maintainer_ids=items(TEXT), network_id=TEXT),
    "dcnr data stage": holds(
        name=TEXT, digest=TEXT, splits=by_name(WHOLE), fields=by_name(holds(dtype=TEXT, shape=_SHAPE)), size_bytes=WHOLE
    ),
    "dcnr data list": items(message(data_pb2.DatasetInfo)),
    "dcnr model validate": holds(model=TEXT, graph_digest=TEXT, num_parameters=WHOLE, stages=items(_STAGE)),
    "dcnr model import": holds(
        model=TEXT, graph=TEXT, weights=TEXT, answer=TEXT, difference=NUMBER, notes=items(TEXT),
        vnodes=items(holds(vnode=TEXT, component=TEXT, operations=items(TEXT))),
    ),
    "dcnr model plan": extended(orchestrator_pb2.PreviewPlanResponse, quote=message(ledger_pb2.CostQuote)),
    "dcnr model submit": one_of(holds(draft=TEXT), message(orchestrator_pb2.SubmitJobResponse)),
    "dcnr model sign": holds(draft=TEXT, job_id=TEXT, model=TEXT, missing=WHOLE, on=TEXT),
    "dcnr model export": holds(manifest=TEXT, directory=TEXT, digest=TEXT, files=by_name(ANYTHING), num_parameters=WHOLE, unnoticed=or_null(_UNNOTICED)),
    "dcnr model evaluate": holds(
        manifest=TEXT, split=TEXT, exits=items(holds(vnode=TEXT, loss=NUMBER, accuracy=NUMBER, count=WHOLE))
    ),
    "dcnr model release": holds(model=TEXT, number=WHOLE, manifest=TEXT, reason=TEXT, created_unix_ms=WHOLE, signers=items(TEXT)),
    "dcnr job list": items(message(orchestrator_pb2.JobView)),
    "dcnr job watch": message(orchestrator_pb2.WatchJobResponse),
    "dcnr job cancel": message(orchestrator_pb2.CancelJobResponse),
    "dcnr job pause": message(orchestrator_pb2.PauseJobResponse),
    "dcnr job resume": message(orchestrator_pb2.PauseJobResponse),
    "dcnr job explain": items(message(orchestrator_pb2.Explanation)),
    "dcnr ledger verify": one_of(_VERIFIED, _STATED),
    "dcnr ledger receipt": holds(**_PROOF, file=TEXT),
    "dcnr ledger verify-receipt": holds(**_PROOF),
    "dcnr ledger scores": items(_SCORE),
    "dcnr ledger usage": items(_USED),
    "dcnr ledger quote": message(ledger_pb2.CostQuote),
    "dcnr ledger export": _RECORD,
    "dcnr gateway id": holds(node_id=TEXT),
    "dcnr gateway key add": holds(id=TEXT, name=TEXT, scope=TEXT, key=TEXT),
    "dcnr gateway key list": items(_KEY),
    "dcnr gateway key rotate": holds(id=TEXT, key=TEXT),
    "dcnr gateway key revoke": holds(id=TEXT, revoked=constant(True)),
    "dcnr gateway key log": items(holds(time=NUMBER, key=TEXT, method=TEXT, route=TEXT, status=WHOLE, subnet=TEXT)),
    "dcnr local down": _STOPPED,
    "dcnr local status": holds(pid=WHOLE, network=TEXT, bootstrap=items(TEXT), nodes=items(message(orchestrator_pb2.NodeView))),
    "dcnr infer": holds(**_ANSWER, dtype=TEXT, shape=_SHAPE, output={"type": "array"}, total_s=NUMBER, num_ways=WHOLE, num_agreeing=WHOLE),
    "dcnr generate": holds(
        **_ANSWER, text=TEXT, finish_reason=TEXT, seed=WHOLE, num_prompt_tokens=WHOLE, num_tokens=WHOLE, num_passes=WHOLE, num_drafted=WHOLE,
        num_accepted=WHOLE, num_close=WHOLE,
    ),
}  # fmt: skip
"""By the words of the command."""
