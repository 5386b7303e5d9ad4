"""Exact search among real codes that many items share: HammingIndex against FAISS's IndexBinaryFlat.

    python benchmarks/speed/learned_speed.py            # learned and hashed codes, repeated to 1M and 10M items
    python benchmarks/speed/learned_speed.py --quick    # a tenth of the items, nothing is written

Codes are those that AMSH learns of the training items of IAPR TC-12 (German captions; skipped where the data are not
there) and of the twin of NUS-WIDE, 64 bits, and those that it makes of the same items from their features alone.
Items are repeated until there are as many as asked for; queries are texts that were not learned from, the database are
images. Both sides take turns with one thread, the shortest run counts, and every distance is compared. A row of memory
compares the index with ids of 8 bytes and codes side by side.
"""

from __future__ import annotations

import argparse
import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before FAISS is loaded, or its threads spin

from typing import Any

import faiss
import numpy as np

from modalhash import AMSH
from modalhash.data import is_present, load_dataset, twin
from modalhash.index import HammingIndex
from record import write
from search_speed import N_SINGLE_QUERIES, K, same_answer
from speed_rows import in_turn, middle, peak_megabytes, ratio_spread, row, show

BITS = 64
N_QUERIES = 300


def sources() -> dict[str, Any]:
    """Data sets by name."""
    found = {"NUS-WIDE twin": twin("nuswide10", scale=0.2)}
    if is_present("iapr-tc12"):
        found = {"IAPR TC-12": load_dataset("iapr-tc12", text="de"), **found}
    else:
        print("skipped: IAPR TC-12 is not there")
    return found


def codes_of(data: Any) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Codes of the images by kind, and of the texts of queries."""
    parts = data.parts()
    model = AMSH(BITS, random_state=0).fit(parts.training.features, parts.training.labels)
    kinds = {
        "learned": model.codes_["image"],
        "hashed": model.transform({"image": parts.training.features["image"]})["image"],
    }
    return kinds, model.transform({"text": parts.query.features["text"][:N_QUERIES]})["text"]


def compare(name: str, codes: np.ndarray, queries: np.ndarray, n: int, repeat: int) -> list[dict[str, Any]]:
    """Return rows for queries together and one by one, and for memory."""
    n_codes = len(np.unique(codes, axis=0))
    order = np.random.default_rng(0).permutation(n) % len(codes)
    codes = np.ascontiguousarray(codes[order])
    theirs = faiss.IndexBinaryFlat(BITS)
    theirs.add(codes)
    faiss.omp_set_num_threads(1)
    ours = HammingIndex(BITS, n_threads=1)

    def fill() -> None:
        ours.add(np.arange(n), codes)
        ours.search(queries[:1], k=K)

    fill_megabytes, _ = peak_megabytes(fill)
    index_bytes = ours.nbytes
    rows = []
    for alone in (False, True):
        asked = queries[:N_SINGLE_QUERIES] if alone else queries
        parts = np.array_split(asked, len(asked)) if alone else [asked]
        same_answer(ours.search(asked, k=K), *theirs.search(asked, K), codes, asked)
        works = {
            "ours": lambda parts=parts: [ours.search(part, k=K) for part in parts],
            "faiss": lambda parts=parts: [theirs.search(part, K) for part in parts],
        }
        runs = in_turn(works, repeat)
        processor = {side: min(run.processor for run in some) for side, some in runs.items()}
        rows.append(
            row(
                f"shared-{name}-{n}{'-alone' if alone else ''}".replace(" ", "-").lower(),
                f"exact top-{K}, {name} codes repeated to {n:,} × {BITS} bits, "
                f"{f'{len(asked)} queries one by one' if alone else f'{len(asked)} queries'}, 1 thread",
                against="FAISS IndexBinaryFlat",
                ours=middle(runs["ours"]),
                theirs=middle(runs["faiss"]),
                mark=">= 20 x",
                note=f"{n_codes:,} distinct codes; {processor['faiss'] / processor['ours']:.1f} x by processor "
                f"seconds; {ratio_spread(runs['ours'], runs['faiss'])}; same distances",
            )
        )
        show(rows[-1])
    rows.append(
        row(
            f"shared-{name}-{n}-memory".replace(" ", "-").lower(),
            f"memory of the index, {name} codes repeated to {n:,} × {BITS} bits",
            against="ids of 8 bytes and codes",
            ours=index_bytes / 1e6,
            theirs=n * (8 + BITS // 8) / 1e6,
            mark="<= 1.1 x",
            unit="MB",
            note=f"{n_codes:,} distinct codes; at most {fill_megabytes:,.0f} MB while it is filled",
        )
    )
    show(rows[-1])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="a tenth of all; write nothing")
    args = parser.parse_args()
    rows = []
    for source, data in sources().items():
        kinds, queries = codes_of(data)
        for kind, codes in kinds.items():
            for n in args.items:
                rows += compare(f"{source} {kind}", codes, queries, n // 10 if args.quick else n, args.repeat)
    if not args.quick:
        write("learned_speed", rows)


if __name__ == "__main__":
    main()
