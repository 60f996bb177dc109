"""The application: routes, their errors in one form, and the gate before them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from fastapi import Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection

from dcnr import __version__
from dcnr.errors import DcnrError
from gateway import admin, asking, completions, health, here, jobs, owning, reading, watching, witnesses
from gateway.access import Access
from gateway.bodies import wrong
from gateway.context import Context, answer
from gateway.errors import RestError, from_typed
from gateway.gate import Gate
from gateway.pages import mount_dashboard
from gateway.schema import described
from gateway.shapes import Json

_OF_STATUS = {404: "NOT_FOUND", 405: "METHOD_NOT_ALLOWED"}


def create_routes(context: Context) -> FastAPI:
    """The routes without the gate."""
    app = FastAPI(
        title="DCNR gateway", version=__version__, docs_url=None, redoc_url=None, openapi_url=None, redirect_slashes=False,
        dependencies=[Depends(_known_query)],
    )  # fmt: skip
    app.include_router(health.routes(context, lambda: openapi(app)))
    app.include_router(reading.routes(context))
    app.include_router(jobs.routes(context))
    app.include_router(asking.routes(context))
    app.include_router(watching.routes(context))
    app.include_router(witnesses.routes(context))
    app.include_router(completions.routes(context))
    app.include_router(owning.routes(context))
    app.include_router(admin.routes(context))
    app.include_router(here.routes(context))
    mount_dashboard(app)
    app.add_exception_handler(DcnrError, _typed)
    app.add_exception_handler(RestError, _rest)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(Exception, _fault)
    return app


def create_app(context: Context, access: Access) -> Gate:
    """The whole application."""
    return Gate(create_routes(context), access, context.metrics, context.clock, context.seconds.append, context.tracer)


def openapi(app: FastAPI) -> Json:
    """The description of the routes, as it is checked in."""
    return described(app, __version__, *reading.SHOWN_MESSAGES, *jobs.SHOWN_MESSAGES, *asking.SHOWN_MESSAGES, *here.SHOWN_MESSAGES)


def description() -> Json:
    """The same, of a gateway that serves nobody."""
    return openapi(create_routes(nobody()))


def nobody() -> Context:
    """Stands where the network would be: a description asks it nothing."""
    return Context(*(cast(Any, SimpleNamespace()) for _ in range(6)))


async def _known_query(connection: HTTPConnection) -> None:
    """Raises RestError for a name in the query that the route does not declare, as for an unknown field in a body. Of every route but those of WebSockets."""
    route = connection.scope.get("route")
    if not connection.query_params or not isinstance(route, APIRoute):
        return
    known = [field.alias for field in route.dependant.query_params]
    if unknown := sorted(set(connection.query_params) - set(known)):
        where = f"query.{unknown[0]}"
        raise RestError(
            "INVALID_PAYLOAD", f"{where}: there is no such name; the query takes {', '.join(known) or 'none'}",
            where=where, reason="invalid_request",
        )  # fmt: skip


async def _typed(request: Request, error: Any) -> Response:
    del request
    return _response(from_typed(error))


async def _rest(request: Request, error: Any) -> Response:
    del request
    return _response(error)


async def _invalid(request: Request, error: Any) -> Response:
    del request
    where, cause = wrong(error.errors(), error.body)
    return _response(RestError("INVALID_PAYLOAD", f"{where}: {cause}", where=where, reason="invalid_request"))


async def _http(request: Request, error: Any) -> Response:
    del request
    code = _OF_STATUS.get(error.status_code, "INVALID_PAYLOAD")
    return _response(RestError(code, str(error.detail), headers=error.headers))


async def _fault(request: Request, error: Exception) -> Response:
    """Of what is no typed error nothing is told; the gate, which it reaches next, logs it."""
    del request, error
    return _response(RestError("INTERNAL", "internal error"))


def _response(error: RestError) -> Response:
    response = answer(error.body(), error.status)
    response.headers.update(error.headers)
    return response
