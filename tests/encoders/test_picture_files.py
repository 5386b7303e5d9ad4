"""Any picture becomes the same small RGB square, and no file can do harm."""

from __future__ import annotations

import io
import struct
import zlib
from contextlib import suppress

import numpy as np
import pytest
from pictures import as_bytes, scene
from PIL import Image, ImageChops, features

from modalhash.core.pictures import register_heif
from modalhash.encoders import ItemError
from modalhash.encoders.picture_files import read_picture

SCENE = Image.fromarray(scene())
BACK = {3: Image.Transpose.ROTATE_180, 6: Image.Transpose.ROTATE_90, 8: Image.Transpose.ROTATE_270}
"""How a camera that is turned stores the scene, by the orientation that it writes."""
PLAIN = read_picture(as_bytes(SCENE), size=64).astype(int)


def difference(content: bytes, expected=PLAIN) -> float:
    return float(np.abs(read_picture(content, size=64).astype(int) - expected).mean())


@pytest.mark.parametrize(
    ("content", "most"),
    [
        (as_bytes(SCENE, "JPEG", quality=95), 2),
        (as_bytes(SCENE, "WEBP", lossless=True), 0),
        (as_bytes(SCENE, "BMP"), 0),
        (as_bytes(SCENE, "TIFF"), 0),
        (as_bytes(SCENE, "GIF"), 4),
        (as_bytes(SCENE.convert("P", palette=Image.Palette.ADAPTIVE), "PNG"), 4),
        (as_bytes(SCENE.convert("RGBA")), 0),
        (as_bytes(SCENE.convert("CMYK"), "JPEG", quality=95), 3),
        (as_bytes(SCENE.convert("CMYK"), "TIFF"), 1),
        (as_bytes(SCENE.convert("YCbCr"), "TIFF"), 3),
    ],
    ids=["jpeg", "webp", "bmp", "tiff", "gif", "palette", "rgba", "cmyk jpeg", "cmyk tiff", "ycbcr"],
)
def test_same_scene_from_any_colour_format(content, most):
    assert difference(content) <= most


def test_lab():
    from PIL import ImageCms

    lab = ImageCms.profileToProfile(
        SCENE, ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"), outputMode="LAB"
    )
    assert difference(as_bytes(lab, "TIFF")) < 4


def test_grey_formats_agree():
    grey = SCENE.convert("L")
    values = np.asarray(grey)
    expected = read_picture(as_bytes(grey), size=64).astype(int)
    sixteen = Image.fromarray(values.astype(np.uint16) * 257)
    assert sixteen.mode == "I;16"
    assert difference(as_bytes(sixteen, "PNG"), expected) == 0
    assert difference(as_bytes(sixteen, "TIFF"), expected) == 0
    assert difference(as_bytes(Image.merge("LA", [grey, Image.new("L", grey.size, 255)])), expected) == 0


@pytest.mark.parametrize("dtype", [np.int32, np.float32])
def test_unbounded_numbers_are_stretched(dtype):
    ramp = (np.arange(64 * 64).reshape(64, 64) * 1000).astype(dtype)
    pixels = read_picture(as_bytes(Image.fromarray(ramp), "TIFF"), size=64)
    assert pixels.min() == 0
    assert pixels.max() == 255


def test_pixels_that_are_no_numbers():
    values = np.full((8, 8), np.nan, dtype=np.float32)
    with pytest.raises(ItemError, match="not finite"):
        read_picture(as_bytes(Image.fromarray(values), "TIFF"), size=64)


def test_one_bit():
    checks = Image.fromarray(np.kron(np.eye(2), np.ones((32, 32))).astype(bool))
    pixels = read_picture(as_bytes(checks), size=64)
    assert (pixels[:30, :30] == 255).all()
    assert (pixels[:30, 34:] == 0).all()


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "GIF"])
def test_transparent_is_white(kind):
    clear = Image.new("RGBA", (32, 32), (0, 0, 0, 0))
    assert (read_picture(as_bytes(clear, kind), size=16) == 255).all()


