"""Routes that list, return and (with ``--writable``) add, relabel and remove items, and that find duplicates."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from starlette.convertors import Convertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from modalhash.core.archives import ArchiveMember
from modalhash.data import parse_labels
from modalhash.engine import Engine, Item, Problem, ProblemCode, default_id
from modalhash.serve import schemas
from modalhash.serve.auth import Client, client_of
from modalhash.serve.errors import HTTPError, unknown_item_error
from modalhash.serve.limits import MAX_DUPLICATE_ITEMS
from modalhash.serve.media import CONTENT_TYPES, FileGoneError, check_picture, inspect_picture, read_member
from modalhash.serve.openapi import Operation
from modalhash.serve.service import Pool, Service
from modalhash.store import Comparison, Filter, FilterError, Record, StoreError, StoreUncertainError, all_of

CACHE = {"Cache-Control": "private, max-age=300"}
READ_ONLY = "this service only searches; start it with --writable to add, relabel and remove items"


class AnyText(Convertor[str]):
    """Match the rest of a path, including line breaks, at which Starlette's own convertor stops."""

    regex = r"[\s\S]*"

    def convert(self, value: str) -> str:
        return value

    def to_string(self, value: str) -> str:
        return value


register_url_convertor("any", AnyText())


def item_operations(service: Service) -> list[Operation]:
    async def items(request: Request) -> Response:
        """Return items, newest first by the field `taken`; items without it follow in the order they were added."""
        asked = schemas.ItemsParameters.of(request)
        return schemas.list_response(await service.in_thread("scans", _newest, service, asked))

    async def values(request: Request) -> Response:
        """Return the number of items for each value of a field, most frequent first."""
        asked = schemas.ValuesParameters.of(request)
        return schemas.list_response(await service.in_thread("scans", _values, service, asked))

    async def item(request: Request) -> Response:
        """Return one item."""
        asked = schemas.ItemParameters.of(request)
        record = await service.in_thread("items", _find, service, asked)
        return schemas.json_response(schemas.item_json(record, whole=True))

    async def media(request: Request) -> Response:
        """Return the picture of an item, or a thumbnail with sides of at most `size` pixels."""
        asked = schemas.MediaParameters.of(request)
        record = await service.in_thread("items", _find, service, asked)
        path = service.engine.path_of(record)
        if path is None:
            raise HTTPError(404, f"the item {asked.id!r} has no picture")
        try:
            if asked.size is not None:
                thumbnail = service.thumbnails.cached(path, asked.size)
                if thumbnail is None:
                    thumbnail = await service.in_thread("pictures", service.thumbnails.get, path, asked.size)
                return Response(thumbnail.data, media_type=thumbnail.content_type, headers=CACHE)
            if isinstance(path, ArchiveMember):
                data, content_type = await service.in_thread("pictures", read_member, path)
                return Response(data, media_type=content_type, headers=CACHE)
            status, content_type = await service.in_thread("pictures", inspect_picture, path)
        except FileGoneError as error:
            raise HTTPError(404, f"{error} ({_looked_for(record)})") from None
        # ignore ranges, because Starlette's errors about them are not JSON
        request.scope["headers"] = [
            header for header in request.scope["headers"] if header[0] not in (b"range", b"if-range")
        ]
        return FileResponse(path, media_type=content_type, stat_result=status, headers=CACHE)

    return [
        Operation("GET", "/items", items, schemas.ItemsResponse, tag="items", parameters=schemas.ItemsParameters),
        Operation("GET", "/values", values, schemas.ValuesResponse, tag="items", parameters=schemas.ValuesParameters),
        Operation(
            "GET", "/items/{id:any}", item, schemas.Item, tag="items", errors=(404,), parameters=schemas.ItemParameters
        ),
        Operation(
            "GET",
            "/media/{id:any}",
            media,
            tuple(dict.fromkeys(CONTENT_TYPES.values())),
            tag="items",
            errors=(404, 415),
            parameters=schemas.MediaParameters,
        ),
    ]


