"""The commands methods and datasets: what evaluate, tune and train take by name."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from modalhash.cli.common import (
    AsJson,
    Commands,
    Map,
    Quiet,
    ReadMemory,
    ReadSeconds,
    console,
    file_mapping,
    import_from_here,
    key_any,
    open_dataset,
    print_json,
    progress_bars,
)
from modalhash.cli.options import ReadLimitOptions, with_option_groups
from modalhash.methods import registry
from modalhash.methods.registry import METHODS, Method, outside

if TYPE_CHECKING:
    from modalhash.data import Dataset

PAGE_COLUMNS = (
    *("name", "what it is", "year", "labels", "pairs", "modalities", "codes", "kernel", "time grows with"),
    *("equations from", "best at"),
)


def page() -> str:
    """Return docs/methods.md: the template methods.md with the tables and references of the registry."""
    methods = METHODS.values()
    return (
        Path(__file__)
        .with_name("methods.md")
        .read_text(encoding="utf-8")
        .replace("@methods@", _table(PAGE_COLUMNS, [_row(method) for method in methods]))
        .replace("@calls@", _table(("call", "other parameters"), [_call(method) for method in methods]))
        .replace("@references@", "\n".join(f"- `{one.name}`: {one.citation}" for one in methods if one.year))
    )


def _table(columns: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    first, *others = (f"| {' | '.join(row)} |" for row in (columns, *rows))
    return "\n".join([first, "|" + "---|" * len(columns), *others])


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
    parameters = inspect.signature(registry.method(method.name)).parameters.values()
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
    cls = registry.method(method.name)
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


app = typer.Typer(
    cls=Commands,
    help="List and inspect data sets, convert official distributions, and compute other features.",
    no_args_is_help=True,
    rich_markup_mode="rich",
)
Root = Annotated[Path | None, typer.Option(help="Folder of the data sets; by default $MODALHASH_DATA, else ./data.")]


@app.command("list")
def list_datasets(root: Root = None) -> None:
    """List the known data sets, whether they are present, and how to get them.

    [bold]Example[/bold]

    modalhash datasets list --root /data
    """
    from rich.table import Table

    from modalhash.data import NAMED, data_root, how_to_get, is_present

    out = console()
    present = {name: is_present(name, root) for name in NAMED}
    table = Table("name", "here", "what it is", "licence", title=f"Data sets in {data_root(root)}")
    for name, entry in NAMED.items():
        table.add_row(name, "yes" if present[name] else "no", entry.title, entry.licence)
    out.print(table)
    for name in NAMED:
        if not present[name]:
            out.print(f"{name}: {how_to_get(name, root)}", markup=False, soft_wrap=True)


@app.command()
def info(
    name_or_path: Annotated[str, typer.Argument(help="A data set's name, or a file or folder to read.")],
    mapping: Map = None,
    root: Root = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
    as_json: AsJson = False,
) -> None:
    """Describe a data set: its contents, licence, and how to get it.

    For a named data set: items, modalities, labels, licence, where to get it, and
    which files are expected. For a data set that is present, and for any file:
    sizes, features, labels and split as read, compared with Table I of the AMSH
    paper if the data set is in it.

    [bold]Examples[/bold]

    modalhash datasets info nuswide10

    modalhash datasets info mirflickr25k:full

    modalhash datasets info features.mat

    modalhash datasets info other.mat --map image=feat_i --map text=feat_t --map labels=gnd
    """
    from modalhash.data import is_named, is_present, lookup

    named = is_named(name_or_path) and not Path(name_or_path).is_file() and not mapping
    about = _about(name_or_path, root) if named else {}
    there = not named or is_present(name_or_path, root)
    data = open_dataset(name_or_path, root, file_mapping(mapping)) if there else None
    published = lookup(name_or_path)[0].published if named and ":" not in name_or_path else {}
    compared = {} if data is None else _compared_with_paper(data, published)
    if as_json:
        contents = {} if data is None else {"contents": _contents(data)}
        print_json({**about, **contents, **({"table_1": compared} if compared else {})})
        return
    if about:
        _show_about(about)
    if data is not None:
        _show(data)
    if compared:
        _show_comparison(compared)


def _about(name: str, root: Path | None) -> dict[str, Any]:
    from modalhash.data import found_at, how_to_get, is_present, lookup

    entry, here = lookup(name)[0], is_present(name, root)
    path = found_at(name, root)
    files = [str(folder / file) for folder in entry.possible_folders(root) for file in entry.files]
    return {
        "name": name,
        "title": entry.title,
        "items": entry.items,
        "modalities": entry.modalities,
        "classes": entry.classes,
        "licence": entry.licence,
        "where": entry.where,
        "how": how_to_get(name, root),
        "layout": entry.layout,
        "files": files,
        "any_file": entry.any_file,
        "variants": {f"{entry.name}:{variant}": one.about for variant, one in entry.variants.items()},
        "packages": list(entry.packages),
        "converter": entry.has_converter,
        "read": f'modalhash.data.load_dataset("{name}"), or as {name} to evaluate, tune, train and in grids',
        "here": here,
        "found": None if path is None else str(path),
    }


def _show_about(about: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="bold")
    table.add_column(overflow="fold")
    if about["packages"]:
        here = "yes, its packages are installed" if about["here"] else f"no; needs {', '.join(about['packages'])}"
    elif about["here"]:
        here = f"yes: {about['found']}"
    else:
        some = " or any other file of arrays there" if about["any_file"] else ""
        here = f"no; looked for {', '.join(about['files'])}{some}. Set another folder with --root or $MODALHASH_DATA"
    for title, text in (
        (about["name"], about["title"]),
        ("items", about["items"]),
        ("modalities", about["modalities"]),
        ("labels", about["classes"]),
        ("licence", about["licence"]),
        ("where", about["where"]),
        ("how to get", about["how"]),
        ("layout", about["layout"]),
        *(("variant", f"{name}: {text}") for name, text in about["variants"].items()),
        ("how to read", about["read"]),
        ("here", here),
    ):
        table.add_row(title, escape(text))
    console().print(table)


def _compared_with_paper(dataset: Dataset, published: Mapping[str, int]) -> dict[str, dict[str, int]]:
    """Return statistics of a data set with those of Table I; empty if it is not in the paper."""
    items, split = max(dataset.sizes.values()), dataset.split
    if split is not None:
        query, training = (max(map(len, part.values())) for part in (split.query, split.training))
    else:
        query = dataset.split_sizes.get("query", 0)
        training = dataset.split_sizes.get("training", items - query)
    found = {"items": items, "query": query, "training": training, "classes": len(dataset.class_names)}
    found |= dataset.widths
    return {name: {"here": found.get(name, 0), "paper": expected} for name, expected in published.items()}


def _show_comparison(compared: dict[str, dict[str, int]]) -> None:
    from rich.table import Table

    names = {"query": "queries", "training": "training items", "image": "image features", "text": "text features"}
    table = Table("", "here", "Table I", "difference", title="Next to the AMSH paper")
    for column in table.columns[1:]:
        column.justify = "right"
    for name, values in compared.items():
        difference = values["here"] - values["paper"]
        numbers = (f"{values['here']:,}", f"{values['paper']:,}", f"{difference:+,}" if difference else "")
        table.add_row(names.get(name, name), *numbers)
    console().print(table)


def _contents(dataset: Dataset) -> dict[str, Any]:
    split = dataset.split
    parts = {} if split is None else {"training": split.training, "query": split.query, "database": split.database}
    return {
        "name": dataset.name,
        "kind": dataset.kind,
        "paired": dataset.paired,
        "class_names": list(dataset.class_names) if dataset.labels else [],
        "modalities": {
            name: {
                "items": n,
                "features": None if name not in dataset.features else list(dataset.features[name].shape[1:]),
                "components": dataset.components.get(name),
                "dtype": None if name not in dataset.features else str(dataset.features[name].dtype),
                "labels_each": None if name not in dataset.labels else float(dataset.labels[name].sum() / max(1, n)),
                "raw": name in dataset.raw,
                **{part: len(ids[name]) for part, ids in parts.items()},
            }
            for name, n in dataset.sizes.items()
        },
        "provenance": {key: value for key, value in dataset.provenance.items() if value},
    }


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="A data set with a converter; see `modalhash datasets list`.")],
    source: Annotated[Path, typer.Argument(help="Folder with the unpacked official archives.")],
    out: Annotated[Path, typer.Argument(help="The .npz to write.")],
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the converter as key=value; may be repeated.")
    ] = None,
    read_memory: ReadMemory = None,
    read_seconds: ReadSeconds = None,
) -> None:
    """Convert an official distribution to one file that every command can read.

    [bold]Examples[/bold]

    modalhash datasets convert wiki downloads/wiki data/wiki/wiki.npz

    modalhash datasets convert mirflickr25k downloads/mirflickr data/mirflickr25k/features.npz
    """
    from modalhash.data import convert as run

    with progress_bars() as progress:
        made = run(name, source, out, progress=progress, **key_any(option, "--option"))
    _show(made)
    typer.echo(f"written: {out}")


@dataclass(frozen=True)
class EncodingOptions:
    """What is encoded, by which encoder."""

    modality: Annotated[str, typer.Option(help="The modality to encode.")] = "image"
    encoder: Annotated[str, typer.Option(help="As for `modalhash train`; by default image or tfidf.")] = ""
    files: Annotated[Path | None, typer.Option(help="Folder or zip archive of the pictures.")] = None
    download: Annotated[
        bool, typer.Option("--download", help="Download a model given as hf:ID if it is not on this machine.")
    ] = False


@app.command()
@with_option_groups
def encode(
    *,
    name_or_path: Annotated[str, typer.Argument(help="A data set with captions or pictures: its name, or a file.")],
    out: Annotated[Path, typer.Argument(help="The .npz to write.")],
    encoding: EncodingOptions,
    root: Root = None,
    limits: ReadLimitOptions,
    quiet: Quiet = False,
) -> None:
    """Write a copy of a data set with features computed by an encoder.

    [bold]Example[/bold]

    Encode photos with a network (extra 'photos'; about two minutes for 20,000 photos on two cores):

    modalhash datasets encode iapr-tc12 data/iapr-tc12-cnn/iapr-tc12-cnn.npz --encoder efficientnet-lite0
    --files data/iapr-tc12/images.zip
    """
    from modalhash.data import npz_path, write_npz
    from modalhash.encoders import encode_dataset, encoder_for, names_module

    npz_path(out)
    modality, encoder = encoding.modality, encoding.encoder
    if names_module(encoder):
        import_from_here()
    chosen = encoder_for(modality, encoder or {"text": "tfidf"}.get(modality, "image"), download=encoding.download)
    with progress_bars() as progress:
        made = encode_dataset(
            open_dataset(name_or_path, root), modality, chosen, files=encoding.files, progress=progress
        )
    write_npz(made, out)
    _show(made)
    typer.echo(f"written: {out}")


def _show(dataset: Dataset) -> None:
    from rich.table import Table
    from scipy import sparse

    out = console()
    table = Table("modality", "items", "features", "type", "non-zeros", "labels each", "train / query / database")
    for name, n in dataset.sizes.items():
        values = dataset.features.get(name)
        labels = dataset.labels.get(name)
        row = [name, f"{n:,}"]
        if values is None:
            row += ["raw only", "", ""]
        else:
            density = f"{values.nnz / max(1, n):.1f} each" if isinstance(values, sparse.csr_array) else "dense"
            shape = "×".join(str(size) for size in values.shape[1:])
            shape += f" → {dataset.components[name]} components" if name in dataset.components else ""
            row += [shape, str(values.dtype), density]
        row.append(f"{labels.sum() / max(1, n):.2f}" if labels is not None else "none")
        split = dataset.split
        parts = (split.training, split.query, split.database) if split else ()
        row.append(" / ".join(f"{len(part[name]):,}" for part in parts))
        table.add_row(*row)
    pairing = "paired" if dataset.paired else "not paired"
    out.print(f"[bold]{dataset.name}[/bold]: {pairing}, {len(dataset.class_names)} classes; data: {dataset.kind}")
    out.print(table)
    if dataset.split is None and dataset.split_sizes:
        sizes = " and ".join(f"{n:,} {part} items" for part, n in dataset.split_sizes.items())
        out.print(f"no split: each seed draws {sizes} at random")
    for key, value in dataset.provenance.items():
        if value and key != "kind":
            text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
            out.print(f"{key}: {text}", markup=False)
