"""What goes in and what comes out, as the OpenAPI description shows it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from modalhash.serve.settings import LONGEST_ID, LONGEST_NAME, LONGEST_TEXT, MOST_HITS, MOST_LABELS


def _sound(text: str) -> str:
    """No NUL, which ends texts elsewhere, and no half of a character."""
    if "\0" in text:
        raise ValueError("it contains a NUL character; leave it out")
    if any("\ud800" <= sign <= "\udfff" for sign in text):
        raise ValueError("it contains half of a UTF-16 pair, which is no character; send UTF-8")
    return text


Text = Annotated[str, AfterValidator(_sound), Field(min_length=1, max_length=LONGEST_TEXT)]
Id = Annotated[str, AfterValidator(_sound), Field(min_length=1, max_length=LONGEST_ID)]
Name = Annotated[str, AfterValidator(_sound), Field(min_length=1, max_length=LONGEST_NAME)]
Labels = Annotated[list[Name], Field(max_length=MOST_LABELS)]
Kind = Literal["learned", "hashed"]


class SearchOptions(BaseModel):
    """What is wanted of a search."""

    model_config = ConfigDict(extra="forbid")

    modality: Name | None = Field(None, description="Of the query; of an id that is in several.")
    k: int = Field(20, ge=1, le=MOST_HITS, description="How many hits.")
    want: Annotated[list[Name], Field(max_length=20)] | None = Field(
        None, description="Modalities to look in; all by default."
    )
    labels: Labels = Field(default_factory=list, description="Only items that have all of these labels.")
    kind: Kind | None = Field(None, description="Only items with this kind of code.")
    asymmetric: bool = Field(False, description="Rank anew by the query's real-valued projections.")


class SearchBody(SearchOptions):
    """What a search may have: a text, an item, or a picture beside it."""

    text: Text | None = None
    id: Id | None = None


class SearchByText(SearchOptions):
    """A search by words."""

    text: Text = Field(description="Words to search for.")


class SearchByItem(SearchOptions):
    """A search by an item of the engine."""

    id: Id = Field(description="The item to search by.")


class SearchByPicture(SearchOptions):
    """A search by a picture."""

    image: bytes = Field(description="The file.", json_schema_extra={"format": "binary"})


class NewFields(BaseModel):
    """What is known of an item that is to be added."""

    model_config = ConfigDict(extra="forbid")

    id: Id | None = Field(None, description="A name for it; made from its content by default.")
    modality: Name | None = Field(None, description="Where the engine has several of texts, or of pictures.")
    labels: Labels = Field(default_factory=list)
    text: Text | None = None


class NewItem(NewFields):
    """A text to add."""

    text: Text


class NewPicture(NewFields):
    """A picture to add."""

    image: bytes = Field(description="The file.", json_schema_extra={"format": "binary"})


class Item(BaseModel):
    """An item of the engine."""

    id: str
    modality: str
    code: str = Field(description="Hexadecimal, the most significant bit first; n_bits of them count.")
    kind: Kind = Field(description="`learned`: the code was made from labels; `hashed`: from features alone.")
    labels: list[str | int]
    text: str | None = None
    media: str | None = Field(None, description="Where its picture is.")
    extra: dict[str, Any] | None = Field(None, description="Other fields of its line in the manifest.")


class Hit(Item):
    """An item that was found."""

    distance: int = Field(description="Bits in which its code differs from the query's.")
    score: float | None = Field(None, description="After `asymmetric`: larger is nearer.")


class Query(BaseModel):
    """What was searched for."""

    kind: Literal["text", "image", "id"]
    modality: str
    code: str
    text: str | None = None
    id: str | None = None
    labels: list[str | int] | None = None
    media: str | None = None


class Found(BaseModel):
    """The answer to a search."""

    query: Query
    n_bits: int
    searched: int = Field(description="Items looked through.")
    milliseconds: float = Field(description="In the server, waiting included.")
    k: int
    want: list[str]
    labels: list[str]
    asymmetric: bool
    warnings: list[str]
    hits: list[Hit]


class Modality(BaseModel):
    """A kind of items."""

    items: int
    query: bool = Field(description="Whether new content of this kind can be searched by.")
    reads: str = Field(description="`text`, `image` or `array` (rows of features).")


class Bounds(BaseModel):
    """What a request may ask for."""

    k: int
    text: int
    bytes: int
    pixels: int


class About(BaseModel):
    """What the engine is."""

    name: str
    n_bits: int
    items: int
    method: str
    codes: str
    paired: bool = Field(description="Whether the method learned from pairs.")
    modalities: dict[str, Modality]
    labels: list[str] = Field(description="The most frequent names of classes, at most 200.")
    examples: list[str]
    writable: bool
    limits: Bounds


class Added(BaseModel):
    """An item that was added."""

    added: Item
    items: int


class Removed(BaseModel):
    """Items that were removed."""

    removed: int
    items: int


class Health(BaseModel):
    """Whether the service is well."""

    status: Literal["ok"]


class Error(BaseModel):
    """What is wrong, and what to do."""

    error: str
    status: int
    request: int | None = Field(None, description="Number of the request, which the server's log has.")
