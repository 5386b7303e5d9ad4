"""What cameras write into pictures becomes fields of items, and broken EXIF becomes nothing."""

from __future__ import annotations

import io
import tarfile
import warnings
import zipfile

import numpy as np
import pytest

from modalhash import Engine
from modalhash.core.archives import ArchiveMember
from modalhash.engine.items.photos import exif_fields

Image = pytest.importorskip("PIL.Image")

WHOLE = {
    "taken": "2019-06-14T12:30:00",
    "camera": "Canon EOS 70D",
    "lens": "EF 50mm f/1.8",
    "latitude": 47.366667,
    "longitude": -8.55,
}


def exif(**changes):
    """EXIF as a camera writes it; ``None`` leaves a value out."""
    values = {
        "make": "Canon", "model": "Canon EOS 70D", "changed": "2020:01:01 00:00:00", "original": "2019:06:14 12:30:00",
        "digitized": None, "lens": "EF 50mm f/1.8", "north": "N", "latitude": (47.0, 22.0, 0.0), "east": "W",
        "longitude": (8.0, 33.0, 0.0), **changes,
    }  # fmt: skip
    made = Image.Exif()
    tags = {"make": 0x010F, "model": 0x0110, "changed": 0x0132}
    details = {"original": 0x9003, "digitized": 0x9004, "lens": 0xA434}
    gps = {"north": 1, "latitude": 2, "east": 3, "longitude": 4}
    made.update({tag: values[name] for name, tag in tags.items() if values[name] is not None})
    for part, names in ((0x8769, details), (0x8825, gps)):
        made.get_ifd(part).update({tag: values[name] for name, tag in names.items() if values[name] is not None})
    return made


def picture(format="JPEG", size=(20, 10), **changes):
    out = io.BytesIO()
    Image.new("RGB", size, (200, 30, 30)).save(out, format, exif=exif(**changes).tobytes())
    return out.getvalue()


@pytest.mark.parametrize("format", ["JPEG", "PNG", "TIFF", "WEBP", "HEIF"])
def test_formats(format, tmp_path):
    if format == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    data = picture(format)
    (tmp_path / "a.any").write_bytes(data)
    assert exif_fields(data) == WHOLE
    assert exif_fields(tmp_path / "a.any") == WHOLE


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"original": None, "digitized": "2018:01:02 03:04:05"}, {"taken": "2018-01-02T03:04:05"}),
        ({"original": "2019:02:30 00:00:00"}, {"taken": "2020-01-01T00:00:00"}),
        ({"original": "0000:00:00 00:00:00", "changed": "    :  :     :  :  "}, {"taken": None}),
        ({"make": "Apple", "model": "iPhone 12"}, {"camera": "Apple iPhone 12"}),
        ({"make": "NIKON CORPORATION", "model": "NIKON D90"}, {"camera": "NIKON D90"}),
        ({"make": "SONY\0\0\0", "model": None}, {"camera": "SONY"}),
        ({"make": None, "model": " \0 "}, {"camera": None}),
        ({"lens": "a\x1bb " * 100}, {"lens": ("a b " * 25)[:100]}),
        ({"north": "S", "east": "E"}, {"latitude": -47.366667, "longitude": 8.55}),
        ({"latitude": (91.0, 0.0, 0.0)}, {"latitude": None, "longitude": None}),
        ({"latitude": (47.0, 61.0, 0.0)}, {"latitude": None, "longitude": None}),
        ({"north": None}, {"latitude": None, "longitude": None}),
        ({"longitude": None}, {"latitude": None, "longitude": None}),
        ({"latitude": (0.0, 0.0, 0.0), "longitude": (0.0, 0.0, 0.0)}, {"latitude": None, "longitude": None}),
    ],
)
def test_fields_that_are_whole(changes, expected):
    fields = {**WHOLE, **expected}
    assert exif_fields(picture(**changes)) == {name: value for name, value in fields.items() if value is not None}


