"""Models of requests and responses; the OpenAPI document is made from them.

Responses are dicts made by :func:`item_json` and :func:`hit_json`; tests check that they match the models.
"""

from __future__ import annotations

import dataclasses
import json
import re
from math import inf
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, cast, get_args, get_type_hints
from urllib.parse import quote

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model
from starlette.requests import Request
from starlette.responses import Response

from modalhash import engine
from modalhash.core.option import Option, Options
from modalhash.serve.errors import HTTPError, field_error
from modalhash.serve.limits import (
    MAX_ANSWER_BYTES,
    MAX_DUPLICATE_GROUPS,
    MAX_EXTRA_BYTES,
    MAX_HITS,
    MAX_ID_LENGTH,
    MAX_LABELS,
    MAX_NAME_LENGTH,
    MAX_SHOWN_LABELS,
    MAX_TEXT_LENGTH,
)
from modalhash.store import Filter, Record


def _check_characters(text: str) -> str:
    """Refuse NUL and surrogates."""
    if "\0" in text:
        raise ValueError("contains a NUL character; remove it")
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise ValueError("contains an unpaired surrogate; send valid UTF-8")
    return text


Text = Annotated[str, AfterValidator(_check_characters), Field(min_length=1, max_length=MAX_TEXT_LENGTH)]
Words = Annotated[
    str,
    AfterValidator(_check_characters),
    Field(max_length=MAX_TEXT_LENGTH, json_schema_extra={"minLength": 1}),  # the engine's message for "" is clearer
]
Id = Annotated[str, AfterValidator(_check_characters), Field(min_length=1, max_length=MAX_ID_LENGTH)]
Name = Annotated[str, AfterValidator(_check_characters), Field(min_length=1, max_length=MAX_NAME_LENGTH)]
Labels = Annotated[list[Name], Field(max_length=MAX_LABELS)]
Kind = Literal["learned", "hashed"]
_SAVED = re.compile(r"(^|/)media/[0-9a-f]{32}(\.[a-z]+)?$")  # names of files that the engine stores
FilterText = Annotated[str, AfterValidator(_check_characters), Field(max_length=4000)]


Names = Annotated[list[Name], Field(max_length=MAX_LABELS)]
Where = Annotated[FilterText | dict[str, Any], AfterValidator(Filter.of)]
REQUEST_TYPES: dict[Any, Any] = {
    str | None: Name | None,
    tuple[str, ...]: Names,
    tuple[str, ...] | None: Name | Names | None,
    Filter | None: Where | None,
}
"""Types of options in Python -> in a request, if they differ."""
MOST = {"k": MAX_HITS}


def request_fields(options: type[Options]) -> dict[str, Any]:
    """Return the fields of a request for options, but for those that only Python has."""
    hints = get_type_hints(options)
    return {
        field.name: _request_field(field, hints[field.name], options.options[field.name])
        for field in dataclasses.fields(options)  # type: ignore[arg-type]
        if options.options[field.name].flag != ""
    }


def _request_field(field: dataclasses.Field[Any], hint: Any, option: Option) -> Any:
    kind = Literal[option.choices] if option.choices else REQUEST_TYPES.get(hint, hint)
    most = MOST.get(field.name, option.at_most)
    facts: dict[str, Any] = {"default_factory": list} if field.default == () else {"default": field.default}
    facts |= {"ge": option.at_least, "le": None if most == inf else most}
    facts["description"] = dataclasses.replace(option, python="").description.replace("``", "`")
    return kind | None if field.default is None else kind, Field(**facts)


def response_fields(options: type[Options]) -> dict[str, Any]:
    """Return the fields of a response that repeats the options of a request."""
    hints = {name: str | None if hint == Filter | None else hint for name, hint in get_type_hints(options).items()}
    defaults = {field.name: field.default for field in dataclasses.fields(options)}  # type: ignore[arg-type]
    return {name: (hints[name], None if defaults[name] is None else ...) for name in request_fields(options)}


LIST_FIELDS = frozenset(
    name for name, hint in get_type_hints(engine.SearchOptions).items() if tuple[str, ...] in (hint, *get_args(hint))
)
"""Fields that are repeated in a form."""

if TYPE_CHECKING:
    from pydantic import BaseModel as _RequestOptions, BaseModel as _ResponseOptions
else:
    _RequestOptions = create_model("_RequestOptions", **request_fields(engine.SearchOptions))
    _ResponseOptions = create_model("_ResponseOptions", **response_fields(engine.SearchOptions))


