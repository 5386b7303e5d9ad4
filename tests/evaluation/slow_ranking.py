"""Independent references: sorted lists and loops, and direct transcriptions of published rules."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np


def random_case(rng: np.random.Generator, n_queries: int, n_items: int, n_bits: int, n_classes: int = 4, **kwargs: Any):
    """Codes and labels with many ties; ``single=True`` gives one label each."""
    out = []
    for n in (n_queries, n_items):
        codes = np.packbits(rng.random((n, n_bits)) < 0.3, axis=1)
        if kwargs.get("single"):
            labels = np.eye(n_classes, dtype=int)[rng.integers(n_classes, size=n)]
        else:
            labels = (rng.random((n, n_classes)) < kwargs.get("density", 0.25)).astype(int)
            labels[0, 0] = 1
        out += [codes, labels]
    return tuple(out)


def distances(query_codes, codes):
    return np.unpackbits(query_codes[:, None, :] ^ codes[None, :, :], axis=2).sum(axis=2)


def average_precision(relevant, cutoff=None, normaliser="relevant"):
    """Of one ranked list of 0/1."""
    cutoff = cutoff or len(relevant)
    total, hits = 0.0, 0
    for place, hit in enumerate(relevant[:cutoff], start=1):
        if hit:
            hits += 1
            total += hits / place
    divisor = {"relevant": sum(relevant), "retrieved": hits, "smaller": min(sum(relevant), cutoff)}[normaliser]
    return total / divisor if divisor else 0.0


def tied_orders(distance):
    """All rankings of the items that keep smaller distances first."""
    groups = [np.flatnonzero(distance == d) for d in np.unique(distance)]
    for parts in itertools.product(*(itertools.permutations(group) for group in groups)):
        yield [item for part in parts for item in part]


def mean_over_orders(distance, relevant, measure):
    return np.mean([measure(np.asarray(relevant)[order]) for order in tied_orders(distance)])


# --- transcriptions -------------------------------------------------------------------------------


def map_m(query_codes, query_labels, codes, labels, top=None):
    """mAP.m of AMSH, BATCH, SCRATCH, FCMH: query zeros become −1 and are compared with the database."""
    total = 0.0
    all_distances = distances(query_codes, codes)
    top = top or len(codes)
    for i in range(len(query_codes)):
        order = np.argsort(all_distances[i], kind="stable")
        wanted = np.where(query_labels[i] == 0, -1, query_labels[i])
        found, precision = 0, 0.0
        for j in range(top):
            if np.any(wanted == labels[order[j]]):
                found += 1
                precision += found / (j + 1)
        total += precision / found if found else 0.0
    return total / len(query_codes)


def perf_metric4label(query_codes, query_labels, codes, labels, counter=0):
    """perf_metric4Label.m of the BMC collection; ``counter`` is what the number of queries starts at."""
    all_distances = distances(query_codes, codes)
    total = 0.0
    for i in range(len(query_codes)):
        relevant = (labels @ query_labels[i] > 0)[np.argsort(all_distances[i], kind="stable")]
        if not relevant.any():
            continue
        counter += 1
        places = np.flatnonzero(relevant) + 1
        total += np.mean(np.arange(1, len(places) + 1) / places)
    return total / counter


def cat_apcal_similarity(query_codes, query_labels, codes, labels):
    """cat_apcal_similarity.m of SRLCH: LLᵀ > 0, all ranks, divided by what was found."""
    similar = query_labels @ labels.T > 0
    values = []
    for i, row in enumerate(distances(query_codes, codes)):
        gained, x, p = 0.0, 0, 0.0
        for j, item in enumerate(np.argsort(row, kind="stable"), start=1):
            if similar[i, item]:
                x += 1
                p += x / j
        gained = p / x if x else 0.0
        values.append(gained)
    return np.mean(values)


def single_label_map(query_codes, query_labels, codes, labels, top):
    """mAP.m of FSH and SMFH: equality of the class number, inner products sorted descending, top ranks only."""
    query_class, item_class = query_labels.argmax(axis=1), labels.argmax(axis=1)
    values = []
    for i, row in enumerate(distances(query_codes, codes)):
        order = np.argsort(-(codes.shape[1] * 8 - 2.0 * row), kind="stable")[:top]
        hits = item_class[order] == query_class[i]
        precision = np.cumsum(hits) / np.arange(1, top + 1)
        values.append((precision * hits).sum() / hits.sum() if hits.any() else 0.0)
    return np.mean(values)


def map_rank(query_codes, query_labels, codes, labels, at):
    """map_rank.m of OCMFH: the curve of mAP over every cut-off; read at one."""
    curve = np.zeros(len(codes))
    for i, row in enumerate(distances(query_codes, codes)):
        relevant = (labels @ query_labels[i] > 0)[np.argsort(row, kind="stable")]
        found = np.cumsum(relevant)
        sums = np.cumsum(relevant * found / np.arange(1, len(codes) + 1))
        curve += np.where(found > 0, sums / np.maximum(found, 1), 0.0)
    return curve[at - 1] / len(query_codes)