def change_operations(service: Service) -> list[Operation]:
    async def add(request: Request) -> Response:
        """Add a text (JSON) or a picture (form), encoded by its content. The picture is stored with the engine."""
        _check_writable(service)
        client = client_of(request.scope)
        with service.body_budget.reader(client.address) as reader:
            body, file = await reader.read(request, schemas.NewItemBody)
            return schemas.json_response(
                await service.in_thread("changes", _add_item, service, client, body, file), 201
            )

    async def relabel(request: Request) -> Response:
        """Replace the labels of an item, in one modality or in all; a learned code is updated."""
        asked = schemas.ItemParameters.of(request)
        _check_writable(service)
        client = client_of(request.scope)
        with service.body_budget.reader(client.address) as reader:
            body, file = await reader.read(request, schemas.NewLabels)
            if file is not None:
                raise HTTPError(422, "got a picture; expected labels alone, as JSON")
            return schemas.json_response(
                await service.in_thread("changes", _relabel_item, service, client, asked, list(body.labels))
            )

    async def remove(request: Request) -> Response:
        """Remove an item, in one modality or in all."""
        asked = schemas.ItemParameters.of(request)
        _check_writable(service)
        return schemas.json_response(
            await service.in_thread("changes", _remove_item, service, client_of(request.scope), asked)
        )

    return [
        Operation(
            "POST",
            "/items",
            add,
            schemas.AddResponse,
            tag="items",
            status=201,
            errors=(408, 409, 413, 415, 507),
            json=(schemas.NewText,),
            form=schemas.NewPicture,
        ),
        Operation(
            "PATCH",
            "/items/{id:any}",
            relabel,
            schemas.RelabelResponse,
            tag="items",
            errors=(404, 408, 413, 415, 507),
            parameters=schemas.ItemParameters,
            json=(schemas.NewLabels,),
        ),
        Operation(
            "DELETE",
            "/items/{id:any}",
            remove,
            schemas.RemoveResponse,
            tag="items",
            errors=(404, 507),
            parameters=schemas.ItemParameters,
        ),
    ]


def duplicate_operations(service: Service) -> list[Operation]:
    async def duplicates(request: Request) -> Response:
        """Return groups of duplicates and near-duplicates within a modality, exact duplicates first.

        The first request after a change compares all items. In a large engine it may time out with status 503; without
        a filter, the work continues, and a later request returns the result.
        """
        asked = schemas.DuplicatesParameters.of(request)
        pool: Pool = "duplicates" if asked.where is None else "scans"
        return schemas.list_response(await service.in_thread(pool, _find_duplicates, service, asked))

    return [
        Operation(
            "GET",
            "/duplicates",
            duplicates,
            schemas.DuplicatesResponse,
            tag="items",
            parameters=schemas.DuplicatesParameters,
        ),
    ]


def _check_writable(service: Service) -> None:
    if not service.settings.writable:
        raise HTTPError(403, READ_ONLY)


def _check_choice(service: Service, modality: str | None, where: str | None = None) -> Filter | None:
    """Return the parsed filter; raise for an unknown modality or an invalid filter."""
    if modality is not None:
        service.searcher.check_modalities(modality)
    try:
        return None if where is None else service.searcher.check_filter(where)
    except FilterError as error:
        raise HTTPError(422, f"where: {error}") from None


def _newest(service: Service, asked: schemas.ItemsParameters) -> dict[str, Any]:
    chosen, store = _check_choice(service, asked.modality, asked.where), service.engine.store
    own = None if asked.modality is None else Comparison("modality", "=", asked.modality)
    numbers = store.newest(all_of(own, chosen))
    end = asked.offset + asked.limit
    shown = numbers[asked.offset : end].tolist()
    records = store.records(shown)  # without concurrently removed items
    items = [schemas.item_json(records[number]) for number in shown if number in records]
    return {"items": items, "total": len(numbers), "more": end < len(numbers)}


def _values(service: Service, asked: schemas.ValuesParameters) -> dict[str, Any]:
    try:
        return {"values": service.engine.store.values(asked.field, limit=asked.limit)}
    except FilterError as error:
        raise HTTPError(422, f"field: {error}") from None


def _looked_for(record: Record) -> str:
    """Return where a file was expected, without folders outside the engine's parent folder."""
    uri = record.uri or ""
    if uri.startswith("../"):
        return f"expected {uri[3:]} next to the engine's folder"
    return f"expected {uri.rpartition('/')[2]}" if uri.startswith("/") else f"expected {uri} in the engine's folder"


def _find(service: Service, asked: schemas.ItemParameters) -> Record:
    _check_choice(service, asked.modality)
    try:
        return service.engine.records([asked.id], asked.modality)[0]
    except (KeyError, ValueError) as error:
        raise unknown_item_error(error) from None


