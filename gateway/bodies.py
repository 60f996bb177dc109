"""Bodies are read as JSON says, not as Python does: a name once in an object, no NaN and no Infinity. Who signs or checks a body means what we read."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine
from typing import Any, NoReturn

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute


def parsed(body: bytes) -> Any:
    """The value of a text in JSON. Raises ValueError, RecursionError for one that is nested too deep."""
    return json.loads(body, object_pairs_hook=_once, parse_constant=_no_number)


def router() -> APIRouter:
    """For routes that take a body."""
    return APIRouter(route_class=_Route)


class _Request(Request):
    async def json(self) -> Any:
        """As any request's, with `parsed`."""
        return parsed(await self.body())


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As any route's, for a `_Request`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise json.JSONDecodeError("a name stands twice in an object", "", 0)
    return found


def _no_number(text: str) -> NoReturn:
    raise json.JSONDecodeError(f"{text} is no number of JSON", "", 0)
