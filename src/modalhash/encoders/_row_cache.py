"""Rows that a slow encoder made of texts, kept in memory by the content of the text: those used last, up to a size.

Nothing is written to disk: rows tell what a text is about, and who removes an item expects that to be gone.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from hashlib import blake2b
from threading import Lock

import numpy as np

from modalhash._typing import Array


class RowCache:
    """Makes each row once; safe for threads, which wait for each other.

    Parameters
    ----------
    make : from distinct texts to their rows, each as if it were alone
    max_bytes : size of the rows that are kept, at most
    """

    def __init__(self, make: Callable[[list[str]], Array], *, max_bytes: int) -> None:
        self._make, self._max_bytes = make, max_bytes
        self._rows: OrderedDict[bytes, Array] = OrderedDict()
        self._n_bytes = 0
        self._lock = Lock()

    def rows(self, texts: Sequence[str]) -> Array:
        """Return the rows of at least one text."""
        keys = [blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest() for text in texts]
        with self._lock:
            missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in self._rows}
            made = dict(zip(missing, self._make(list(missing.values())), strict=True)) if missing else {}
            out = np.stack([made[key] if key in made else self._rows[key] for key in keys])
            for key in dict.fromkeys(keys):
                if key in made:
                    self._rows[key] = made[key].copy()  # a view would keep the rows of its whole batch
                    self._n_bytes += made[key].nbytes
                self._rows.move_to_end(key)
            while self._n_bytes > self._max_bytes:
                self._n_bytes -= self._rows.popitem(last=False)[1].nbytes
        return out
