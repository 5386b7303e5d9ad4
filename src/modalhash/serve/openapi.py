"""Routes that describe themselves, and the OpenAPI document of a service, made from them and from the models."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from modalhash import __version__
from modalhash.serve.schemas import Error, Parameters

REFERENCE = "#/components/schemas/{model}"
DESCRIPTION = (
    "Search across modalities: a text finds pictures, a picture finds texts, by the Hamming distance of short binary "
    "codes. Errors are JSON: what is wrong and what to do."
)
ERRORS = {
    400: "Not a valid HTTP request.",
    401: "The token is missing or wrong.",
    403: "Not allowed: another site or host name, insufficient role of the token, or a read-only service.",
    404: "No such item, or its file is missing.",
    408: "The body did not arrive in time.",
    409: "An item with this id exists.",
    413: "Too many bytes or pixels.",
    415: "The content type or the format of the picture is not supported.",
    422: "A field is wrong.",
    429: "Too many requests from one address; see Retry-After.",
    431: "The request headers are too large.",
    500: "An internal error; see the number of the request in the service's log.",
    503: "Too busy; see Retry-After.",
    507: "The disk of the service is full.",
}
COMMON_ERRORS = (400, 401, 403, 422, 429, 431, 503)


class Operation(Route):
    """Route of one method, with its description.

    Parameters
    ----------
    method, path, endpoint
        As for a route of Starlette; the docstring of the endpoint is the description.
    response : model or tuple of str
        Model of the JSON response, or the other content types that it may have.
    tag : str
        Group of the operation.
    status : int
        Status of the response.
    errors : tuple of int
        Statuses of errors in addition to :data:`COMMON_ERRORS`.
    parameters : model, optional
        Parameters of the path and the query.
    json : tuple of models
        Alternatives for a JSON body.
    form : model, optional
        Fields of a form with a picture.
    """

    def __init__(
        self,
        method: str,
        path: str,
        endpoint: Callable[[Request], Awaitable[Response]],
        response: type[BaseModel] | tuple[str, ...],
        *,
        tag: str,
        status: int = 200,
        errors: tuple[int, ...] = (),
        parameters: type[Parameters] | None = None,
        json: tuple[type[BaseModel], ...] = (),
        form: type[BaseModel] | None = None,
    ) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.method, self.tag, self.response, self.status = method.lower(), tag, response, status
        self.errors, self.parameters, self.json, self.form = errors, parameters, json, form

    def describe(self) -> dict[str, Any]:
        """Return the OpenAPI operation."""
        found: dict[str, Any] = {
            "tags": [self.tag],
            "summary": self.name.replace("_", " ").title(),
            "description": inspect.getdoc(self.endpoint),
            "operationId": re.sub(r"\W", "_", f"{self.name}{self.path_format}_{self.method}"),
            "responses": dict(self._responses()),
        }
        if self.parameters is not None:
            found["parameters"] = list(self._parameters(self.parameters.model_json_schema()))
        if content := dict(self._body()):
            found["requestBody"] = {"required": True, "content": content}
        return found

    def _responses(self) -> Iterator[tuple[str, Any]]:
        kinds = self.response
        content = {kind: {} for kind in kinds} if isinstance(kinds, tuple) else _json(kinds)
        yield str(self.status), {"description": "Successful response.", "content": content}
        for status in sorted({*COMMON_ERRORS, *self.errors}):
            yield str(status), {"description": ERRORS[status], "content": _json(Error)}

    def _parameters(self, schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
        for name, field in schema["properties"].items():
            yield {
                "name": name,
                "in": "path" if name in self.param_convertors else "query",
                "required": name in schema.get("required", ()),
                "schema": field,
                "description": field.pop("description"),
            }

    def _body(self) -> Iterator[tuple[str, Any]]:
        """Iterate over the content types of the body; its schemas are inline, because the engine's modalities vary."""
        if self.json:
            one, *others = (model.model_json_schema() for model in self.json)
            yield "application/json", {"schema": {"oneOf": [one, *others]} if others else one}
        if self.form is not None:
            yield "multipart/form-data", {"schema": self.form.model_json_schema()}


def document(routes: Iterable[BaseRoute], modalities: Iterable[str], *, needs_token: bool = False) -> dict[str, Any]:
    """Return the OpenAPI document of the operations among ``routes``, for an engine with these modalities."""
    operations = [route for route in routes if isinstance(route, Operation)]
    models: list[type[BaseModel]] = [
        Error,
        *(one.response for one in operations if not isinstance(one.response, tuple)),
    ]
    _, schemas = models_json_schema([(model, "serialization") for model in models], ref_template=REFERENCE)
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        described = paths.setdefault(operation.path_format, {})[operation.method] = operation.describe()
        _name_modalities(described, list(modalities))
    found: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {"title": "modalhash", "version": __version__, "description": DESCRIPTION},
        "paths": paths,
        "components": {"schemas": schemas["$defs"]},
    }
    if needs_token:
        found["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        found["security"] = [{"token": []}]
    return _without_null(found)


def _json(model: type[BaseModel]) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": REFERENCE.format(model=model.__name__)}}}


def _name_modalities(operation: dict[str, Any], names: list[str]) -> None:
    """List the engine's modalities as allowed values of parameters and fields."""
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


def _without_null(schema: Any) -> Any:
    """Return a document without null defaults, because fields that are null are absent in most responses."""
    if isinstance(schema, list):
        return [_without_null(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    return {name: _without_null(part) for name, part in schema.items() if part is not None}