def test_a_rational_without_a_denominator():
    data = picture()
    whole = np.array([47, 1, 22, 1, 0, 1], dtype=">u4" if b"MM\0*" in data else "<u4").tobytes()
    at = data.index(whole)
    fields = exif_fields(data[: at + 4] + b"\0" * 4 + data[at + 8 :])
    assert "latitude" not in fields
    assert fields["camera"] == "Canon EOS 70D"


def test_broken_exif_is_none_without_a_word(recwarn):
    data = picture()
    start, rng = data.index(b"Exif"), np.random.default_rng(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(200):
            broken = bytearray(data)
            for at in rng.integers(start + 6, start + 200, 8):
                broken[at] = rng.integers(256)
            assert exif_fields(bytes(broken)).keys() <= WHOLE.keys()
        assert exif_fields(data[: start + 40]) == {}
        assert exif_fields(b"") == exif_fields("nosuch.jpg") == exif_fields(None) == {}


def test_pixels_are_not_decoded(monkeypatch):
    data = [picture("JPEG"), picture("PNG", size=(3, 3))]
    plain = io.BytesIO()
    Image.new("RGB", (4, 4)).save(plain, "PNG")
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", lambda picture: pytest.fail("it was decoded"))
    assert [exif_fields(one) for one in (*data, plain.getvalue())] == [WHOLE, WHOLE, {}]


def test_members_of_archives(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.jpg", picture())
    for name, mode in (("a.tar", "w"), ("a.tar.gz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as archive:
            info = tarfile.TarInfo("1.jpg")
            info.size = len(picture())
            archive.addfile(info, io.BytesIO(picture()))
    found = {name: exif_fields(ArchiveMember(tmp_path / name, "1.jpg")) for name in ("a.zip", "a.tar", "a.tar.gz")}
    assert found == {"a.zip": WHOLE, "a.tar": WHOLE, "a.tar.gz": {}}


@pytest.fixture
def photos(tmp_path):
    for row in range(24):
        path = tmp_path / "photos" / ("red", "blue")[row % 2] / f"{row}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        colour = ((220, 30, 30), (30, 30, 220))[row % 2]
        taken = f"2019:{5 + row % 3:02}:{1 + row:02} 12:30:00"
        place = {"latitude": (float(40 + row), 0.0, 0.0)}
        Image.new("RGB", (16, 16), tuple(max(0, part - row) for part in colour)).save(
            path, exif=exif(original=taken, **place)
        )
    return tmp_path


@pytest.mark.slow
def test_fields_of_an_engine_and_filters(photos):
    (photos / "labels.csv").write_text("file,camera\n0.jpg,my own\n", encoding="utf-8")
    with Engine.train([photos / "photos", photos / "labels.csv"], photos / "engine", n_bits=8) as engine:

        def found(where):
            return {hit.id for hit in engine.search(id="photos/red/2.jpg", modality="image", k=50, where=where)}

        assert engine.get("photos/blue/1.jpg").extra == {**WHOLE, "taken": "2019-06-02T12:30:00", "latitude": 41.0}
        assert engine.get("photos/red/0.jpg").extra["camera"] == "my own"
        june = {f"photos/{('red', 'blue')[row % 2]}/{row}.jpg" for row in range(1, 24, 3)}
        assert found("taken = 2019-06") == june
        assert found("taken <= 2019-06 and taken >= 2019-06") == june
        assert found("taken = 2019") == found("modality = image") != set()
        assert len(found('camera = "Canon EOS 70D" and latitude >= 47 and latitude <= 48 and longitude < 0')) == 2
        (photos / "photos").rename(photos / "more")
        engine.add(photos / "more", exif=False)
        assert engine.get("more/blue/1.jpg").extra == {}
        engine.retrain(drop_missing=True)
    with Engine.open(photos / "engine") as engine:
        assert engine.get("more/blue/1.jpg").extra == {}, "what is stored of an item stays"
