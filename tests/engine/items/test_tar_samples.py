"""Tars as WebDataset has them: samples, fields, and members that must not be followed."""

from __future__ import annotations

import io
import json
import tarfile
from dataclasses import replace

import pytest

from modalhash.core.archives import find_member
from modalhash.engine import Item, ProblemCode
from modalhash.engine.items.bulk_inputs import MAX_TEXT_BYTES, tar_items
from modalhash.engine.items.photos import FolderLabels, archive_items
from sources_for_encoding import make_tar, rows_of

READS = {"image": "image", "text": "text"}


def as_photos(path):
    return list(archive_items(path, READS, pytest.fail, FolderLabels()))


def entries(path, **options):
    return list(tar_items(str(path), READS, **options))


def told(entry):
    return (entry.modality, entry.id) if isinstance(entry, Item) else (entry.code, entry.id)


def test_a_sample_is_a_picture_and_a_text_with_labels_and_fields(tmp_path):
    fields = json.dumps({"labels": ["sea"], "year": 2004, "id": "mine", "path": "/etc/passwd", "split": "test"})
    members = [("a/1.jpg", b"jpeg"), ("a/1.txt", b"a red boat"), ("a/1.cls", b"boat\n"), ("a/1.json", fields.encode())]
    picture, text = entries(make_tar(tmp_path / "shard-0.tar", [*members, ("a/1.seg.png", b"png"), ("a/readme", b"")]))
    assert [told(one) for one in (picture, text)] == [("image", "shard-0.tar/a/1"), ("text", "shard-0.tar/a/1")]
    assert (picture.data, picture.path, text.text) == (b"jpeg", None, "a red boat")
    assert picture.labels == text.labels == ("boat", "sea")
    assert picture.extra == {"year": 2004}
    assert not picture.training
    assert picture.uri == f"{tmp_path}/shard-0.tar!/a/1.jpg"


def test_uris_can_be_opened(tmp_path):
    fsspec = pytest.importorskip("fsspec")
    tar = make_tar(tmp_path / "s.tar", [("1.jpg", b"jpeg")])
    (picture,) = entries(tar)
    assert find_member(picture.uri).read() == b"jpeg"
    with fsspec.open("memory://tars/s.tar", "wb") as file:
        file.write(tar.read_bytes())
    (remote,) = entries("memory://tars/s.tar")
    with fsspec.open(remote.uri) as file:
        assert file.read() == b"jpeg"


def test_pictures_without_anything_else_are_photos(tmp_path):
    """As in an archive that is trained on: whole names are ids, folders are labels, a dot in a name ends nothing."""
    names = ["s/sea/1.jpg", "s/sea/1.png", *(f"s/sea/trip.{number}.jpg" for number in range(40))]
    hidden = ["__MACOSX/s/sea/._1.jpg", "s/sea/.2.jpg"]
    found = entries(make_tar(tmp_path / "s.tar", [(name, b"x") for name in names + hidden]))
    assert [(one.id, one.labels) for one in found] == [(f"s.tar/{name}", ("sea",)) for name in names]
    assert found == [replace(item, path=None, uri=str(item.path), data=b"x") for item in as_photos(tmp_path / "s.tar")]


def test_a_text_may_stand_among_the_fields(tmp_path):
    tar = make_tar(
        tmp_path / "s.tar", [("1.json", b'{"caption": "a red boat"}'), ("2.json", b'{"text": "a blue boat"}')]
    )
    assert [one.text for one in entries(tar)] == ["a blue boat"]
    assert [one.text for one in entries(tar, fields={"text": "caption"})] == ["a red boat"]


