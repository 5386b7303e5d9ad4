"""Files in zips and tars: read where they lie, and none of them can do harm."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import tarfile
import tracemalloc
import zipfile

import pytest

from modalhash.core import archives as _archives
from modalhash.core.archives import ArchiveEntry, ArchiveError, ArchiveMember, Refusal, archive_entries, find_member

FILES = {"photos/red/1.jpg": b"red " * 500, "photos/blue/ü 2.jpg": b"blue" * 10}


def pack(path, files):
    """An archive of the kind that the name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    with tarfile.open(path, "w" if path.suffix == ".tar" else "w:gz") as archive:
        for name, data in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


@pytest.fixture(params=["photos.zip", "photos.tar", "photos.tar.gz", "PHOTOS.TGZ"])
def archive(request, tmp_path):
    return pack(tmp_path / request.param, FILES)


def names(path):
    return [entry.name for entry in archive_entries(path)]


def test_members_in_any_order_and_again(archive):
    assert list(archive_entries(archive)) == [ArchiveEntry(name) for name in FILES]
    for name in [*FILES, *reversed(FILES)]:
        member = pickle.loads(pickle.dumps(ArchiveMember(archive, name)))
        assert (member.read(), member.size(), member.is_file()) == (FILES[name], len(FILES[name]), True)
        assert find_member(str(member)) == member


def test_a_changed_archive_is_read_anew(archive):
    assert names(archive) == list(FILES)
    pack(archive, {"other.jpg": b"other"})
    os.utime(archive, ns=(1, 1))
    assert names(archive) == ["other.jpg"]
    with pytest.raises(_archives.MissingMemberError, match=r"photos/red/1\.jpg: no such file in the archive"):
        ArchiveMember(archive, "photos/red/1.jpg").read()


def test_an_archive_that_is_gone(tmp_path):
    with pytest.raises(_archives.MissingMemberError, match="no such archive"):
        ArchiveMember(tmp_path / "gone.zip", "1.jpg").read()
    assert not ArchiveMember(tmp_path / "gone.zip", "1.jpg").is_file()
    with pytest.raises(ArchiveError, match="no such file"):
        names(tmp_path / "gone.zip")


def test_what_nobody_has_put_there_is_passed_over(tmp_path):
    files = {"__MACOSX/._1.jpg": b"", "red/.DS_Store": b"", ".hidden/1.jpg": b"", "./red/1.jpg": b"x", "red/": b""}
    assert names(pack(tmp_path / "a.zip", files)) == ["red/1.jpg"]
    del files["red/"]
    assert names(pack(tmp_path / "a.tar", files)) == ["red/1.jpg"]


def test_names_of_other_systems(tmp_path):
    """Some programs write UTF-8 without saying so, some write backslashes, and older ones a code page."""
    path = pack(tmp_path / "a.zip", {"gr_n/1.jpg": b"", "red^2.jpg": b"", "b_3.jpg": b""})
    data = path.read_bytes().replace(b"gr_n", b"gr\xc3\xbc", 2).replace(b"red^", b"red\\", 2).replace(b"b_3", b"b\x813")
    path.write_bytes(data)
    assert names(path) == ["grü/1.jpg", "red/2.jpg", "bü3.jpg"]
    assert ArchiveMember(path, "bü3.jpg").read() == b""


def test_refusals(tmp_path):
    path = pack(
        tmp_path / "a.zip", {"../up.jpg": b"", "/root.jpg": b"", "C:/x.jpg": b"", "in.tar.gz": b"", "e.jpg": b""}
    )
    with zipfile.ZipFile(path, "a") as archive:
        link = zipfile.ZipInfo("link.jpg")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
    place = (data := path.read_bytes()).rindex(b"PK\x01\x02", 0, data.rindex(b"e.jpg"))
    path.write_bytes(data[: place + 8] + b"\1" + data[place + 9 :])  # encrypted, says the table of contents
    out, link, nested = Refusal.OUTSIDE, Refusal.LINK, Refusal.NESTED
    assert [entry.refusal for entry in archive_entries(path)] == [out, out, out, nested, Refusal.ENCRYPTED, link]
    with pytest.raises(ArchiveError, match="encrypted; unpack the archive with its password"):
        ArchiveMember(path, "e.jpg").read()


