"""Tokens with roles: a file of digests that is read anew when it changes, and cookies that stand for a token.

A line of the file has a name, a role, the SHA-256 digest of the token and perhaps a time until which it is valid::

    # name  role  digest  [until]
    alice   write  sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  2027-01-31T00:00:00+00:00

A name may have several lines. Digests are no secret, because tokens are long and random: :func:`make_token`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from modalhash._files import write_atomically
from modalhash.serve.clients import Role
from modalhash.serve.monitoring import log_event

HEADER = "# name  role  digest of the token  [valid until]; made by `modalhash tokens`, read anew when it changes\n"
_NAME = re.compile(r"[\w.@+-]{1,64}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Token:
    """A token as the service knows it: by its digest."""

    name: str
    role: Role
    digest: str
    """``sha256:`` and 64 hexadecimal digits."""
    until: datetime | None = None
    """When it ends, if ever."""

    def is_valid(self, now: datetime) -> bool:
        """Return whether the token has not ended."""
        return self.until is None or now < self.until

    def line(self) -> str:
        """Return the token as a line of the file."""
        parts = [self.name, self.role.name, self.digest]
        return "  ".join(parts if self.until is None else [*parts, self.until.isoformat(timespec="seconds")]) + "\n"


def digest_of(token: str | bytes) -> str:
    """Return what the file holds of a token."""
    data = token.encode("utf-8", "surrogatepass") if isinstance(token, str) else token
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


def make_token(name: str, role: str, *, days: float | None = None) -> tuple[str, Token]:
    """Return a new random token and what a token file holds of it.

    Parameters
    ----------
    name : str
        Whose token it is; the audit log names it.
    role : {"read", "write", "admin"}
        What its holder may do.
    days : float, optional
        How long it is valid; for ever by default.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name {name!r} of a token; expected letters, digits and . _ @ + -, at most 64 of them")
    if role not in Role.__members__:
        raise ValueError(f"the role {role!r} of a token; expected {', '.join(Role.__members__)}")
    until = None if days is None else (datetime.now(UTC) + timedelta(days=days)).replace(microsecond=0)
    secret = secrets.token_urlsafe(32)
    return secret, Token(name, Role[role], digest_of(secret), until)


# -- the file


def parse_tokens(text: str) -> tuple[list[Token], list[str]]:
    """Return the tokens of a file, and what is wrong with lines that are none; those let nobody in."""
    tokens, problems = [], []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.partition("#")[0].split()
        if not parts:
            continue
        try:
            tokens.append(_parse_line(parts))
        except ValueError as error:
            problems.append(f"line {number}: {error}")
    return tokens, problems


def read_tokens(path: Path) -> list[Token]:
    """Return the tokens of a file; raise if it has a line that is none."""
    tokens, problems = parse_tokens(path.read_text(encoding="utf-8", errors="replace"))
    if problems:
        raise ValueError(f"{path}, {problems[0]}")
    return tokens


def write_tokens(path: Path, tokens: Iterable[Token]) -> None:
    """Write a token file; a service that runs reads it at its next request."""
    write_atomically(path, (HEADER + "".join(token.line() for token in tokens)).encode())


def rotate(tokens: Iterable[Token], name: str, *, overlap_days: float) -> tuple[str, list[Token]]:
    """Return a new token of a name, and all tokens with the name's earlier ones ending after ``overlap_days``."""
    now = datetime.now(UTC)
    tokens = list(tokens)
    own = [token for token in tokens if token.name == name and token.is_valid(now)]
    if not own:
        raise ValueError(f"there is no valid token of {name!r}; add one")
    end = (now + timedelta(days=overlap_days)).replace(microsecond=0)
    secret, fresh = make_token(name, max(token.role for token in own).name)
    ending = [replace(one, until=min(one.until or end, end)) if one in own else one for one in tokens]
    return secret, [*(one for one in ending if one.is_valid(now)), fresh]


