"""Pieces of JSON schema for the routes' answers, and the OpenAPI description that they add up to."""

from __future__ import annotations

from typing import Any, Final

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from google.protobuf.descriptor import Descriptor

from gateway.errors import CODES
from gateway.shapes import REFERENCE, Json, schemas

ERROR: Final = "Error"


def message(name: str) -> Json:
    """A message of the contract."""
    return {"$ref": REFERENCE + name}


def array(item: Json) -> Json:
    """A list of such items."""
    return {"type": "array", "items": item}


def one_of(*kinds: Json) -> Json:
    """Any of these."""
    return {"anyOf": list(kinds)}


def holds(**properties: Json) -> Json:
    """An object with exactly these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


def JSON(schema: Json, status: int = 200) -> dict[int | str, dict[str, Any]]:
    """What a route answers."""
    return {status: {"description": "OK", "content": {"application/json": {"schema": schema}}}}


def described(app: FastAPI, version: str, *descriptors: Descriptor) -> Json:
    """The OpenAPI 3.1 description of the routes of ``app``; every operation may answer with an error of the one form."""
    table = get_openapi(
        title="DCNR gateway", version=version, openapi_version="3.1.0", routes=app.routes,
        description="One network over REST. Errors, keys and limits: docs/rest.md.",
    )  # fmt: skip
    components = table.setdefault("components", {})
    components.setdefault("schemas", {}).update(schemas(*descriptors))
    for name in ("HTTPValidationError", "ValidationError"):
        components["schemas"].pop(name, None)
    components["schemas"][ERROR] = holds(
        error=holds(
            code={"type": "string", "enum": sorted(CODES)}, message={"type": "string"},
            details={"type": "object", "additionalProperties": {"type": "string"}},
        )
    )  # fmt: skip
    components["securitySchemes"] = {
        "key": {"type": "http", "scheme": "bearer", "description": "An API key: dcnr gateway key add."}
    }
    for path in table["paths"].values():
        for operation in path.values():
            operation["responses"].pop("422", None)
            operation["responses"]["default"] = {
                "description": "An error.", "content": {"application/json": {"schema": message(ERROR)}},
            }  # fmt: skip
            operation.setdefault("security", [{}, {"key": []}])
    table["components"]["schemas"] = dict(sorted(components["schemas"].items()))
    return table
