"""``modalhash methods``: the registry as a table."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from modalhash.cli._common import console, print_json
from modalhash.registry import METHODS, Method, outside

COLUMNS = ("name", "year", "supervised", "pairing", "modalities", "equations from", "what it is")
WIDE = 120
"""Columns of a terminal that has room for the last one."""
OWN_METHOD = '''\
## A method of your own

A class derived from `CrossModalHasher` works everywhere a built-in method does. Its constructor stores parameters;
`_fit` gets checked data and returns what was learned, in names with a trailing underscore: the codes of the training
items, and for each modality a feature map and linear functions, whose signs are the codes of new items (or the class
has a `_project` of its own). The class attributes `supervised`, `needs_pairs` and `max_modalities` say what it takes.
This is the whole of `mine.py`:

```python
import numpy as np

from modalhash.base import CrossModalHasher
from modalhash.codes import pack_signs
from modalhash.features import Linear
from modalhash.linalg import ridge_regression
from modalhash.randomness import root_seed


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

Commands find it as `module:Class`, in the current folder or among what is installed:

```console
$ modalhash evaluate openmoji --method mine:ClassCodes --bits 32
$ modalhash train items.csv -o engine --method mine:ClassCodes --param ridge=0.1
$ modalhash search engine "red boat" --trust
```

In Python it is a class like any other, and `Engine.train(…, method="mine:ClassCodes")` takes it by name:

```python
from modalhash.data import generate

data = generate(n_items=200, seed=0)
model = ClassCodes(n_bits=16, random_state=0).fit(data.X, data.Y)
assert model.transform(data.X)["text"].shape == (200, 2)
```

A saved model remembers `mine:ClassCodes`. Loading it imports that module, which runs its code, so it has to be trusted:

```py
model.save("model")
load("model", trust=True)
Engine.open("engine", trust=True)  # on the command line --trust
```

A package that registers the class gives it a short name, which `modalhash methods` lists and which needs no trust:
whoever installed the package has let it run.

```toml
[project.entry-points."modalhash.methods"]
class-codes = "mine:ClassCodes"
```
'''


def methods(
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the page of the documentation.")] = False,
) -> None:
    """List the methods: supervision, pairing, modalities and where the equations come from.

    Methods that installed packages register (entry points [b]modalhash.methods[/b]) are listed after
    modalhash's own. Any other is given to commands as [b]module:Class[/b].

    [bold]Examples[/bold]

    modalhash methods

    modalhash methods --json
    """
    if markdown:
        typer.echo(page(), nl=False)
        return
    known = [*METHODS.values(), *outside()]
    if as_json:
        print_json([asdict(method) for method in known])
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


def page() -> str:
    """Return the page of the documentation: modalhash's methods, what to cite, and how to write one's own."""
    lines = [
        "# Methods",
        "",
        "Made by `modalhash methods --markdown`. A *control* is not a method to use but a level to compare with. A",
        "*re-implementation* was written without the authors' code or full text at hand: its numbers are not theirs.",
        "",
        "| " + " | ".join(COLUMNS) + " |",
        "|" + "---|" * len(COLUMNS),
        *("| " + " | ".join((f"`{cells[0]}`", *cells[1:])) + " |" for cells in map(_cells, METHODS.values())),
        "",
        OWN_METHOD,
        "## References",
        "",
        *(f"- `{method.name}`: {method.citation}" for method in METHODS.values() if method.year),
        "",
    ]
    return "\n".join(lines)


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
