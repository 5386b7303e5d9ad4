"""The command methods: the registry as a table, as JSON, or as the page docs/methods.md."""

from __future__ import annotations

import inspect
from dataclasses import asdict
from typing import Annotated, Any

import typer

from modalhash.cli.common import console, print_json
from modalhash.methods.registry import METHODS, Method, get, outside

PAGE_COLUMNS = (
    *("name", "what it is", "year", "labels", "pairs", "modalities", "codes", "kernel", "time grows with"),
    *("equations from", "best at"),
)
HEAD = """\
# The map of methods

All methods of the package, with what each one needs. If you only want to know which one to take, read
[Choosing a method](choosing.md). This page is made from the registry by `modalhash methods --markdown`; `modalhash
methods` prints a shorter table.

*Labels* and *pairs* say what training needs. *Codes* are discrete if they are ±1 in every step of the fit, and relaxed
if they are real numbers whose signs are taken at the end. *Kernel* says whether features go through similarities to
anchors. *Best at* is read from [the tables of RLH](measurements/rlh.md), in which all methods measured so far are
compared: averages over both directions and 16 to 128 bits, with new items searched among new items unless it says
otherwise. A *control* is a level to compare with rather than a method to use. A *re-implementation* was written without
the authors' code or full text: its numbers are not theirs.
"""
BY_NAME = """\
## By name

`modalhash.method` returns the class of a method by its name. Each class has its own parameters, all of which have
defaults:

```python
import numpy as np

import modalhash

rng = np.random.default_rng(0)
labels = np.eye(4, dtype=int)[rng.integers(4, size=200)]
X = {"image": labels @ rng.normal(size=(4, 9)), "text": labels @ rng.normal(size=(4, 6))}
X = {name: features + rng.normal(size=features.shape) for name, features in X.items()}

model = modalhash.method("batch")(n_bits=32, n_anchors=100, random_state=0)
model.fit(X, {"image": labels, "text": labels}, pairs="aligned")
assert model.transform({"text": X["text"]})["text"].shape == (200, 4)
```

Methods that need pairs get them through `pairs="aligned"` (row k of every modality belongs together) or as row numbers;
pairs are never guessed. Every class has `fit`, `transform`, `decision_function`, `score` and `save`
([reference](reference/methods.md)). Commands use the same names (`--method batch --param label_weight=0.5`).
"""
OWN_METHOD = '''\
## A method of your own

A class derived from `CrossModalHasher` works wherever a built-in method does. Its constructor only stores parameters.
`_fit` receives data that were already checked and returns what was learned, under names with a trailing underscore: the
codes of the training items and, for each modality, a feature map and linear functions whose signs are the codes of new
items (or the class has a `_project` of its own). The class attributes `supervised`, `needs_pairs` and `max_modalities`
say what it accepts. This is all of `mine.py`:

```python
import numpy as np

from modalhash.core.codes import pack_signs
from modalhash.core.features import Linear
from modalhash.core.linalg import ridge_regression
from modalhash.core.randomness import root_seed
from modalhash.methods.base import CrossModalHasher


class ClassCodes(CrossModalHasher):
    """A random code per class, and a ridge regression from the features to it."""

    def __init__(self, n_bits=64, *, ridge=1.0, random_state=None):
        self.n_bits = n_bits
        self.ridge = ridge
        self.random_state = random_state

    def _fit(self, data, report):
        n_classes = next(iter(data.Y.values())).shape[1]
        C = np.random.default_rng(root_seed(self.random_state)).normal(size=(n_classes, data.n_bits))
        codes, maps, functions = {}, {}, {}
        for step, (name, X) in enumerate(data.X.items()):
            B = np.where(data.Y[name] @ C > 0, 1.0, -1.0)
            codes[name] = pack_signs(B)
            maps[name] = Linear(bias=True, dtype="float64")
            functions[name] = ridge_regression(maps[name].fit_blocks(X).whole(), B, self.ridge)
            report("functions", step + 1, len(data.X))
        return {"codes_": codes, "maps_": maps, "functions_": functions}
```

Commands find it as `module:Class`, in the current folder or among the installed packages:

```console
$ modalhash evaluate openmoji --method mine:ClassCodes --bits 32
$ modalhash train items.csv -o engine --method mine:ClassCodes --param ridge=0.1
$ modalhash search engine "red boat" --trust
```

In Python it is a class like any other, and `Engine.train(…, method="mine:ClassCodes")` accepts it by name:

```python
from modalhash.data import generate

data = generate(n_items=200, seed=0)
model = ClassCodes(n_bits=16, random_state=0).fit(data.X, data.Y)
assert model.transform(data.X)["text"].shape == (200, 2)
```

A saved model remembers `mine:ClassCodes`. Loading it imports that module, which runs its code, so you have to trust it
explicitly:

```py
model.save("model")
load("model", trust=True)
Engine.open("engine", trust=True)  # on the command line --trust
```

A package can register the class under a short name, which `modalhash methods` lists and which needs no trust, because
installing the package already allowed it to run.

```toml
[project.entry-points."modalhash.methods"]
class-codes = "mine:ClassCodes"
```
'''


