"""The routes of who runs the gateway: its keys and the log of their use, and the machines that get no work, with the reasons.

Keys of scope admin are neither made nor changed here, only on the machine itself (`dcnr gateway key`): a stolen one cannot make itself at home.
"""

from __future__ import annotations

import asyncio
import secrets
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from dcnr.errors import NotFound, Refused
from dcnr.v1 import orchestrator_pb2
from gateway import bodies
from gateway.context import Context, answer
from gateway.keys import MAX_NAME, Key, KeyFile
from gateway.reading import NODE
from gateway.schema import JSON, array, holds
from gateway.shapes import Json, shown

DAY_S: Final = 86_400.0
MAX_DAYS: Final = 36_500.0
MAX_BARRED: Final = 64
BARRED: Final = (orchestrator_pb2.NODE_STATE_QUARANTINED, orchestrator_pb2.NODE_STATE_REHAB, orchestrator_pb2.NODE_STATE_SUSPECT)
KeyId = Annotated[str, Path(pattern="^[0-9a-f]{8}$", description="Id of a key.")]
_TEXT, _TIME, _FLAG = {"type": "string"}, {"type": "number"}, {"type": "boolean"}
KEY: Final = holds(
    id=_TEXT, name=_TEXT, scope=_TEXT, owner=_TEXT, signed=_FLAG, created=_TIME, expires=_TIME, revoked=_TIME, in_force=_FLAG,
)  # fmt: skip
NEW_KEY: Final = holds(id=_TEXT, key=_TEXT)
USE: Final = holds(time=_TIME, key=_TEXT, method=_TEXT, route=_TEXT, status={"type": "integer"}, subnet=_TEXT)


class KeyIn(BaseModel):
    """A key to be made."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(min_length=1, max_length=MAX_NAME, description="Whose it is, for people.")
    scope: str = Field("client", pattern="^(client|node-owner)$")
    owner: str = Field(
        "", pattern="^([0-9a-f]{40})?$", description="Of scope node-owner: id of the key that signs whose machines they are."
    )
    days: float = Field(365.0, ge=0, le=MAX_DAYS, description="For how long; 0: until it is revoked.")
    signed: bool = Field(False, description="Whether each of its requests has to bear a signature.")


def routes(context: Context) -> APIRouter:
    """The routes over one network."""
    router = bodies.router()
    _keys(router, context)

    @router.get(
        "/v1/admin/uses", summary="The newest requests made with keys, newest first", responses=JSON(holds(uses=array(USE)))
    )
    async def list_uses(
        key_id: Annotated[str, Query(pattern="^([0-9a-f]{8})?$", description="Of this key; empty: of all.")] = "",
        limit: Annotated[int, Query(ge=1, le=1000, description="Rows.")] = 100,
    ) -> Response:
        uses = await asyncio.to_thread(context.ring.file.uses, limit, key_id)
        rows = [
            {"time": use.time, "key": use.key, "method": use.method, "route": use.route, "status": use.status, "subnet": use.subnet} for use in uses
        ]  # fmt: skip
        return answer({"uses": rows})

    @router.get(
        "/v1/admin/quarantine",
        summary="Machines in doubt, in quarantine or on their way back, with the reasons",
        responses=JSON(holds(nodes=array(NODE), num_nodes={"type": "integer"})),
    )
    async def list_barred() -> Response:
        found = [node for node in await context.views.nodes() if node.state in BARRED]
        rows = []
        for node in found[:MAX_BARRED]:
            lines = await context.views.explain(orchestrator_pb2.ExplainRequest(node_id=node.node_id))
            rows.append({"node": shown(node), "explanations": [shown(line) for line in lines]})
        return answer({"nodes": rows, "num_nodes": len(found)})

    return router


def _keys(router: APIRouter, context: Context) -> None:
    ring = context.ring

    @router.get(
        "/v1/admin/keys", summary="All keys, oldest first; never the keys themselves", responses=JSON(holds(keys=array(KEY)))
    )
    async def list_keys() -> Response:
        now = context.clock.wall()
        return answer({"keys": [row_of(key, now) for key in (await asyncio.to_thread(ring.file.keys)).values()]})

    @router.post(
        "/v1/admin/keys", summary="Make a key; it is shown this once", status_code=201, responses=JSON(NEW_KEY, 201)
    )  # fmt: skip
    async def add_key(body: KeyIn) -> Response:
        now = context.clock.wall()
        key, text = await asyncio.to_thread(
            lambda: ring.file.add(
                body.name, body.scope, expires=now + body.days * DAY_S if body.days else 0.0, signed=body.signed, now_wall=now,
                rng=secrets.token_bytes, owner=body.owner,
            )
        )  # fmt: skip
        await ring.reload()
        return answer({"id": key.id, "key": text}, 201)

    @router.post(
        "/v1/admin/keys/{key_id}/rotate", summary="Replace the secret of a key; it is shown this once", responses=JSON(NEW_KEY)
    )
    async def rotate_key(key_id: KeyId) -> Response:
        await asyncio.to_thread(_changeable, ring.file, key_id)
        text = await asyncio.to_thread(ring.file.rotate, key_id, secrets.token_bytes)
        await ring.reload()
        return answer({"id": key_id, "key": text})

    @router.post(
        "/v1/admin/keys/{key_id}/revoke", summary="Refuse a key from now on", responses=JSON(holds(id=_TEXT, revoked=_FLAG))
    )
    async def revoke_key(key_id: KeyId) -> Response:
        await asyncio.to_thread(_changeable, ring.file, key_id)
        await asyncio.to_thread(ring.file.revoke, key_id, context.clock.wall())
        await ring.reload()
        return answer({"id": key_id, "revoked": True})


def row_of(key: Key, now_wall: float) -> Json:
    """What is told of a key: all but salt and hash."""
    row: dict[str, Any] = {
        "id": key.id, "name": key.name, "scope": key.scope, "owner": key.owner, "signed": key.signed, "created": key.created,
        "expires": key.expires, "revoked": key.revoked, "in_force": key.holds(now_wall),
    }  # fmt: skip
    return row


def _changeable(file: KeyFile, key_id: str) -> None:
    found = file.keys().get(key_id)
    if found is None:
        raise NotFound(f"there is no key {key_id}", code="no_such_key", remedy="GET /v1/admin/keys")
    if found.scope == "admin":
        raise Refused(
            "a key of scope admin is changed on the machine of the gateway only", code="admin_key",
            remedy="dcnr gateway key rotate, or revoke, on that machine",
        )  # fmt: skip
