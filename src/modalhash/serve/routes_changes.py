"""Adding and removing items, where the service was started so."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from modalhash.engine import Item, Problem, ProblemCode, default_id, parse_labels
from modalhash.serve import describe, schemas
from modalhash.serve.errors import Refusal, reply
from modalhash.serve.media import check_picture
from modalhash.serve.routes_items import OfModality, OwnId
from modalhash.serve.searching import item_of
from modalhash.serve.service import Service

READ_ONLY = "this service only searches; start it with --writable to add and remove items"


def install(app: FastAPI, service: Service) -> None:
    """The addresses that change something. One change after the other."""

    @app.post(
        "/items",
        status_code=201,
        response_model=schemas.Added,
        responses=describe.errors(408, 409, 413, 415, 507),
        openapi_extra=describe.body(schemas.NewPicture, schemas.NewItem),
        tags=["items"],
    )
    async def add(request: Request) -> Response:
        """Add a text (JSON) or a picture (form). Its code is made from its content; the picture is kept."""
        check_writable(service)
        with service.intake.room() as room:
            body, file = await room.read(request, schemas.NewFields)
            return reply(await service.in_thread("changes", add_item, service, body, file), 201)

    @app.delete("/items/{id:any}", response_model=schemas.Removed, responses=describe.errors(404, 507), tags=["items"])
    async def remove(id: OwnId, modality: OfModality = None) -> Response:
        """Remove an item, in one modality or in all."""
        check_writable(service)
        return reply(await service.in_thread("changes", remove_item, service, id, modality))


def check_writable(service: Service) -> None:
    """Refuse where nothing may be changed."""
    if not service.settings.writable:
        raise Refusal(403, READ_ONLY)


def add_item(service: Service, body: schemas.NewFields, file: bytes | None) -> dict[str, Any]:
    """Add one item and say what became of it."""
    engine, text = service.engine, body.text
    if (text is None) == (file is None):
        raise Refusal(422, f"got {'no item' if text is None else 'text and image'}; expected text or image")
    modality = service.searcher.modality_for("image" if text is None else "text", body.modality)
    if file is not None:
        check_picture(file, service.limits.pixels)
    id = body.id or default_id(text or "" if file is None else file)
    item = Item(modality, id, text=text, data=file, labels=parse_labels(list(body.labels)))
    problems: list[Problem] = []
    done = engine.add([item], keep=True, workers=1, on_problem=problems.append)
    if done.added:
        return {"added": item_of(engine.get(id, modality=modality)), "items": sum(engine.sizes().values())}
    if problems[0].code is ProblemCode.EXISTS:
        raise Refusal(409, f"there is an item with the id {id!r} in {modality!r}; remove it first, or give another id")
    raise Refusal(422 if file is None else 415, f"{'text' if file is None else 'image'}: {problems[0].reason}")


def remove_item(service: Service, id: str, modality: str | None) -> dict[str, int]:
    """Remove one item."""
    if modality is not None:
        service.searcher.check(modality)
    try:
        removed = service.engine.remove([id], modality=modality)
    except KeyError:
        where = "" if modality is None else f" in {modality!r}"
        raise Refusal(404, f"no item has the id {id!r}{where}; nothing was removed") from None
    return {"removed": removed, "items": sum(service.engine.sizes().values())}
