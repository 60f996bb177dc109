"""The route of a node owner: their machines as an orchestrator sees them, with what each is credited with.

Whose a machine is says a statement that the owner's own key signed (`pnode own`); an API key of scope node-owner names that owner.
"""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response

from dcnr.errors import InvalidInput, NotFound, Refused
from gateway.context import Context, answer
from gateway.keys import Key
from gateway.paging import page
from gateway.reading import ACCOUNT, Cursor, Limit, Model, account_row
from gateway.schema import JSON, array, holds, message, one_of
from gateway.shapes import Json, shown

_TEXT: Final[Json] = {"type": "string"}
OWNED: Final = holds(node=message("NodeView"), account=one_of(ACCOUNT, {"type": "null"}))
OWNED_PAGE: Final = holds(owner=_TEXT, nodes=array(OWNED), num_nodes={"type": "integer"}, next_cursor=_TEXT)


def routes(context: Context) -> APIRouter:
    """The route over one network."""
    router, views = APIRouter(), context.views

    @router.get(
        "/v1/owner/nodes", summary="The machines of one owner, by id, and what they are credited with", responses=JSON(OWNED_PAGE)
    )
    async def list_owned(
        request: Request,
        owner: Annotated[str, Query(pattern="^([0-9a-f]{40})?$", description="For an admin's key: whose; empty: the key's own.")] = "",
        model: Model = "", cursor: Cursor = "", limit: Limit = 100,
    ) -> Response:  # fmt: skip
        wanted = owner_of(request.state.key, owner)
        rows = [node for node in await views.nodes() if node.owner == wanted]
        taken, following = page(rows, lambda node: node.node_id, cursor=cursor, limit=limit, by_name=True)
        accounts = await _accounts(context, model)
        told = [{"node": shown(node), "account": accounts.get(node.node_id)} for node in taken]
        return answer({"owner": wanted, "nodes": told, "num_nodes": len(rows), "next_cursor": following})

    return router


def owner_of(key: Key, wanted: str) -> str:
    """Whose machines are meant. Raises InvalidInput, Refused."""
    if key.scope == "admin":
        if not wanted:
            raise InvalidInput("say whose machines: owner=ID", code="no_owner")
        return wanted
    if not key.owner:
        raise Refused("this key names no owner", code="no_owner", remedy="dcnr gateway key add NAME --scope node-owner --owner ID")
    if wanted not in ("", key.owner):
        raise Refused("these are another owner's machines", code="not_yours")
    return key.owner


async def _accounts(context: Context, model: str) -> dict[str, Json]:
    """By PNode; nothing where there is no ledger yet, or it is too long for a gateway."""
    try:
        _, _, accounts = await context.views.ledger(model)
    except (NotFound, Refused):
        return {}
    return {one.pnode_id: account_row(one) for one in accounts}
