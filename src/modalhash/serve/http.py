"""Who may come in: by the name the service was called under, the site a request came from, and the token."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from http import HTTPStatus
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.responses import Response
from starlette.types import Scope

from modalhash.serve.errors import Refusal
from modalhash.serve.settings import Settings

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""On every answer. There are none that let other sites read (CORS)."""
COOKIE = "modalhash"
OPEN = ("/healthz",)
"""Addresses that need no token."""
PAGE_FILES = "/static/"
"""Files of the page. They and the page itself hold nothing of the engine and need no token: the page asks for it."""
SAFE = ("GET", "HEAD", "OPTIONS")
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")


class Door:
    """Lets requests in, or says why not."""

    def __init__(self, settings: Settings) -> None:
        self._token = None if settings.token is None else _digest(settings.token)
        self._cookie = None if settings.token is None else cookie_of(settings.token)
        self._head_bytes = settings.limits.head_bytes
        self._names: set[str] | None = None
        if settings.is_local or settings.hosts:
            own = f"[{settings.host}]" if ":" in settings.host else settings.host
            self._names = {*LOCAL_NAMES, own.lower(), *(name.lower() for name in settings.hosts)}

    def check(self, scope: Scope) -> Response | None:
        """None: come in. An answer: the page's token was right and goes into a cookie. Else a :class:`Refusal`."""
        headers: dict[bytes, list[bytes]] = {}
        size = len(scope["path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
            size += len(name) + len(value)
        if size > self._head_bytes:
            raise Refusal(431, f"the head of the request has {size:,} bytes; the limit is {self._head_bytes:,}")
        self._check_host(headers.get(b"host", []))
        if scope["path"] in OPEN:
            return None
        bearer = self._bearer(headers.get(b"authorization", []))
        if scope["method"] not in SAFE and not bearer:
            _check_site(headers)
        if self._token is None or bearer:
            return None
        if scope["path"] == "/" and scope["method"] == "GET" and b"token=" in scope["query_string"]:
            return self._enter(scope, headers)
        if scope["method"] in ("GET", "HEAD") and (scope["path"] == "/" or scope["path"].startswith(PAGE_FILES)):
            return None
        if not self._knows_cookie(headers.get(b"cookie", [])):
            raise _no_token("missing or wrong")
        return None

    def _check_host(self, given: list[bytes]) -> None:
        """A page of a foreign site whose name was made to point at this machine would send that name."""
        if self._names is None:
            return
        for value in given or [b""]:
            name = _without_port(value.decode("latin-1").lower())
            if name not in self._names:
                raise Refusal(
                    403,
                    f"the service was called as {name[:100]!r}, which is none of its names "
                    f"({', '.join(sorted(self._names))}); if it should have this one, start it with --allow-host",
                )

    def _bearer(self, given: list[bytes]) -> bool:
        """Whether the header brings the token; a wrong one is refused whatever else there is."""
        if self._token is None or not given:
            return False
        scheme, _, value = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return False
        if len(given) > 1 or not hmac.compare_digest(_digest(value.strip()), self._token):
            raise _no_token("wrong")
        return True

    def _knows_cookie(self, given: Iterable[bytes]) -> bool:
        assert self._cookie is not None
        for header in given:
            for part in header.split(b";"):
                name, _, value = part.strip().partition(b"=")
                if name == COOKIE.encode() and hmac.compare_digest(value, self._cookie.encode()):
                    return True
        return False

    def _enter(self, scope: Scope, headers: dict[bytes, list[bytes]]) -> Response:
        """The token leaves the address line for a cookie that scripts cannot read."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = dict(pairs).get("token", "")
        assert self._token is not None
        if not hmac.compare_digest(_digest(token), self._token):
            raise _no_token("wrong")
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        answer = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": f"/?{rest}" if rest else "/"})
        secure = scope["scheme"] == "https" or headers.get(b"x-forwarded-proto", [b""])[0].strip() == b"https"
        answer.set_cookie(COOKIE, self._cookie or "", httponly=True, samesite="strict", secure=secure, path="/")
        return answer


def cookie_of(token: str) -> str:
    """What the cookie holds: it proves the token without being it."""
    return hmac.new(token.encode(), b"modalhash page", hashlib.sha256).hexdigest()


def _check_site(headers: dict[bytes, list[bytes]]) -> None:
    """Browsers say from which site a request comes: another one may not change anything or search in our name."""
    host = headers.get(b"host", [b""])[0].decode("latin-1").lower()
    origins = [urlsplit(value.decode("latin-1").lower()).netloc for value in headers.get(b"origin", [])]
    site = headers.get(b"sec-fetch-site", [b"none"])[0]
    if any(origin != host for origin in origins) or site in (b"cross-site", b"same-site"):
        raise Refusal(
            403,
            "the request came from a page of another site; use this service's own page, or send the token as a header",
        )


def _no_token(what: str) -> Refusal:
    return Refusal(
        401,
        f"the token is {what}; send it as a header, 'Authorization: Bearer …', or open the page as /?token=…",
        WWW_Authenticate="Bearer",
    )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (not name.startswith("[") or name.endswith("]")) else host


def _digest(token: str | bytes) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token).digest()
