"""Thumbnails: rotated, cached, and forgotten when there are too many."""

from __future__ import annotations

import io
import sys

import pytest
from serve_tools import picture

from raw_files import dng


def test_thumbnails_are_rotated_cached_and_forgotten(tmp_path):
    from PIL import Image

    from modalhash.serve.media import Thumbnails

    rotated = Image.Exif()
    rotated[0x0112] = 6
    paths = [tmp_path / f"{n}.jpg" for n in range(5)]
    for n, path in enumerate(paths):
        path.write_bytes(picture((n * 40, 0, 0), (100, 50), "JPEG", exif=rotated))
    thumbnails = Thumbnails(max_bytes=400, max_pixels=10**6)
    first = thumbnails.get(paths[0], 64)
    assert thumbnails.get(paths[0], 64) is first
    with Image.open(io.BytesIO(first.data)) as seen:
        assert seen.size == (32, 64)
    for path in paths:
        thumbnails.get(path, 64)
    assert thumbnails._cache.currsize <= 400
    assert thumbnails.get(paths[0], 64) is not first


def test_a_thumbnail_larger_than_the_cache_is_shown_all_the_same(tmp_path):
    from modalhash.serve.media import Thumbnails

    (tmp_path / "a.png").write_bytes(picture())
    thumbnails = Thumbnails(max_bytes=10, max_pixels=10**6)
    assert len(thumbnails.get(tmp_path / "a.png", 64).data) > 10
    assert thumbnails._cache.currsize == 0


def test_a_rotated_tiff_is_turned_once(tmp_path):
    from PIL import Image

    from modalhash.serve.media import make_thumbnail

    rotated = Image.Exif()
    rotated[0x0112] = 6
    (tmp_path / "a.tif").write_bytes(picture((9, 9, 9), (100, 50), "TIFF", exif=rotated))
    with Image.open(io.BytesIO(make_thumbnail(tmp_path / "a.tif", 64, 10**6).data)) as seen:
        assert seen.size == (32, 64)


