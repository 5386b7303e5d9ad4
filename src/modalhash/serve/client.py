"""Search a service (``modalhash serve``) over HTTP."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import urljoin, urlsplit

from modalhash.core.validation import check_number

MAX_ANSWER_BYTES = 64 * 2**20
_PIECE = 65536


class ServiceError(ValueError):
    """A service answered with an error that another attempt does not change; the message names the service."""


class ServiceClient:
    """Search a service.

    Every search opens a new connection. A service that is unreachable, busy or not ready raises ConnectionError, and
    one that does not answer in time raises TimeoutError; both may be tried again.

    Parameters
    ----------
    url : str
        URL of the service, e.g. ``"http://10.0.0.1:8000"``.
    token : str, optional
        Token, if the service needs one.
    timeout : float
        Seconds to wait for an answer.

    Examples
    --------
    >>> client = ServiceClient("http://10.0.0.1:8000")
    >>> client.search(text="red boat", want="image", k=5)["hits"][0]["id"]  # doctest: +SKIP
    """

    def __init__(self, url: str, *, token: str | None = None, timeout: float = 10.0) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"the URL of a service is {url!r}; expected e.g. http://10.0.0.1:8000")
        check_number(timeout, "timeout", positive=True)
        self.url, self._parts, self._token, self._timeout = url.rstrip("/"), parts, token, timeout

    def search(self, *, text: str | None = None, image: bytes | None = None, **options: Any) -> dict[str, Any]:
        """Return the answer of ``POST /search`` as a dict, with absolute URLs as ``media`` of hits.

        Parameters
        ----------
        text, image : the query, one of both: words, or the bytes of a picture
        options : other fields of the request, e.g. ``k``, ``want``, ``labels``, ``where``
        """
        if (text is None) == (image is None):
            raise TypeError("expected either text or image")
        fields = {name: value for name, value in {"text": text, **options}.items() if value is not None}
        content_type, body = _form(fields, image) if image is not None else _json(fields)
        status, answer = self._post("/search", content_type, body)
        if status == 422:
            raise ValueError(f"{self.url}: {answer.get('error')}")
        if status in (408, 429) or status >= 500:
            raise ConnectionError(f"{self.url}: status {status}: {answer.get('error')}")
        if status != 200 or not isinstance(answer.get("hits"), list):
            raise ServiceError(f"{self.url}: status {status}: {answer.get('error', 'an answer without hits')}")
        for hit in answer["hits"]:
            if "media" in hit:
                hit["media"] = urljoin(f"{self.url}/", hit["media"].lstrip("/"))
        return answer

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
                raise ConnectionError(f"{self.url}: the answer ended after {len(content)} of {expected} bytes")
            answer = json.loads(content)
        except TimeoutError:
            raise TimeoutError(f"{self.url}: no answer within {self._timeout:g} s") from None
        except HTTPException as error:
            raise ConnectionError(f"{self.url}: the connection ended ({type(error).__name__})") from error
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
