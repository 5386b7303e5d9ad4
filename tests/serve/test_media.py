"""Thumbnails: rotated, cached, and forgotten when there are too many."""

from __future__ import annotations

import io

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
