"""Middleware around every request: access control, limits, security headers, log and metrics."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable
from http import HTTPStatus
from itertools import count
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from modalhash.core.progress import should_stop
from modalhash.serve import schemas, telemetry
from modalhash.serve.auth import (
    Client,
    CookieKeys,
    Cookies,
    Role,
    Token,
    Tokens,
    WrongTokens,
    client_key,
    client_of,
    set_client,
)
from modalhash.serve.errors import HTTPError, busy_error, response_to, too_many_error
from modalhash.serve.limits import Settings
from modalhash.serve.monitoring import log_exception, log_request
from modalhash.serve.service import OPEN_ROUTES, Service
from modalhash.serve.worker_state import ProcessState

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
)
SECURITY_HEADERS = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
"""Headers of every response; none allows other sites to read it (CORS)."""
COOKIE = "modalhash"
ADMIN_ROUTES = ("/audit",)
READING_ROUTES = ("/search",)
"""Routes that change nothing although their method is not a safe one."""
PAGE_FILES = "/static/"
"""Files of the page, which need no token because they contain no data of the engine."""
LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
METHODS = (*SAFE_METHODS, "POST", "PUT", "PATCH", "DELETE")
ON_DISCONNECT = "modalhash.on_disconnect"
"""Key of the scope of a request: what to call when its connection is lost."""
ABORT = "modalhash.abort"
"""Key of the scope of a request: a function that closes its connection without what the client has not read."""
PIECE = 64 * 1024
"""Bytes of a body in one message; the next one waits until the client reads."""
TWO_LENGTHS = "the request has Content-Length and Transfer-Encoding; expected one of them"
CLIENT_CLOSED_REQUEST = 499
"""Status in log and metrics if the client disconnected before the response."""


class AccessControl:
    """Check the host name, the site and the token of requests."""

    def __init__(self, settings: Settings, seat: ProcessState) -> None:
        self._tokens = Tokens(settings.token, settings.token_file)
        self._cookies = Cookies(settings.cookie_seconds, CookieKeys(seat.cookie_key, settings.cookie_secret_file))
        self._head_bytes = settings.limits.head_bytes
        self._wrong = WrongTokens(settings.limits.wrong_tokens, settings.limits.token_seconds)
        self._hosts: set[str] | None = None
        if settings.is_local or settings.hosts:
            own = f"[{settings.host}]" if ":" in settings.host else settings.host
            self._hosts = {*LOCAL_NAMES, own.lower(), *(name.lower() for name in settings.hosts)}

    def check(self, scope: Scope, address: str) -> Client | Response:
        """Return the client of a request; raise :class:`HTTPError` if it is not allowed.

        If the page is opened with the token in its URL, return the redirect that sets the cookie instead.
        """
        headers: dict[bytes, list[bytes]] = {}
        size = len(scope["path"]) + len(scope["query_string"])
        for name, value in scope["headers"]:
            headers.setdefault(name, []).append(value)
            size += len(name) + len(value)
        if b"content-length" in headers and b"transfer-encoding" in headers:  # request smuggling through a proxy
            raise HTTPError(400, TWO_LENGTHS, {"Connection": "close"})
        if size > self._head_bytes:
            raise HTTPError(431, f"the request headers have {size:,} bytes; the limit is {self._head_bytes:,}")
        self._check_host(headers.get(b"host", []))
        method, path = scope["method"], scope["path"]
        if path in OPEN_ROUTES:
            return Client(address)
        token = self._check_bearer(headers.get(b"authorization", []), address)
        if method not in SAFE_METHODS and token is None:
            _check_site(headers)
        if not self._tokens.needed:
            return _check_role(Client(address, None, Role.write), method, path)
        if token is None and method == "GET" and path == "/" and b"token=" in scope["query_string"]:
            return self._redirect_with_cookie(scope, headers, address)
        if token is None and method in ("GET", "HEAD") and (path == "/" or path.startswith(PAGE_FILES)):
            return Client(address)
        token = token or self._find_cookie(headers.get(b"cookie", []))
        if token is None:
            raise _token_error("missing, wrong or expired")
        return _check_role(Client(address, token.name, token.role), method, path)

    def _check_host(self, given: list[bytes]) -> None:
        """Refuse unknown host names, which indicate DNS rebinding."""
        if self._hosts is None:
            return
        for value in given or [b""]:
            name = _without_port(value.decode("latin-1").lower())
            if name not in self._hosts:
                raise HTTPError(
                    403,
                    f"unknown host {name[:100]!r}; this service is {', '.join(sorted(self._hosts))}. To allow another "
                    "name, start it with --allow-host",
                )

    def _check_token(self, given: str | bytes, address: str) -> Token:
        """Return a token; raise if it is wrong, or if its address is locked out after too many wrong ones."""
        if seconds := self._wrong.locked_seconds(address):
            raise too_many_error("wrong tokens", seconds)
        token = self._tokens.find(given)
        if token is None:
            self._wrong.add(address)
            raise _token_error("wrong or expired")
        return token

    def _check_bearer(self, given: list[bytes], address: str) -> Token | None:
        """Return the token of the Authorization header, if any; raise if it is wrong."""
        if not self._tokens.needed or not given:
            return None
        scheme, _, value = given[0].partition(b" ")
        if scheme.lower() != b"bearer":
            return None
        if len(given) > 1:
            raise _token_error("given twice")
        return self._check_token(value.strip(), address)

    def _find_cookie(self, given: Iterable[bytes]) -> Token | None:
        """Return the token of a cookie, if any. Wrong cookies are not counted, because pages send old ones."""
        for header in given:
            for part in header.split(b";"):
                name, _, value = part.strip().partition(b"=")
                if name == COOKIE.encode() and (token := self._cookies.find(value, self._tokens.valid())):
                    return token
        return None

    def _redirect_with_cookie(self, scope: Scope, headers: dict[bytes, list[bytes]], address: str) -> Response:
        """Move the token out of the URL into a cookie that scripts cannot read."""
        pairs = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        token = self._check_token(dict(pairs).get("token", ""), address)
        rest = urlencode([(name, value) for name, value in pairs if name != "token"])
        response = Response(status_code=HTTPStatus.SEE_OTHER, headers={"Location": f"/?{rest}" if rest else "/"})
        secure = scope["scheme"] == "https" or headers.get(b"x-forwarded-proto", [b""])[0].strip() == b"https"
        response.set_cookie(
            COOKIE,
            self._cookies.make(token),
            max_age=self._cookies.seconds,
            httponly=True,
            samesite="strict",
            secure=secure,
            path="/",
        )
        return response


def _check_role(client: Client, method: str, path: str) -> Client:
    """Return the client if its role allows the request."""
    if path in ADMIN_ROUTES:
        needed = Role.admin
    else:
        needed = Role.read if method in SAFE_METHODS or path in READING_ROUTES else Role.write
    if client.role >= needed:
        return client
    if client.name is None:
        raise HTTPError(403, f"this needs a token with the role {needed.name!r}; start the service with --tokens")
    raise HTTPError(403, f"the token of {client.name!r} has the role {client.role.name!r}; this needs {needed.name!r}")


def _check_site(headers: dict[bytes, list[bytes]]) -> None:
    """Refuse requests that browsers mark as sent by pages of other sites."""
    host = headers.get(b"host", [b""])[0].decode("latin-1").lower()
    origins = [_host_of(value.decode("latin-1").lower()) for value in headers.get(b"origin", [])]
    site = headers.get(b"sec-fetch-site", [b"none"])[0]
    if any(origin != host for origin in origins) or site in (b"cross-site", b"same-site"):
        raise HTTPError(
            403,
            "the request came from a page of another site; use this service's own page, or send the token as a header",
        )


def _host_of(origin: str) -> str | None:
    """Return host and port of a URL; None if it is not a URL, such as ``http://[``."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


