"""The one reader of configurations: what is wrong is said, with what to do."""

from __future__ import annotations

import json

import pytest

from modalhash.core.files import config_bytes, read_config


class OwnError(Exception):
    pass


def read(path):
    return read_config(path, kind="modalhash thing", format=2, required=("b", "a"), error=OwnError)


@pytest.mark.parametrize("format", [1, 2])
def test_what_is_whole_is_returned_as_it_is(tmp_path, format):
    config = {"kind": "modalhash thing", "format": format, "a": 1, "b": "ü", "more": [None]}
    (tmp_path / "thing.json").write_text(json.dumps(config, ensure_ascii=False), encoding="utf-8")
    assert read(tmp_path / "thing.json") == config


def test_half_of_a_pair_is_written_and_read(tmp_path):
    config = {"kind": "modalhash thing", "format": 2, "a": "\ud800", "b": "ü"}
    (tmp_path / "thing.json").write_bytes(config_bytes(config))
    assert read(tmp_path / "thing.json") == config


def test_damage_to_any_value_is_noticed(tmp_path):
    path, config = tmp_path / "thing.json", {"kind": "modalhash thing", "format": 2, "a": 0.1, "b": "ü", "more": [7]}
    path.write_bytes(config_bytes(config))
    assert read(path) == config
    whole = path.read_bytes()
    for damaged in (whole.replace(b"0.1", b"0.2"), whole.replace(b"7", b"8"), whole.replace("ü".encode(), b"u")):
        path.write_bytes(damaged)
        with pytest.raises(OwnError, match="damaged or changed since modalhash wrote it"):
            read(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", r"thing\.json is truncated or not JSON"),
        (b'{"kind": "modalhash th', r"thing\.json is truncated or not JSON"),
        (b"\xff\xfe", r"thing\.json is truncated or not JSON"),
        (b"[" * 100_000, r"thing\.json is truncated or not JSON"),
        (b'{"kind": ' + b"9" * 5000 + b"}", r"thing\.json is truncated or not JSON"),
        (b"[1]", r"thing\.json was not written by modalhash \(no 'kind': 'modalhash thing' in it\)"),
        (b'{"format": 1}', "was not written by modalhash"),
        (b'{"kind": ["x"]}', "was not written by modalhash"),
        (b'{"kind": "modalhash model", "format": 1}', r"folder holds no thing: it is a modalhash model, by its thing"),
        (b'{"kind": "modalhash thing"}', "has format None; this version reads up to 2"),
        (b'{"kind": "modalhash thing", "format": "1"}', "has format '1'"),
        (b'{"kind": "modalhash thing", "format": 3}', "has format 3; .*Install a newer version of modalhash"),
        (b'{"kind": "modalhash thing", "format": 1}', r"thing\.json lacks a, b"),
        (b'{"kind": "modalhash thing", "format": 1, "a": 0}', r"thing\.json lacks b"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, content, message):
    path = tmp_path / "folder" / "thing.json"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(OwnError, match=message):
        read(path)


def test_what_is_missing_is_said(tmp_path):
    with pytest.raises(OwnError, match=r"folder holds no thing: thing\.json is missing"):
        read(tmp_path / "folder" / "thing.json")
    (tmp_path / "file").write_text("")
    with pytest.raises(OwnError, match=r"file holds no thing: thing\.json is missing"):
        read(tmp_path / "file" / "thing.json")
