"""Items one by one: what they are, their pictures, adding and removing."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request
from starlette.convertors import Convertor, register_url_convertor
from starlette.responses import FileResponse, Response

from modalhash.engine import Hit
from modalhash.serve import openapi, schemas
from modalhash.serve.errors import Refusal, reply
from modalhash.serve.media import TYPES, look
from modalhash.serve.searcher import item_of, unknown
from modalhash.serve.service import Service
from modalhash.store import Record

OwnId = Annotated[schemas.Id, Path(description="The id; characters that mean something in an address are quoted.")]
OfModality = Annotated[schemas.Name | None, Query(description="Needed where the id is in several modalities.")]
CACHE = {"Cache-Control": "private, max-age=300"}
PICTURES: dict[int | str, dict[str, Any]] = {
    200: {"description": "The picture.", "content": {kind: {} for kind in dict.fromkeys(TYPES.values())}}
}


class AnyText(Convertor[str]):
    """The rest of an address, whatever is in it: starlette's own stops at a line break."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyText())


def install(app: FastAPI, service: Service) -> None:
    """The addresses of items."""

    def find(id: str, modality: str | None) -> Record:
        if modality is not None:
            service.searcher.check(modality)
        try:
            return service.engine.records([id], modality)[0]
        except (KeyError, ValueError) as error:
            raise unknown(error) from None

    @app.get("/items/{id:any}", response_model=schemas.Item, responses=openapi.errors(404), tags=["items"])
    async def item(id: OwnId, modality: OfModality = None) -> Response:
        """One item."""
        record = await service.in_thread("items", find, id, modality)
        return reply(item_of(Hit.from_record(record, 0)))

    @app.get(
        "/media/{id:any}", response_class=Response, responses={**openapi.errors(404, 415), **PICTURES}, tags=["items"]
    )
    async def media(
        request: Request,
        id: OwnId,
        modality: OfModality = None,
        size: Annotated[int | None, Query(ge=16, le=1024, description="Longest side of a small picture.")] = None,
    ) -> Response:
        """The picture of an item, or a small one with sides of at most `size` pixels."""
        record = await service.in_thread("items", find, id, modality)
        path = service.engine.path_of(record)
        if path is None:
            raise Refusal(404, f"the item {id!r} has no picture")
        if size is not None:
            small = await service.in_thread("pictures", service.thumbnails.get, path, size)
            return Response(small.data, media_type=small.type, headers=CACHE)
        state, kind = await service.in_thread("pictures", look, path)
        # whole or not at all: starlette's errors about ranges are no JSON
        request.scope["headers"] = [one for one in request.scope["headers"] if one[0] not in (b"range", b"if-range")]
        return FileResponse(path, media_type=kind, stat_result=state, headers=CACHE)
