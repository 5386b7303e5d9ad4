"""IAPR TC-12 (Grubinger et al., 2006): photographs with English and German captions.

:func:`load` reads prepared features (``features.npz``) with captions (``items.jsonl``), whose labels are keywords of
the captions; any other prepared file is read as it is.

:func:`convert` takes the official captions (``iaprtc12.tgz``) and the region labels of SAIAPR TC-12
(``saiaprtc12ok.part*.rar``). The labels of an image are the union of its regions' labels. Ids that no region has are
left out, which makes the 255 classes of the literature. The 2,912 words of the literature have no published recipe:
``min_count`` sets the size.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._typing import Array, Matrix
from modalhash.data._errors import ReadError
from modalhash.data._read import read
from modalhash.data.catalog import NamedDataset, read_files
from modalhash.data.dataset import Dataset
from modalhash.data.formats._found import text_array
from modalhash.data.formats.manifest import manifest_lines
from modalhash.data.labels import label_matrix
from modalhash.data.sets._official import FileTree, compare_count, features_of_files, lines_of, random_split
from modalhash.validation import check_choice

IMAGES, CAPTIONS, CLASSES = 20000, 19999, 255
FEATURES_NOTES = (
    "labels are caption keywords: not comparable with figures published on the 255 region labels",
    "image: gradient histograms and colour moments, stored as float16, handed on as float32",
)


def load(folder: Path, entry: NamedDataset, *, text: str = "de") -> Dataset:
    """Read the prepared features with German (``text="de"``) or English words; other files are read as they are."""
    check_choice(text, "text", ("de", "en"))
    path = folder / "features.npz"
    if not path.is_file():
        return read_files(folder, entry)
    dataset = read(
        path,
        name=entry.name,
        image="image",
        text=f"text_{text}",
        labels="labels",
        ids="ids",
        class_names="label_names",
        is_train="is_train",
    )
    provenance = {
        **dataset.provenance,
        "source": entry.title,
        "licence": entry.licence,
        "variant": f"text_{text}",
        "notes": list(FEATURES_NOTES),
    }
    features = {**dataset.features, "image": dataset.features["image"].astype(np.float32)}
    raw = _captions_and_pictures(folder / "items.jsonl", dataset.ids["image"], text)
    return replace(dataset, features=features, raw=raw, provenance=provenance)


def _captions_and_pictures(path: Path, ids: Array, text: str) -> dict[str, Array]:
    """Return the captions and picture names of the items; nothing where there is no such file."""
    if not path.is_file():
        return {}
    wanted = ("id", "image", f"caption_{text}")
    items: dict[Any, dict[str, Any]] = {}
    for number, line in manifest_lines(path):
        if lacking := [key for key in wanted if not isinstance(line.get(key), str | int)]:
            raise ReadError(path, f"no {lacking[0]!r}; the fields are {', '.join(line)}", line=number)
        items[line["id"]] = line
    if missing := [key for key in ids.tolist() if key not in items]:
        raise ReadError(path, f"{len(missing)} items of features.npz are missing, e.g. {missing[0]!r}")
    return {
        "image": text_array([str(items[key]["image"]) for key in ids.tolist()]),
        "text": text_array([str(items[key][f"caption_{text}"]) for key in ids.tolist()]),
    }


def convert(
    source: Path,
    *,
    language: str = "eng",
    image: str = "auto",
    min_count: int = 5,
    n_query: int = 2000,
    seed: int = 0,
) -> Dataset:
    """Convert the official files.

    Parameters
    ----------
    source
        folder with ``iaprtc12/`` (pictures, annotations) and ``benchmark/`` (region labels, ``wlist.txt``)
    language
        ``eng`` or ``ger``
    image
        ``pictures`` (gradient and colour features of the JPEGs), ``paths`` (no features), or ``auto``
    min_count
        a word is used if it stands in so many captions
    n_query
        number of random queries
    seed
        of the split
    """
    check_choice(language, "language", ("eng", "ger"))
    check_choice(image, "image", ("auto", "pictures", "paths"))
    tree = FileTree(source)
    labels = _region_labels(tree)
    captions = _captions(tree, language)
    notes = [
        compare_count("images with region labels", len(labels), IMAGES),
        compare_count("captions of them", len(labels.keys() & captions.keys()), CAPTIONS),
    ]
    ids = np.array(sorted(labels.keys() & captions.keys()))
    if not len(ids):
        raise ValueError(f"{source}: no image has both region labels and a .{language} file")
    used = sorted({label for number in labels for label in labels[number]})
    notes.append(compare_count("classes", len(used), CLASSES))
    matrix = label_matrix([labels[number] for number in ids.tolist()], used)
    texts = [captions[number][1] for number in ids.tolist()]
    words, text = _bag_of_words(texts, min_count)
    pictures = [captions[number][0] for number in ids.tolist()]
    features: dict[str, Matrix] = {"text": text}
    folder = _picture_folder(tree, pictures[0])
    if image == "pictures" or (image == "auto" and folder is not None):
        if folder is None:
            raise FileNotFoundError(f"{source}: no picture {pictures[0]}")
        features = {"image": features_of_files((folder / path for path in pictures), len(ids)), **features}
    names = _class_names(tree)
    return Dataset(
        features,
        {"image": matrix, "text": matrix},
        {"image": ids, "text": ids},
        class_names=[names.get(label) or f"label {label}" for label in used],
        name="iapr-tc12",
        provenance={
            "source": "IAPR TC-12 and SAIAPR TC-12, official distributions",
            "licence": "free of charge and without copyright restrictions",
            "notes": [note for note in notes if note],
            "vocabulary": words,
        },
        raw={"image": np.array(pictures), "text": np.array(texts)},
        split=random_split(ids, n_query, seed),
    )


def _region_labels(tree: FileTree) -> dict[int, set[int]]:
    """Return the labels by image of every ``labels.txt``: lines of image, region, label; short lines are skipped."""
    files = tree.all("labels.txt")
    if not files:
        raise FileNotFoundError(f"{tree}: no labels.txt of SAIAPR TC-12 at any depth")
    labels: dict[int, set[int]] = {}
    for path in files:
        for number, line in enumerate(lines_of(path, "latin-1"), 1):
            fields = line.split()
            if len(fields) < 3:
                continue
            try:
                image, _, label = (int(float(field)) for field in fields[:3])
            except ValueError as error:
                raise ReadError(path, f"{line!r}; expected image, region and label", line=number) from error
            if label < 1:
                raise ReadError(path, f"label {label}; they count from 1", line=number)
            labels.setdefault(image, set()).add(label)
    return labels


def _captions(tree: FileTree, language: str) -> dict[int, tuple[str, str]]:
    """Return the picture path and the caption by image number. Some files are not valid XML, hence expressions."""
    folder = tree.need(f"annotations_complete_{language}")
    captions = {}
    for path in sorted(folder.rglob(f"*.{language}")):
        content = path.read_bytes()
        try:
            text = content.decode("cp1252")
        except UnicodeDecodeError:
            text = content.decode("latin-1")
        fields = dict(re.findall(r"<(\w+)>(.*?)</\1>", re.sub(r"</?DOC>", "", text), re.DOTALL))
        words = " ".join(fields.get(key, "").strip() for key in ("TITLE", "DESCRIPTION"))
        if not path.stem.isdigit():
            raise ReadError(path, "expected a number as name")
        picture = fields.get("IMAGE", "").strip() or f"images/{path.parent.name}/{path.stem}.jpg"
        captions[int(path.stem)] = (picture, re.sub(r"\s+", " ", words).strip())
    return captions


def _class_names(tree: FileTree) -> dict[int, str]:
    names = {}
    for line in lines_of(tree.need("wlist.txt"), "latin-1"):
        number, _, name = line.partition("\t") if "\t" in line else line.strip().partition(" ")
        if number.strip().isdigit():
            names[int(number)] = name.strip()  # one name is blank
    return names


def _bag_of_words(texts: list[str], min_count: int) -> tuple[list[str], sparse.csr_array]:
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(binary=True, min_df=min_count, dtype=np.float32)
    try:
        matrix = vectorizer.fit_transform(texts)
    except ValueError as error:
        raise ValueError(f"no word stands in {min_count} captions; take a smaller min_count") from error
    vocabulary: Array = vectorizer.get_feature_names_out()
    return vocabulary.tolist(), sparse.csr_array(matrix)


def _picture_folder(tree: FileTree, picture: str) -> Path | None:
    """Return the folder that the paths ``images/XX/N.jpg`` are relative to."""
    for folder in (tree.root, *(path.parent for path in tree.all("images"))):
        if (folder / picture).is_file():
            return folder
    return None
