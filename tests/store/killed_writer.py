"""A process that adds batches until it is killed; it prints the number of each batch once that is committed.

python killed_writer.py STORE WRITER FIRST_BATCH BATCH_SIZE N_BATCHES
"""

from __future__ import annotations

import sys

from modalhash.store import Record, SqliteStore


def main(path: str, writer: str, first: int, size: int, n_batches: int) -> None:
    with SqliteStore(path, n_bits=64) as store:
        print("open", flush=True)
        for batch in range(first, first + n_batches):
            store.add(
                Record(f"{writer}-{batch}-{i}", "image" if i % 2 else "text", batch.to_bytes(8, "big"), text="x" * 50)
                for i in range(size)
            )
            print(batch, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