@pytest.mark.parametrize("kind", ["GIF", "WEBP", "PNG"])
def test_first_frame_of_an_animation(kind):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ("red", "blue", "green")]
    content = as_bytes(frames[0], kind, save_all=True, append_images=frames[1:])
    pixels = read_picture(content, size=16)
    assert pixels[..., 0].min() > 240
    assert pixels[..., 1:].max() < 15


@pytest.mark.parametrize("orientation", range(1, 9))
def test_rotation_by_the_camera_is_undone(orientation):
    from PIL import ImageOps

    exif = Image.Exif()
    exif[0x0112] = orientation
    content = as_bytes(SCENE, "PNG", exif=exif.tobytes())
    with Image.open(io.BytesIO(content)) as picture:
        upright = ImageOps.exif_transpose(picture)
    assert difference(content, read_picture(as_bytes(upright), size=64).astype(int)) < 1


def test_broken_exif_does_not_matter():
    assert difference(as_bytes(SCENE, "PNG", exif=b"Exif\x00\x00II*\x00\xff\xff\xff\xff nonsense")) == 0


def test_large_jpeg_is_decoded_small():
    large = SCENE.resize((2560, 1920))
    assert difference(as_bytes(large, "JPEG", quality=95)) < 3


def png_of(width: int, height: int) -> bytes:
    """A header that declares this many pixels, with almost no data."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"\0" * 64)) + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize("side", [9_000, 20_000])
def test_too_many_pixels_are_refused_by_the_header(side):
    with pytest.raises(ItemError, match=r"too many pixels|more than the limit"):
        read_picture(png_of(side, side), size=64)


def test_limit_can_be_set():
    with pytest.raises(ItemError, match=r"128 × 96 pixels, more than the limit of 1,000; .*max_pixels"):
        read_picture(as_bytes(SCENE), size=64, max_pixels=1000)


@pytest.mark.parametrize("size", [(1, 1), (1, 500), (500, 1), (3, 2)])
def test_tiny_pictures_are_fine(size):
    assert read_picture(as_bytes(Image.new("RGB", size, "navy")), size=128).shape == (128, 128, 3)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "GIF", "WEBP", "TIFF"])
@pytest.mark.parametrize("share", [0.02, 0.3, 0.7])
def test_truncated(kind, share):
    noise = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    content = as_bytes(noise, kind)
    with pytest.raises(ItemError, match=r"broken|truncated|not a picture"):
        read_picture(content[: int(len(content) * share)], size=64)


def test_what_is_no_picture(tmp_path):
    (tmp_path / "notes.jpg").write_text("no picture at all")
    with pytest.raises(ItemError, match=r"notes\.jpg: not a picture"):
        read_picture(tmp_path / "notes.jpg", size=64)
    with pytest.raises(ItemError, match=r"gone\.png: no such file") as caught:
        read_picture(tmp_path / "gone.png", size=64)
    assert caught.value.reason == "no such file"
    with pytest.raises(ItemError, match="a folder"):
        read_picture(tmp_path, size=64)
    with pytest.raises(ItemError, match="0 bytes"):
        read_picture(b"", size=64)
    with pytest.raises(ItemError, match="got int; expected the path or the bytes"):
        read_picture(7, size=64)


def test_programs_are_not_run(tmp_path):
    SCENE.save(tmp_path / "a.eps")
    with pytest.raises(ItemError, match="EPS pictures are programs"):
        read_picture(tmp_path / "a.eps", size=64)


def test_random_bytes_only_ever_raise_item_errors(rng):
    whole = as_bytes(SCENE, "JPEG")
    for _ in range(60):
        content = bytearray(whole)
        for place in rng.integers(0, len(content), 8):
            content[place] = rng.integers(0, 256)
        with suppress(ItemError):
            assert read_picture(bytes(content), size=32).shape == (32, 32, 3)


@pytest.mark.parametrize("kind", ["TIFF", "JPEG", "WEBP", "AVIF", "HEIF"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_rotation_is_undone_once_in_every_format(kind, orientation):
    """Pillow turns TIFFs itself when it decodes them, and libheif HEICs."""
    if kind in ("WEBP", "AVIF") and not features.check(kind.lower()):
        pytest.skip(f"this Pillow cannot write {kind}")
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    exif = Image.Exif()
    exif[0x0112] = orientation
    turned = SCENE.transpose(BACK[orientation]) if orientation in BACK else SCENE
    assert difference(as_bytes(turned, kind, exif=exif.tobytes())) < 6


def test_heic_needs_a_package(monkeypatch):
    pytest.importorskip("pillow_heif").register_heif_opener()
    content = as_bytes(SCENE, "HEIF")
    monkeypatch.setattr("modalhash.core.pictures.HEIF_PACKAGES", ())
    register_heif.cache_clear()
    try:
        with pytest.raises(ItemError, match=r"a HEIC picture; reading it needs `pip install pi-heif`"):
            read_picture(content, size=64)
    finally:
        register_heif.cache_clear()


def test_cmyk_of_photoshop():
    """Adobe's YCCK: YCbCr of the inverted colours, and black."""
    channels = [
        channel.point(lambda value: 255 - value) for channel in ImageChops.invert(SCENE).convert("YCbCr").split()
    ]
    stored = Image.merge("CMYK", [*channels, Image.new("L", SCENE.size, 0)])
    content = as_bytes(stored, "JPEG", quality=98)
    place = content.index(b"Adobe") + 11
    assert difference(content[:place] + b"\2" + content[place + 1 :]) < 4


