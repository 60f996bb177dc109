"""Bodies are read as JSON says, not as Python does: a name once in an object, no NaN and no Infinity. Who signs or checks a body means what we read."""

from __future__ import annotations

import json
from collections.abc import Callable, Coroutine, Mapping, Sequence
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
        """As any request's, with `parsed`. Raises JSONDecodeError, whose text is the cause."""
        try:
            return parsed(await self.body())
        except json.JSONDecodeError:
            raise
        except RecursionError as error:
            raise json.JSONDecodeError("nested too deep", "", 0) from error
        except UnicodeDecodeError as error:
            raise json.JSONDecodeError("no text in UTF-8", "", 0) from error
        except ValueError as error:
            raise json.JSONDecodeError("a number with too many digits", "", 0) from error


class _Route(APIRoute):
    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """As any route's, for a `_Request`."""
        handler = super().get_route_handler()

        async def handle(request: Request) -> Response:
            return await handler(_Request(request.scope, request.receive))

        return handle


def wrong(errors: Sequence[Mapping[str, Any]], body: Any) -> tuple[str, str]:
    """Where a request is wrong, in the names that its sender knows, and why; ``errors`` are pydantic's.

    Where several forms are taken, the path has no word of which was tried, and the cause says of each why it does not fit.
    """
    if not errors:
        return "body", "invalid"
    if errors[0]["type"] == "json_invalid":
        at = errors[0]["loc"][-1]
        return "body", f"this is no JSON: {errors[0]['ctx']['error']}{f' (character {at})' if at else ''}"
    paths = [_path(error, body) for error in errors]
    return paths[0], "; or: ".join(
        dict.fromkeys(error["msg"] for error, path in zip(errors, paths, strict=True) if path == paths[0])
    )


def _path(error: Mapping[str, Any], body: Any) -> str:
    """The place of ``error``: the parts that lead through the body, and at its end the name of what is missing."""
    first, *rest = error["loc"] or ("body",)
    if first != "body":
        return ".".join(map(str, (first, *rest)))
    found, parts = body, [first]
    for index, part in enumerate(rest):
        if isinstance(part, int):
            found = found[part] if isinstance(found, list) and part < len(found) else None
        elif isinstance(found, dict) and part in found:
            found = found[part]
        elif error["type"] != "missing" or index < len(rest) - 1:
            continue
        parts.append(str(part))
    return ".".join(parts)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise json.JSONDecodeError("a name stands twice in an object", "", 0)
    return found


def _no_number(text: str) -> NoReturn:
    raise json.JSONDecodeError(f"{text} is no number of JSON", "", 0)
