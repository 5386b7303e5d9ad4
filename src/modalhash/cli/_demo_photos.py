"""The demonstration with a folder of the user's own photos, which have no labels and no texts."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from modalhash.cli._common import audited, progress_bars, show_problems

if TYPE_CHECKING:
    from rich.console import Console

    from modalhash.engine import Engine

ENGINE = "photos-engine"
"""Where the engine goes, in the folder of the demonstration."""
N_WORDS, N_PHOTO_HITS = 4, 5
"""Words that are tried, and photos that are listed for each."""


def show_photos(out: Console, photos: Path, folder: Path, *, bits: int | str, seed: int, quality: str | None) -> Engine:
    """Train an engine from photos alone, try some words on it, and return it."""
    from modalhash.engine import Engine

    photos = photos.expanduser()
    if not photos.exists():  # which might be the name of a data set
        raise FileNotFoundError(f"{photos}: there is no such folder; give a folder of photos, or a zip of them")
    source, target = str(photos), folder / ENGINE
    chosen = [] if quality is None else ["--quality", str(quality)]
    print_command(out, ["train", source, "-o", str(target), "--labels", "none", *chosen, *other_options(bits, seed)])
    with progress_bars(out) as callback, audited("train", target, sources=[source], bits=bits, seed=seed):
        engine = Engine.train(
            source,
            target,
            n_bits=bits,
            labels="none",
            quality=quality,
            random_state=seed,
            overwrite=True,
            callback=callback,
            on_problem=lambda problem: None,  # shown below the bars
        )
    show_problems(engine.problems, [source])
    out.print(
        f"[bold]{len(engine):,} photos[/bold] in codes of {engine.n_bits} bits, learned from what they show: no label, "
        "no text, and no name of a folder."
    )
    _try_words(out, engine, photos)
    return engine


def _try_words(out: Console, engine: Engine, photos: Path) -> None:
    """List what words find that probably suit the photos, or what a photo finds where words find nothing."""
    words = engine.config.get("examples", [])
    if words:
        out.print(f"Words that probably find some of them: [bold]{', '.join(words)}[/bold]. Others work as well.")
        for word in words[:N_WORDS]:
            out.print()
            print_command(out, ["search", str(engine.path), word, "-k", str(N_PHOTO_HITS)])
            _print_hits(out, [str(hit.uri) for hit in engine.search(text=word, k=N_PHOTO_HITS)], photos)
        return
    first = str(engine.get(next(iter(engine.items())).id).uri)
    if getattr(engine.encoders["image"], "space", None) is None:
        out.print("The encoder of --quality fast understands no words; best does. A photo finds others like it:")
    else:
        out.print("No everyday word clearly suits them, but you may try some. A photo finds others like it:")
    out.print()
    print_command(out, ["search", str(engine.path), "--image", os.path.relpath(first), "-k", str(N_PHOTO_HITS)])
    _print_hits(out, [str(hit.uri) for hit in engine.search(image=first, k=N_PHOTO_HITS)], photos)


def _print_hits(out: Console, found: list[str], photos: Path) -> None:
    """Print the photos that were found, by their paths in the folder."""
    root = str(photos.resolve())
    names = (os.path.relpath(path, root) if path.startswith(f"{root}{os.sep}") else path for path in found)
    out.print("  ".join(names), markup=False)


def other_options(bits: int | str, seed: int) -> list[str]:
    """Return how to give ``train`` a length of the codes and a seed that are not its own defaults."""
    return [*(["--bits", str(bits)] if bits != "auto" else []), *(["--seed", str(seed)] if seed else [])]


def print_command(out: Console, words: list[str]) -> None:
    """Print a command that does what is done now, as it is typed into a shell."""
    out.print(f"$ {shlex.join(['modalhash', *words])}", style="bold", markup=False, soft_wrap=True)
