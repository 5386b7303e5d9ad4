"""Encoders from Hugging Face models: the towers of CLIP and SigLIP, and DINOv2.

``hf-image:MODEL`` and ``hf-text:MODEL``, where MODEL is a folder, or an ID such as ``openai/clip-vit-base-patch32``,
optionally with ``@REVISION``. Models are not trusted: weights are read from safetensors, never from pickles, no code of
a model is run, and nothing is fetched without ``download=True``. The SHA-256 of the weights and configuration files is
part of the state, so a saved encoder does not open with another model under the same name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from modalhash.core.blocks import row_slices
from modalhash.core.imports import require
from modalhash.core.pictures import MAX_PIXELS
from modalhash.core.typing import Array
from modalhash.core.validation import check_int
from modalhash.encoders.encoder import EncoderBase, ItemError, State
from modalhash.encoders.picture_files import read_whole_picture
from modalhash.encoders.text import words_of


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    log = transformers.utils.logging
    shown, level = log.is_progress_bar_enabled(), log.get_verbosity()
    log.disable_progress_bar()
    log.set_verbosity_error()
    try:
        yield
    finally:
        log.set_verbosity(level)
        if shown:
            log.enable_progress_bar()


MODELS_VARIABLE = "MODALHASH_MODELS"
"""Environment variable with a folder that is searched for models that were moved."""
AT_ONCE = 16  # items per pass of a network
LONGEST = 100  # maximum ratio of the longer to the shorter side of a picture
CONFIG = "config.json"
WEIGHTS, WEIGHTS_INDEX = "model.safetensors", "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


class _Family(NamedTuple):
    """Models of one type: their class in transformers, and the settings with the width of the vectors."""

    kind: str
    image_width: str
    text_width: str | None = None  # None if the model does not read texts
    padding: str = "longest"
    masked: bool = True  # whether the network gets a mask of padding tokens


FAMILIES = {
    "clip": _Family("CLIPModel", "projection_dim", "projection_dim"),
    "siglip": _Family(
        "SiglipModel",
        "vision_config.hidden_size",
        "text_config.projection_size",
        padding="max_length",  # as in training, which did not mask the padding
        masked=False,
    ),
    "dinov2": _Family("Dinov2Model", "hidden_size"),
    "dinov2_with_registers": _Family("Dinov2WithRegistersModel", "hidden_size"),
}
"""By ``model_type`` in ``config.json``. Without DINOv3, which needs torchvision to scale pictures."""


class _HuggingFace(EncoderBase):
    """One tower of a model."""

    limits = frozenset(
        {"model", "revision", "max_pixels"}
    )  # the path does not change features; the digests identify the model
    _settings: ClassVar[tuple[str, ...]]
    """Optional files, in addition to the weights, that determine the features."""

    def __init__(self, model: str | os.PathLike[str], *, revision: str | None = None, download: bool = False) -> None:
        from safetensors import SafetensorError

        why = f"the encoder {self.name!r}"
        require("PIL", extra="hf", why=why)
        self._torch = require("torch", extra="hf", why=why)
        self._transformers = require("transformers", extra="hf", why=why)
        self.model, self.revision, folder = _find(str(model), revision, download)
        files = _weight_files(folder)
        config = _read_json(folder / CONFIG)
        if (kind := config.get("model_type")) not in FAMILIES:
            raise ValueError(f"{folder} is a model of type {kind!r}; expected one of {', '.join(FAMILIES)}")
        self._family = FAMILIES[kind]
        if self.reads == "text" and self._family.text_width is None:
            raise ValueError(
                f"{self.model} is a model of type {kind!r}, which reads pictures only and has no "
                f"text tower. Take CLIP or SigLIP, or another encoder for texts, e.g. 'tfidf'"
            )
        self._sha256 = _digest([folder / name for name in files])
        settings = [folder / name for name in (CONFIG, *self._settings)]
        self._settings_sha256 = _digest([path for path in settings if path.is_file()])
        if self._family.text_width is not None:
            self.space = f"{kind} {self._sha256}"
        try:
            with quiet(self._transformers):
                self._load(folder)
                self._network = self._load_network(folder)
        except (SafetensorError, ImportError, OSError, ValueError, KeyError, RuntimeError) as error:
            raise ValueError(f"{folder} cannot be read as a model of type {kind!r}: {error}") from error
        width = self._family.image_width if self.reads == "image" else self._family.text_width
        self._dim = int(attrgetter(str(width))(self._network.config))

    @abstractmethod
    def _load(self, folder: Path) -> None: ...

    @property
    def dim(self) -> int:
        return self._dim

    @property
    def state(self) -> State:
        files = {"weights": self._sha256, "settings": self._settings_sha256}
        return State({"model": self.model, "revision": self.revision, **files})

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder if the model on disk has the same files. Nothing is downloaded."""
        config = dict(state.config)
        weights, settings = config.pop("weights"), config.pop("settings")
        encoder = cls(**{**config, "download": False})  # the author of the file cannot consent for the reader
        if encoder._sha256 != weights or encoder._settings_sha256 != settings:
            what = "weights" if encoder._sha256 != weights else "settings (config.json and other configuration files)"
            raise ValueError(f"the {what} of {encoder.model} are not those the encoder was saved with; restore them")
        return encoder

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Return itself, because it learns nothing and the network is large."""
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the network, which each process reads from the files."""
        return _restored, (type(self), dict(self.state.config))

    def _load_network(self, folder: Path) -> Any:
        """Return the network; raise if weights are missing, which transformers would draw at random."""
        network, report = getattr(self._transformers, self._family.kind).from_pretrained(
            folder,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            dtype=self._torch.float32,
            output_loading_info=True,
        )
        if missing := sorted(report["missing_keys"]) + sorted(map(str, report["mismatched_keys"])):
            raise ValueError(f"{len(missing)} tensors are missing in the weights, e.g. {missing[0]}")
        if self.space is not None:
            setattr(network, "text_model" if self.reads == "image" else "vision_model", None)  # not needed here
        return network.eval()

    def _unit_vectors(self, **inputs: Any) -> Array:
        ask = self._network if self.space is None else getattr(self._network, f"get_{self.reads}_features")
        with self._torch.inference_mode():
            vectors = ask(**inputs).pooler_output  # in the shared space; for DINO, the CLS token
            return np.asarray(self._torch.nn.functional.normalize(vectors).numpy())


