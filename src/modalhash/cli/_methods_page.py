"""The page docs/methods.md: the map of the field, made of the registry."""

from __future__ import annotations

import inspect

from modalhash.registry import METHODS, Method, get

COLUMNS = (
    *("name", "what it is", "year", "labels", "pairs", "modalities", "codes", "kernel", "time grows with"),
    *("equations from", "best at"),
)
HEAD = """\
# Methods

Made by `modalhash methods --markdown` of the registry; `modalhash methods` prints a shorter table.

## Which to take

- **You have labels for your items, and pairs or not:** `rlh`, which is what `modalhash train` takes. It needs no pairs,
  takes any number of modalities, and finds new items best, or level with the best, in all tables measured so far
  ([RLH](measurements/rlh.md)). Where only some items have labels, `unlabelled="posterior"` lets the others take part.
- **You have labels and want the method of the paper, or its equations:** `amsh`
  ([reproduction](measurements/reproduction.md)).
- **Every training item has its partner and you want one code for both:** `batch`, or `alech`, in a few seconds;
  `tech` is as good, but a re-implementation. They find new items about as well as `amsh` does without the pairs, and
  less well than `rlh` ([paired comparison](measurements/paired.md)).
- **Every training item has its partner, and many labels are wrong:** `wash`, which also says which labels it doubts
  ([wrong labels](measurements/noisy-labels.md)).
- **Some items have partners, others not, and all have labels:** `gsph`, `sapmh` and `scm` can use both ([what
  pairs bring](measurements/unpaired.md)); compare with `rlh`, which ignores the pairs.
- **You have pairs and no labels:** `cre`, or `fsh` on large sets. Both are far behind what labels give.
- **You have neither:** no method learns to search across modalities from that: `rucmh` and `uapmh` are at chance. Label
  a tenth of the items, or pair some.
- **Your items are many:** whatever grows with n; `rlh` and `amsh` go through features in blocks under a memory limit.
  What grows with n² says so in the table, and `seph` trains on 5,000 pairs unless told otherwise.
- **You compare a method of your own:** with the same items, splits and databases as in the tables
  ([evaluation](evaluation.md)), `chance` below and `label-oracle` above it.

## The map

*Labels* and *pairs* say what training needs. *Codes* are discrete if they are ±1 in every step of the fit, relaxed if
they are real numbers whose signs are taken at the end. *Kernel* says whether features go through similarities to
anchors. *Best at* is read from [the tables of RLH](measurements/rlh.md), where all methods measured so far stand side by
side:
averages over both directions and 16 to 128 bits, new items searched among new items unless it says otherwise. A
*control* is not a method to use but a level to compare with. A *re-implementation* was written without the authors'
code or full text at hand: its numbers are not theirs.
"""
BY_NAME = """\
## By name

`modalhash.method` finds the class of a method by its name; parameters are its own, and all have defaults:

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

Methods that need pairs are given them with `pairs="aligned"` (row k of every modality belongs together) or as row
numbers; they are never guessed. Every class has `fit`, `transform`, `decision_function`, `score` and `save`
([reference](reference/index.md)); commands take the same names (`--method batch --param label_weight=0.5`).
"""
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


def page() -> str:
    """Return the page: what to take, the map, how to construct each method, one's own, and what to cite."""
    lines = [
        HEAD,
        *_table(COLUMNS, [_row(method) for method in METHODS.values()]),
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
    """Return how to construct a method, and the parameters beside the length of its codes."""
    parameters = inspect.signature(get(method.name)).parameters.values()
    others = [f"`{p.name}={p.default!r}`" for p in parameters if p.name not in ("n_bits", "random_state")]
    return f'`modalhash.method("{method.name}")(n_bits=32)`', ", ".join(others) or "–"
