from __future__ import annotations

import sys
from pathlib import Path

import pytest

import modalhash
from contract import OUTSIDE, block_data, make
from modalhash.core.features import AnchorKernel
from modalhash.methods import registry
from modalhash.methods.base import CrossModalHasher
from toy_method import ClassCodes


@pytest.mark.parametrize("name", registry.METHODS)
def test_rows_say_what_the_class_says(name):
    method, cls = registry.info(name), registry.method(name)
    assert issubclass(cls, CrossModalHasher)
    assert registry.name_of(cls) == name
    assert cls.supervised == method.supervised
    assert cls.needs_pairs == (method.pairing == "needed")
    assert method.pairing in {"none", "optional", "needed"}
    assert method.modalities in {"1+", "2+", "2"}
    assert (cls.max_modalities == 2) == (method.modalities == "2")
    assert method.citation
    assert cls.__doc__
    if method.reimplementation:
        for text in (cls.__doc__, sys.modules[cls.__module__].__doc__):
            assert "re-implementation" in text.lower(), "a reconstruction says so where it is used"


@pytest.mark.slow
@pytest.mark.parametrize("name", registry.METHODS)
def test_the_map_of_the_field_has_every_method(name):
    """Codes, kernel and growth are said of each, and the default kernel is the one that a fit uses."""
    method = registry.info(name)
    assert method.codes in {"discrete", "relaxed", "random"}, "say in the registry what kind of codes it learns"
    assert method.kernel in {"anchors", "none", "anchors, or none", "none, or anchors"}, "say so in the registry"
    assert method.growth.startswith("n"), "say in the registry how the time of a fit grows with n"
    assert method.best_at
    data = block_data(method)
    model = make(method, 8).fit(data.X, data.Y, **data.fit)
    used = any(isinstance(map_, AnchorKernel) for map_ in getattr(model, "maps_", {}).values())
    assert method.kernel.startswith("anchors" if used else "none")


@pytest.mark.parametrize(
    ("line", "replacement", "message"),
    [
        ('title = "T"', 'titel = "T"', r"methods\.toml, \[mine\]: unknown key 'titel'; known: path, title, year"),
        ('title = "T"', "", r"methods\.toml, \[mine\]: missing 'title'"),
    ],
)
def test_an_error_in_a_row_names_the_row_and_the_key(line, replacement, message):
    text = """
        [mine]
        path = "mine:Mine"
        title = "T"
        citation = "none"
        supervised = false
        pairing = "none"
        modalities = "1+"
        equations = "ours"
        space.ridge = "log:1e-4:1"
    """
    row = registry.read_rows(text)["mine"]
    assert (row.name, row.year, row.codes, row.space) == ("mine", None, "unknown", {"ridge": "log:1e-4:1"})
    with pytest.raises(ValueError, match=message):
        registry.read_rows(text.replace(line, replacement))


def test_a_method_is_constructed_by_name():
    model = modalhash.method("batch")(n_bits=32)
    assert type(model) is registry.method("batch")
    assert model.n_bits == 32
    assert modalhash.method(OUTSIDE) is ClassCodes
    with pytest.raises(ValueError, match="unknown method 'bach'; known: amsh"):
        modalhash.method("bach")


def test_every_module_of_methods_is_registered():
    folder = Path(registry.__file__).parent
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    modules |= {path.parent.name for path in folder.glob("*/__init__.py")}
    assert modules - {"base", "fitted", "registry"} == {
        method.path.partition(":")[0].rpartition(".")[2] for method in registry.METHODS.values()
    }


def test_unknown_methods_are_named():
    with pytest.raises(ValueError, match=r"unknown method 'nosuch'; known: amsh.*as 'module:Class'"):
        registry.method("nosuch")
    with pytest.raises(TypeError, match=r"builtins:dict.*lacks supervised, needs_pairs.*CrossModalHasher"):
        registry.name_of(dict)


class Abstract(CrossModalHasher):
    pass