def test_sixteen_bits_in_any_order_of_bytes():
    values = np.asarray(SCENE.convert("L")).astype(np.uint16) * 257
    expected = read_picture(as_bytes(SCENE.convert("L")), size=64).astype(int)
    swapped = Image.frombytes("I;16B", SCENE.size, values.astype(">u2").tobytes())
    assert difference(as_bytes(swapped, "TIFF"), expected) == 0


def test_transparent_palette_and_grey_are_white():
    palette = Image.new("P", (32, 32), 0)
    palette.putpalette([0, 0, 0, 255, 0, 0])
    assert (read_picture(as_bytes(palette, transparency=0), size=16) == 255).all()
    assert (read_picture(as_bytes(Image.new("LA", (32, 32), (0, 0))), size=16) == 255).all()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"<!DOCTYPE html><title>404</title>", "a web page"),
        (b'<?xml version="1.0"?>\n<!-- x --><svg xmlns="http://www.w3.org/2000/svg"/>', "an SVG drawing"),
        (b"%PDF-1.7", "a PDF"),
        (b"PK\x03\x04....", "a zip archive"),
        (b"version https://git-lfs.github.com/spec/v1", "a Git LFS pointer"),
        (b"\0\0\0\x20ftypisom\0\0\2\0isomiso2avc1mp41", "a video"),
        (b"\xff\x0a\0\0", "a JPEG XL picture"),
        (b"\0" * 4000, "only zeros"),
        (b"\0\0\0\x18ftypheic\0\0\0\0mif1heic" + b"\0" * 50, "a broken HEIC picture|a HEIC picture"),
        (b"hello", "not a picture, or of a kind that Pillow cannot read"),
    ],
)
def test_what_a_file_is_that_is_no_picture(content, said):
    with pytest.raises(ItemError, match=said):
        read_picture(content, size=64)


@pytest.mark.parametrize("size", [(1, 70_000), (70_000, 1)])
def test_thin_pictures_are_refused_by_their_header(size):
    with pytest.raises(ItemError, match="a side may have at most 65,500"):
        read_picture(as_bytes(Image.new("L", size)), size=64)


def many_scans(n: int) -> bytes:
    """A progressive JPEG with a pass over all its pixels in every 59 bytes."""
    content = as_bytes(Image.new("L", (1500, 1500), 90), "JPEG", progressive=True)
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * n + content[-2:]


def test_decoding_is_bounded_in_time(monkeypatch):
    assert read_picture(many_scans(2), size=64).shape == (64, 64, 3)
    monkeypatch.setattr("modalhash.core.pictures.MAX_SECONDS", 0.1)
    with pytest.raises(ItemError, match=r"not decoded in 0\.1 s; save it again"):
        read_picture(many_scans(1500), size=64)
