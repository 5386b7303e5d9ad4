from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import slow_ranking as slow
from hypothesis import given, settings, strategies as st

from modalhash.evaluation import PRESETS, Protocol, measure, rank
from modalhash.evaluation.protocol import CHOICES

pytestmark = pytest.mark.filterwarnings("ignore:.*have no label")

protocols = st.builds(
    Protocol,
    **{name: st.sampled_from(choices) for name, choices in CHOICES.items()},
    cutoff=st.none() | st.integers(1, 10**6),
    count_from=st.integers(0, 20),
)

# expected ties are no single order: they have their own tests
ordered_protocols = st.builds(
    Protocol,
    **{name: st.sampled_from(choices) for name, choices in CHOICES.items() if name != "ties"},
    ties=st.sampled_from(["stable", "optimistic", "pessimistic"]),
    cutoff=st.none() | st.integers(1, 40),
    count_from=st.integers(0, 20),
)

TRANSCRIPTIONS = {
    "amsh": slow.map_m,
    "batch": slow.map_m,
    "scratch": slow.map_m,
    "fcmh": slow.map_m,
    "srlch": slow.cat_apcal_similarity,
    "sephlike": slow.perf_metric4label,
    "bmc": partial(slow.perf_metric4label, counter=10),
    "fsh": partial(slow.single_label_map, top=100),
    "smfh-wiki": partial(slow.single_label_map, top=100),
    "smfh-bmc": partial(slow.single_label_map, top=2173),
    "ocmfh": partial(slow.map_rank, at=100),
}


@given(protocols)
@settings(deadline=None, max_examples=200)
def test_prints_and_parses(protocol):
    assert Protocol.parse(str(protocol)) == protocol
    assert " " not in protocol.measure


def test_presets_parse_by_name_and_can_be_changed():
    for name, protocol in PRESETS.items():
        assert Protocol.parse(name) == protocol
    assert Protocol.parse("bmc mAP@50 count_from=0") == replace(PRESETS["bmc"], cutoff=50, count_from=0)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("nonsense", "'nonsense' is not understood; expected a preset"),
        ("colour=red", "'colour=red' is not understood"),
        ("ties=random", "ties is 'random'; expected one of"),
        ("mAP@x", "cutoff is 'x'; expected a whole number"),
        ("mAP@0", "cutoff is 0; expected an integer ≥ 1"),
        ("ties=stable ties=expected", "ties is given twice"),
        ("count_from=-1", "count_from is '-1'"),
    ],
)
def test_what_it_cannot_parse(text, match):
    with pytest.raises(ValueError, match=match):
        Protocol.parse(text)


def test_every_preset_has_a_transcription():
    assert set(TRANSCRIPTIONS) == set(PRESETS)


@pytest.mark.parametrize("name", PRESETS)
def test_preset_is_its_published_code(name):
    protocol = PRESETS[name]
    single = protocol.relevance == "same-class"
    n = 2300 if name == "smfh-bmc" else 260
    # rare classes: some queries find nothing, and some find nothing in the first 100
    case = slow.random_case(
        np.random.default_rng(7), 25, n, 8, n_classes=150 if single else 30, single=single, density=0.02
    )
    assert len(np.unique(case[2], axis=0)) < n  # ties
    found = measure(rank(*case), protocol)
    assert found.map == pytest.approx(TRANSCRIPTIONS[name](*case), abs=1e-12)
    if name not in ("smfh-bmc",):
        assert found.n_empty > 0


def test_presets_differ_where_they_should():
    case = slow.random_case(np.random.default_rng(7), 25, 2300, 8, n_classes=1500, single=True)
    ranking = rank(*case)
    values = {name: measure(ranking, protocol).map for name, protocol in PRESETS.items()}
    whole = values["amsh"]
    assert values["batch"] == values["scratch"] == values["fcmh"] == values["srlch"] == whole
    n = int((ranking.n_relevant > 0).sum())
    assert n < 25
    assert values["sephlike"] == pytest.approx(whole * 25 / n)
    assert values["bmc"] == pytest.approx(values["sephlike"] * n / (n + 10))
    assert values["fsh"] == values["smfh-wiki"] == values["ocmfh"]
    assert len({round(values[name], 9) for name in ("amsh", "sephlike", "bmc", "fsh", "smfh-bmc")}) == 5
    assert {name for name, protocol in PRESETS.items() if protocol.database == "hashed"} == {
        "sephlike",
        "bmc",
        "fsh",
        "smfh-bmc",
    }


def test_same_class_refuses_several_labels():
    from modalhash.evaluation import evaluate

    codes = {"a": np.zeros((3, 1), np.uint8)}
    labels = {"a": np.array([[1, 0], [1, 1], [0, 1]])}
    with pytest.raises(ValueError, match="queries, 'a': item 1 has 2 labels; relevance='same-class' needs"):
        evaluate(None, (codes, labels), (codes, labels), intra=True, protocol="fsh mAP@all")


def test_all_queries_skipped_is_an_error():
    codes = np.zeros((2, 1), np.uint8)
    ranking = rank(codes, np.array([[1, 0], [1, 0]]), codes, np.array([[0, 1], [0, 1]]))
    with pytest.raises(ValueError, match="no query has a relevant item in the database"):
        measure(ranking, Protocol(empty="skip"))
    assert measure(ranking, Protocol()).map == 0


@given(ordered_protocols, st.integers(0, 50))
@settings(deadline=None, max_examples=40)
def test_any_protocol_is_its_definition(protocol, seed):
    case = query_codes, query_labels, codes, labels = slow.random_case(np.random.default_rng(seed), 6, 40, 6)
    ranking = rank(*case)
    each = []
    for q, row in enumerate(slow.distances(query_codes, codes)):
        relevant = labels @ query_labels[q] > 0
        if protocol.empty == "skip" and not relevant.any():
            continue
        order = {
            "stable": np.argsort(row, kind="stable"),
            "optimistic": np.lexsort((~relevant, row)),
            "pessimistic": np.lexsort((relevant, row)),
        }[protocol.ties]
        each.append(slow.average_precision(relevant[order], protocol.cutoff, protocol.normaliser))
    found = measure(ranking, protocol)
    assert found.map == pytest.approx(sum(each) / (len(each) + protocol.count_from), abs=1e-12)
    assert np.isnan(found.average_precision).sum() == 6 - len(each)