def page() -> str:
    """Return docs/methods.md: the table of methods, their parameters, own methods, and references."""
    lines = [
        HEAD,
        *_table(PAGE_COLUMNS, [_row(method) for method in METHODS.values()]),
        "",
        BY_NAME,
        *_table(("call", "other parameters"), [_call(method) for method in METHODS.values()]),
        "",
        OWN_METHOD,
        "## References",
        "",
        *(f"- `{method.name}`: {method.citation}" for method in METHODS.values() if method.year),
        "",
    ]
    return "\n".join(lines)


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(r) + " |" for r in rows),
    ]


def _row(method: Method) -> tuple[str, ...]:
    return (
        f"`{method.name}`",
        method.title,
        str(method.year or "–"),
        "needed" if method.supervised else "none",
        method.pairing,
        method.modalities,
        method.codes,
        method.kernel,
        method.growth,
        ("control; " if method.control else "") + method.equations,
        method.best_at,
    )


def _call(method: Method) -> tuple[str, str]:
    """Return a constructor call, and the parameters other than the code length."""
    parameters = inspect.signature(get(method.name)).parameters.values()
    others = [f"`{p.name}={p.default!r}`" for p in parameters if p.name not in ("n_bits", "random_state")]
    return f'`modalhash.method("{method.name}")(n_bits=32)`', ", ".join(others) or "–"


COLUMNS = ("name", "year", "supervised", "pairing", "modalities", "equations from", "what it is")
WIDE = 120
"""Terminal width from which the last column is shown."""


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """List the methods: supervision, pairing, modalities and the source of their equations.

    Methods registered by installed packages (entry points [b]modalhash.methods[/b])
    follow modalhash's own. Commands also accept any other as [b]module:Class[/b].

    [bold]Examples[/bold]

    modalhash methods

    modalhash methods --json | jq '.[] | select(.pairing == "none") | .name'

    With --json, every method also has its parameters with their defaults, and those
    that [b]modalhash tune[/b] searches.
    """
    if markdown:
        pass

        typer.echo(page(), nl=False)
        return
    known = [*METHODS.values(), *outside()]
    if as_json:
        print_json([_facts(method) for method in known])
        return
    from rich.table import Table

    out = console()
    shown = COLUMNS if out.width >= WIDE else COLUMNS[:-1]
    table = Table(title=f"{len(known)} methods", title_justify="left")
    for column in shown:
        table.add_column(column, no_wrap=column != "equations from", overflow="fold")
    for method in known:
        table.add_row(*_cells(method)[: len(shown)])
    out.print(table)


def _cells(method: Method) -> tuple[str, ...]:
    return (
        method.name,
        str(method.year or "–"),
        "yes" if method.supervised else "no",
        method.pairing,
        method.modalities,
        ("control; " if method.control else "") + method.equations,
        method.title,
    )


def _facts(method: Method) -> dict[str, Any]:
    cls = get(method.name)
    parameters = inspect.signature(cls).parameters.values()
    return {
        **asdict(method),
        "reimplementation": method.reimplementation,
        "max_modalities": cls.max_modalities,
        "takes_dask_arrays": getattr(cls, "distributed", False),  # may be missing in external methods
        "parameters": {one.name: _plain(one.default) for one in parameters},
    }


def _plain(value: Any) -> Any:
    """Return a default as a JSON value, or as text."""
    if value is inspect.Parameter.empty:
        return None
    return value if isinstance(value, bool | int | float | str | list | dict | None) else str(value)
