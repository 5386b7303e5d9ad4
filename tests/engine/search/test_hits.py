"""Requests with options of their own, filters, and pictures that an engine saves."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from modalhash import Engine, HammingIndex
from modalhash.engine import Query, SearchOptions, refresh
from modalhash.engine.search.hits import HitFinder
from modalhash.engine.search.query import unknown_warning
from modalhash.engine.storage.folder import MEDIA
from modalhash.store import Filter, Record, SqliteStore

N_BITS = 16
LABELS = ("a", "b", 'quo"te', "é", "100%", "[", 7)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """500 random items of two modalities and both kinds, each with some labels; index and store."""
    rng = np.random.default_rng(5)
    path = tmp_path_factory.mktemp("many") / "items.db"
    with SqliteStore(path, n_bits=N_BITS) as store:
        store.add(
            Record(
                str(n),
                ("image", "text")[n % 2],
                rng.integers(0, 256, N_BITS // 8, dtype=np.uint8),
                ("learned", "hashed")[int(rng.random() < 0.05)],
                labels=tuple(label for label in LABELS if rng.random() < (0.02 if label == 7 else 0.3)),
            )
            for n in range(500)
        )
        index = HammingIndex(N_BITS)
        refresh(index, store)
        yield index, store


def brute(records, query, options):
    """All records in order of distance, those that pass the filter."""
    own = np.frombuffer(bytes(query.code), np.uint8)
    found = []
    for record in records:
        distance = int(np.unpackbits(np.frombuffer(record.code, np.uint8) ^ own).sum())
        fits = (
            (options.want is None or record.modality in options.want)
            and options.kind in (None, record.kind)
            and {label.casefold() for label in options.labels} <= {str(label).casefold() for label in record.labels}
            and (query.item is None or record.key != query.item.key)
        )
        if fits and (options.radius is None or distance <= options.radius):
            found.append((record.id, distance))
    found.sort(key=lambda one: one[1])
    return found[: options.limit] if options.radius is not None else found[: options.k]


asked = st.tuples(
    st.builds(
        Query,
        code=st.binary(min_size=2, max_size=2).map(lambda data: np.frombuffer(data, np.uint8)),
        item=st.sampled_from([None, Record("0", "image", b""), Record("1", "text", b"")]),
    ),
    st.builds(
        SearchOptions,
        k=st.sampled_from([1, 3, 40, 600]),
        radius=st.sampled_from([None, None, 4]),
        limit=st.sampled_from([None, 1, 7]),
        want=st.sampled_from([None, ("image",), ("text", "image")]),
        labels=st.lists(
            st.sampled_from([*map(str, LABELS), "nosuch", "a%", "_", "A", "É"]), max_size=2, unique=True
        ).map(tuple),
        kind=st.sampled_from([None, None, "hashed", "learned"]),
    ),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(st.lists(asked, max_size=6))
def test_each_gets_what_it_would_get_alone(many, some):
    index, store = many
    records = list(store.scan())
    found = HitFinder(index, store, store.modalities()).find(some)
    assert [[(hit.id, hit.distance) for hit in hits] for hits in found] == [brute(records, *one) for one in some]


def test_matching_items(many):
    _, store = many
    for label in LABELS:
        expected = [n + 1 for n, record in enumerate(store.scan()) if label in record.labels]
        assert store.matching(SearchOptions(labels=str(label)).filter).tolist() == expected
    assert len(store.matching()) == 500
    kinds = [SearchOptions(kind=kind).filter for kind in ("learned", "hashed")]
    assert sum(len(store.matching(kind)) for kind in kinds) == 500


@pytest.mark.slow
def test_filters_of_the_engine(engine):
    engine.add([{"id": f"new {n}", "text": f"a green ball {n}", "labels": ["rare", "green"]} for n in range(3)])
    everything = engine.search(text="a red box", k=500, hybrid=False)
    for options in (
        {"labels": "rare"},
        {"labels": ["rare", "green"]},
        {"kind": "hashed"},
        {"labels": ("red",), "kind": "learned"},
    ):
        labels = {options["labels"]} if isinstance(options.get("labels"), str) else set(options.get("labels", ()))
        expected = [h for h in everything if labels <= set(h.labels) and options.get("kind") in (None, h.kind)]
        for k in (2, 500):
            found = engine.search(text="a red box", k=k, hybrid=False, **options)
            assert [(h.modality, h.id, h.score) for h in found] == [(h.modality, h.id, h.score) for h in expected[:k]]
        best = engine.search(text="a red box", k=500, asymmetric=True, hybrid=False, **options)
        assert {hit.id for hit in best} == {hit.id for hit in expected}
    assert engine.search(id="new 0", labels="rare", k=5) == [
        hit for hit in engine.search(id="new 0", k=500) if "rare" in hit.labels
    ]
    with pytest.raises(ValueError, match="kind is 'other'"):
        engine.search(text="red", kind="other")


def keys(hits):
    return [(hit.modality, hit.id) for hit in hits]


@pytest.mark.parametrize(
    "where",
    [
        "label = RARE and not id = new 1",
        "label = red and kind = learned",
        "not label = red",
        "modality = text or label = blue",
        "batch >= 1",
    ],
)
def test_a_filter_passes_exactly_what_it_says(engine, where):
    engine.add([{"id": f"new {n}", "text": f"a green ball {n}", "labels": ["rare"], "batch": n} for n in range(3)])
    expected = {engine.store.records([n])[n].key for n in engine.store.matching(Filter.parse(where)).tolist()}
    assert expected
    for query in ({"text": "a red box"}, {"id": "photos/3.png"}):
        everything = engine.search(**query, k=500, hybrid=False)
        wanted = [hit for hit in everything if (hit.modality, hit.id) in expected]
        for k in (1, 2, 500):
            assert keys(engine.search(**query, k=k, where=where, hybrid=False)) == keys(wanted[:k])
        within = keys(hit for hit in wanted if hit.distance <= 6)
        assert keys(engine.search(**query, radius=6, where=where, hybrid=False)) == within
        limited = engine.search(**query, radius=6, limit=2, where=Filter.of(where).to_json(), hybrid=False)
        assert keys(limited) == within[:2]
        assert {(hit.modality, hit.id) for hit in engine.search(**query, k=500, where=where)} <= expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"labels": "redd"}, "no item has the label 'redd'; did you mean 'red'"),
        ({"where": "label = circ"}, "no item has the label 'circ'; did you mean 'circle'"),
        ({"where": "label = zzzzz"}, "no item has the label 'zzzzz'; labels are, for example, '"),
        ({"where": "kind = lerned"}, "no kind 'lerned'; it has 'learned', 'hashed'"),
        ({"where": "not modality = sound"}, "no modality 'sound'; it has 'image', 'text'"),
        ({"where": "label ="}, "character 8: expected a value"),
    ],
)
def test_what_no_item_has_is_told(engine, options, message):
    with pytest.raises(ValueError, match=message):
        engine.search(text="a red ball", **options)


def test_labels_of_items_that_came_later_are_known(engine):
    with pytest.raises(ValueError, match="no item has the label 'Rare'"):
        engine.search(text="a red ball", labels="Rare")
    engine.add([{"id": "new", "text": "a red ball", "labels": ["rare"]}])
    assert [hit.id for hit in engine.search(text="a red ball", labels="Rare")] == ["new"]
    assert engine.labels()["rare"] == 1


def test_prepared_queries_with_options_of_their_own(engine):
    queries = engine.prepare(text=["a red ball", "a blue box", "zzqqxx"], asymmetric=True)
    assert [query.message is not None for query in queries] == [False, False, True]
    assert "1 of 3 queries" in unknown_warning(queries)
    stored = engine.prepare(id=["photos/1.png", "items.csv:3"])
    assert [query.modality for query in stored] == ["image", "text"]
    found = engine.answer(
        [*queries[:2], stored[1]],
        [
            SearchOptions(k=3, asymmetric=True),
            SearchOptions(k=30, want=("image",), labels=("blue",), asymmetric=True),
            SearchOptions(k=4, want=("text",)),
        ],
    )
    expected = [
        engine.search(text="a red ball", k=3, asymmetric=True),
        engine.search(text="a blue box", k=30, want="image", labels="blue", asymmetric=True),
        engine.search(id="items.csv:3", k=4, want="text"),
    ]
    for own, alone in zip(
        found, expected, strict=True
    ):  # a product of three rows rounds otherwise than one of one row:
        assert {hit.id for hit in own} == {hit.id for hit in alone}  # codes with equal scores may change places
        assert [hit.score for hit in own] == pytest.approx([hit.score for hit in alone], abs=1e-3)
    assert engine.answer([]) == []


def test_hits_carry_their_codes(engine):
    codes = {line["id"]: line["code"] for line in engine.export()}
    hits = engine.search(text="a red ball", k=10)
    assert [hit.code.hex() for hit in hits] == [codes[hit.id] for hit in hits]
    assert json.loads(json.dumps(hits[0].to_dict()))["code"] == codes[hits[0].id]
    query = engine.prepare(text=["a red ball"])[0].code.tobytes()
    assert [(int.from_bytes(query) ^ int.from_bytes(hit.code)).bit_count() for hit in hits] == [
        hit.distance for hit in hits
    ]


def test_how_many_there_are_of_each(engine):
    assert engine.sizes() == {"image": 60, "text": 60}
    engine.remove(["photos/0.png"])
    assert engine.sizes() == {"image": 59, "text": 60}


# -- pictures that came as bytes


def data_of(world, n):
    return (world / "photos" / f"{n}.png").read_bytes()


def saved(engine):
    folder = engine.path / MEDIA
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_saved_picture_comes_and_goes_with_its_item(engine, world):
    engine.add([{"id": "one", "data": data_of(world, 1)}])
    assert saved(engine) == [], "only where it is wanted"
    engine.add(
        [{"id": "two", "data": data_of(world, 2)}, {"id": "bad", "data": b"no picture"}],
        keep=True,
        on_problem=lambda _: None,
    )
    hit = engine.get("two")
    assert engine.path_of(hit).read_bytes() == data_of(world, 2)
    assert hit.uri == str(engine.path / MEDIA / saved(engine)[0])
    assert engine.search(id="two", asymmetric=True, k=1), "its content is found again"
    engine.add([{"id": "two", "data": data_of(world, 3)}], keep=True, on_problem=lambda _: None)
    assert len(saved(engine)) == 1, "it was not added, so it is not saved"
    engine.add([{"id": "two", "data": data_of(world, 3)}], keep=True, replace=True)
    assert len(saved(engine)) == 1, "the old one went away"
    assert engine.path_of(engine.get("two")).read_bytes() == data_of(world, 3)
    engine.remove(["two"])
    assert saved(engine) == []
    engine.remove(["photos/5.png"])
    assert (world / "photos" / "5.png").exists(), "what is not saved here is not deleted"


def test_saved_pictures_move_with_the_engine(engine, world, tmp_path):
    engine.add([{"id": "two", "data": data_of(world, 2)}], keep=True)
    engine.close()
    moved = engine.path.rename(tmp_path / "moved")
    with Engine.open(moved) as again:
        assert again.path_of(again.get("two")).read_bytes() == data_of(world, 2)
        line = next(line for line in again.export() if line["id"] == "two")
        assert line["path"] == str(moved / again.get("two").uri)


@pytest.mark.slow
def test_training_anew_keeps_them(engine, world):
    engine.add([{"id": "two", "data": data_of(world, 2), "labels": ["red"]}], keep=True)
    manifest = world / "export.jsonl"
    manifest.write_text("".join(json.dumps(line) + "\n" for line in engine.export()))
    engine.close()
    with Engine.train(manifest, engine.path, n_bits=8, overwrite=True) as again:
        assert again.get("two").kind == "learned"
        assert again.path_of(again.get("two")).read_bytes() == data_of(world, 2)
    before = saved(engine)
    with pytest.raises(ValueError, match="n_bits"):
        Engine.train(manifest, engine.path, n_bits=64, overwrite=True)
    assert saved(engine) == before