class HuggingFaceImage(_HuggingFace):
    """Vectors of pictures, of length 1, by the image tower of CLIP or SigLIP, or by DINOv2.

    A picture is scaled and cropped as the model's files specify; CLIP and DINOv2 use the central square.

    Parameters
    ----------
    model
        folder of the model, or its ID, optionally with ``@REVISION``
    revision
        commit, branch or tag of an ID; by default the one on disk, or the newest with ``download``
    download
        fetch an ID that is not on disk, or incomplete
    max_pixels
        width × height above which a picture is refused before it is decoded
    """

    name = "hf-image"
    reads = "image"
    _settings = ("preprocessor_config.json", "processor_config.json")

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        revision: str | None = None,
        download: bool = False,
        max_pixels: int = MAX_PIXELS,
    ) -> None:
        self.max_pixels = check_int(max_pixels, "max_pixels", at_least=1)
        super().__init__(model, revision=revision, download=download)

    def text_encoder(self) -> Any:
        """Return the text tower of the model, or None."""
        return None if self.space is None else HuggingFaceText(self.model, revision=self.revision)

    def _load(self, folder: Path) -> None:
        self._processor = self._transformers.AutoImageProcessor.from_pretrained(
            folder, backend="pil", local_files_only=True, trust_remote_code=False
        )
        self._seen = max([*_numbers(self._processor.size), 1])

    @property
    def state(self) -> State:
        return State({**super().state.config, "max_pixels": self.max_pixels})

    def encode(self, batch: Sequence[Any]) -> Array:
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for rows in row_slices(len(batch), AT_ONCE):
            pictures = [self._read(source) for source in batch[rows]]
            pixels = np.stack(self._processor(images=pictures, return_tensors="np")["pixel_values"])
            out[rows] = self._unit_vectors(pixel_values=self._torch.from_numpy(pixels))
        return out

    def _read(self, source: Any) -> Any:
        """Return a picture; refuse extreme aspect ratios, which would scale to millions of pixels."""
        picture = read_whole_picture(source, at_least=2 * self._seen, max_pixels=self.max_pixels)
        if max(picture.size) > LONGEST * min(picture.size):
            sides = " × ".join(map(str, picture.size))
            raise ItemError(f"the picture is {sides} pixels; expected at most {LONGEST} times as long as wide")
        return picture