def _token_error(problem: str) -> HTTPError:
    return HTTPError(
        401,
        f"the token is {problem}; send it as a header, 'Authorization: Bearer …', or open the page as /?token=…",
        {"WWW-Authenticate": "Bearer"},
    )


def _without_port(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdecimal() and (not name.startswith("[") or name.endswith("]")) else host


class RequestMiddleware:
    """ASGI middleware that gives each request exactly one response and one line in the log."""

    def __init__(self, app: ASGIApp, service: Service, access: AccessControl) -> None:
        self.app, self.metrics, self._access = app, service.metrics, access
        self._make_place = service.body_budget.drop_slowest
        self._limits, self._quiet = service.limits, service.settings.quiet
        self._numbers = count(service.seat.first_number)
        self._by_address: Counter[str] = Counter()
        self._unread = UnreadAnswers(service.limits.unread_bytes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        address = client_key(str(scope["client"][0]) if scope.get("client") else "")
        set_client(scope, Client(address))
        exchange = _ResponseRecorder(next(self._numbers), send, self._limits.request_seconds, self._unread, address)
        scope[ON_DISCONNECT] = exchange.disconnect
        should_stop.set(exchange.should_stop)
        self._count_in_flight(address, 1)
        try:
            with telemetry.span({"name": "request", "http.request.method": scope["method"]}) as attributes:
                try:
                    await self._respond(exchange, scope, receive, address)
                finally:
                    attributes["http.response.status_code"] = exchange.status or CLIENT_CLOSED_REQUEST
                    attributes["http.route"] = getattr(scope.get("route"), "path", "other")
        finally:
            exchange.end()
            self._count_in_flight(address, -1)
            self._record(exchange, scope)

    def _count_in_flight(self, address: str, n: int) -> None:
        self.metrics.count_in_flight(n)
        self._by_address[address] += n
        if not self._by_address[address]:
            del self._by_address[address]

    def _check_load(self, address: str) -> None:
        """Raise if too many requests are in flight, in total or from one address."""
        limits = self._limits
        if self._by_address[address] > limits.requests_per_address:
            raise too_many_error(f"{limits.requests_per_address} requests in flight")
        if self.metrics.requests_in_flight > limits.requests and not self._make_place():
            raise busy_error(f"{limits.requests} requests in flight")

    async def _respond(self, exchange: _ResponseRecorder, scope: Scope, receive: Receive, address: str) -> None:
        limits = self._limits
        try:
            found = self._access.check(scope, address)
            response: ASGIApp = self.app
            if isinstance(found, Response):
                response = found
            else:
                set_client(scope, found)
                if scope["path"] not in OPEN_ROUTES:
                    self._check_load(address)
            async with asyncio.timeout(limits.request_seconds) as exchange.timeout:
                await response(scope, receive, exchange.send)
            return
        except ClientDisconnect:
            return
        except TimeoutError:
            if exchange.is_disconnected:
                return
            response = busy_error(f"no answer in {limits.request_seconds:g} s").response()
        except Exception as error:
            response = response_to(error) or self._internal_error(exchange.number, error)
        if exchange.status:  # the response has started; closing the connection marks it as incomplete
            if callable(abort := scope.get(ABORT)):
                abort()
            raise ConnectionError("a response could not be completed")
        await response(scope, receive, exchange.send)

    @staticmethod
    def _internal_error(number: int, error: Exception) -> Response:
        log_exception(number, error)
        message = f"internal error; see request {number} in the log of the service"
        return schemas.json_response({"error": message, "status": 500, "request": number}, 500)

    def _record(self, exchange: _ResponseRecorder, scope: Scope) -> None:
        seconds = time.perf_counter() - exchange.start
        status = exchange.status or CLIENT_CLOSED_REQUEST
        route = getattr(scope.get("route"), "path", "other")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self.metrics.count_request(route, method, status, seconds)
        if not self._quiet:
            client = client_of(scope)
            log_request(
                exchange.number,
                scope["method"],
                scope["path"],
                status,
                seconds,
                exchange.size,
                client.address,
                client.name,
            )


class UnreadAnswers:
    """Count the bytes of answers that clients have not read, by address."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._by_address: Counter[str] = Counter()

    def check(self, address: str, n_bytes: int) -> None:
        """Raise if an address would have too many bytes; one answer alone may have any number."""
        others = self._by_address[address]
        if others and others + n_bytes > self._max_bytes:
            raise too_many_error(f"it has not read {others:,} bytes of earlier answers")

    def count(self, address: str, n_bytes: int) -> None:
        self._by_address[address] += n_bytes
        if not self._by_address[address]:
            del self._by_address[address]


class _ResponseRecorder:
    """A request number, the status and size of its response, and whether any client still waits for it."""

    timeout: asyncio.Timeout | None = None
    is_disconnected = is_over = False

    def __init__(self, number: int, send: Send, seconds: float, unread: UnreadAnswers, address: str) -> None:
        self.number, self._send = number, send
        self._unread, self._address, self._n_unread = unread, address, 0
        self._held: Message | None = None
        self.start = time.perf_counter()
        self._stop = self.start + seconds
        self.status = self.size = 0

    def should_stop(self) -> bool:
        """Return whether work for the request, in any thread, is in vain."""
        return self.is_over or time.perf_counter() > self._stop

    def disconnect(self) -> None:
        """Cancel what the event loop does for a client that is gone."""
        if not self.is_over and self.timeout is not None and not self.timeout.expired():
            self.is_disconnected = True
            self.timeout.reschedule(0)
        self.is_over = True

    def end(self) -> None:
        self.is_over = True
        self._count(-self._n_unread)

    async def send(self, message: Message) -> None:
        """Forward a message, with the headers of every response; the body in pieces, so that it waits for the client.

        The start is held back until the body is known to be allowed.
        """
        if message["type"] == "http.response.start":
            self._held = {**message, "headers": [*message["headers"], *SECURITY_HEADERS]}
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if len(body) > PIECE:
            self._unread.check(self._address, len(body))
        if self._held is not None:
            start, self._held = self._held, None
            self.status = start["status"]
            await self._send(start)
        self._count(len(body))
        for begin in range(0, max(1, len(body)), PIECE):
            piece = body[begin : begin + PIECE]
            await self._send({**message, "body": piece, "more_body": more or begin + PIECE < len(body)})
            self._count(-len(piece))
            self.size += len(piece)

    def _count(self, n_bytes: int) -> None:
        self._n_unread += n_bytes
        self._unread.count(self._address, n_bytes)