def _add_item(service: Service, client: Client, body: schemas.NewItemBody, file: bytes | None) -> dict[str, Any]:
    engine, text = service.engine, body.text
    if (text is None) == (file is None):
        raise HTTPError(422, f"got {'no item' if text is None else 'text and image'}; expected text or image")
    modality = service.searcher.modality_for("image" if text is None else "text", body.modality)
    if file is not None:
        check_picture(file, service.limits.pixels)
    id = body.id or default_id(text or "" if file is None else file)
    item = Item(modality, id, text=text, data=file, labels=parse_labels(list(body.labels)))
    with service.audit.change("add", client.audit_fields(), modality=modality, ids=[id]):
        _store_item(engine, item)
    with _reading_back():
        try:
            added = schemas.item_json(engine.get(id, modality=modality))
        except KeyError:
            raise HTTPError(409, f"{id!r} was added, and removed by another client") from None
    return {"added": added, "items": sum(engine.sizes().values())}


@contextmanager
def _reading_back() -> Iterator[None]:
    """Turn an error of the store after a change into one that does not say that nothing was changed."""
    try:
        yield
    except StoreError as error:
        raise StoreUncertainError(f"a change was made, but cannot be read back ({error})") from error


def _store_item(engine: Engine, item: Item) -> None:
    """Add an item; raise :class:`HTTPError` if it is refused."""
    problems: list[Problem] = []
    if engine.add([item], keep=True, workers=1, on_problem=problems.append).added:
        return
    id, modality, what = item.id, item.modality, "text" if item.data is None else "image"
    if problems[0].code is ProblemCode.EXISTS:
        raise HTTPError(409, f"an item with the id {id!r} exists in {modality!r}; remove it first, or use another id")
    unshared = problems[0].code is ProblemCode.NOT_SHARED
    raise HTTPError(422 if what == "text" or unshared else 415, f"{what}: {problems[0].reason}")


def _relabel_item(service: Service, client: Client, asked: schemas.ItemParameters, labels: list[str]) -> dict[str, Any]:
    engine, id, modality = service.engine, asked.id, asked.modality
    _check_choice(service, modality)
    names = engine.modalities if modality is None else (modality,)
    problems: list[Problem] = []
    line = {"id": id, "labels": labels, **({} if modality is None else {"modality": modality})}
    with service.audit.change("relabel", client.audit_fields(), modality=modality, ids=[id], labels=labels) as result:
        done = engine.relabel([line], workers=1, on_problem=problems.append)
        result["changed"] = done.changed
    for problem in problems:
        if problem.code is ProblemCode.UNKNOWN_ID:
            raise HTTPError(404, f"{problem.reason}; nothing was changed")
        raise HTTPError(422, problem.reason)
    with _reading_back():
        found = engine.store.records(list(engine.store.row_ids((name, id) for name in names).values()))
    items = [schemas.item_json(record) for record in found.values()]
    return {"relabelled": items, "unknown_labels": list(done.unknown_labels)}


def _remove_item(service: Service, client: Client, asked: schemas.ItemParameters) -> dict[str, int]:
    id, modality = asked.id, asked.modality
    _check_choice(service, modality)
    try:
        with service.audit.change("remove", client.audit_fields(), modality=modality, ids=[id]) as result:
            result["removed"] = removed = service.engine.remove([id], modality=modality)
    except KeyError:
        where = "" if modality is None else f" in {modality!r}"
        raise HTTPError(404, f"no item has the id {id!r}{where}; nothing was removed") from None
    return {"removed": removed, "items": sum(service.engine.sizes().values())}


def _find_duplicates(service: Service, asked: schemas.DuplicatesParameters) -> dict[str, Any]:
    chosen = _check_choice(service, asked.modality, asked.where)
    groups = service.engine.duplicates(
        modality=asked.modality, where=chosen, limit=asked.limit + 1, offset=asked.offset
    )
    shown = groups[: asked.limit]
    return {
        "groups": [[schemas.hit_json(item) for item in group.items[:MAX_DUPLICATE_ITEMS]] for group in shown],
        "exact": [group.exact for group in shown],
        "sizes": [len(group.items) for group in shown],
        "more": len(groups) > asked.limit,
        "message": None,
    }
