"""Nothing that is recorded in ``tests/frozen.json`` changes by accident; after a deliberate change, ``make freeze``."""

from __future__ import annotations

import pytest

import freeze

FROZEN = freeze.frozen()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("starlette", reason="the HTTP API needs the extra serve")
    folder = tmp_path_factory.mktemp("frozen")
    freeze.train_small_engine(folder)
    return folder


def test_public_names_and_signatures():
    assert freeze.public_names() == FROZEN["names"]


def test_commands_and_options():
    assert freeze.commands() == FROZEN["commands"]


def test_tables_of_options():
    pages = [page.read_text("utf-8") for page in (freeze.ROOT / "docs").rglob("*.md")]
    assert sum(len(freeze.TABLE.findall(page)) for page in pages) > 1
    for page in pages:
        assert freeze.with_tables(page) == page


@pytest.mark.slow
def test_http_api(folder):
    assert freeze.http_api(folder / "engine") == FROZEN["http"]


def test_layout_of_files(folder):
    assert freeze.formats(folder) == FROZEN["formats"]


def test_names_of_methods_and_encoders():
    assert freeze.names_of_parts() == FROZEN["parts"]


@pytest.mark.slow
@pytest.mark.skipif(not freeze.is_portable(), reason="codes were recorded on x86-64")
def test_codes_of_every_method():
    found = freeze.in_portable_process("codes")
    known = {line.split()[0] for line in found}
    assert found == [line for line in FROZEN["codes"] if line.split()[0] in known]  # without torch: no deep methods
    assert len(found) >= 29