class HuggingFaceText(_HuggingFace):
    """Vectors of texts, of length 1, by the text tower of CLIP or SigLIP; longer texts are truncated.

    Parameters
    ----------
    model, revision, download
        see :class:`HuggingFaceImage`
    """

    name = "hf-text"
    reads = "text"
    _settings = (
        "tokenizer.json",
        "tokenizer_config.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "vocab.json",
        "merges.txt",
        "spiece.model",
    )

    def _load(self, folder: Path) -> None:
        # The class named in tokenizer_config.json depends on the installed packages; tokenizer.json does not.
        has_file = (folder / "tokenizer.json").is_file()
        kinds = self._transformers
        self._tokenizer = (kinds.PreTrainedTokenizerFast if has_file else kinds.AutoTokenizer).from_pretrained(
            folder, local_files_only=True, trust_remote_code=False
        )

    def encode(self, batch: Sequence[Any]) -> Array:
        for text in batch:
            words_of(text)
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for rows in row_slices(len(batch), AT_ONCE):
            tokens = self._tokenizer(
                list(batch[rows]),
                padding=self._family.padding,
                truncation=True,
                max_length=self._network.config.text_config.max_position_embeddings,
                return_tensors="pt",
            )
            mask = {"attention_mask": tokens["attention_mask"]} if self._family.masked else {}
            out[rows] = self._unit_vectors(input_ids=tokens["input_ids"], **mask)
        return out


def _restored(kind: type[_HuggingFace], config: dict[str, Any]) -> _HuggingFace:
    return kind.restore(State(config))


def _find(model: str, revision: str | None, download: bool) -> tuple[str, str | None, Path]:
    path = Path(model).expanduser()
    if path.is_dir():
        return str(path.resolve()), None, path.resolve()
    name, _, own = model.partition("@")
    if path.is_absolute() or not _ID.fullmatch(name):
        return model, None, _moved(path)
    folder = _in_cache(name, revision or own or None, download)
    return name, folder.name, folder


def _moved(path: Path) -> Path:
    models = os.environ.get(MODELS_VARIABLE)
    if models and (found := Path(models).expanduser() / path.name).is_dir():
        return found
    raise ValueError(
        f"there is no folder {path} with a model; expected a folder, or an ID such as openai/clip-vit-base-patch32. If "
        f"it was moved, set {MODELS_VARIABLE} to the folder that holds {path.name}"
    )


def _in_cache(name: str, revision: str | None, download: bool) -> Path:
    """Return the folder of an ID in the cache of Hugging Face, after a download if requested."""
    hub = require("huggingface_hub", extra="hf", why="a model by its ID")
    wanted = ["*.json", "*.txt", "*.model", "model*.safetensors"]
    try:
        if download:
            return Path(hub.snapshot_download(name, revision=revision, allow_patterns=wanted, ignore_patterns="*/*"))
        found = hub.try_to_load_from_cache(name, CONFIG, revision=revision)
    except (OSError, ValueError) as error:  # no connection, no such model, no permission, no such revision
        raise ValueError(f"{name} could not be downloaded: {error}") from error
    if isinstance(found, str):
        return Path(found).parent
    at = "" if revision is None else f" --revision {revision}"
    exact = "" if revision is None else f" (revision {revision})"
    raise ValueError(
        f"the model {name}{exact} is not on this disk; there is no such folder, and it is not in the cache of Hugging "
        f"Face. Nothing is downloaded without consent: pass --download (download=True), or run `hf download {name}{at}`"
    )


def _weight_files(folder: Path) -> list[str]:
    if (folder / _ADAPTER).exists():
        raise ValueError(
            f"{folder} has an adapter ({_ADAPTER}); merge it into the model first, with merge_and_unload()"
        )
    if (folder / WEIGHTS).is_file():
        return [WEIGHTS]
    if not (folder / WEIGHTS_INDEX).is_file():
        pickled = (".bin", ".pt", ".pth", ".h5", ".msgpack")
        others = sorted(path.name for path in folder.iterdir() if path.suffix in pickled)
        also = f"; {', '.join(others)} is not read, because such files can run code" if others else ""
        raise ValueError(
            f"{folder} has no {WEIGHTS}{also}. Take a model in safetensors, or save it again with save_pretrained()"
        )
    names = sorted(set(_read_json(folder / WEIGHTS_INDEX).get("weight_map", {}).values()))
    if not names or any(name != Path(name).name or not (folder / name).is_file() for name in names):
        raise ValueError(f"{folder} is incomplete; files that {WEIGHTS_INDEX} names are missing")
    return names


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} is not a model; it has no {path.name}") from None
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"{path} does not contain a JSON object")
    return content


def _digest(paths: list[Path]) -> str:
    """Return the SHA-256 of names and contents of files; of a single file, of its content."""
    if len(paths) == 1:
        return _sha256(paths[0])
    return hashlib.sha256(json.dumps([(path.name, _sha256(path)) for path in paths]).encode()).hexdigest()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _numbers(size: Any) -> list[int]:
    """Return the sides that an image processor scales to."""
    values = size.values() if hasattr(size, "values") else vars(size).values()
    return [int(value) for value in values if isinstance(value, int)]