def _parse_line(parts: list[str]) -> Token:
    if len(parts) not in (3, 4):
        raise ValueError(f"{len(parts)} words; expected a name, a role, a digest and perhaps a time")
    name, role, digest = parts[:3]
    if not _NAME.fullmatch(name):
        raise ValueError(f"the name {name!r}; expected letters, digits and . _ @ + -, at most 64 of them")
    if role not in Role.__members__:
        raise ValueError(f"the role {role!r}; expected {', '.join(Role.__members__)}")
    if not _DIGEST.fullmatch(digest):
        raise ValueError("the digest is none; expected sha256: and 64 hexadecimal digits. `modalhash tokens` makes it")
    until = datetime.fromisoformat(parts[3]) if len(parts) == 4 else None
    if until is not None and until.tzinfo is None:
        until = until.replace(tzinfo=UTC)
    return Token(name, Role[role], digest, until)


# -- while the service runs


class Tokens:
    """The tokens that are valid now: one that is given, and those of a file, which is read anew when it changes.

    A file that goes away, or a line that is no token, lets nobody in.
    """

    def __init__(self, token: str | None, path: Path | None) -> None:
        self._given = [] if token is None else [Token("token", Role.admin, digest_of(token))]
        self._path = path
        self._seen: tuple[int, int, int] | None = None
        self._tokens = list(self._given)
        if path is not None:
            read_tokens(path)  # a mistake is an error at the start, and a line in the log later
            self._refresh()

    @property
    def needed(self) -> bool:
        """Whether requests need a token."""
        return bool(self._given) or self._path is not None

    def valid(self) -> list[Token]:
        """Return the tokens that are valid now."""
        self._refresh()
        now = datetime.now(UTC)
        return [token for token in self._tokens if token.is_valid(now)]

    def find(self, token: str | bytes) -> Token | None:
        """Return what is known of a token; None if it is not valid."""
        digest = digest_of(token)
        found = [one for one in self.valid() if hmac.compare_digest(one.digest, digest)]
        return max(found, key=lambda one: one.role, default=None)

    def _refresh(self) -> None:
        """Read the file if it is not the one that was read last."""
        if self._path is None:
            return
        try:
            status = self._path.stat()
            seen = (status.st_ino, status.st_mtime_ns, status.st_size)
        except OSError:
            seen = (0, 0, 0)
        if seen == self._seen:
            return
        try:
            tokens, problems = parse_tokens(self._path.read_text(encoding="utf-8", errors="replace"))
        except OSError as error:
            tokens, problems = [], [f"it cannot be read ({error.strerror}); no token of it is valid"]
        for problem in problems:
            log_event(f"the token file: {problem}")
        self._tokens = [*self._given, *tokens]
        self._seen = seen


class Cookies:
    """Makes and checks the page's cookies: each stands for a token until it expires or the token ends.

    They are signed with a key of this service, so that neither a token file nor an old cookie is enough to make one.
    """

    def __init__(self, seconds: float, key: bytes | None = None) -> None:
        self.seconds = int(seconds)
        self._key = key or secrets.token_bytes(32)

    def make(self, token: Token) -> str:
        """Return the value of a cookie for a token."""
        expires = str(int(time.time()) + self.seconds)
        return f"{expires}.{self._sign(expires, token)}"

    def find(self, value: bytes, tokens: Iterable[Token]) -> Token | None:
        """Return which of some tokens a cookie stands for; None if it is none of ours, or has expired."""
        expires, _, signature = value.decode("latin-1").partition(".")
        for token in tokens:
            if hmac.compare_digest(self._sign(expires, token).encode(), signature.encode()):
                return token if time.time() < int(expires) else None
        return None

    def _sign(self, expires: str, token: Token) -> str:
        return hmac.new(self._key, f"{expires} {token.digest}".encode(), hashlib.sha256).hexdigest()
