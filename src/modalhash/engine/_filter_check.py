"""Filters against what an engine has: a label, kind or modality that is not there is an error with a hint."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches

from modalhash.store import KINDS, Comparison, Filter, FilterError

MAX_HINTS = 3


class UnknownLabelError(FilterError):
    """No item of the engine has a label that a filter names."""


def check_filter(
    where: Filter,
    *,
    trained_labels: Iterable[str],
    all_labels: Callable[[], Mapping[str, int]],
    modalities: Iterable[str],
) -> None:
    """Raise FilterError if the filter names a label, kind or modality that no item can have.

    ``all_labels``, which reads them from the store, is called only for a label that is not among those trained on.
    """
    modalities = tuple(modalities)
    trained = {label.casefold() for label in trained_labels}
    for comparison in where.comparisons():
        if comparison.field == "label":
            if _folded(comparison) not in trained:
                _check_label(comparison, all_labels())
        elif comparison.field in ("kind", "modality"):
            known = KINDS if comparison.field == "kind" else modalities
            if comparison.value not in known:
                raise FilterError(
                    f"{comparison}: the engine has no {comparison.field} {comparison.value!r}; it has "
                    f"{', '.join(map(repr, known))}"
                )


def _check_label(comparison: Comparison, labels: Mapping[str, int]) -> None:
    wanted = _folded(comparison)
    names = {label.casefold(): label for label in labels}
    if wanted in names:
        return
    close = get_close_matches(wanted, names, n=MAX_HINTS)
    close += [name for name in names if wanted in name and name not in close]
    hints = [repr(names[name]) for name in close[:MAX_HINTS]]
    if hints:
        hint = f"did you mean {' or '.join(hints)}?"
    elif names:
        hint = f"labels are, for example, {', '.join(map(repr, list(labels)[:MAX_HINTS]))}"
    else:
        hint = "no item has labels"
    raise UnknownLabelError(f"no item has the label {str(comparison.value)!r}; {hint}")


def _folded(comparison: Comparison) -> str:
    return str(comparison.value).casefold()
