"""Thumbnails: rotated, cached, and forgotten when there are too many."""

from __future__ import annotations

import io

import pytest
from serve_tools import picture


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

    content = picture((90, 90, 90), (1500, 1500), "JPEG", progressive=True)
    scan = content[content.rindex(b"\xff\xda") : -2]
    (tmp_path / "a.jpg").write_bytes(content[:-2] + scan * 1500 + content[-2:])
    monkeypatch.setattr("modalhash._decoding.MAX_SECONDS", 0.1)
    with pytest.raises(HTTPError, match=r"not decoded in 0\.1 s"):
        make_thumbnail(tmp_path / "a.jpg", 64, 10**7)


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