class SearchFields(_RequestOptions):
    """Options of a search."""

    model_config = ConfigDict(extra="forbid")

    modality: Name | None = Field(
        None, description="The modality of the query; needed for an id in several modalities."
    )
    check_labels: bool = Field(True, description="If false, an unknown label is not an error.")

    def options(self) -> engine.SearchOptions:
        given = {name: value for name, value in self if name in engine.SearchOptions.options}
        limit = None if given["radius"] is None else MAX_HITS
        return engine.SearchOptions(**given | {"want": given["want"] or None, "limit": limit})


class SearchBody(SearchFields):
    """Fields of a search; a picture is sent as a file instead."""

    text: Words | None = None
    id: Id | None = None


class SearchByText(SearchFields):
    """A search by words."""

    text: Words = Field(description="Words to search for.")


class SearchByItem(SearchFields):
    """A search by an item of the engine, optionally with words."""

    id: Id = Field(description="The item to search by.")
    text: Words | None = Field(None, description="Words to search for as well.")


class SearchByPicture(SearchFields):
    """A search by a picture, optionally with words."""

    text: Words | None = Field(None, description="Words to search for as well.")

    image: bytes = Field(description="The file.", json_schema_extra={"format": "binary"})


class NewItemBody(BaseModel):
    """Fields of an item to add; a picture is sent as a file instead of the text."""

    model_config = ConfigDict(extra="forbid")

    id: Id | None = Field(None, description="Its id; made from the content by default.")
    modality: Name | None = Field(
        None, description="Its modality, if the engine has several for texts or for pictures."
    )
    labels: Labels = Field(default_factory=list)
    text: Text | None = None


class NewText(NewItemBody):
    """A text to add."""

    text: Text


class NewPicture(NewItemBody):
    """A picture to add."""

    image: bytes = Field(description="The file.", json_schema_extra={"format": "binary"})


class NewLabels(BaseModel):
    """The new labels of an item."""

    model_config = ConfigDict(extra="forbid")

    labels: Labels = Field(description="All new labels of the item; an empty list removes its labels.")


class Parameters(BaseModel):
    """Parameters of a path and a query."""

    @classmethod
    def of(cls, request: Request) -> Self:
        """Return the parameters of a request; raise :class:`~modalhash.serve.errors.HTTPError` for wrong ones."""
        try:
            return cls.model_validate({**request.query_params, **request.path_params})
        except ValidationError as error:
            raise field_error(error) from None


class ItemParameters(Parameters):
    """An item."""

    id: Id = Field(description="The id, percent-encoded.")
    modality: Name | None = Field(None, description="Needed if the id is in several modalities.")


class MediaParameters(ItemParameters):
    """A picture or its thumbnail."""

    size: int | None = Field(None, ge=16, le=1024, description="Longest side of a thumbnail.")


class ChoiceParameters(Parameters):
    """A choice of items."""

    modality: Name | None = Field(None, description="The modality; all by default.")
    where: FilterText | None = Field(None, description="A filter, as text or as JSON.")


class ItemsParameters(ChoiceParameters):
    """A part of a list of items."""

    limit: int = Field(50, ge=1, le=MAX_HITS, description="The number of items.")
    offset: int = Field(0, ge=0, le=2**31, description="The number of items to skip.")


class DuplicatesParameters(ChoiceParameters):
    """A part of a list of groups."""

    limit: int = Field(50, ge=1, le=MAX_DUPLICATE_GROUPS, description="The number of groups.")
    offset: int = Field(0, ge=0, le=2**31, description="The number of groups to skip.")


class ValuesParameters(Parameters):
    """A field, and how many of its values."""

    field: Name = Field(description="A field that items were added with, such as `camera`.")
    limit: int = Field(100, ge=1, le=100, description="The number of values.")


class AuditParameters(Parameters):
    """A part of the audit log."""

    limit: int = Field(100, ge=1, le=1000, description="The number of lines.")


class Item(BaseModel):
    """An item of the engine."""

    id: str
    modality: str
    code: str = Field(description="Hexadecimal, most significant bit first; only the first n_bits bits are used.")
    kind: Kind = Field(description="`learned` from labels, or `hashed` from features alone.")
    labels: list[str | int]
    text: str | None = None
    text_truncated: bool | None = Field(
        None,
        description=f"True if only the first {MAX_TEXT_LENGTH:,} characters are here; `GET /items/{{id}}` has all.",
    )
    labels_truncated: bool | None = Field(None, description=f"True if only the first {MAX_SHOWN_LABELS} are here.")
    extra_truncated: bool | None = Field(
        None, description=f"True if fields are left out because all have more than {MAX_EXTRA_BYTES:,} bytes."
    )
    media: str | None = Field(None, description="The path of its picture in this service.")
    stored: bool | None = Field(None, description="True if the engine stores its file, which is deleted with the item.")
    extra: dict[str, Any] | None = Field(None, description="Other fields of its line in the manifest.")


