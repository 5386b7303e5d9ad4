"""Pictures and archives as people have them: what `modalhash add` says of each, and its exit code."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile

import pytest

from command_line import run
from little_world import huge_png, make_world

np = pytest.importorskip("numpy")
Image = pytest.importorskip("PIL.Image")


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    folder = tmp_path_factory.mktemp("world")
    make_world(folder, 40)
    done = run("train", folder / "items.csv", "-o", folder / "engine", "--bits", "16")
    assert done.exit_code == 0, done.output
    return folder / "engine"


def saved(kind, picture=None, **options) -> bytes:
    if kind == "HEIF":
        pytest.importorskip("pillow_heif").register_heif_opener()
    out = io.BytesIO()
    (picture or Image.effect_noise((60, 40), 90).convert("RGB")).save(out, kind, **options)
    return out.getvalue()


def turned() -> bytes:
    exif = Image.Exif()
    exif[0x0112] = 6
    return saved("JPEG", exif=exif)


def sixteen_bits() -> bytes:
    return saved("PNG", Image.fromarray(np.arange(4096, dtype=np.uint16).reshape(64, 64) * 16))


def animated() -> bytes:
    return saved("GIF", save_all=True, append_images=[Image.new("RGB", (60, 40), "red")])


PICTURES = {  # name -> content, and the message: None if it is accepted
    "turned.jpg": (turned, None),
    "phone.HEIC": (lambda: saved("HEIF"), None),
    "new.avif": (lambda: saved("AVIF"), None),
    "scan.png": (sixteen_bits, None),
    "print.jpg": (lambda: saved("JPEG", Image.new("CMYK", (40, 40), (9, 80, 200, 0))), None),
    "palette.png": (lambda: saved("PNG", Image.new("P", (40, 40), 3), transparency=0), None),
    "logo.png": (lambda: saved("PNG", Image.new("LA", (40, 40), (30, 90))), None),
    "moving.gif": (animated, None),
    "named wrongly.png": (lambda: saved("JPEG"), None),
    "empty.jpg": (lambda: b"", "the file is empty (0 bytes)"),
    "cut.jpg": (lambda: saved("JPEG")[:700], "the file is truncated"),
    "notes.jpg": (lambda: b"dear diary", "not a picture, or of a kind that Pillow cannot read"),
    "404.jpg": (lambda: b"<html>not found", "a web page, possibly of a failed download; fetch it again"),
    "drawing.png": (lambda: b"<svg xmlns='x'/>", "an SVG drawing; save it as PNG"),
    "paper.jpg": (lambda: b"%PDF-1.4", "a PDF; save its pages as PNG or JPEG"),
    "zeros.jpg": (lambda: b"\0" * 900, "only zeros; it may not be copied completely"),
    "huge.png": (huge_png, "pixels"),
}


@pytest.fixture(scope="module", params=["folder", "zip", "tar.gz"])
def added(request, engine, tmp_path_factory):
    """All of them added from a folder or an archive: the exit code, and the lines that were written."""
    place = tmp_path_factory.mktemp("messy")
    files = {name: make() for name, (make, _) in PICTURES.items()}
    source = place / f"{request.param}-of-pictures.{request.param}"
    if request.param == "folder":
        source = place / "pictures"
        source.mkdir()
        for name, content in files.items():
            (source / name).write_bytes(content)
    elif request.param == "zip":
        with zipfile.ZipFile(source, "w") as archive:
            for name, content in files.items():
                archive.writestr(name, content)
    else:
        with tarfile.open(source, "w:gz") as archive:
            for name, content in files.items():
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    return source, run("add", engine, source)


@pytest.mark.slow
@pytest.mark.parametrize("name", PICTURES)
def test_a_picture(added, name):
    source, done = added
    said = PICTURES[name][1]
    lines = [line for line in done.stderr.splitlines() if f"/{name}: " in line]
    if said is None:
        assert lines == []
    else:
        assert len(lines) == 1
        assert said in lines[0].partition(f"/{name}: ")[2]
        assert str(source) in lines[0]


def test_skipped_pictures_are_counted(added):
    bad = sum(said is not None for _, said in PICTURES.values())
    assert added[1].exit_code == 1
    assert f"{len(PICTURES) - bad} items added" in added[1].stderr
    assert f"{bad} skipped" in added[1].stderr


def encrypted() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("1.png", saved("PNG"))
    data = out.getvalue()
    place = data.index(b"PK\x01\x02")
    return data[: place + 8] + b"\1" + data[place + 9 :]


def zipped(**files) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in files.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return out.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "said", "code"),
    [
        ("a.zip", b"nonsense", "a.zip: not a zip, or it is cut off", 2),
        ("a.zip", zipped(red__1_png=saved("PNG"))[:-30], "a.zip: not a zip, or it is cut off", 2),
        ("a.tar", b"nonsense" * 99, "a.tar: not a tar", 2),
        ("a.tar.gz", b"nonsense" * 99, "a.tar.gz: not a tar", 2),
        ("a.zip", zipped(), "a.zip: no pictures found", 2),
        ("a.zip", zipped(readme_txt=b"x"), "a.zip: no pictures found", 2),
        ("a.rar", b"Rar!", "a.rar: this kind of archive (.rar) is not supported; unpack it", 2),
        ("a.7z", b"7z", "this kind of archive (.7z) is not supported", 2),
        ("a.zip", encrypted(), "a.zip!/1.png: encrypted; unpack the archive with its password", 1),
        ("a.zip", zipped(x_png=saved("PNG"), b_zip=b""), "a.zip!/b.zip: an archive inside the archive; unpack it", 1),
        ("a.zip", zipped(x_png=saved("PNG"), x_cls=b"red"), "1 .cls or .json files next to its pictures", 1),
        ("a.zip", zipped(**{"..__y_png": saved("PNG")}), "its name leads out of the archive", 1),
    ],
)
def test_an_archive(engine, tmp_path, name, content, said, code):
    (tmp_path / name).write_bytes(content)
    done = run("add", engine, tmp_path / name, "--replace")
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr


def test_labels_are_the_folders_of_an_archive_but_for_its_own(engine, tmp_path):
    photo = saved("PNG")
    (tmp_path / "trip.zip").write_bytes(zipped(trip__sea__Red__1_png=photo, trip__2_png=photo, sea__3_png=photo))
    assert run("add", engine, tmp_path / "trip.zip").exit_code == 0
    lines = [json.loads(line) for line in run("export", engine).stdout.splitlines()]
    found = {line["id"]: (line["labels"], line["path"]) for line in lines if line["id"].startswith("trip.zip/")}
    assert found == {
        f"trip.zip/{name}": (labels, f"{tmp_path}/trip.zip!/{name}")
        for name, labels in (("trip/sea/Red/1.png", ["sea", "red"]), ("trip/2.png", []), ("sea/3.png", ["sea"]))
    }, "the label Red is the red of the engine"


def test_members_of_archives_in_a_table(engine, tmp_path):
    (tmp_path / "box.zip").write_bytes(zipped(red__1_png=saved("PNG")))
    table = "path,labels\nbox.zip!/red/1.png,red\nbox.zip!/red/2.png,red\nother.zip!/1.png,red\n"
    (tmp_path / "table.csv").write_text(table)
    done = run("add", engine, tmp_path / "table.csv")
    assert done.exit_code == 1
    assert "1 item added" in done.stderr.replace("1 items", "1 item")
    assert "table.csv, line 3" in done.stderr
    assert "no such file in the archive" in done.stderr
    assert f"no such archive: {tmp_path}/other.zip" in done.stderr


def test_a_zip_finds_itself(engine, tmp_path):
    (tmp_path / "own.zip").write_bytes(zipped(red__1_png=saved("PNG", Image.new("RGB", (40, 40), (220, 30, 30)))))
    assert run("add", engine, tmp_path / "own.zip").exit_code == 0
    found = run("search", engine, "--image", f"{tmp_path}/own.zip!/red/1.png", "--want", "image", "-k", "1")
    assert found.stdout.split("\t")[2] == "own.zip/red/1.png"
    lost = run("search", engine, "--image", f"{tmp_path}/own.zip!/red/2.png")
    assert lost.exit_code == 2
    assert "own.zip!/red/2.png: no such file in the archive" in lost.stderr


def test_archives_are_encoded_as_they_are_added(engine, tmp_path):
    pytest.importorskip("pyarrow")
    content = zipped(box__red__1_png=saved("PNG"), box__cut_jpg=saved("JPEG")[:500])
    (tmp_path / "box.zip").write_bytes(content)
    done = run("encode", engine, tmp_path / "box.zip", "--out", tmp_path / "codes", "--workers", "1")
    assert done.exit_code == 1, done.output
    assert "box.zip!/box/cut.jpg: the file is truncated" in done.stderr
    assert run("add", engine, *(tmp_path / "codes").glob("*.parquet")).exit_code == 1
    lines = [json.loads(line) for line in run("export", engine).stdout.splitlines()]
    (line,) = [line for line in lines if line["path" if "path" in line else "id"].startswith(f"{tmp_path}/box.zip!")]
    assert (line["id"], line["labels"]) == ("box.zip/box/red/1.png", ["red"])
