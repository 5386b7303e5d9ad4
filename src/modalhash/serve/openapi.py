"""Parts of the OpenAPI description that several addresses share."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from modalhash.engine import Engine
from modalhash.serve.schemas import Error
from modalhash.serve.settings import Settings

ERRORS = {
    400: "Not a request.",
    401: "The token is missing or wrong.",
    403: "Not allowed: called from another site or under another name, or the service is read-only.",
    404: "There is no such item, or its file is gone.",
    408: "The body did not arrive in time.",
    409: "There is an item with this id.",
    413: "Too many bytes or pixels.",
    415: "Not a content type or a picture that is taken.",
    422: "A field is wrong.",
    431: "The head of the request is too large.",
    500: "A mistake of the service; the log has the number of the request.",
    503: "Too busy; Retry-After says when to come again.",
    507: "The disk of the service is full.",
}
ALWAYS = (400, 401, 403, 422, 431, 503)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Answers of an address besides the good one."""
    return {status: {"model": Error, "description": ERRORS[status]} for status in sorted({*ALWAYS, *statuses})}


def body(form: type[BaseModel], *json: type[BaseModel]) -> dict[str, Any]:
    """A request's body that is a form with a picture, or JSON of one of several kinds."""
    kinds = [_plain(one) for one in json]
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {"schema": kinds[0] if len(kinds) == 1 else {"oneOf": kinds}},
                "multipart/form-data": {"schema": _plain(form)},
            },
        }
    }


def install(app: FastAPI, engine: Engine, settings: Settings) -> None:
    """The description of the whole service; made once, when first asked for."""

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
            for operation in (one for path in schema["paths"].values() for one in path.values()):
                _name_modalities(operation, list(engine.modalities))
            if settings.token is not None:
                schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
                schema["security"] = [{"token": []}]
            app.openapi_schema = schema
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]


def _name_modalities(operation: dict[str, Any], names: list[str]) -> None:
    """Say which modalities this engine has, wherever one can be named."""
    for parameter in operation.get("parameters", []):
        if parameter["name"] == "modality":
            _name_in(parameter["schema"], names)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        for schema in content["schema"].get("oneOf", [content["schema"]]):
            for name in ("modality", "want"):
                _name_in(schema["properties"].get(name, {}), names)


def _name_in(field: dict[str, Any], names: list[str]) -> None:
    for kind in field.get("anyOf", []):
        if kind.get("type") == "string":
            kind["enum"] = names
        elif kind.get("type") == "array":
            kind["items"]["enum"] = names


def _plain(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    assert "$defs" not in schema, f"{model.__name__} has parts, which would have to be among the components"
    return schema