def shown(path):
    """The thumbnail of a picture, as grey values."""
    import numpy as np
    from PIL import Image

    from modalhash.serve.media import make_thumbnail

    with Image.open(io.BytesIO(make_thumbnail(path, 64, 10**6).data)) as seen:
        return np.asarray(seen.convert("L")).astype(int)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_sixteen_bits_are_neither_white_nor_black(tmp_path, kind):
    import numpy as np
    from PIL import Image

    ramp = np.repeat(np.linspace(0, 65535, 64).astype(np.uint16)[None], 64, axis=0)
    Image.fromarray(ramp).save(tmp_path / "a", kind)
    assert np.abs(shown(tmp_path / "a") - ramp // 257).mean() < 3


@pytest.mark.parametrize("preview", [True, False])
def test_raw_is_shown_upright(tmp_path, preview):
    from modalhash.serve.media import inspect_picture

    pytest.importorskip("rawpy")
    (tmp_path / "a.dng").write_bytes(dng(orientation=6, preview=preview))
    assert shown(tmp_path / "a.dng").shape == ((64, 48) if preview else (32, 24))
    assert inspect_picture(tmp_path / "a.dng")[1] == "image/x-dcraw"


@pytest.mark.parametrize("data", [dng(), dng(preview=False), b"IIRO" + b"\0" * 600])
def test_raw_is_not_taken_from_anybody(data):
    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import check_picture

    with pytest.raises(HTTPError, match="send it as JPEG or PNG"):
        check_picture(data, 10_000)


def test_raw_needs_a_package(tmp_path, monkeypatch):
    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import inspect_picture

    monkeypatch.setitem(sys.modules, "rawpy", None)
    (tmp_path / "a.dng").write_bytes(dng())
    with pytest.raises(HTTPError, match="the extra 'raw'"):
        inspect_picture(tmp_path / "a.dng")


def test_heic_is_shown_upright(tmp_path):
    from PIL import Image

    from modalhash.serve.media import inspect_picture

    pytest.importorskip("pillow_heif").register_heif_opener()
    rotated = Image.Exif()
    rotated[0x0112] = 6
    (tmp_path / "a.heic").write_bytes(picture((9, 9, 9), (100, 50), "HEIF", exif=rotated.tobytes()))
    assert shown(tmp_path / "a.heic").shape == (64, 32)
    assert inspect_picture(tmp_path / "a.heic")[1] == "image/heif"


def test_pictures_in_archives(tmp_path):
    import zipfile

    from modalhash.core.archives import ArchiveMember
    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import FileGoneError, Thumbnails, make_thumbnail, read_member

    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.png", picture((90, 90, 90)))
        archive.writestr("2.png", b"<svg/>")
    good, bad, gone = (ArchiveMember(tmp_path / "a.zip", name) for name in ("1.png", "2.png", "3.png"))
    thumbnails = Thumbnails(max_bytes=10**6, max_pixels=10**6)
    assert thumbnails.get(good, 64) is thumbnails.get(good, 64)
    assert read_member(good) == (picture((90, 90, 90)), "image/png")
    with pytest.raises(HTTPError, match="not a picture of a supported format"):
        make_thumbnail(bad, 64, 10**6)
    with pytest.raises(FileGoneError):
        read_member(gone)
    (tmp_path / "a.zip").unlink()
    with pytest.raises(FileGoneError):
        thumbnails.get(good, 64)


def test_a_wrong_name_of_a_format_cannot_hide():
    """Every format that is offered, but for MPO, is one that Pillow knows by this name, where it can read it at all."""
    from PIL import Image

    from modalhash.serve.media import CONTENT_TYPES, readable_formats

    Image.init()
    assert set(readable_formats()) == (CONTENT_TYPES.keys() & Image.OPEN.keys())
    assert {"PNG", "JPEG", "GIF", "BMP", "TIFF"} <= set(readable_formats())


def test_a_picture_with_endless_passes_is_not_shown(tmp_path, monkeypatch):
    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import make_thumbnail

    (tmp_path / "a.jpg").write_bytes(slow_picture())
    monkeypatch.setattr("modalhash.core.pictures.MAX_SECONDS", 0.1)
    with pytest.raises(HTTPError, match=r"not decoded in 0\.1 s"):
        make_thumbnail(tmp_path / "a.jpg", 64, 10**7)


def slow_picture():
    """Return a JPEG whose passes take longer than 0.1 s."""
    content = picture((90, 90, 90), (1500, 1500), "JPEG", progressive=True)
    scan = content[content.rindex(b"\xff\xda") : -2]
    return content[:-2] + scan * 1500 + content[-2:]


@pytest.fixture
def decoded(monkeypatch):
    """Count the pictures that begin to be decoded, each with 0.1 s."""
    from PIL import ImageFile

    load, found = ImageFile.ImageFile.load, []

    def counted(opened):
        if opened.tile:
            found.append(opened.format)
        return load(opened)

    monkeypatch.setattr(ImageFile.ImageFile, "load", counted)
    monkeypatch.setattr("modalhash.core.pictures.MAX_SECONDS", 0.1)
    return found


def test_a_query_that_takes_too_long_is_decoded_once(client, decoded):
    answer = client.post("/search", files={"image": ("a.jpg", slow_picture())})
    assert answer.status_code == 415
    assert "not decoded in 0.1 s" in answer.json()["error"]
    assert decoded == ["JPEG"]


def test_a_thumbnail_that_takes_too_long_is_tried_once(tmp_path, decoded):
    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import Thumbnails

    (tmp_path / "a.jpg").write_bytes(slow_picture())
    thumbnails = Thumbnails(max_bytes=10**6, max_pixels=10**7)
    for _ in range(2):
        with pytest.raises(HTTPError, match=r"not decoded in 0\.1 s"):
            thumbnails.get(tmp_path / "a.jpg", 64)
    assert decoded == ["JPEG"]


def test_decoding_stops_with_the_request(tmp_path, decoded):
    from modalhash.core.progress import StoppedError, should_stop
    from modalhash.serve.media import Thumbnails

    (tmp_path / "a.png").write_bytes(picture())
    thumbnails = Thumbnails(max_bytes=10**6, max_pixels=10**7)
    token = should_stop.set(lambda: bool(decoded))
    with pytest.raises(StoppedError):
        thumbnails.get(tmp_path / "a.png", 64)
    should_stop.reset(token)
    assert thumbnails.get(tmp_path / "a.png", 64).data, "it is not remembered as refused"


def test_cached_thumbnails_do_not_wait_for_pictures_that_are_decoded(serve, engine, talk):
    with serve() as server:
        service, item = server.config.app.state.service, next(one for one in engine.items() if one.uri)
        request = (
            f"GET /media/{item.id.replace('/', '%2F')}?size=64 HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n"
        )
        first = talk(server.port, request.encode())
        assert b"image/webp" in first
        service._pools["pictures"].close()  # so that nothing can be decoded
        again = talk(server.port, request.encode())
        assert again.partition(b"\r\n\r\n")[2] == first.partition(b"\r\n\r\n")[2]


def test_a_damaged_avif_is_no_error_of_the_service(tmp_path):
    """Pillow raises a RuntimeError for some of them, when it opens or when it decodes them."""
    from PIL import features

    from modalhash.serve.errors import HTTPError
    from modalhash.serve.media import check_picture, make_thumbnail

    if not features.check("avif"):
        pytest.skip("this Pillow reads no AVIF")
    whole, statuses = picture(kind="AVIF"), set()
    for place in range(80, len(whole), 2):
        damaged = whole[:place] + b"\xff" + whole[place + 1 :]
        (tmp_path / "a.avif").write_bytes(damaged)
        try:
            check_picture(damaged, 10**6)
            make_thumbnail(tmp_path / "a.avif", 64, 10**6)
        except HTTPError as error:
            statuses.add(error.status)
    assert statuses <= {413, 415}
    assert 415 in statuses
