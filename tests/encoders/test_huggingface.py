"""CLIP, SigLIP and DINOv2 from Hugging Face: tiny random models on disk, and no network."""

from __future__ import annotations

import copy
import json
import pickle
import re
import shutil
import socket
import sys
from functools import partial
from io import BytesIO

import numpy as np
import pytest
from pictures import as_bytes, scene

from modalhash import Engine
from modalhash.core.imports import MissingExtraError, install_line
from modalhash.encoders import (
    EncoderFileError,
    ItemError,
    State,
    encoder_for,
    get_encoder,
    load_encoder,
    names_module,
    save_encoder,
)

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tiny_models import LENGTH, write_clip, write_dinov2, write_siglip  # noqa: E402

pytestmark = pytest.mark.slow

WRITERS = {
    "clip": write_clip,
    "siglip": write_siglip,
    "dinov2": write_dinov2,
    "dinov2_with_registers": partial(write_dinov2, registers="WithRegisters"),
}
TEXTS = ["a red boat", "two", "the white ship in the harbour a red boat a red boat a red boat"]
PICTURES = [as_bytes(scene(60, 90)), as_bytes(scene(90, 40)), as_bytes(255 - scene(64, 64))]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch):
    def refuse(*_):
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: write(folder / name) for name, write in WRITERS.items()}


@pytest.fixture
def clip(models, tmp_path):
    return shutil.copytree(models["clip"], tmp_path / "clip")


def unit(vectors) -> np.ndarray:
    return torch.nn.functional.normalize(vectors).numpy()


