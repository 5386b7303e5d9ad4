"""Mark what a later major version removes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")


def deprecated(since: str, *, instead: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Mark a function as deprecated: each call warns and names the replacement, and so does its documentation.

    Examples
    --------
    >>> @deprecated("1.0", instead="new")
    ... def old():
    ...     return 1
    >>> old.__doc__
    'Deprecated since version 1.0; use ``new``.'
    """

    def mark(function: Callable[P, R]) -> Callable[P, R]:
        notice = f"deprecated since version {since}; use "

        @wraps(function)
        def warned(*args: P.args, **kwargs: P.kwargs) -> R:
            message = f"{function.__name__} is {notice}{instead}"
            warnings.warn(message, FutureWarning, stacklevel=2)
            return function(*args, **kwargs)

        warned.__doc__ = "\n\n".join(filter(None, [function.__doc__, f"{notice.capitalize()}``{instead}``."]))
        return warned

    return mark