class ItemsResponse(BaseModel):
    """Items, newest first."""

    items: list[Item]
    total: int = Field(description="The number of items that pass the filter.")
    more: bool = Field(description="Whether there are items after these.")


class ValuesResponse(BaseModel):
    """The values of a field."""

    values: dict[str, int] = Field(description="How many items have each value, the most frequent first.")


class Hit(Item):
    """An item that a search returns."""

    distance: int = Field(description="The number of bits in which its code differs from the query's.")
    rank: int = Field(description="From 1; tied hits have the same rank.")
    score: float | None = Field(
        None, description="Score of the refinement vectors, or of the projections with `asymmetric`; higher is nearer."
    )
    found_by: list[Literal["code", "features", "names", "words", "meaning", "text in the picture", "pixels"]] = Field(
        description="What matched: its `code`, its `features`, the `names` of what it shows, the `words` of its texts, "
        "a word with the same `meaning` as one of the query, the `text in the picture`; for duplicates, the `pixels` "
        "of a photo."
    )
    shared_labels: list[str] | None = Field(
        None, description="Labels that the query and the hit probably share, most probable first."
    )
    confidence: float | None = Field(
        None,
        ge=0,
        le=1,
        description="The probability that it shares a label with the query, if the engine can estimate it.",
    )
    weak: bool | None = Field(None, description="True if the confidence is low.")


class Query(BaseModel):
    """The query of a search, with its code."""

    kind: Literal["text", "image", "id"]
    modality: str
    code: str
    text: str | None = None
    text_truncated: bool | None = None
    labels_truncated: bool | None = None
    extra_truncated: bool | None = None
    id: str | None = None
    labels: list[str | int] | None = None
    media: str | None = None
    extra: dict[str, Any] | None = Field(None, description="Other fields of the item that was searched by.")


class SearchResponse(_ResponseOptions):
    """The answer to a search, with its options."""

    query: Query
    n_bits: int
    model: str = Field(description="A digest of the model; answers with the same digest can be merged.")
    searched: int = Field(description="The number of items that were searched.")
    milliseconds: float = Field(description="The time in the server, including waiting.")
    want: list[str] = Field(description="The modalities that were searched.")
    known: float | None = Field(
        None, ge=0, le=1, description="The fraction of the query's words that the engine knows; null without words."
    )
    read_as: dict[str, str] = Field(
        default_factory=dict, description="Words of the query that were read as others, e.g. `perro` as `dog`."
    )
    message: str | None = Field(None, description="A message about the query, to show before its hits.")
    warnings: list[str] = Field(description="The message again, if there is one.")
    hits: list[Hit]


class DuplicatesResponse(BaseModel):
    """Groups of duplicates and near-duplicates."""

    groups: list[list[Hit]] = Field(
        description="The first item of a group was added first; `score` is the similarity of the others to it, at most "
        "1. At most 50 items of a group are listed."
    )
    exact: list[bool] = Field(description="For each group, whether its texts or files are identical.")
    sizes: list[int] = Field(description="For each group, how many items it has.")
    more: bool = Field(description="Whether there are groups after these.")
    message: str | None = Field(description="Kinds of duplicates that the engine cannot find, if any.")


class Modality(BaseModel):
    """A modality of the engine."""

    items: int
    query: bool = Field(description="Whether new content of this modality can be a query.")
    reads: str = Field(description="`text`, `image` or `array` (rows of features).")


class RequestLimits(BaseModel):
    """Limits of a request."""

    k: int
    text: int
    bytes: int
    pixels: int


class EngineInfo(BaseModel):
    """Facts about the engine."""

    name: str
    n_bits: int
    model: str = Field(description="A digest of the model; engines with the same digest can be searched together.")
    items: int
    method: str
    codes: str
    paired: bool = Field(description="Whether the method learned from pairs.")
    modalities: dict[str, Modality]
    labels: list[str] = Field(description="The most frequent labels, at most 200.")
    examples: list[str]
    options: list[str] = Field(description="The fields of a search other than the query.")
    duplicates: bool = Field(description="Whether the service lists near-duplicates.")
    writable: bool
    limits: RequestLimits