def by_hand(kind: str, folder, **inputs) -> np.ndarray:
    """What the whole model says, asked as its documentation does."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    with torch.inference_mode():
        if kind.startswith("dinov2"):
            return unit(model(**inputs).last_hidden_state[:, 0])
        ask = model.get_text_features if "input_ids" in inputs else model.get_image_features
        return unit(ask(**inputs).pooler_output)


@pytest.mark.parametrize("kind", WRITERS)
def test_vectors_of_pictures_are_those_of_the_model(models, kind):
    from PIL import Image

    encoder = get_encoder(f"hf-image:{models[kind]}")
    rows = encoder.encode(PICTURES)
    assert (rows.shape, rows.dtype) == ((3, {"clip": 24}.get(kind, 32)), np.float32)
    processor = transformers.AutoImageProcessor.from_pretrained(models[kind], backend="pil")
    inputs = processor(images=[Image.open(BytesIO(data)) for data in PICTURES], return_tensors="pt")
    np.testing.assert_allclose(rows, by_hand(kind, models[kind], **inputs), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(encoder.encode(PICTURES[1:2]), rows[1:2], atol=1e-5)
    assert encoder.encode([]).shape == (0, encoder.dim)


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_vectors_of_texts_are_those_of_the_model(models, kind):
    encoder = get_encoder(f"hf-text:{models[kind]}")
    rows = encoder.encode(TEXTS)
    assert (rows.shape, rows.dtype) == ((3, {"clip": 24}.get(kind, 32)), np.float32)
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(models[kind])
    padding = {"clip": "longest", "siglip": "max_length"}[kind]
    inputs = tokenizer(TEXTS, padding=padding, truncation=True, max_length=LENGTH, return_tensors="pt")
    if kind == "siglip":
        inputs = {"input_ids": inputs["input_ids"]}
        assert inputs["input_ids"].shape == (3, LENGTH)
        assert inputs["input_ids"][1].tolist() == [7] + [1] * (LENGTH - 1)
    np.testing.assert_allclose(rows, by_hand(kind, models[kind], **inputs), atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[1:2]), rows[1:2], atol=1e-5)
    assert len({row.tobytes() for row in rows}) == 3
    with pytest.raises(ItemError, match="empty"):
        encoder.encode([""])


def test_a_tokenizer_in_the_files_of_clip_is_read_too(clip):
    rows = get_encoder(f"hf-text:{clip}").encode(TEXTS)
    content = json.loads((clip / "tokenizer.json").read_text())["model"]
    (clip / "tokenizer.json").unlink()
    (clip / "vocab.json").write_text(json.dumps(content["vocab"]))
    (clip / "merges.txt").write_text("#version: 0.2\n")
    np.testing.assert_allclose(get_encoder(f"hf-text:{clip}").encode(TEXTS), rows, atol=1e-6)


def test_the_towers_of_one_model_share_a_space(models, tmp_path):
    spaces = {
        (kind, reads): get_encoder(f"hf-{reads}:{models[kind]}").space
        for kind, reads in [
            ("clip", "image"),
            ("clip", "text"),
            ("siglip", "image"),
            ("siglip", "text"),
            ("dinov2", "image"),
        ]
    }
    assert spaces["clip", "image"] == spaces["clip", "text"] is not None
    assert spaces["siglip", "image"] == spaces["siglip", "text"] is not None
    assert spaces["clip", "text"] != spaces["siglip", "text"]
    assert spaces["dinov2", "image"] is None
    assert get_encoder("hashing").space is None
    assert get_encoder(f"hf-text:{write_clip(tmp_path / 'other', seed=1)}").space != spaces["clip", "text"]


def test_dino_reads_no_texts(models):
    with pytest.raises(ValueError, match=r"type 'dinov2', which reads pictures only.*Take CLIP or SigLIP"):
        get_encoder(f"hf-text:{models['dinov2']}")


def test_no_torchvision_is_needed(models):
    assert type(get_encoder(f"hf-image:{models['clip']}")._processor).__name__ == "CLIPImageProcessorPil"


def test_pictures_are_not_trusted(models):
    encoder = get_encoder(f"hf-image:{models['clip']}", max_pixels=60 * 90)
    with pytest.raises(ItemError, match="pixels"):
        encoder.encode([as_bytes(scene(100, 90))])
    with pytest.raises(ItemError, match="202 × 2 pixels; expected at most 100 times as long as wide"):
        encoder.encode([as_bytes(scene(2, 202))])
    with pytest.raises(ItemError, match="not a picture"):
        encoder.encode([b"nothing"])


# -- by name


def test_names(models):
    clip = models["clip"]
    assert encoder_for("image", f"hf:{clip}").reads == "image"
    assert encoder_for("text", f"hf:{clip}").reads == "text"
    assert encoder_for("sketch", f"hf-image:{clip}").reads == "image"
    with pytest.raises(ValueError, match=r"say sketch=hf-image:.*clip or sketch=hf-text:"):
        encoder_for("sketch", f"hf:{clip}")
    with pytest.raises(ValueError, match=r"say 'hf-image:clip' or 'hf-text:clip'"):
        get_encoder("hf:clip")
    with pytest.raises(TypeError, match="'model'"):
        get_encoder("hf-image")
    assert not any(map(names_module, ("hf:a/b", "hf-image:a", "hf-text:a", "tfidf")))
    assert names_module("hf_mine:Encoder")


def test_a_missing_extra_is_named(models, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=re.escape(install_line("hf"))):
        get_encoder(f"hf-image:{models['clip']}")


# -- kept and restored


@pytest.mark.parametrize("reads", ["image", "text"])
def test_saved_and_restored(clip, tmp_path, reads):
    encoder = get_encoder(f"hf-{reads}:{clip}")
    save_encoder(encoder, tmp_path / "saved")
    again = load_encoder(tmp_path / "saved")
    batch = PICTURES if reads == "image" else TEXTS
    np.testing.assert_array_equal(again.encode(batch), encoder.encode(batch))
    assert again.digest == encoder.digest
    assert again.state.config["model"] == str(clip.resolve())
    assert len(again.state.config["weights"]) == 64


def test_a_model_that_was_moved_is_found(clip, tmp_path, monkeypatch):
    encoder = get_encoder(f"hf-text:{clip}")
    (tmp_path / "elsewhere").mkdir()
    clip.rename(tmp_path / "elsewhere" / "clip")
    with pytest.raises(ValueError, match="set MODALHASH_MODELS to the folder that holds clip"):
        type(encoder).restore(encoder.state)
    monkeypatch.setenv("MODALHASH_MODELS", str(tmp_path / "elsewhere"))
    assert type(encoder).restore(encoder.state).digest == encoder.digest


@pytest.mark.parametrize(("name", "what"), [("model.safetensors", "weights"), ("config.json", "settings")])
def test_other_files_are_refused(clip, tmp_path, name, what):
    encoder = get_encoder(f"hf-image:{clip}")
    save_encoder(encoder, tmp_path / "saved")
    if name == "model.safetensors":
        shutil.copy(write_clip(tmp_path / "other", seed=1) / name, clip / name)
    else:
        (clip / name).write_text((clip / name).read_text() + "\n")
    with pytest.raises(EncoderFileError, match=f"the {what}.* are not those the encoder was saved with"):
        load_encoder(tmp_path / "saved")


def test_copies_do_not_double_the_network(models):
    encoder = get_encoder(f"hf-text:{models['clip']}")
    assert copy.deepcopy(encoder) is encoder
    other = pickle.loads(pickle.dumps(encoder))
    assert other.digest == encoder.digest
    assert len(pickle.dumps(encoder)) < 2000


# -- models are not trusted


def test_only_safetensors_are_read(clip):
    weights = clip / "model.safetensors"
    torch.save(transformers.AutoModel.from_pretrained(clip).state_dict(), clip / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ValueError, match=r"no model\.safetensors; pytorch_model\.bin is not read"):
        get_encoder(f"hf-image:{clip}")


def test_weights_in_several_files(clip):
    encoder = get_encoder(f"hf-image:{clip}")
    model = transformers.AutoModel.from_pretrained(clip)
    (clip / "model.safetensors").unlink()
    model.save_pretrained(clip, max_shard_size="50KB")
    split = get_encoder(f"hf-image:{clip}")
    np.testing.assert_array_equal(split.encode(PICTURES), encoder.encode(PICTURES))
    assert split.state.config["weights"] != encoder.state.config["weights"]
    next(clip.glob("model-00002*.safetensors")).unlink()
    with pytest.raises(ValueError, match="incomplete"):
        get_encoder(f"hf-image:{clip}")


def test_code_beside_a_model_is_not_run(clip):
    config = json.loads((clip / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "harm.Harm", "AutoConfig": "harm.Harm"}
    (clip / "config.json").write_text(json.dumps(config))
    (clip / "harm.py").write_text("raise SystemExit('this code was run')")
    assert get_encoder(f"hf-image:{clip}").encode(PICTURES).shape == (3, 24)
    (clip / "config.json").write_text(json.dumps({**config, "model_type": "harm"}))
    with pytest.raises(ValueError, match="type 'harm'; expected one of clip, siglip, dinov2"):
        get_encoder(f"hf-image:{clip}")


def test_weights_that_lack_a_tensor_are_refused(clip):
    from safetensors.numpy import load_file, save_file

    weights = load_file(clip / "model.safetensors")
    del weights["visual_projection.weight"]
    save_file(weights, clip / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"1 tensors are missing in the weights, e\.g\. visual_projection\.weight"):
        get_encoder(f"hf-image:{clip}")


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("config.json", None, r"is not a model; it has no config\.json"),
        ("config.json", "{", "is not JSON"),
        ("config.json", "[]", "does not contain a JSON object"),
        ("model.safetensors", "nonsense", "cannot be read as a model of type 'clip'"),
        ("preprocessor_config.json", None, "cannot be read as a model of type 'clip'"),
        ("adapter_config.json", "{}", "merge it into the model first"),
    ],
)
def test_a_folder_that_is_no_model(clip, name, content, reason):
    if content is None:
        (clip / name).unlink()
    else:
        (clip / name).write_text(content)
    with pytest.raises(ValueError, match=reason):
        get_encoder(f"hf-image:{clip}")


# -- by ID


@pytest.fixture
def cache(clip, tmp_path, monkeypatch):
    """The cache of Hugging Face with one model, which is on disk and nowhere else."""
    repository = tmp_path / "hub" / "models--someone--clip"
    shutil.copytree(clip, repository / "snapshots" / ("a" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return repository


def test_an_id_that_is_on_disk(cache, clip):
    encoder = get_encoder("hf-text:someone/clip")
    assert encoder.state.config["model"] == "someone/clip"
    assert encoder.state.config["revision"] == "a" * 40
    assert encoder.digest == get_encoder(f"hf-text:{clip}").digest
    assert get_encoder(f"hf-text:someone/clip@{'a' * 40}").digest == encoder.digest
    (cache / "refs" / "main").write_text("b" * 40)  # a newer revision: the encoder still wants its own
    assert type(encoder).restore(encoder.state).digest == encoder.digest


def test_an_id_that_is_not_on_disk_is_not_downloaded(cache):
    with pytest.raises(
        ValueError,
        match=r"someone/other is not on this disk.*Nothing is downloaded.*--download.*hf download someone/other",
    ):
        get_encoder("hf-text:someone/other")
    with pytest.raises(ValueError, match=rf"\(revision {'c' * 40}\) is not on this disk"):
        get_encoder(f"hf-text:someone/clip@{'c' * 40}")
    state = get_encoder("hf-text:someone/clip").state
    shutil.rmtree(cache)
    with pytest.raises(ValueError, match=f"hf download someone/clip --revision {'a' * 40}"):
        get_encoder("hf-text:someone/clip", revision=state.config["revision"])


def test_a_download_takes_no_pickles(cache, monkeypatch):
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(cache / "snapshots" / ("a" * 40))

    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    encoder = get_encoder("hf-image:someone/new@v2", download=True)
    assert encoder.state.config["revision"] == "a" * 40
    assert (asked["name"], asked["revision"]) == ("someone/new", "v2")
    assert not any(pattern.endswith((".bin", ".pt", "*")) for pattern in asked["allow_patterns"])


def test_a_saved_encoder_cannot_consent_to_a_download(cache, monkeypatch):
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: pytest.fail("a download was tried"))
    encoder = get_encoder("hf-text:someone/clip")
    state = State({**encoder.state.config, "model": "someone/other", "download": True})
    with pytest.raises(ValueError, match="not on this disk"):
        type(encoder).restore(state)


def test_a_download_that_fails_says_why(cache, monkeypatch):
    monkeypatch.setattr(
        "huggingface_hub.snapshot_download", lambda *_, **__: (_ for _ in ()).throw(OSError("no route"))
    )
    with pytest.raises(ValueError, match="someone/new could not be downloaded: no route"):
        get_encoder("hf-image:someone/new", download=True)


# -- in an engine


def test_an_engine_with_clip(clip, tmp_path):
    names = ["boat", "house"]
    items = [{"text": f"a {name} {i}", "labels": [name]} for name in names for i in range(20)]
    for i in range(40):
        path = tmp_path / f"{i}.png"
        path.write_bytes(as_bytes(np.roll(scene() if i % 2 else 255 - scene(), i, axis=1)))
        items.append({"path": str(path), "labels": [names[i % 2]]})
    encoders = {"image": f"hf:{clip}", "text": f"hf:{clip}"}
    with Engine.train(items, tmp_path / "engine", n_bits=8, encoders=encoders) as engine:
        assert engine.encoders["image"].space == engine.encoders["text"].space is not None
    with Engine.open(tmp_path / "engine") as engine:  # without trust
        assert engine.info()["modalities"]["image"]["encoder"]["name"] == "hf-image"
        assert engine.search(text="a boat 3", want="image", k=3)
    weights = clip / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"\0\0\0\1")
    with pytest.raises(ValueError, match=r"the weights of .* are not those"):
        Engine.open(tmp_path / "engine")
