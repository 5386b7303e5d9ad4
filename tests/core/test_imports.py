from __future__ import annotations

import json
import sys

import pytest

from modalhash.core import imports as _imports
from modalhash.core.imports import MissingExtraError, install_line, require


class Installed:
    """A distribution that pip installed from somewhere."""

    requires = ("numpy>=2", "h5py>=3.13; extra == 'data'", 'zarr>=3; extra == "data"', "pyarrow; extra == 'dask'")

    def __init__(self, origin):
        self.origin = origin

    def read_text(self, name):
        assert name == "direct_url.json"
        return None if self.origin is None else json.dumps(self.origin)


@pytest.fixture
def installed_from(monkeypatch):
    def install(origin):
        monkeypatch.setattr(_imports, "distribution", lambda name: Installed(origin))

    return install


def test_a_missing_extra_is_named_with_the_install_line(monkeypatch, installed_from):
    installed_from(None)
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(MissingExtraError, match=r"reading v7.3 files needs .*'h5py'.*pip install 'modalhash\[data\]'"):
        require("h5py", extra="data", why="reading v7.3 files")


def test_the_install_line_is_that_of_the_checkout(installed_from, tmp_path):
    installed_from({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    assert install_line("data") == f"pip install --editable '{tmp_path}[data]'"
    installed_from({"url": tmp_path.as_uri(), "dir_info": {}})
    assert install_line("data") == f"pip install '{tmp_path}[data]'"


def test_the_install_line_is_that_of_the_wheel(installed_from, tmp_path):
    wheel = tmp_path / "with space" / "modalhash-1-py3-none-any.whl"
    installed_from({"url": wheel.as_uri(), "archive_info": {}})
    assert install_line("data") == "pip install 'h5py>=3.13' 'zarr>=3'"  # the wheel is gone
    wheel.parent.mkdir()
    wheel.touch()
    assert install_line("data") == f"pip install '{wheel}[data]'"


def test_the_install_line_of_an_address_and_of_sources_alone(installed_from, monkeypatch):
    installed_from({"url": "https://example.org/modalhash-1-py3-none-any.whl", "archive_info": {}})
    assert install_line("data") == "pip install 'modalhash[data] @ https://example.org/modalhash-1-py3-none-any.whl'"

    def missing(name):
        raise _imports.PackageNotFoundError(name)

    monkeypatch.setattr(_imports, "distribution", missing)
    assert install_line("data").startswith("pip install '.[data]'")


def test_a_broken_package_shows_its_own_error(tmp_path, monkeypatch):
    (tmp_path / "half_installed.py").write_text("import not_there_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="not_there_at_all"):
        require("half_installed", extra="data", why="testing")
