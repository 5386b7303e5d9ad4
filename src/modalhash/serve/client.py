"""Search several services (``modalhash serve``) as one, over HTTP.

Every service holds a share of the items, and a copy of one engine's model and encoders. A search is sent to all of
them in parallel, and their hits are merged. With ``refine=False`` the result is that of one engine to which the items
of the services were added in order. With ``refine=True`` hits are merged by score, which is comparable because the
models are the same; each service refines its own shortlist, so more items are compared than in one engine. ``hybrid``
is off, because BM25 scores of different services are not comparable.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin, urlsplit

from modalhash.core.validation import check_choice, check_int, check_number
from modalhash.index import FanOut

MAX_ANSWER_BYTES = 64 * 2**20
MAX_HITS = 200
"""Maximum number of hits in an answer of a service."""
_PIECE = 65536


class ServiceError(ValueError):
    """A service answered with an error; the message names the service."""


@dataclass(frozen=True)
class ShardedAnswer:
    """Merged answer of several services.

    Parameters
    ----------
    hits : list of dict
        Best first, as a service returns them, with the service's URL as ``shard`` and absolute URLs as ``media``.
    searched : int
        Number of items that were searched.
    missing : tuple of str
        URLs of services that did not answer; their items are missing from the hits.
    message : str, optional
        Message about the query, to show before its hits.
    """

    hits: list[dict[str, Any]]
    searched: int
    missing: tuple[str, ...] = ()
    message: str | None = None

    @property
    def partial(self) -> bool:
        """Whether any service is missing."""
        return bool(self.missing)


class ShardedClient:
    """Search several services as one.

    Parameters
    ----------
    urls : sequence of str
        URLs of the services, e.g. ``["http://10.0.0.1:8000", "http://10.0.0.2:8000"]``. Their engines must share one
        model.
    token : str, optional
        Token for all services.
    timeout : float
        Seconds after which a service counts as missing.
    missing : {"error", "partial"}
        If a service does not answer: raise :class:`~modalhash.index.ShardError`, or return the other services' hits
        and list it in :attr:`ShardedAnswer.missing`.

    Examples
    --------
    >>> with ShardedClient(["http://10.0.0.1:8000", "http://10.0.0.2:8000"]) as client:  # doctest: +SKIP
    ...     client.search(text="red boat", want="image", k=5).hits[0]["id"]
    """

    def __init__(
        self, urls: Sequence[str], *, token: str | None = None, timeout: float = 10.0, missing: str = "error"
    ) -> None:
        if isinstance(urls, str):
            raise TypeError(f"urls is a string; expected a list, e.g. [{urls!r}]")
        check_number(timeout, "timeout", positive=True)
        self.missing = check_choice(missing, "missing", ("error", "partial"))
        services = [_Service(url, token, timeout) for url in urls]
        names = [service.url for service in services]
        if len(set(names)) < len(names):
            raise ValueError(f"a service is given twice: {', '.join(names)}; its items would count twice")
        self._fan_out = FanOut(dict(zip(names, services, strict=True)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._fan_out.close()

    def search(
        self,
        *,
        text: str | None = None,
        image: bytes | None = None,
        k: int = 20,
        radius: int | None = None,
        want: str | Sequence[str] | None = None,
        labels: Sequence[str] = (),
        kind: str | None = None,
        where: str | None = None,
        refine: bool = True,
        min_confidence: float | None = None,
        unique: bool = False,
        modality: str | None = None,
    ) -> ShardedAnswer:
        """Return the nearest items of all services to a text or a picture.

        Parameters
        ----------
        text, image : the query, one of both: words, or the bytes of a picture
        k : number of hits, at most 200
        radius : return all hits within this distance instead, at most 200
        want, labels, kind, where, min_confidence, modality : as for :class:`~modalhash.engine.SearchOptions`
        refine : order hits by their refinement vectors; if False, by codes alone
        unique : drop near-duplicates of better hits of the same service
        """
        if (text is None) == (image is None):
            raise TypeError("expected either text or image")
        check_int(k, "k", at_least=1)
        given = {
            "text": text,
            "k": k,
            "radius": radius,
            "want": want if want is None or isinstance(want, str) else list(want),
            "labels": list(labels) or None,
            "kind": kind,
            "where": where,
            "refine": refine,
            "hybrid": False,
            "min_confidence": min_confidence,
            "unique": unique or None,
            "modality": modality,
        }
        fields = {name: value for name, value in given.items() if value is not None}
        answers, missing = self._ask(fields, image)
        refused = [answer["error"] for answer in answers.values() if "hits" not in answer]
        if len(refused) == len(answers):
            raise ValueError(refused[0])
        if refused:  # some services do not have the label
            answers, missing = self._ask({**fields, "check_labels": False}, image)
        _check_models(answers)
        first = next(iter(answers.values()))
        hits = merge_hits([answer["hits"] for answer in answers.values()], MAX_HITS if radius is not None else k)
        return ShardedAnswer(hits, sum(answer["searched"] for answer in answers.values()), missing, first["message"])

    def _ask(self, fields: Mapping[str, Any], image: bytes | None) -> tuple[dict[str, dict[str, Any]], tuple[str, ...]]:
        return self._fan_out.ask(lambda service: service.search(fields, image), missing=self.missing)


def merge_hits(parts: Sequence[Sequence[Mapping[str, Any]]], k: int) -> list[dict[str, Any]]:
    """Merge sorted answers into the k best hits, with common ranks.

    Hits are ordered by score; if scores are equal or missing, by distance, then by the order of the answers. An item
    that several services hold is returned once.

    Examples
    --------
    >>> near, far = {"modality": "text", "distance": 1}, {"modality": "text", "distance": 4}
    >>> parts = [[{"id": "a", **near}, {"id": "b", **far}], [{"id": "c", **near}]]
    >>> [(hit["id"], hit["rank"]) for hit in merge_hits(parts, 3)]
    [('a', 1), ('c', 1), ('b', 3)]
    """
    waiting = [list(reversed(part)) for part in parts]
    merged: list[dict[str, Any]] = []
    seen: set[tuple[str, str]] = set()
    while len(merged) < k and any(waiting):
        hit = min((part for part in waiting if part), key=lambda part: _RemoteShard(part[-1])).pop()
        if (key := (hit["modality"], hit["id"])) in seen:
            continue
        seen.add(key)
        tied = bool(merged) and _place(hit) == _place(merged[-1])
        merged.append({**hit, "rank": merged[-1]["rank"] if tied else len(merged) + 1})
    return merged


class _RemoteShard:
    def __init__(self, hit: Mapping[str, Any]) -> None:
        self.score, self.distance = _place(hit)

    def __lt__(self, other: _RemoteShard) -> bool:
        if self.score is not None and other.score is not None and self.score != other.score:
            return bool(self.score > other.score)
        return bool(self.distance < other.distance)


def _place(hit: Mapping[str, Any]) -> tuple[float | None, int]:
    return hit.get("score"), hit["distance"]


def _check_models(answers: Mapping[str, Mapping[str, Any]]) -> None:
    """Raise unless all services have the same model, because codes of different models are not comparable."""
    (first, expected), *others = ((url, answer.get("model")) for url, answer in answers.items())
    for url, model in others:
        if model != expected:
            raise ServiceError(
                f"{url} has another model ({model}) than {first} ({expected}); their codes cannot be compared. "
                "Serve copies of one engine"
            )


class _Service:
    """One service; each request opens a new connection."""

    def __init__(self, url: str, token: str | None, timeout: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL of a service is {url!r}; expected e.g. http://10.0.0.1:8000")
        self.url, self._parts, self._token, self._timeout = url.rstrip("/"), parts, token, timeout

    def search(self, fields: Mapping[str, Any], image: bytes | None) -> dict[str, Any]:
        """Return the answer to a search, or a dict with only ``error`` if no item has a requested label."""
        content_type, body = _form(fields, image) if image is not None else _json(fields)
        status, answer = self._post("/search", content_type, body)
        if status == 422 and answer.get("reason") == "unknown_label":
            return {"error": str(answer.get("error"))}
        if status == 422:
            raise ValueError(f"{self.url}: {answer.get('error')}")
        if status in (408, 429) or status >= 500:
            raise ConnectionError(f"status {status}: {answer.get('error')}")
        if status != 200:
            raise ServiceError(f"{self.url}: status {status}: {answer.get('error')}")
        try:
            hits = [{**hit, "shard": self.url} for hit in answer["hits"]]
            for hit in hits:
                if "media" in hit:
                    hit["media"] = urljoin(f"{self.url}/", hit["media"].lstrip("/"))
            return {**answer, "hits": hits, "searched": int(answer["searched"]), "message": answer["message"]}
        except (KeyError, TypeError, ValueError):
            raise ServiceError(f"{self.url} returned an answer that this version does not understand") from None

    def _post(self, path: str, content_type: str, body: bytes) -> tuple[int, dict[str, Any]]:
        kind = HTTPSConnection if self._parts.scheme == "https" else HTTPConnection
        connection = kind(str(self._parts.hostname), self._parts.port, timeout=self._timeout)
        deadline = time.monotonic() + self._timeout
        headers = {"Content-Type": content_type, "Accept": "application/json"}
        if self._token is not None:
            headers["Authorization"] = f"Bearer {self._token}"
        try:
            connection.request("POST", f"{self._parts.path.rstrip('/')}{path}", body, headers)
            response = connection.getresponse()
            content, expected = bytearray(), -1 if response.length is None else response.length
            while len(content) != expected and (piece := response.read1(_PIECE)):
                content += piece
                if time.monotonic() > deadline:
                    raise TimeoutError
                if len(content) > MAX_ANSWER_BYTES:
                    raise ServiceError(f"{self.url} returned more than {MAX_ANSWER_BYTES:,} bytes")
            if 0 <= len(content) < expected:
                raise ConnectionError(f"the answer ended after {len(content)} of {expected} bytes")
            answer = json.loads(content)
        except TimeoutError:
            raise TimeoutError(f"no answer within {self._timeout:g} s") from None
        except HTTPException as error:
            raise ConnectionError(f"the connection ended ({type(error).__name__})") from error
        except (json.JSONDecodeError, UnicodeDecodeError):
            raise ServiceError(f"{self.url} is not a modalhash service; its answer is not JSON") from None
        finally:
            connection.close()
        return response.status, answer if isinstance(answer, dict) else {}


def _json(fields: Mapping[str, Any]) -> tuple[str, bytes]:
    return "application/json", json.dumps(fields).encode()


def _form(fields: Mapping[str, Any], image: bytes) -> tuple[str, bytes]:
    boundary = secrets.token_hex(16)

    def parts() -> Iterator[bytes]:
        for name, value in fields.items():
            for one in value if isinstance(value, list) else [value]:
                text = str(one).lower() if isinstance(one, bool) else str(one)
                yield f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()
        yield f'--{boundary}\r\nContent-Disposition: form-data; name="image"; filename="image"\r\n\r\n'.encode()
        yield image
        yield f"\r\n--{boundary}--\r\n".encode()

    return f"multipart/form-data; boundary={boundary}", b"".join(parts())