def test_members_that_lead_out_are_no_items(tmp_path):
    path = make_tar(tmp_path / "s.tar", [("../../up.jpg", b"x"), ("/root.jpg", b"x"), ("good.jpg", b"x")])
    with tarfile.open(path, "a") as tar:
        for name, kind in (("sym.jpg", tarfile.SYMTYPE), ("hard.jpg", tarfile.LNKTYPE), ("pipe.jpg", tarfile.FIFOTYPE)):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, "/etc/passwd"
            tar.addfile(member)
    assert [told(one) for one in entries(path)] == [
        (ProblemCode.OUTSIDE, "../../up.jpg"),
        (ProblemCode.OUTSIDE, "/root.jpg"),
        ("image", "s.tar/good.jpg"),
        (ProblemCode.NOT_A_FILE, "sym.jpg"),
        (ProblemCode.NOT_A_FILE, "hard.jpg"),
        (ProblemCode.NOT_A_FILE, "pipe.jpg"),
    ]


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ([("1.txt", b"\xff\xfe\xfa")], ProblemCode.UNREADABLE),
        ([("1.txt", b" \n")], ProblemCode.EMPTY),
        ([("1.txt", b"x" * (MAX_TEXT_BYTES + 1))], ProblemCode.UNREADABLE),
        ([("1.txt", b"boat"), ("1.json", b"{")], ProblemCode.MALFORMED),
        ([("1.txt", b"boat"), ("1.json", b"[" * 100_000)], ProblemCode.MALFORMED),
        ([("1.txt", b"boat"), ("1.json", b"[1]")], ProblemCode.MALFORMED),
        ([("1.txt", b"boat"), ("1.json", b'{"split": "some"}')], ProblemCode.MALFORMED),
        ([("1.txt", b"boat"), ("1.json", b'{"title": "\\ud800"}')], ProblemCode.MALFORMED),
        ([("1.txt", b"boat"), ("1.cls", b"\xff")], ProblemCode.MALFORMED),
    ],
)
def test_what_is_wrong_with_a_sample(tmp_path, members, code):
    assert [one.code for one in entries(make_tar(tmp_path / "s.tar", members))] == [code]


def test_an_id_twice(tmp_path):
    tar = make_tar(tmp_path / "s.tar", [("1.txt", b"boat"), ("2.txt", b"sea"), ("1.txt", b"boat")])
    assert [told(one) for one in entries(tar)][2] == (ProblemCode.DUPLICATE, "s.tar/1")


def test_a_tar_that_is_cut_off_or_none(tmp_path):
    whole = make_tar(tmp_path / "s.tar", [(f"{n}.txt", b"boat" * 300) for n in range(4)]).read_bytes()
    step = 512 + 1536
    for length, good in [(2 * step, 2), (2 * step + 100, 2), (2 * step + 700, 2), (4 * step, 4)]:
        (tmp_path / "s.tar").write_bytes(whole[:length])
        found = entries(tmp_path / "s.tar")
        assert sum(isinstance(one, Item) for one in found) == good
        ends = length % step == 0  # nothing is seen to be missing where the file ends with a member
        assert [one.code for one in found[good:]] == ([] if ends else [ProblemCode.UNREADABLE])
    (tmp_path / "s.tar").write_bytes(whole[:step] + b"nonsense" * 64 + whole[step + 512 :])
    assert [one.code for one in entries(tmp_path / "s.tar")[1:]] == [ProblemCode.UNREADABLE]
    (tmp_path / "s.tar").write_bytes(b"nonsense" * 1000)
    (problem,) = entries(tmp_path / "s.tar")
    assert problem.reason.startswith("not a tar")


@pytest.mark.slow
def test_tars_encode_as_their_files_do(engine, world, tmp_path):
    pytest.importorskip("pyarrow")
    photos = [world / "photos" / f"{n}.png" for n in range(70)[:60]]
    tar = make_tar(tmp_path / "s.tar", [(file.name, file.read_bytes()) for file in photos] + [("x.jpg", b"none")])
    done = engine.encode_to([tar, world / "photos"], tmp_path / "codes", workers=1)
    assert (done.parts, done.inputs, done.n_problems) == (2, 121, 1)
    rows = rows_of(tmp_path / "codes")
    codes = {row["id"]: (row["code"], row["refinement"]) for row in rows}
    assert all(codes[f"s.tar/{file.name}"] == codes[f"photos/{file.name}"] for file in photos)


def test_an_empty_tar(tmp_path):
    with tarfile.open(fileobj=io.BytesIO(), mode="w") as tar:
        tar.close()
        (tmp_path / "s.tar").write_bytes(tar.fileobj.getvalue())
    assert entries(tmp_path / "s.tar") == []
