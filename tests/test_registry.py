from __future__ import annotations

from pathlib import Path

import pytest

from modalhash import registry
from modalhash.base import CrossModalHasher


@pytest.mark.parametrize("name", registry.METHODS)
def test_rows_say_what_the_class_says(name):
    method, cls = registry.info(name), registry.get(name)
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
        assert "re-implementation" in cls.__doc__.lower(), "a reconstruction says so where it is used"


def test_every_module_of_methods_is_registered():
    folder = Path(registry.__file__).parent / "methods"
    modules = {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}
    assert modules == {method.path.partition(":")[0].rpartition(".")[2] for method in registry.METHODS.values()}


def test_unknown_methods_are_named():
    with pytest.raises(ValueError, match="unknown method 'nosuch'; known: amsh"):
        registry.get("nosuch")
    with pytest.raises(ValueError, match="not in the registry"):
        registry.name_of(dict)
