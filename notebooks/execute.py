"""Run the notebooks and write them back with their outputs: ``make notebooks``.

Each runs in a folder of its own, which is thrown away. Nothing that differs from run to run is written besides what the
cells themselves print, so that a change of a notebook is a small difference in git. The picture of the cell tagged
``docs-figure`` goes to ``docs/images`` as well.
"""

from __future__ import annotations

import argparse
import base64
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.kernelspec import KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent
IMAGES = FOLDER.parent / "docs" / "images"
FIGURE_TAG = "docs-figure"
CELL_SECONDS = 300
"""The longest that a cell may take: loops are compiled when a new version is run for the first time."""


def notebooks() -> list[Path]:
    """Return the notebooks of this folder."""
    return sorted(FOLDER.glob("*.ipynb"))


def execute(path: Path, folder: Path) -> Any:
    """Return a notebook as it comes out when all its cells are run in a folder; the file stays as it is.

    Cells run in this Python, whatever kernels the user has installed, and leave nothing in the user's home.
    """
    notebook = nbformat.read(path, as_version=4)
    kernel = AsyncKernelManager(
        kernel_name="python3",
        kernel_spec_manager=KernelSpecManager(kernel_dirs=[]),
        connection_file=str(folder / ".kernel.json"),
    )
    client = NotebookClient(
        notebook,
        km=kernel,
        timeout=CELL_SECONDS,
        record_timing=False,
        extra_arguments=["--log-level=ERROR"],
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env={**os.environ, "IPYTHONDIR": str(folder / ".ipython"), "MODALHASH_QUIET": "1"})
    return cleaned(notebook)


def cleaned(notebook: Any) -> Any:
    """Take out what says something about the machine and not about the notebook."""
    notebook.metadata = nbformat.from_dict(
        {
            "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
            "language_info": {"name": "python"},
        }
    )
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({"tags": cell.metadata["tags"]} if cell.metadata.get("tags") else {})
        for output in cell.get("outputs", []):
            if output.output_type in ("display_data", "execute_result"):
                if "image/png" in output.data:
                    output.data.pop("image/jpeg", None)  # the same picture, which PIL gives twice
                output.metadata = nbformat.from_dict({})  # the format asks for it
    return notebook


def docs_figure(notebook: Any) -> bytes:
    """Return the picture that the documentation shows of a notebook."""
    (cell,) = [cell for cell in notebook.cells if FIGURE_TAG in cell.metadata.get("tags", [])]
    (picture,) = [output.data["image/png"] for output in cell.outputs if "image/png" in output.get("data", {})]
    return base64.b64decode(picture)


def figure_path(path: Path) -> Path:
    """Return where that picture is."""
    return IMAGES / f"notebook-{path.stem}.png"


def main() -> None:
    """Run the notebooks named, or all, and write them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("notebook", nargs="*", type=Path, help="by default all of this folder")
    for path in parser.parse_args().notebook or notebooks():
        with tempfile.TemporaryDirectory() as folder:
            done = execute(path, Path(folder))
        figure = docs_figure(done)
        nbformat.write(done, path)
        figure_path(path).write_bytes(figure)
        sys.stdout.write(f"{path.name}: {path.stat().st_size / 1000:.0f} kB\n")


if __name__ == "__main__":
    main()
