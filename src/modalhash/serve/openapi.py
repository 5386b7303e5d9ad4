"""The OpenAPI description: errors and bodies that several routes share, and the names of this engine's modalities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from modalhash.serve.schemas import Error
from modalhash.serve.settings import Settings

ERRORS = {
    400: "Not a valid HTTP request.",
    401: "The token is missing or wrong.",
    403: "Not allowed: from another site, under another host name, for this token, or the service is read-only.",
    404: "There is no such item, or its file is gone.",
    408: "The body did not arrive in time.",
    409: "There is an item with this id.",
    413: "Too many bytes or pixels.",
    415: "The content type or the format of the picture is not supported.",
    422: "A field is wrong.",
    429: "Too much from one address; Retry-After says when to try again.",
    431: "The head of the request is too large.",
    500: "An internal error; the service's log says where, under the number of the request.",
    503: "Too busy; Retry-After says when to try again.",
    507: "The disk of the service is full.",
}
COMMON_ERRORS = (400, 401, 403, 422, 429, 431, 503)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Describe the errors of a route: these, and those that every route has."""
    return {status: {"model": Error, "description": ERRORS[status]} for status in sorted({*COMMON_ERRORS, *statuses})}


def request_body(form: type[BaseModel], *json: type[BaseModel]) -> dict[str, Any]:
    """Describe a body that is a form with a picture, or JSON of one of several models."""
    schemas = [_inline_schema(model) for model in json]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": schemas[0] if len(schemas) == 1 else {"oneOf": schemas}},
                "multipart/form-data": {"schema": _inline_schema(form)},
            },
        }
    }


def json_body(model: type[BaseModel]) -> dict[str, Any]:
    """Describe a body of JSON."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": _inline_schema(model)}}}}


def describe(app: FastAPI, modalities: Callable[[], Sequence[str]], settings: Settings) -> None:
    """Make the app's description name the token and the modalities of the engine that is served when it is requested.

    It is built at the first request, and anew when an engine with other modalities has taken the place of the first.
    """
    described: list[str] = []

    def openapi() -> dict[str, Any]:
        names = list(modalities())
        if app.openapi_schema is None or names != described:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            for operation in (operation for path in schema["paths"].values() for operation in path.values()):
                _name_modalities(operation, names)
            if settings.needs_token:
                schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"token": []}]
            app.openapi_schema, described[:] = schema, names
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _name_modalities(operation: dict[str, Any], names: list[str]) -> None:
    """List the engine's modalities wherever one can be named."""
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "modality":
            _add_enum(parameter["schema"], names)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        for schema in content["schema"].get("oneOf", [content["schema"]]):
            for name in ("modality", "want"):
                _add_enum(schema["properties"].get(name, {}), names)


def _add_enum(field: dict[str, Any], names: list[str]) -> None:
    for kind in field.get("anyOf", []):
        if kind.get("type") == "string":
            kind["enum"] = names
        elif kind.get("type") == "array":
            kind["items"]["enum"] = names


def _inline_schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    assert "$defs" not in schema, f"{model.__name__} has parts, which would have to be among the components"
    return schema
