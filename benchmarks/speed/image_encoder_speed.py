"""Photos of IAPR TC-12, as files, through the built-in encoder, beside the floor: decoding them alone.

    python benchmarks/speed/image_encoder_speed.py [--photos 4000] [--repeat 5] [--quick]

The floor reads the same files with the same settings, to the same squares of pixels, and makes nothing of them. Both
take turns, in one process and in two, which are there before the time starts; medians count. Processor seconds are
those of one process, with BLAS on one thread.

Results go to benchmarks/results/image_encoder_speed.json. Needs the data set with its pictures.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from modalhash.data import data_root
from modalhash.encoders import ImageEncoder, encode_items
from modalhash.encoders.image import SIZE
from modalhash.encoders.picture_files import read_picture
from record import write
from speed_rows import Run, best, in_turn, middle, ratio_spread, row, show, spread

MARK = ">= 1500"
PHOTOS = data_root() / "iapr-tc12" / "images.zip"


class Decoder(ImageEncoder):
    """Reads what the encoder reads, and returns zeros."""

    name = "decoder"

    def encode(self, batch: Sequence[Any]) -> np.ndarray:
        for source in batch:
            read_picture(source, size=SIZE, max_pixels=self.max_pixels)
        return np.zeros((len(batch), self.dim), dtype=np.float32)


def unpack(folder: Path, n: int) -> list[str]:
    with zipfile.ZipFile(PHOTOS) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".jpg"))
        chosen = [names[i] for i in np.random.default_rng(0).choice(len(names), n, replace=False)]
        archive.extractall(folder, members=chosen)
    return [str(folder / name) for name in chosen]


def measure(files: list[str], repeat: int) -> list[dict[str, Any]]:
    encoder, decoder = ImageEncoder(), Decoder()
    some = files[: len(files) // 4]

    def alone(work: ImageEncoder) -> None:
        encode_items(work, some, workers=1)

    def together(work: ImageEncoder, workers: int = 2) -> None:
        encode_items(work, files, workers=workers)

    together(encoder)  # starts the processes and compiles
    both: dict[str, list[Run]] = in_turn(
        {"encode": lambda: together(encoder), "decode": lambda: together(decoder)}, repeat
    )
    with threadpool_limits(1):
        single = in_turn({"encode": lambda: alone(encoder), "decode": lambda: alone(decoder)}, repeat)
    speed = {name: len(files) / middle(runs) for name, runs in both.items()}
    each = {name: median(1e3 * run.processor / len(some) for run in runs) for name, runs in single.items()}
    return [
        row(
            "photos-two-cores",
            f"{len(files):,} photos (JPEG files, 128 pixels), built-in encoder, two processes",
            against="",
            ours=speed["encode"],
            theirs=None,
            mark=MARK,
            unit="photos/s",
            note=f"median; {spread(both['encode'])}; {len(files) / best(both['encode']):,.0f} photos/s in the shortest",
        ),
        row(
            "photos-two-cores-floor",
            "the same, time for a thousand photos",
            against="decoding alone",
            ours=1e3 / speed["encode"],
            theirs=1e3 / speed["decode"],
            mark="-",
            note=f"decoding alone {speed['decode']:,.0f} photos/s; {ratio_spread(both['encode'], both['decode'])}",
        ),
        row(
            "photos-processor",
            "one photo through the built-in encoder, processor time of one process",
            against="decoding alone",
            ours=each["encode"],
            theirs=each["decode"],
            mark="-",
            unit="ms",
            note=f"{1e3 / each['encode']:,.0f} photos per processor second, decoding alone "
            f"{1e3 / each['decode']:,.0f}; median of {repeat} in turn",
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=int, default=4000)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="2,000 photos, three times; write nothing")
    args = parser.parse_args()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # of the processes that are started
    if not PHOTOS.exists():
        print(f"skipped: there is no {PHOTOS}; set MODALHASH_DATA to the folder that holds iapr-tc12/")
        return
    photos, repeat = (2000, 3) if args.quick else (args.photos, args.repeat)
    with tempfile.TemporaryDirectory() as scratch:
        rows = measure(unpack(Path(scratch), photos), repeat)
    for each in rows:
        show(each)
    if not args.quick:
        write("image_encoder_speed", rows)


if __name__ == "__main__":
    main()