def test_the_first_of_two_files_of_one_name(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr("1.jpg", "first")
        with pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("1.jpg", "second")
    assert ArchiveMember(tmp_path / "a.zip", "1.jpg").read() == b"first"


def test_what_is_too_large(archive, monkeypatch):
    monkeypatch.setattr(_archives, "MAX_MEMBER_BYTES", 100)
    with pytest.raises(ArchiveError, match="2,000 bytes, more than the limit of 100"):
        ArchiveMember(archive, "photos/red/1.jpg").read()
    assert ArchiveMember(archive, "photos/blue/ü 2.jpg").read() == FILES["photos/blue/ü 2.jpg"]


def test_a_compressed_tar_that_grows_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr(_archives, "LEAST_GROWTH", 2**16)
    path = pack(tmp_path / "a.tgz", {"1.jpg": b"\0" * 2**20, "2.jpg": b"x"})
    with pytest.raises(ArchiveError, match="it grows to more than 65,536 bytes; unpack it if you trust it"):
        names(path)


def test_damage(tmp_path):
    for name in ("a.zip", "a.tar", "a.tgz"):
        (tmp_path / name).write_bytes(b"nonsense" * 100)
        with pytest.raises(ArchiveError, match=r"not a (zip|tar)"):
            names(tmp_path / name)
        with pytest.raises(ArchiveError, match=r"a\.\w+!/1\.jpg: not a (zip|tar)"):
            ArchiveMember(tmp_path / name, "1.jpg").read()
    whole = pack(tmp_path / "b.tar", {"1.jpg": b"x" * 600, "2.jpg": b"y" * 600}).read_bytes()
    (tmp_path / "b.tar").write_bytes(whole[:2000])
    found = archive_entries(tmp_path / "b.tar")
    assert next(found).name == "1.jpg"
    with pytest.raises(ArchiveError, match=r"b\.tar: the tar is damaged or cut off"):
        list(found)
    (tmp_path / "c.tgz").write_bytes(gzip.compress(whole)[:60])
    with pytest.raises(ArchiveError, match=r"c\.tgz: (not a tar|the tar is damaged or cut off)"):
        names(tmp_path / "c.tgz")


def test_a_damaged_member_of_a_zip(tmp_path):
    path = pack(tmp_path / "a.zip", FILES)
    data = bytearray(path.read_bytes())
    data[60:64] = b"\xff\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(ArchiveError, match=r"red/1\.jpg: damaged in the archive"):
        ArchiveMember(path, "photos/red/1.jpg").read()
    assert ArchiveMember(path, "photos/blue/ü 2.jpg").read() == FILES["photos/blue/ü 2.jpg"]


def test_a_folder_may_be_called_like_an_archive(tmp_path):
    (tmp_path / "photos.zip!").mkdir()
    (tmp_path / "photos.zip!" / "1.jpg").touch()
    assert find_member(f"{tmp_path}/photos.zip!/1.jpg") is None
    (tmp_path / "photos.tar").mkdir()
    with pytest.raises(ArchiveError, match="a folder; expected an archive"):
        names(tmp_path / "photos.tar")


def test_urls_of_members():
    assert str(find_member("tar://a/1.jpg::file:///data/s.tar")) == "/data/s.tar!/a/1.jpg"
    assert find_member("tar://a/1.jpg::s3://bucket/s.tar") is None


def header(kind, size):
    member = tarfile.TarInfo("header")
    member.type, member.size = kind, size
    return member.tobuf(tarfile.GNU_FORMAT)


def pax(*fields):
    records = [next(line for n in range(99) if len(line := f"{n} {field}\n") == n) for field in fields]
    data = "".join(records).encode()
    return header(tarfile.XHDTYPE, len(data)) + data.ljust(tarfile.BLOCKSIZE, b"\0")


CLAIMS = {
    "extended": header(tarfile.XHDTYPE, 3 * 2**30),
    "global": header(tarfile.XGLTYPE, 3 * 2**30),
    "name": header(tarfile.GNUTYPE_LONGNAME, 3 * 2**30),
    "link": header(tarfile.GNUTYPE_LONGLINK, 3 * 2**30),
    "many": pax("a=b") * 100_000,
    "sparse": pax("GNU.sparse.major=1", "GNU.sparse.minor=0")
    + header(tarfile.REGTYPE, 2**24)
    + b"99999999\n"
    + b"9\n" * 2**23,
}


@pytest.mark.parametrize("claim", CLAIMS)
@pytest.mark.parametrize("name", ["photos.tar", "photos.tar.gz"])
def test_headers_of_a_tar_are_bounded(tmp_path, name, claim):
    path, content = tmp_path / name, CLAIMS[claim]
    if name == "photos.tar":
        path.write_bytes(content)
        os.truncate(path, 2**32)  # sparse
    else:
        path.write_bytes(gzip.compress(content + bytes(2**28), 1))
    tracemalloc.start()
    try:
        with pytest.raises(ArchiveError, match="more than 131,072 bytes of headers"):
            names(path)
        assert tracemalloc.get_traced_memory()[1] < 10 * 2**20
    finally:
        tracemalloc.stop()


def test_members_and_global_headers_of_a_tar_are_not_kept(tmp_path):
    with tarfile.open(tmp_path / "photos.tar", "w", pax_headers={"comment": "a commit"}) as archive:
        for number in range(20):
            archive.addfile(tarfile.TarInfo(f"{'deep/' * 60}{number}.jpg"))
    with (tmp_path / "photos.tar").open("rb") as file:
        for tar, member in _archives.tar_members(file):
            assert (tar.members, tar.pax_headers) == ([], {})
            assert member.name.startswith("deep/deep")
    assert len(names(tmp_path / "photos.tar")) == 20
