"""RAW files of cameras: their preview is read, or else their sensor's values; without rawpy it is said what is missing."""

from __future__ import annotations

import io
import sys
import zipfile

import numpy as np
import pytest

from modalhash import Engine
from modalhash.core.archives import ArchiveMember
from modalhash.core.pictures import RAW_SUFFIXES, PictureError, is_raw, open_picture
from modalhash.encoders import ItemError, encode_items, read_whole_picture
from modalhash.encoders.picture_files import PictureReader
from modalhash.engine.items.photos import exif_fields
from raw_files import dng

Image = pytest.importorskip("PIL.Image")
RED = (220, 30, 30)


@pytest.fixture
def rawpy():
    return pytest.importorskip("rawpy")


@pytest.fixture
def no_rawpy(monkeypatch):
    monkeypatch.setitem(sys.modules, "rawpy", None)


def seen(content):
    """Return the sides of a picture and its mean colour."""
    picture = read_whole_picture(content, at_least=64)
    return picture.size, np.asarray(picture).mean(axis=(0, 1)).round().astype(int).tolist()


@pytest.mark.usefixtures("rawpy")
@pytest.mark.parametrize("suffix", [".dng", ".NEF", ".arw"])
def test_the_preview_is_read(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(dng(RED))
    size, colour = seen(path)
    assert size == (64, 48)
    assert np.abs(np.subtract(colour, RED)).max() <= 3


@pytest.mark.usefixtures("rawpy")
def test_without_a_preview_the_sensor_is_read(tmp_path):
    (tmp_path / "a.dng").write_bytes(dng(RED, preview=False))
    size, colour = seen(tmp_path / "a.dng")
    assert size == (32, 24)
    assert colour[0] > 150
    assert max(colour[1:]) < 60


@pytest.mark.usefixtures("rawpy")
@pytest.mark.parametrize("preview", [True, False])
@pytest.mark.parametrize(("orientation", "upright"), [(1, False), (3, False), (6, True), (8, True)])
def test_it_is_turned_as_the_camera_noted(tmp_path, preview, orientation, upright):
    (tmp_path / "a.dng").write_bytes(dng(orientation=orientation, preview=preview))
    (width, height), _ = seen(tmp_path / "a.dng")
    assert (height > width) is upright


@pytest.mark.usefixtures("rawpy")
def test_bytes_and_members_of_archives_have_no_name(tmp_path):
    assert seen(dng(RED))[0] == (64, 48)
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.dng", dng(RED, preview=False))
    encoded = encode_items(PictureReader(), [ArchiveMember(tmp_path / "a.zip", "1.dng")], workers=1)
    assert encoded.failures == []


@pytest.mark.usefixtures("rawpy")
def test_a_tiff_stays_a_tiff():
    out = io.BytesIO()
    Image.new("RGB", (30, 20), RED).save(out, "TIFF", exif=exif_of_a_camera())
    assert seen(out.getvalue()) == ((30, 20), list(RED))


def exif_of_a_camera():
    made = Image.Exif()
    made.update({0x010F: "Canon", 0x0110: "Canon EOS 70D"})
    return made.tobytes()


@pytest.mark.usefixtures("rawpy")
def test_broken_files_are_said_to_be_broken(tmp_path):
    for number, data in enumerate((dng()[:3000], b"II*\0" + b"\0" * 100, b"IIRO" + b"\0" * 600, b"no picture")):
        path = tmp_path / f"{number}.dng"
        path.write_bytes(data)
        with pytest.raises(ItemError, match="a broken RAW picture"):
            seen(path)


@pytest.mark.usefixtures("rawpy")
def test_a_preview_of_too_many_pixels_is_refused(tmp_path):
    (tmp_path / "a.dng").write_bytes(dng())
    with pytest.raises(ItemError, match="64 × 48 pixels, more than the limit of 1,000"):
        read_whole_picture(tmp_path / "a.dng", at_least=16, max_pixels=1000)


@pytest.mark.usefixtures("no_rawpy")
@pytest.mark.parametrize("suffix", RAW_SUFFIXES)
def test_without_rawpy_the_extra_is_named(tmp_path, suffix):
    (tmp_path / f"a{suffix}").write_bytes(dng())
    with pytest.raises(ItemError, match="reading it needs the extra 'raw': `pip install rawpy`"):
        seen(tmp_path / f"a{suffix}")


@pytest.mark.parametrize(
    "head",
    [
        b"II*\0\x10\0\0\0CR\x02\0",
        b"\0\0\0\x18ftypcrx \0\0\0\1",
        b"FUJIFILMCCD-RAW 0201",
        b"IIU\0\x18\0\0\0",
        b"IIRO\x08\0\0\0",
        b"IIRS\x08\0\0\0",
        b"MMOR\0\0\0\x08",
    ],
)
def test_beginnings(head):
    assert is_raw(head)
    assert not is_raw(b"II*\0\x08\0\0\0" + b"\0" * 20, "a.tif")


# -- kinds of previews that a DNG of the tests does not have


class StubError(Exception):
    """The error of a stub of LibRaw."""


def stub(monkeypatch, kind, data, flip=0):
    """Let a stub module find a preview of some kind."""
    from enum import Enum
    from types import ModuleType, SimpleNamespace

    class ThumbFormat(Enum):
        JPEG = 1
        BITMAP = 2
        OTHER = 3

    class Raw:
        sizes = SimpleNamespace(flip=flip, width=80, height=60)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            return None

        def extract_thumb(self):
            return SimpleNamespace(format=ThumbFormat[kind], data=data)

        def postprocess(self, **options):
            assert options["half_size"]
            return np.zeros((30, 40, 3), dtype=np.uint8)

    module = ModuleType("rawpy")
    module.ThumbFormat, module.imread = ThumbFormat, lambda file: Raw()
    module.LibRawError = module.LibRawNoThumbnailError = module.LibRawUnsupportedThumbnailError = StubError
    monkeypatch.setitem(sys.modules, "rawpy", module)


def test_a_preview_of_pixels(monkeypatch):
    stub(monkeypatch, "BITMAP", np.full((12, 16, 3), 7, dtype=np.uint8), flip=5)
    assert seen(b"IIRO" + b"\0" * 20) == ((12, 16), [7, 7, 7])


def test_a_preview_of_another_kind_is_none(monkeypatch):
    stub(monkeypatch, "OTHER", b"?")
    assert seen(b"IIRO" + b"\0" * 20)[0] == (40, 30)


def test_the_preview_knows_best_how_it_is_turned(monkeypatch):
    out = io.BytesIO()
    made = Image.Exif()
    made[0x0112] = 1
    Image.new("RGB", (16, 12)).save(out, "JPEG", exif=made.tobytes())
    stub(monkeypatch, "JPEG", out.getvalue(), flip=6)
    assert open_picture(io.BytesIO(b"IIRO" + b"\0" * 20)).getexif()[0x0112] == 1
    assert seen(b"IIRO" + b"\0" * 20)[0] == (16, 12)


def test_exif_of_a_preview(monkeypatch):
    out = io.BytesIO()
    Image.new("RGB", (16, 12)).save(out, "JPEG", exif=exif_of_a_camera())
    stub(monkeypatch, "JPEG", out.getvalue())
    assert exif_fields(b"FUJIFILMCCD-RAW" + b"\0" * 200) == {"camera": "Canon EOS 70D"}


def test_a_broken_preview_is_an_error(monkeypatch):
    stub(monkeypatch, "JPEG", b"no JPEG")
    with pytest.raises(ItemError):
        seen(b"IIRO" + b"\0" * 20)
    monkeypatch.setitem(sys.modules, "rawpy", None)
    with pytest.raises(PictureError, match="needs the extra 'raw'"):
        open_picture(io.BytesIO(b"IIRO" + b"\0" * 20))


# -- a folder


@pytest.mark.slow
@pytest.mark.usefixtures("rawpy")
def test_a_folder_of_raw_files_and_their_exif(tmp_path):
    for row in range(12):
        path = tmp_path / "photos" / ("red", "blue")[row % 2] / f"{row}.DNG"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(dng(((200 + row, 30, 30), (30, 30, 200 + row))[row % 2]))
    with Engine.train(tmp_path / "photos", tmp_path / "engine", n_bits=4) as engine:
        assert len(engine) == 12
        assert engine.get("photos/red/0.DNG").extra == {"taken": "2019-06-14T12:30:00", "camera": "Maker One"}
