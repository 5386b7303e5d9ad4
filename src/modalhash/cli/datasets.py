"""``modalhash datasets``: what is here, what is in a file, official distributions and other features as one file."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from modalhash.data import Dataset

app = typer.Typer(
    help="Data sets: list those known, look into one, convert official distributions, make other features.",
    no_args_is_help=True,
)
Root = Annotated[
    Path | None, typer.Option(help="Folder that holds the data sets; by default $MODALHASH_DATA, else ./data.")
]


@app.command("list")
def list_datasets(root: Root = None) -> None:
    """Which data sets are present here, and how to get the others."""
    from rich.console import Console
    from rich.table import Table

    from modalhash.data import NAMED, data_root, is_present

    console = Console()
    present = {name: is_present(name, root) for name in NAMED}
    table = Table("name", "here", "what it is", "licence", title=f"Data sets in {data_root(root)}")
    for name, entry in NAMED.items():
        table.add_row(name, "yes" if present[name] else "no", entry.title, entry.licence)
    console.print(table)
    for name, entry in NAMED.items():
        if not present[name]:
            console.print(f"{name}: {entry.how}", highlight=False, markup=False, soft_wrap=True)


@app.command()
def info(
    name_or_path: Annotated[str, typer.Argument(help="A data set's name, or a file or folder to read.")],
    root: Root = None,
) -> None:
    """What is in a data set: modalities, sizes, labels, split, where it comes from."""
    with _plain_errors():
        _show(_load(name_or_path, root))


@app.command()
def convert(
    name: Annotated[str, typer.Argument(help="A data set that `modalhash datasets list` says how to convert.")],
    source: Annotated[Path, typer.Argument(help="Folder with the unpacked official archives.")],
    out: Annotated[Path, typer.Argument(help="The .npz to write.")],
    option: Annotated[
        list[str] | None, typer.Option(help="An option of the converter as key=value; may be repeated.")
    ] = None,
) -> None:
    """Convert an official distribution to one file that every command reads."""
    from modalhash.data import convert as run

    with _plain_errors():
        _show(run(name, source, out, **dict(_key_value(text) for text in option or [])))
        typer.echo(f"written: {out}")


@app.command()
def encode(
    name_or_path: Annotated[str, typer.Argument(help="A data set with captions or pictures: its name, or a file.")],
    out: Annotated[Path, typer.Argument(help="The .npz to write.")],
    modality: Annotated[str, typer.Option(help="Whose features are made anew.")] = "image",
    encoder: Annotated[str, typer.Option(help="image, tfidf, hashing, efficientnet-lite0, minilm, module:Class.")] = "",
    files: Annotated[Path | None, typer.Option(help="Folder or zip archive that holds the pictures.")] = None,
    root: Root = None,
) -> None:
    """Write a data set with other features: its pictures or texts through an encoder.

    E.g. photos through a network, which needs the extra neural (about ten minutes for 20,000):

    modalhash datasets encode iapr-tc12 data/iapr-tc12-cnn/iapr-tc12-cnn.npz --encoder efficientnet-lite0
    --files data/iapr-tc12/images.zip
    """
    from modalhash.cli.engine_tools import progress_bars
    from modalhash.data import npz_path, write_npz
    from modalhash.encoders import encode_dataset, get_encoder

    with _plain_errors():
        npz_path(out)
        chosen = get_encoder(encoder or {"text": "tfidf"}.get(modality, "image"))
        with progress_bars() as progress:
            made = encode_dataset(_load(name_or_path, root), modality, chosen, files=files, progress=progress)
        write_npz(made, out)
        _show(made)
        typer.echo(f"written: {out}")


def _load(name_or_path: str, root: Path | None) -> Dataset:
    """A named data set, or a file; a file of that name comes first."""
    from modalhash.data import NAMED, load_dataset, read

    named = name_or_path in NAMED and not Path(name_or_path).is_file()
    return load_dataset(name_or_path, root) if named else read(name_or_path)


def _show(dataset: Dataset) -> None:
    from rich.console import Console
    from rich.table import Table
    from scipy import sparse

    console = Console()
    table = Table("modality", "items", "features", "type", "non-zeros", "labels each", "train / query / database")
    for name, n in dataset.sizes.items():
        values = dataset.features.get(name)
        labels = dataset.labels.get(name)
        row = [name, f"{n:,}"]
        if values is None:
            row += ["raw only", "", ""]
        else:
            density = f"{values.nnz / max(1, n):.1f} each" if isinstance(values, sparse.csr_array) else "dense"
            row += ["×".join(str(size) for size in values.shape[1:]), str(values.dtype), density]
        row.append(f"{labels.sum() / max(1, n):.2f}" if labels is not None else "none")
        split = dataset.split
        parts = (split.training, split.query, split.database) if split else ()
        row.append(" / ".join(f"{len(part[name]):,}" for part in parts))
        table.add_row(*row)
    pairing = "paired" if dataset.paired else "not paired"
    console.print(f"[bold]{dataset.name}[/bold]: {pairing}, {len(dataset.class_names)} classes", highlight=False)
    console.print(table)
    for key, value in dataset.provenance.items():
        if value and key != "vocabulary":
            text = "; ".join(map(str, value)) if isinstance(value, list) else str(value)
            console.print(f"{key}: {text}", highlight=False, markup=False)


def _key_value(text: str) -> tuple[str, str | int | float | bool | None]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise ValueError(f"--option {text!r}: expected key=value, e.g. seed=1")
    words: dict[str, bool | None] = {"true": True, "false": False, "none": None}
    if value.lower() in words:
        return key, words[value.lower()]
    for kind in (int, float):
        try:
            return key, kind(value)
        except ValueError:
            continue
    return key, value


@contextmanager
def _plain_errors() -> Iterator[None]:
    """What is wrong with the input in one line and exit code 2; warnings as lines too."""
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    except (ValueError, TypeError, OSError, ImportError) as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr)
        raise typer.Exit(2) from error
    finally:
        for message in caught:
            print(f"warning: {message.message}", file=sys.stderr)
