"""Record what must not change by accident: ``make freeze`` writes ``tests/frozen.json``, ``make test`` compares.

It also writes the tables of options in the documentation.

The file lists the public names with their signatures, the commands with their options, the HTTP API, the layout of
files, the names of methods and encoders, and digests of the codes that every method gives on a small data set. Run
``make freeze`` after a deliberate change, and its difference shows up in review.

Codes depend on the last bit of floating-point sums, so they are computed in a process whose numerical libraries use
the instructions that every x86-64 machine since 2013 has.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
import re
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing
from enum import Enum
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import GenericAlias
from typing import Any

ROOT = Path(__file__).parents[1]
FILE = ROOT / "tests" / "frozen.json"
TABLE = re.compile(r"(<!-- options of (.+?) -->).*?(<!-- end -->)", re.DOTALL)
VERSIONS = ("application_id", "user_version")
PORTABLE = {
    "OPENBLAS_CORETYPE": "Haswell",
    "OPENBLAS_NUM_THREADS": "1",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
    "NUMBA_CPU_NAME": "haswell",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "AVX2",
    "OMP_NUM_THREADS": "1",
}
"""Environment in which BLAS, numpy, numba and torch give the same bits on different machines."""


def public_names() -> list[str]:
    """Return the signature of every name in docs/reference, and of the methods of every class there.

    Those that an engine inherits from its undocumented base are its own.
    """
    pages = sorted((ROOT / "docs" / "reference").glob("*.md"))
    names = [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text("utf-8"), re.MULTILINE)]
    return [line for name in sorted(names) for line in _signatures(name, inherits=name == "modalhash.engine.Engine")]


def _signatures(name: str, *, inherits: bool) -> list[str]:
    module, _, attribute = name.rpartition(".")
    value = getattr(import_module(module), attribute)
    lines = [name + _signature(value)]
    if inspect.isclass(value):
        members = {**(vars(value.__base__) if inherits else {}), **vars(value)}
        for member, raw in sorted(members.items()):
            function = raw.__func__ if isinstance(raw, (classmethod, staticmethod)) else raw
            if not member.startswith("_") and inspect.isfunction(function):
                lines.append(f"{name}.{member}{_signature(function)}")
            elif not member.startswith("_") and isinstance(raw, property):
                lines.append(f"{name}.{member}")
    return lines


def _signature(value: Any) -> str:
    """Return parameters with their defaults, without annotations; nothing for enums, types and values."""
    if not callable(value) or isinstance(value, GenericAlias) or (inspect.isclass(value) and issubclass(value, Enum)):
        return ""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return "(...)"
    bare = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
    text = str(signature.replace(parameters=bare, return_annotation=signature.empty))
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def commands() -> list[str]:
    """Return every command of the command line with its arguments, options and defaults."""
    from typer.main import get_command

    from modalhash.cli import app

    lines = []

    def visit(command: Any, path: str) -> None:
        for name, child in sorted(getattr(command, "commands", {}).items()):
            visit(child, f"{path} {name}")
        if not hasattr(command, "commands"):
            lines.append(path)
            lines.extend(f"{path} {_option(option)}" for option in command.params)

    visit(get_command(app), "modalhash")
    return lines


def _option(option: Any) -> str:
    default = option.default() if callable(option.default) else option.default
    shown = " (required)" if option.required else "" if default in (None, (), []) else f" = {default!r}"
    several = "..." if option.nargs != 1 or option.multiple else ""
    return "/".join([*option.opts, *option.secondary_opts]) + several + shown


def with_tables(page: str) -> str:
    """Return the text of a page whose tables of options are those of the code."""
    return TABLE.sub(lambda found: f"{found[1]}\n{option_table(found[2])}\n{found[3]}", page)


def option_table(of: str) -> str:
    """Return the options of a command, or the fields of a request, as a table in Markdown."""
    from typer.main import get_command

    from modalhash.cli import app
    from modalhash.serve.schemas import SearchFields

    if of == "POST /search":
        fields = SearchFields.model_json_schema()["properties"].items()
        rows = [(f"`{name}`", json.dumps(field.get("default")), field["description"]) for name, field in fields]
    else:
        options = [one for one in get_command(app).commands[of.split()[1]].params if one.param_type_name == "option"]
        names = [
            ", ".join(f"`{name}`" for name in (*one.opts, *one.secondary_opts, *filter(None, [one.envvar])))
            for one in options
        ]
        defaults = [one.show_default if isinstance(one.show_default, str) else _shown(one.default) for one in options]
        helps = [re.sub(r"\[/?b\]", "`", one.help) for one in options]
        rows = list(zip(names, defaults, helps, strict=True))
    rows = [("option", "default", "means"), ("---", "---", "---"), *rows]
    return "\n".join(f"| {' | '.join('' if cell == 'null' else cell for cell in row)} |" for row in rows)


def _shown(default: Any) -> str:
    return "" if default in (None, "", []) else str(default).lower()


def http_api(engine: Path) -> list[str]:
    """Return the operations and schemas of the OpenAPI document, without its texts."""
    from modalhash import Engine
    from modalhash.serve import Settings, make_app, openapi

    with Engine.open(engine) as opened:
        document = openapi.document(make_app(opened, Settings(writable=True)).routes, opened.modalities)
    lines = []
    for path, operations in sorted(document["paths"].items()):
        for method, operation in sorted(operations.items()):
            query = ",".join(p["name"] for p in operation.get("parameters", []) if p["in"] == "query")
            content = operation.get("requestBody", {}).get("content", {})
            bodies = "".join(f" {kind}#{_digest(_bare(body))}" for kind, body in sorted(content.items()))
            answers = " ".join(sorted(operation["responses"]))
            lines.append(f"{method.upper()} {path}{'?' + query if query else ''}{bodies} -> {answers}")
    for name, schema in sorted(document["components"]["schemas"].items()):
        fields = ",".join(sorted(schema.get("properties", {})))
        lines.append(f"{name}({fields})#{_digest(_bare(schema))}")
    return lines


def _bare(schema: Any) -> Any:
    """Return a part of an OpenAPI document without what is only read by people."""
    if isinstance(schema, list):
        return [_bare(inner) for inner in schema]
    if not isinstance(schema, dict):
        return schema
    texts = ("description", "summary", "title", "examples", "example")
    return {key: _bare(value) for key, value in schema.items() if key not in texts or not isinstance(value, str | list)}


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:12]


def formats(folder: Path) -> dict[str, list[str]]:
    """Return the layout of an engine, its store, its model and its backup, and digests of the golden files."""
    from modalhash.engine import backup_engine

    engine = folder / "engine"
    backup_engine(engine, folder / "backup.tar")
    with tarfile.open(folder / "backup.tar") as archive:
        members = sorted({_general(name) for name in archive.getnames()})
    files = sorted(path for path in engine.rglob("*") if path.is_file() and not path.name.endswith(("-wal", "-shm")))
    golden = sorted(path for path in (ROOT / "tests" / "golden").rglob("*") if path.is_file() and path.suffix != ".py")
    return {
        "engine": [f"{_general(path.relative_to(engine))}: {line}" for path in files for line in _layout(path)],
        "backup": members,
        "golden": [f"{path.relative_to(ROOT)} {hashlib.sha256(path.read_bytes()).hexdigest()[:12]}" for path in golden],
    }


def _general(path: str | Path) -> str:
    return re.sub(r"[0-9a-f]{16,}", "*", str(path))


def _layout(path: Path) -> list[str]:
    """Return the keys of a configuration, the tensors of safetensors, or the tables of a database."""
    if path.suffix == ".json":
        return sorted(set(_keys(json.loads(path.read_text("utf-8")))))
    if path.suffix == ".safetensors":
        from safetensors.numpy import load_file

        return [f"{name} {array.dtype} {array.ndim}-d" for name, array in sorted(load_file(path).items())]
    if path.suffix == ".sqlite":
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            version = [f"{name} {connection.execute(f'PRAGMA {name}').fetchone()[0]}" for name in VERSIONS]
            tables = connection.execute("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL ORDER BY name")
            return [*version, *(" ".join(sql.split()) for (sql,) in tables)]
    return ["a file"]


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Yield the path to every value of nested objects, with its type."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _keys(inner, f"{path}.{key}")
    elif isinstance(value, list):
        for inner in value or [None]:
            yield from _keys(inner, f"{path}[]")
    else:
        yield f"{path} {type(value).__name__}"


def names_of_parts() -> list[str]:
    """Return the names by which saved models and engines refer to methods and encoders."""
    from modalhash.encoders.encoder import ENCODERS
    from modalhash.methods.registry import METHODS

    methods = [f"method {name} {method.path}" for name, method in METHODS.items()]
    return methods + [f"encoder {name} {path}" for name, path in ENCODERS.items()]


def codes() -> list[str]:
    """Return digests of the learned and the hashed codes of every method that can be imported here."""
    from contract import block_data, make
    from modalhash.core.codes import pack_signs
    from modalhash.methods.registry import METHODS

    warnings.simplefilter("ignore")
    found = []
    for name, method in METHODS.items():
        if not method.extra or find_spec(method.extra):
            data = block_data(method, n=90, n_query=30, noise=0.3)
            steps = {"steps": 150, "own_steps": 600} if name == "rlh" else {}
            model = make(method, 12, **steps).fit(data.X, data.Y, **data.fit)
            hashed = {key: pack_signs(values) for key, values in model.decision_function(data.Xq).items()}
            digests = [_digest({key: c.tolist() for key, c in kind.items()}) for kind in (model.codes_, hashed)]
            found.append(f"{name} {' '.join(digests)}")
    return found


def in_portable_process(what: str, *arguments: str) -> Any:
    """Return the result of one of the functions above, computed under :data:`PORTABLE`."""
    code = f"import json, sys; sys.path[:0] = ['tests', '.']; import freeze; print(json.dumps(freeze.{what}(*sys.argv[1:])))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=ROOT, env={**os.environ, **PORTABLE}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def train_small_engine(folder: Path) -> Path:
    """Train an engine on pictures and texts, in ``folder``."""
    from little_world import make_world
    from modalhash import Engine

    manifest = make_world(folder, n=30)
    Engine.train(manifest, folder / "engine", n_bits=16, quality="fast").close()
    return folder / "engine"


def current() -> dict[str, Any]:
    """Return everything that is frozen, as it is now."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        engine = train_small_engine(folder)
        return {
            "names": public_names(),
            "commands": commands(),
            "http": http_api(engine),
            "formats": formats(folder),
            "parts": names_of_parts(),
            "codes": in_portable_process("codes") if is_portable() else frozen()["codes"],
        }


def is_portable() -> bool:
    """Return whether this machine can compute with the instructions of :data:`PORTABLE`."""
    return platform.machine() in ("x86_64", "AMD64")


def frozen() -> dict[str, Any]:
    """Return what was recorded."""
    return dict(json.loads(FILE.read_text("utf-8")))


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT)]
    os.environ["MODALHASH_QUIET"] = "1"
    if find_spec("torch") is None:
        sys.exit("make freeze needs torch for the codes of the deep methods: run `make setup` first")
    FILE.write_text(json.dumps(current(), indent=1, ensure_ascii=False) + "\n", "utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        page.write_text(with_tables(page.read_text("utf-8")), "utf-8")
    print(f"wrote {FILE.relative_to(ROOT)}; `git diff` shows what changed")