class AuditResponse(BaseModel):
    """The last lines of the audit log, oldest first."""

    lines: list[dict[str, Any]]


class AddResponse(BaseModel):
    """An added item, and the total number of items."""

    added: Item
    items: int


class RelabelResponse(BaseModel):
    """Items with their new labels and codes."""

    relabelled: list[Item] = Field(description="One item for every modality that has the id.")
    unknown_labels: list[str] = Field(
        description="Labels that the engine has not learned. They work in filters; they change codes only after "
        "`modalhash retrain`."
    )


class RemoveResponse(BaseModel):
    """The number of removed items, and the number of items left."""

    removed: int
    items: int


class Health(BaseModel):
    """That the service is alive, or ready."""

    status: Literal["ok"]


class Error(BaseModel):
    """An error: what is wrong, and what to do."""

    error: str
    status: int
    request: int | None = Field(None, description="The number of the request in the service's log.")
    reason: Literal["unknown_label"] | None = Field(None, description="A machine-readable reason.")


def item_json(item: engine.Hit | Record, *, whole: bool = False) -> dict[str, object]:
    """Return an item as JSON, in the form of :class:`Item`; unless ``whole``, without what is too large for a list."""
    fields: dict[str, object] = {
        "id": item.id,
        "modality": item.modality,
        "code": bytes(item.code).hex(),
        "kind": item.kind,
        "labels": item.labels,
    }
    if item.text is not None:
        fields["text"] = item.text if whole else item.text[:MAX_TEXT_LENGTH]
        if fields["text"] != item.text:
            fields["text_truncated"] = True
    if item.uri is not None:
        fields["media"] = f"/media/{quote(item.id, safe='')}?modality={quote(item.modality, safe='')}"
        if _SAVED.search(item.uri):
            fields["stored"] = True
    if item.extra:
        fields["extra"] = item.extra
    return fields if whole else _cut(fields)


def _cut(fields: dict[str, object]) -> dict[str, object]:
    """Cut the labels and other fields of an item, of which a manifest may contain any number."""
    labels, extra = cast(list[Any], fields["labels"]), cast(dict[str, Any], fields.get("extra", {}))
    if len(labels) > MAX_SHOWN_LABELS:
        fields |= {"labels": labels[:MAX_SHOWN_LABELS], "labels_truncated": True}
    if extra and len(_json_bytes(extra)) > MAX_EXTRA_BYTES:
        kept, size = {}, 0
        for name, value in extra.items():
            n_bytes = len(_json_bytes({name: value}))
            if size + n_bytes <= MAX_EXTRA_BYTES:
                kept[name], size = value, size + n_bytes
        fields |= {"extra": kept, "extra_truncated": True}
    return fields


def list_response(content: Any) -> Response:
    """Return items as a JSON response; raise if they are too large together."""
    response = json_response(content)
    if len(response.body) > MAX_ANSWER_BYTES:
        raise HTTPError(
            422,
            f"the answer has {len(response.body):,} bytes; the limit is {MAX_ANSWER_BYTES:,}. Ask for fewer items (k "
            "or limit), and for large ones one by one (GET /items/…)",
        )
    return response


def json_response(content: Any, status: int = 200) -> Response:
    """Return a JSON response in UTF-8 that is not cached; NaN and infinities become null."""
    return Response(_json_bytes(content), status, {"Cache-Control": "no-store"}, "application/json")


def _json_bytes(content: Any) -> bytes:
    try:
        return orjson.dumps(content)
    except TypeError:  # integers of more than 64 bits, which a manifest may contain
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8")


def hit_json(hit: engine.Hit) -> dict[str, object]:
    """Return a hit as JSON, in the form of :class:`Hit`."""
    fields = {**item_json(hit), "distance": hit.distance, "rank": hit.rank, "found_by": hit.found_by}
    if hit.score is not None:
        fields["score"] = hit.score
    if hit.shared_labels:
        fields["shared_labels"] = hit.shared_labels[:MAX_SHOWN_LABELS]
    if hit.confidence is not None:
        fields["confidence"] = hit.confidence
    if hit.weak:
        fields["weak"] = True
    return fields


def options_json(options: engine.SearchOptions) -> dict[str, object]:
    """Return the options of a request as JSON, without those that are not given."""
    given = {name: getattr(options, name) for name in _RequestOptions.model_fields}
    return {name: str(one) if isinstance(one, Filter) else one for name, one in given.items() if one is not None}