def test_a_method_outside_the_package_is_imported_and_describes_itself():
    assert registry.method(OUTSIDE) is ClassCodes
    assert registry.name_of(ClassCodes) == OUTSIDE
    row = registry.info(OUTSIDE)
    assert (row.name, row.path) == (OUTSIDE, OUTSIDE)
    assert row.title == row.citation == "A random code per class, and a ridge regression from the features to it."
    assert (row.supervised, row.pairing, row.modalities, row.year) == (True, "optional", "1+", None)
    assert not row.control
    assert not row.reimplementation
    assert registry.method("modalhash.methods.amsh:AMSH") is registry.method("AMSH")


def test_flags_are_taken_from_the_class(monkeypatch):
    monkeypatch.setattr(ClassCodes, "needs_pairs", True)
    monkeypatch.setattr(ClassCodes, "supervised", False)
    monkeypatch.setattr(ClassCodes, "max_modalities", 2)
    monkeypatch.setattr(ClassCodes, "__doc__", None)
    row = registry.info(OUTSIDE)
    assert (row.supervised, row.pairing, row.modalities, row.title) == (False, "needed", "2", "ClassCodes")
    monkeypatch.setattr(ClassCodes, "max_modalities", 3)
    assert registry.info(OUTSIDE).modalities == "2 to 3"
    monkeypatch.setattr(ClassCodes, "max_modalities", None)
    assert registry.info(OUTSIDE).modalities == "2+"


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("nowhere_at_all:Thing", ValueError, "no module 'nowhere_at_all' to import"),
        ("modalhash.nowhere:Thing", ValueError, "no module 'modalhash.nowhere' to import"),
        ("json:Thing", ValueError, "module 'json' has no 'Thing'"),
        ("json:dumps", TypeError, "is a function; expected a class"),
        ("json:JSONDecoder", TypeError, "lacks supervised, needs_pairs, max_modalities, fit"),
        (f"{__name__}:Abstract", TypeError, "the class lacks _fit; derive it from"),
        ("json:", ValueError, "expected 'module:Class'"),
        (":Thing", ValueError, "expected 'module:Class'"),
        (r"C:\\mine", ValueError, "expected 'module:Class'"),
    ],
)
def test_what_is_no_method_is_refused(name, error, message):
    for look in (registry.get, registry.info):
        with pytest.raises(error, match=message):
            look(name)


def test_a_module_that_misses_one_of_its_own_says_so(tmp_path, monkeypatch):
    (tmp_path / "needs_other.py").write_text("import other_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="other_that_is_not_there"):
        registry.method("needs_other:Mine")


def test_a_class_that_cannot_be_imported_has_no_name():
    class Local(ClassCodes):
        pass

    with pytest.raises(ValueError, match="top level of a module"):
        registry.name_of(Local)


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Return a function that installs a distribution with these entry points."""

    def install(name, entries):
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text("[modalhash.methods]\n" + "".join(f"{line}\n" for line in entries))

    monkeypatch.syspath_prepend(tmp_path)
    return install


def test_a_package_registers_methods_under_names(package):
    package("theirs", [f"Toy = {OUTSIDE}"])
    assert registry.installed() == {"Toy": OUTSIDE}
    assert registry.method("Toy") is registry.method("toy") is ClassCodes
    assert registry.name_of(ClassCodes) == "Toy"
    assert [row.name for row in registry.outside()] == ["Toy"]
    assert registry.info("toy").path == OUTSIDE
    assert "Toy" not in registry.METHODS
    with pytest.raises(ValueError, match="label-oracle, Toy"):
        registry.method("nosuch")


def test_names_that_are_taken_and_methods_that_are_broken_are_left_out_with_a_warning(package):
    package("theirs", [f"amsh = {OUTSIDE}", "broken = nowhere_at_all:Thing", f"toy = {OUTSIDE}"])
    with pytest.warns(
        UserWarning, match=r"'amsh' of theirs is skipped because the name means modalhash.*Use it as toy_method"
    ):
        assert registry.installed() == {"broken": "nowhere_at_all:Thing", "toy": OUTSIDE}
    assert registry.method("amsh").__name__ == "AMSH"
    with pytest.warns(UserWarning, match=r"'broken' \(nowhere_at_all:Thing\) is skipped: .*no module 'nowhere_at_all'"):
        assert [row.name for row in registry.outside()] == ["toy"]
