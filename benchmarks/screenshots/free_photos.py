"""The first picture of the README: photos without labels, found by a word.

    python benchmarks/screenshots/free_photos.py docs/images/page-photos.png     # make screenshots

The photos are in the public domain or under CC0, so that the picture may be shown anywhere. Their sources are the
Debian package gcompris-qt-data, whose copyright file names the licence of each, and the package scikit-image
(skimage/data/README.txt). An engine is trained on them without any label, and served. Needs apt-get, pip, Playwright
and Chromium.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from screenshots import ARGUMENTS, SIZES

DEBIAN, FREE = "gcompris-qt-data", {"public-domain", "CC0-1.0"}
FOLDERS = ("categorization", "erase", "explore_world_animals")
"""Activities of GCompris that have photos."""
WHEEL = "scikit-image==0.26.0"
PHOTOS = ("astronaut.png", "camera.png", "chelsea.png", "coffee.png", "coins.png", "moon.png", "rocket.jpg")
"""Of scikit-image: in the public domain or CC0."""
LEFT_OUT = {"volleyball"}
"""Free of rights, but with the logo of a firm."""
WORD = "fish"
COLOURS = 200
"""Of a kept screenshot: few enough for a small file, enough for drawings."""
SCALE = 1.75
"""Pixels of a kept screenshot per pixel of the page: sharp on most screens."""


def members(resources: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield paths and contents of a file of Qt resources (.rcc)."""
    magic, version, tree, data, names = struct.unpack_from(">4sIIII", resources)
    assert (magic, version >= 2) == (b"qres", True), "not a resource file of Qt 5"

    def entries(row: int, folder: str) -> Iterator[tuple[str, bytes]]:
        name_at, flags, first, second = struct.unpack_from(">IHII", resources, tree + 22 * row)
        (length,) = struct.unpack_from(">H", resources, names + name_at)
        name = resources[names + name_at + 6 : names + name_at + 6 + 2 * length].decode("utf-16-be") if row else ""
        if flags & 2:  # a folder of `first` entries, of which `second` is the first
            for child in range(second, second + first):
                yield from entries(child, f"{folder}{name}/")
            return
        (size,) = struct.unpack_from(">I", resources, data + second)  # `first` is language and country
        content = resources[data + second + 4 : data + second + 4 + size]
        yield folder + name, zlib.decompress(content[4:]) if flags & 1 else content

    yield from entries(0, "")


def free_files(copyright_file: str) -> set[str]:
    """Return the paths, without suffixes, that Debian's copyright file says are free of rights."""
    paths = set()
    for paragraph in copyright_file.split("\n\n"):
        fields = dict(re.findall(r"^(Files|License): *((?:.*)(?:\n .*)*)", paragraph, re.MULTILINE))
        if fields.get("License", "").split("\n")[0] in FREE:
            paths.update(str(PurePosixPath(path).with_suffix("")) for path in fields.get("Files", "").split())
    return paths


def fetch(folder: Path) -> list[tuple[str, bytes]]:
    """Fetch both packages into a folder and return names and contents of the free photos."""
    subprocess.run(["apt-get", "download", "-qq", DEBIAN], cwd=folder, check=True, stderr=subprocess.DEVNULL)
    subprocess.run(["dpkg", "-x", next(folder.glob("*.deb")), folder / "deb"], check=True)
    free = free_files((folder / f"deb/usr/share/doc/{DEBIAN}/copyright").read_text(encoding="utf-8"))
    photos = []
    for name in FOLDERS:
        for path, content in members((folder / f"deb/usr/share/gcompris-qt/rcc/{name}.rcc").read_bytes()):
            file = PurePosixPath(path)
            if str(file.with_suffix("")).removeprefix("/gcompris/") in free and file.stem not in LEFT_OUT:
                photos.append((file.name, content))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder, WHEEL]
    subprocess.run(command, check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        photos += [(name, wheel.read(f"skimage/data/{name}")) for name in PHOTOS]
    return photos


def small(png: bytes) -> bytes:
    """The same picture in few colours."""
    from PIL import Image

    out = io.BytesIO()
    with Image.open(io.BytesIO(png)) as picture:
        few = picture.convert("RGB").quantize(COLOURS, kmeans=2, dither=Image.Dither.NONE)
        few.save(out, "PNG", optimize=True)
    return out.getvalue()


def screenshot(url: str) -> bytes:
    """Search for the word on the page and return its picture."""
    from playwright.sync_api import sync_playwright

    size = dict(zip(("width", "height"), SIZES["laptop"], strict=True))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=ARGUMENTS)
        page = browser.new_page(viewport=size, color_scheme="light", device_scale_factor=SCALE)
        page.goto(url)
        page.fill("#query", WORD)
        page.press("#query", "Enter")
        page.wait_for_selector("body[data-state=results] article.card")
        page.wait_for_load_state("networkidle")
        page.wait_for_function("() => document.getAnimations().every(one => one.playState === 'finished')")
        page.evaluate("document.activeElement.blur()")
        content: bytes = page.screenshot()
        browser.close()
    return content


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="the picture to write, a PNG file")
    out: Path = parser.parse_args().out
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        photos = sorted(fetch(folder))
        (folder / "photos").mkdir()
        for number, (file, content) in enumerate(photos, start=1):  # names that say nothing of what they show
            (folder / "photos" / f"photo-{number:02}{Path(file).suffix}").write_bytes(content)
        command = [sys.executable, "-m", "modalhash"]
        subprocess.run([*command, "train", "photos", "-o", "engine"], cwd=folder, check=True)
        command += ["serve", "engine", "--port", "0"]
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as service:
            assert service.stdout is not None
            try:
                url = next(found[0] for line in service.stdout if (found := re.search(r"http://\S+?/", line)))
                out.write_bytes(small(screenshot(url)))
            finally:
                service.terminate()
    print(f"{out}: {WORD} among {len(photos)} photos")


if __name__ == "__main__":
    main()
