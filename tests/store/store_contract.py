"""What every back end of a store promises: its test module inherits :class:`StoreContract`.

A back end gives two fixtures. ``open_store(n_bits=None, timeout=60)`` opens the test's store, creates it where
``n_bits`` is given, and may be called several times, as several processes would. ``block_writers()`` is a context in
which another process is writing and does not finish.
"""

from __future__ import annotations

import json
import threading
from collections import Counter

import numpy as np
import pytest

from modalhash.engine import refresh
from modalhash.index import HammingIndex
from modalhash.store import And, Comparison, Filter, Not, Or, Record, Revision, StoreBusyError, StoreError, all_of
from modalhash.store.records import KEPT_MARKS

N_BITS = 16


def record(id, modality="text", **more):
    more.setdefault("code", id.encode()[:2].ljust(2, b"\0"))
    return Record(id, modality, **more)


def texts(*ids):
    return [("text", id) for id in ids]


def ids_of(store, **options):
    return [each.id for each in store.scan(**options)]


class StoreContract:
    """Tests of a store that two handles share: ``store``, and ``other`` as another process would have it."""

    @pytest.fixture
    def open_store(self):
        raise NotImplementedError

    @pytest.fixture
    def block_writers(self):
        raise NotImplementedError

    @pytest.fixture
    def store(self, open_store):
        with open_store(n_bits=N_BITS) as opened:
            yield opened

    @pytest.fixture
    def other(self, store, open_store):
        with open_store() as opened:
            yield opened

    # -- what goes in comes out

    def test_an_empty_store(self, store):
        assert [store.n_bits, len(store), store.count(), store.count("text")] == [N_BITS, 0, 0, 0]
        assert [store.counts(), store.modalities(), store.revision()] == [{}, {}, Revision()]
        assert [list(store.scan()), list(store.codes()), store.matching().tolist()] == [[], [], []]
        assert [store.row_ids([]), store.records([]), store.add([]).tolist(), store.remove([])] == [{}, {}, [], 0]
        assert store.revision() == Revision(), "nothing was changed"

    def test_records_come_back_as_they_were(self, store, other):
        full = Record(
            "Foto-ü-😀",
            "image",
            np.array([1, 255], np.uint8),
            "learned",
            None,
            "fotos/ü.jpg",
            ("Meer", 7),
            {"jahr": [1, None]},
            bytes(range(128)),
        )
        bare = record("b", text="")
        assert store.add([full, bare]).tolist() == [1, 2]
        found = other.get("Foto-ü-😀", modality="image")
        assert found == Record(**{**vars(full), "code": b"\x01\xff"})
        assert other.get("b", modality="text") == bare
        assert found.key == ("image", "Foto-ü-😀")
        assert other.n_bits == N_BITS
        assert other.records([2, 99]) == {2: bare}
        assert other.records(np.array([2, 1])) == {1: found, 2: bare}
        assert other.counts() == {("image", "learned"): 1, ("text", "hashed"): 1}
        assert [other.count(), other.count("image"), other.count("sound"), len(other)] == [2, 1, 0, 2]
        assert list(other.scan()) == [found, bare]
        assert ids_of(other, modality="text") == ["b"]
        assert ids_of(other, modality="sound") == []

    def test_refinements_come_beside_the_codes(self, store, other):
        rows = [None if n % 3 == 0 else bytes([n, 256 - n][: n % 3]) for n in range(20)]
        store.add(record(f"{n:02}", ("image", "text")[n % 2], refinement=row) for n, row in enumerate(rows))
        start = store.revision()
        other.remove([("text", "19")])
        other.add([record("late", refinement=b"\x80" * 192)])
        batches = list(store.refinements())
        numbers, groups, vectors, present = (np.concatenate(part) for part in zip(*batches, strict=True))
        codes = list(store.codes())
        np.testing.assert_array_equal(numbers, np.concatenate([batch[0] for batch in codes]))
        np.testing.assert_array_equal(groups, np.concatenate([batch[1] for batch in codes]))
        assert [vectors.dtype, vectors.shape, present.dtype] == [np.int8, (20, 192), bool]
        assert present.tolist() == [row is not None for row in rows[:19]] + [True]
        for n, row in enumerate(rows[:19]):
            assert vectors[n].tobytes() == (row or b"").ljust(192, b"\0")
        assert (vectors[19] == -128).all()
        assert [batch[0].tolist() for batch in store.refinements(since=start)] == [[21]]
        assert sum(len(batch[0]) for batch in store.refinements(modality="image", until=start)) == 10
        assert list(store.refinements(modality="sound")) == []
        assert store.get("02", modality="image").refinement == b"\x02\xfe"
        assert store.get("00", modality="image").refinement is None

    def test_an_item_is_named_by_modality_and_id(self, store):
        numbers = store.add([record("a", "text", text="t"), record("a", "image", uri="i"), record("b", "text")])
        assert store.get("a", modality="text").text == "t"
        assert store.get("a", modality="image").uri == "i"
        keys = [("image", "a"), ("text", "a"), ("text", "a"), ("image", "b"), ("sound", "a"), ("text", "nobody")]
        assert store.row_ids(keys) == {("text", "a"): numbers[0], ("image", "a"): numbers[1]}
        assert ("image", "a") in store
        assert ("image", "b") not in store
        assert ("sound", "a") not in store
        assert store.remove([("text", "a")]) == 1
        assert ids_of(store) == ["a", "b"]
        assert store.get("a", modality="image").uri == "i"
        with pytest.raises(KeyError, match="no item of 'text' has the id 'a'"):
            store.get("a", modality="text")
        with pytest.raises(KeyError, match="no item of 'sound' has the id 'a'"):
            store.get("a", modality="sound")

    @pytest.mark.parametrize(
        "name", ['quo"te', "back\\slash", "a:b", "a'b", "%", "[]", "\n", " ", "é", "e\u0301", "\u202e"]
    )
    def test_names_may_be_any_text(self, store, name):
        store.add([record(name, name), record(f"{name}:{name}", name), record("text", "plain")])
        assert store.row_ids([(name, name), ("plain", name)]) == {(name, name): 1}
        assert store.get(f"{name}:{name}", modality=name).id == f"{name}:{name}"
        assert ids_of(store, modality=name) == [name, f"{name}:{name}"]
        assert store.remove([(name, name)]) == 1
        assert (name, f"{name}:{name}") in store

    def test_names_that_differ_a_little_are_different(self, store):
        store.add([record("a"), record("A"), record("a "), record("é"), record("e\u0301"), record("1"), record("01")])
        assert store.row_ids(texts("a", "A", "a ", "1", "a\0", "a\0b")) == dict(
            zip(texts("a", "A", "a ", "1"), [1, 2, 3, 6], strict=True)
        )

    def test_codes_come_in_batches(self, store):
        store.add([record(f"{i:02}", ("image", "text")[i % 2]) for i in range(40)])
        numbers, groups, codes = (np.concatenate(parts) for parts in zip(*store.codes(), strict=True))
        assert numbers.tolist() == list(range(1, 41))
        modalities = store.modalities()
        assert groups.tolist() == [modalities["image"], modalities["text"]] * 20
        assert codes.dtype == np.uint8
        assert codes.shape == (40, 2)
        assert codes.tobytes() == "".join(f"{i:02}" for i in range(40)).encode()
        assert sum(len(numbers) for numbers, _, _ in store.codes(modality="text")) == 20
        assert list(store.codes(modality="sound")) == []
        assert ids_of(store) == [f"{i:02}" for i in range(40)]
        assert ids_of(store, modality="image") == [f"{i:02}" for i in range(0, 40, 2)]

    def test_filters(self, store, other):
        labels = ("a", "b", 'quo"te', "é", "100%", "[", 7)
        rng = np.random.default_rng(0)
        batch = [
            record(
                str(n),
                kind=("learned", "hashed")[n % 3 == 0],
                labels=tuple(label for label in labels if rng.random() < 0.3),
            )
            for n in range(60)
        ]
        store.add(batch)
        for wanted in [(), *((label,) for label in labels), ("a", "b"), ("nosuch",), ("%",), ("10",), ("",)]:
            for kind in (None, "learned", "hashed"):
                expected = [
                    n + 1
                    for n, each in enumerate(batch)
                    if set(map(str, wanted)) <= set(map(str, each.labels)) and kind in (None, each.kind)
                ]
                where = all_of(
                    *(Comparison("label", "=", str(label).upper()) for label in wanted),
                    None if kind is None else Comparison("kind", "=", kind),
                )
                assert store.matching(where).tolist() == expected
                assert sorted(store.records(range(1, 61), where=where)) == expected
        has_a = Filter.parse("label = a")
        before = store.matching(has_a).tolist()
        other.remove([batch[before[0] - 1].key])
        other.add([record("late", labels=("a",))])
        assert store.matching(has_a).tolist() == [*before[1:], 61], "also after another process's changes"

    def test_filters_mean_what_they_say(self, store, other):
        """Any combination of conditions passes the items that pass it one by one, also right after a change."""
        rng = np.random.default_rng(1)
        labels = ("sea", "Boat", "BOAT", "é", "7", 7, -3, "true", "nobody's")
        batch = [
            record(
                str(n),
                ("image", "text")[n % 2],
                kind=("learned", "hashed")[n % 3 == 0],
                labels=tuple(label for label in labels[:-1] if rng.random() < 0.25),
                extra={"year": 2000 + n % 4},
            )
            for n in range(80)
        ]
        store.add(batch)
        alive = dict(enumerate(batch, 1))
        for n in range(120):
            where = _random_filter(rng, labels, only_labels=n % 2 == 0, depth=3)
            expected = [number for number, each in alive.items() if _passes(each, where)]
            assert store.matching(where).tolist() == expected, str(where)
            assert sorted(store.records(range(1, 202), where=where)) == expected, str(where)
            if n % 10 == 0:
                gone = next(iter(alive))
                other.remove([alive.pop(gone).key])
                late = record(f"late-{n}", labels=("sea", 7))
                alive[int(other.add([late])[0])] = late
        counts = Counter(label for each in alive.values() for label in {str(label) for label in each.labels})
        assert list(store.labels().items()) == sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))

    def test_spellings_of_a_label_are_one(self, store):
        spellings = ["Café  Paris", "CAFE\u0301 PARIS", " café paris ", "Cafe Paris"]
        store.add([record(str(n), labels=(one,)) for n, one in enumerate(spellings)])
        for one in spellings[:3]:
            where = Comparison("label", "=", one)
            assert store.matching(where).tolist() == [1, 2, 3]
            assert store.matching(where & Comparison("kind", "=", "hashed")).tolist() == [1, 2, 3]
            assert store.matching(~where).tolist() == [4]
        assert sorted(store.labels()) == sorted(spellings), "as they were written"
        assert store.damage() == []

    def test_the_newest_come_first(self, store, other):
        dates = ["2019-06-14T12:30:00", None, "2021-01-02 08:00:00", "yesterday", "2021-01-02T09:00:00", 2030, None]
        store.add([record(str(n), extra={} if date is None else {"taken": date}) for n, date in enumerate(dates)])
        assert store.newest().tolist() == [5, 3, 1, 7, 6, 4, 2]
        assert store.newest(Filter.parse("taken < 2020-01-01 or id = 6")).tolist() == [1, 7]
        other.add([record("late", extra={"taken": "2020-02-01"})])
        assert store.newest().tolist() == [5, 3, 8, 1, 7, 6, 4, 2], "also after another process's change"
        assert store.matching().tolist() == list(range(1, 9))

    def test_the_values_of_a_field(self, store):
        fields = [
            {"camera": "X100", "tags": ["sea", "boat"], "lens": {"mm": 35}},
            {"camera": "D70", "tags": ["sea"], "lens.mm": 35},
            {"camera": "X100", "mm": 2.5},
            {"camera": True},
            {"camera": None},
            {},
        ]
        store.add([record(str(n), extra=extra) for n, extra in enumerate(fields)])
        assert list(store.values("camera").items()) == [("X100", 2), ("D70", 1)]
        assert list(store.values("tags").items()) == [("sea", 2), ("boat", 1)]
        assert store.values("lens.mm") == {"35": 2}
        assert store.values("mm") == {"2.5": 1}
        assert store.values("camera", limit=1) == {"X100": 2}
        assert store.values("nosuch") == {}
        with pytest.raises(ValueError, match="quote"):
            store.values('camera"')

    def test_one_and_true_are_two_filters(self, store):
        store.add([record("one", extra={"x": 1}), record("true", extra={"x": True})])
        for where, number in [("x = 1", 1), ("x = true", 2), ("x = 1", 1)]:
            assert store.matching(Filter.parse(where)).tolist() == [number]

    @pytest.mark.parametrize(
        ("where", "expected"),
        [
            ("label = BOAT", "a c"),
            ("label = straße", "b"),
            ("label != boat", "b d e"),
            ("label in (boat, 7)", "a c d"),
            ("label = boat and not (year < 2005 or kind = learned)", "c"),
            ("modality = image", "a b"),
            ("not modality = nosuch", "a b c d e"),
            ("kind = learned", "a"),
            ("id = a or id = d", "a d"),
            ("id >= c", "c d e"),
            ('text = "a red boat"', "c"),
            ("not text = x", "a b c d e"),
            ("uri = a.jpg", "a"),
            ("year = 2004", "a b"),
            ("year != 2004", "c d e"),
            ("year > 2004", "c"),
            ("year >= 2003.5 and year <= 2004.5", "a b"),
            ('year = "2004"', "a b"),
            ("taken >= 2024-01-31", "a b"),
            ("taken <= 2024-01-31", "a c"),
            ("taken = 2024-01-31", "a"),
            ("taken = 2024-01", "a c"),
            ("taken <= 2024-01", "a c"),
            ("taken > 2024-01", "b"),
            ("taken = 2024", "a b c"),
            ("taken >= 2024 and not taken > 2024", "a b c"),
            ("taken < 2024", "d"),
            ('taken > "2024-01-31 10:00"', "a b"),
            ("camera.model = X100", "a"),
            ("exif.date = 2020-01-01", "b"),
            ("extra.kind = portrait", "b"),
            ("tags = red", "c"),
            ("tags = red and tags = blue", "c"),
            ("reviewed = true", "a b"),
            ("reviewed = false", "c"),
            ("reviewed = 1", ""),
            ('note = "100% [x] \\"q\\" _"', "d"),
            ("nosuch < 3 or nosuch >= 3", ""),
            ("not (nosuch < 3 or nosuch >= 3)", "a b c d e"),
        ],
    )
    def test_filters_by_any_field(self, store, where, expected):
        store.add(
            [
                record(
                    "a",
                    "image",
                    kind="learned",
                    uri="a.jpg",
                    labels=("Boat", "sea"),
                    extra={
                        "year": 2004,
                        "taken": "2024-01-31T22:15:00",
                        "camera": {"model": "X100"},
                        "reviewed": True,
                    },
                ),
                record(
                    "b",
                    "image",
                    labels=("STRASSE",),
                    extra={
                        "year": "2004",
                        "taken": "2024-02-01",
                        "exif.date": "2020-01-01 12:00",
                        "kind": "portrait",
                        "reviewed": "true",
                    },
                ),
                record(
                    "c",
                    text="a red boat",
                    labels=("boat",),
                    extra={"year": 2005.5, "taken": "2024-01-02", "tags": ["red", "blue"], "reviewed": False},
                ),
                record("d", labels=(7,), extra={"note": '100% [x] "q" _', "year": "unknown", "taken": 3}),
                record("e"),
            ]
        )
        found = Filter.parse(where)
        names = [record.id for record in store.records(store.matching(found)).values()]
        assert " ".join(names) == expected
        assert store.matching(Filter.from_json(found.to_json())).tolist() == store.matching(found).tolist()
        assert sorted(store.records(range(1, 6), where=found)) == store.matching(found).tolist()

    def test_labels_are_counted(self, store, other):
        store.add([record("a", labels=("sea", "boat")), record("b", labels=("sea", 7, "sea"))])
        assert list(store.labels().items()) == [("sea", 2), ("7", 1), ("boat", 1)]
        other.add([record("b", labels=("boat",))], replace=True)
        assert store.labels() == {"boat": 2, "sea": 1}
        other.remove(texts("a", "b"))
        assert store.labels() == {}

    # -- words

    def test_words_find_texts_captions_and_ids(self, store, other):
        others = [record(f"{n:02}", text="a boat on the sea") for n in range(30)]
        store.add(others)
        store.add(
            [
                record("dino", text="A dinosaur in the museum"),
                record("Foto-1913", "image", extra={"caption": "Zwei Bücher, Café", "name": "museum"}),
                record("poem", text="dinosaurs and a dinosaur", extra={"title": ["red", "herring"]}),
            ]
        )

        def found(query, **options):
            return [other.records([number])[number].id for number in other.search_text(query, **options).tolist()]

        assert found("dinosaur") == ["poem", "dino"], "endings do not matter"
        assert found("the DINOSAUR, please", limit=1) == ["poem"]
        assert found("museum") == ["dino"], "other fields are not searched"
        assert found("bucher cafe") == ["Foto-1913"], "accents do not matter"
        assert found("1913") == ["Foto-1913"]
        assert found("herring") == ["poem"]
        assert set(found("dino*")) == {"dino", "poem"}
        assert found("dinosaurus") == []
        assert found("boat") == [], "what most items have says nothing"
        assert [set(found("museum herring")), found("museum herring", match_all=True)] == [{"dino", "poem"}, []]
        assert found("dinosaur museum", match_all=True) == ["dino"]
        assert found("dinosaur", where=Filter.parse("id = dino")) == ["dino"]
        assert found("dinosaur", where=Filter.parse("modality = image")) == []
        other.remove(texts("poem"))
        other.add([record("dino", text="a museum")], replace=True)
        assert [found("dinosaur"), found("museum"), found("herring")] == [[], ["dino"], []]

    @pytest.mark.parametrize(
        "query",
        [
            "",
            "   ",
            '"',
            "'",
            '"a',
            "a AND",
            "NEAR(a b)",
            "text:a",
            "a*b",
            "*",
            "^a",
            "-a",
            "(",
            "{a b}:c",
            "\0",
            "\ud800",
            "a\0b",
            "x" * 100_000,
            "a " * 10_000,
            "日本語",
            "😀",
            "NOT",
            "a OR OR b",
            "; DROP TABLE item",
            "%",
            "__",
            "\u0301",
        ],
    )
    def test_whatever_is_typed_is_words(self, store, query):
        store.add([record("a", text="a plain text"), record("b")])
        assert set(store.search_text(query).tolist()) <= {1, 2}

    # -- changes are whole

    @pytest.mark.parametrize(
        ("bad", "error", "message"),
        [
            (record("a"), ValueError, r"1 of 2 ids are in the store already \(first: 'a' of 'text'\)"),
            (record("b"), ValueError, "'b' of 'text' is given twice"),
            (record("c", code=b"1"), ValueError, "item 'c': code: got shape"),
            (record("c", code=np.zeros(2)), (TypeError, ValueError), "item 'c': code"),
            (record("c", kind="guessed"), ValueError, "'guessed'"),
            (record("c", extra={"x": {1}}), TypeError, "item 'c': extra cannot be written as JSON"),
            (record("c", extra={"x": float("nan")}), TypeError, "JSON"),
            (record("c", labels="sea"), TypeError, "texts or integers"),
            (record("c", labels=(True,)), TypeError, "texts or integers"),
            (record("c", text=3), TypeError, "text is int"),
            (record("c", uri=b"3"), TypeError, "uri is bytes"),
            (record("c", refinement=b""), ValueError, "item 'c': its refinement is 0 bytes"),
            (record("c", refinement=bytes(193)), ValueError, "193 bytes; expected 1 to 192"),
            (record("c", refinement=np.zeros(3, np.int8)), ValueError, "its refinement is ndarray"),
            (Record("", "text", b"12"), ValueError, "non-empty text"),
            (Record("c", "", b"12"), ValueError, "non-empty text"),
            (Record(3, "text", b"12"), ValueError, "non-empty text"),
            (Record("c\0", "text", b"12"), ValueError, "without NUL"),
            (record("c", labels=("sea\0",)), ValueError, "item 'c': the label 'sea.x00' has a NUL"),
            (record("c", uri="a\0"), ValueError, "without NUL"),
            (record("c", text="a\0"), ValueError, "item 'c': the text has a NUL"),
            (record("c", extra={"x": ["a\0"]}), ValueError, "item 'c': extra has a NUL"),
            (record("c", text="\ud800"), ValueError, "text has an unpaired surrogate"),
            (record("c", uri="\udcff.jpg"), ValueError, "uri has an unpaired surrogate"),
            (record("c", labels=("\ud800",)), ValueError, "labels has an unpaired surrogate"),
            (record("c", extra={"a": ["\udfff"]}), ValueError, "extra has an unpaired surrogate"),
            (record("c", extra={"\ud800": 1}), ValueError, "extra has an unpaired surrogate"),
            (Record("\ud800", "text", b"12"), ValueError, "id has an unpaired surrogate"),
            (record("c", extra={"n": 10**5000}), TypeError, "JSON"),
            (record("c", extra={"a": json.loads("[" * 900 + "]" * 900)}), ValueError, "more than 100 levels"),
            ({"id": "c"}, TypeError, "got dict"),
        ],
    )
    def test_a_batch_with_a_bad_record_is_not_added(self, store, bad, error, message):
        store.add([record("a")])
        before = store.revision()
        with pytest.raises(error, match=message):
            store.add([record("b"), bad])
        assert ids_of(store) == ["a"]
        assert store.revision() == before
        assert store.add([record("b")]).tolist() == [2], "a batch that failed takes no numbers"

    def test_a_batch_that_cannot_be_replaced_changes_nothing(self, store):
        store.add([record("a", text="old")])
        before = store.revision()
        with pytest.raises(ValueError, match="'b' of 'text' is given twice"):
            store.add([record("a", text="new"), record("b"), record("b")], replace=True)
        with pytest.raises(TypeError, match="JSON"):
            store.add([record("a", text="new"), record("b", extra={"x": {1}})], replace=True)
        assert store.get("a", modality="text").text == "old"
        assert store.revision() == before

    def test_a_batch_whose_source_fails_is_not_added(self, store):
        def source():
            yield record("a")
            raise OSError("no more")

        with pytest.raises(OSError, match="no more"):
            store.add(source())
        assert len(store) == 0
        assert store.revision() == Revision()

    def test_replacing(self, store):
        store.add([record("a"), record("b"), record("c"), record("b", "image")])
        assert store.add([record("b", code=b"zz"), record("d")], replace=True).tolist() == [5, 6]
        assert store.get("b", modality="text").code == b"zz"
        assert store.get("b", modality="image").code == b"b\0"
        assert store.row_ids(texts("b")) == {("text", "b"): 5}, "under a new number"
        assert store.records([2]) == {}
        assert ids_of(store) == ["a", "c", "b", "b", "d"]

    def test_updating_by_number_undoes_nobodys_change(self, store, other):
        numbers = store.add([record("a", labels=("sea",), text="old words"), record("b"), record("c")]).tolist()
        before = store.revision()
        other.remove(texts("b"))
        other.add([record("c", text="newer")], replace=True)
        new = [record(id, labels=("hill", 7), kind="learned", text="new words") for id in "abc"]
        assert store.update(dict(zip(numbers, new, strict=True))).tolist() == numbers[:1]
        assert store.row_ids(texts("a", "b", "c")) == {("text", "a"): 5, ("text", "c"): 4}
        assert other.get("a", modality="text") == new[0]
        assert other.get("c", modality="text").text == "newer"
        assert other.labels() == {"7": 1, "hill": 1}
        assert sorted(other.removed(before, other.revision()).tolist()) == [1, 2, 3]
        assert other.matching(Filter.of("label = hill")).tolist() == [5]
        assert [store.search_text("old").tolist(), store.search_text("new").tolist()] == [[], [5]]
        reached = store.revision()
        assert store.update({}).tolist() == store.update({1: new[0]}).tolist() == []
        assert store.revision() == reached, "nothing was changed"
        store.check()

    def test_an_update_cannot_change_the_key(self, store):
        numbers = store.add([record("a"), record("b")]).tolist()
        with pytest.raises(ValueError, match=r"is \('text', 'b'\), and its new record is \('text', 'other'\)"):
            store.update({numbers[0]: record("a", text="new"), numbers[1]: record("other")})
        assert [each.text for each in store.scan()] == [None, None]

    def test_nobody_writes_during_a_handover_and_everybody_reads(self, store, open_store):
        store.add([record("a")])
        with open_store(timeout=0.05) as hasty:
            with store.lock_writes():
                with pytest.raises(StoreBusyError):
                    hasty.add([record("b")])
                assert [ids_of(store), ids_of(hasty)] == [["a"], ["a"]]
            assert hasty.successor() is None

    def test_a_handover_that_fails_lets_others_write_again(self, store, other):
        with pytest.raises(ZeroDivisionError), store.lock_writes():
            raise ZeroDivisionError
        other.add([record("a")])
        assert ids_of(store) == ["a"]

    def test_removing(self, store):
        store.add([record("a"), record("b"), record("d")])
        before = store.revision()
        with pytest.raises(KeyError, match=r"1 of 2 ids are not in the store \(first: 'nobody' of 'text'\)"):
            store.remove(texts("a", "nobody"))
        assert ("text", "a") in store
        assert store.revision() == before
        assert store.remove(texts("a", "nobody", "a"), missing="ignore") == 1
        assert store.remove(texts("d", "d")) == 1
        assert ids_of(store) == ["b"]
        assert store.add([record("e")]).tolist() == [4], "a number is never used again, not even the last one"

    def test_keys_are_pairs(self, store):
        for keys, message in [
            ("b", r"expected pairs, e.g. \[\('text', 'b'\)\]"),
            (["b"], r"'b' is str; expected a pair"),
            ([("text", 3)], "expected a pair of texts"),
            ([("text", "a", "b")], "expected a pair of texts"),
        ]:
            for method in (store.remove, store.row_ids):
                with pytest.raises(TypeError, match=message):
                    method(keys)
        with pytest.raises(TypeError, match="expected a pair"):
            assert "b" in store
        with pytest.raises(ValueError, match="missing is 'perhaps'"):
            store.remove([], missing="perhaps")

    # -- revisions

    def test_a_revision_moves_with_every_change_and_with_nothing_else(self, store, other):
        seen = [store.revision()]
        changes = [
            lambda: store.add([record("a"), record("b")]),
            lambda: other.add([record("c", "image")]),
            lambda: other.add([record("a", text="new")], replace=True),
            lambda: store.remove(texts("b")),
            lambda: store.add([record("b")]),
            lambda: other.remove([("text", "a"), ("text", "b"), ("image", "c")]),
        ]
        for change in changes:
            change()
            now = store.revision()
            assert now == other.revision()
            assert now > seen[-1], "later revisions are larger"
            seen.append(now)
            for read in (store.counts, store.matching, lambda: list(store.scan()), lambda: store.remove([])):
                read()
            store.remove(texts("nobody"), missing="ignore")
            assert store.revision() == now
        assert len(store) == 0
        assert store.revision() != seen[0], "empty again, and yet not as it was"

    def test_the_last_marks_are_kept(self, store, other):
        store.add([record("a")])
        before = store.revision()
        assert not store.has_mark("one")
        store.add_mark("one")
        other.add_mark("two")
        assert [one.has_mark(mark) for one in (store, other) for mark in ("one", "two", "o")] == 2 * [True, True, False]
        for n in range(KEPT_MARKS - 1):
            store.add_mark(f"{n}")
        assert [store.has_mark(mark) for mark in ("one", "two", "0")] == [False, True, True]
        assert store.revision() == before

    def test_tidying_changes_nothing_that_is_found(self, store, other):
        for start in range(0, 60, 3):
            store.add(
                [record(f"{n}", text=f"a {'red' if n % 2 else 'blue'} boat {n % 7}") for n in range(start, start + 3)]
            )
        store.remove(texts("4", "5"))
        queries = ("red boat", "blue 3", "boat", "nothing")
        before = [store.search_text(query).tolist() for query in queries], store.revision(), list(store.scan())
        store.optimize()
        for one in (store, other):
            assert ([one.search_text(query).tolist() for query in queries], one.revision(), list(one.scan())) == before
        store.add([record("new", text="a red boat")])
        other.remove(texts("7"))
        store.optimize()
        assert store.search_text("red boat", limit=100).tolist() == other.search_text("red boat", limit=100).tolist()
        found = store.records(store.search_text("red boat", limit=100)).values()
        assert {record.id for record in found} == {str(n) for n in range(1, 60, 2)} - {"5", "7"} | {"new"}

    def test_between_two_revisions(self, store):
        store.add([record("a"), record("b"), record("c")])
        start = store.revision()
        store.add([record("d"), record("b", code=b"BB")], replace=True)
        store.remove(texts("a"))
        middle = store.revision()
        store.add([record("e")])
        store.remove(texts("d"))
        end = store.revision()

        def added(since, until):
            return [n for numbers, _, _ in store.codes(since=since, until=until) for n in numbers.tolist()]

        assert [added(None, None), added(None, start), added(start, middle)] == [[3, 5, 6], [3], [5]]
        assert [added(middle, None), added(end, end)] == [[6], []]
        assert sorted(store.removed(start, middle).tolist()) == [1, 2]
        assert store.removed(middle, end).tolist() == [4]
        assert store.removed(end, end).tolist() == []

    def test_an_index_follows_two_handles(self, store, other, rng):
        index, model = HammingIndex(N_BITS), {}
        reached = refresh(index, store)
        assert reached == Revision()
        for step in range(30):
            writer = (store, other)[step % 2]
            batch = [
                Record(str(number), ("image", "text")[number % 2], rng.bytes(2))
                for number in rng.choice(40, 5, replace=False)
            ]
            writer.add(batch, replace=True)
            model.update({each.key: each for each in batch})
            gone = [(("image", "text")[number % 2], str(number)) for number in rng.choice(40, 3, replace=False)]
            writer.remove(gone, missing="ignore")
            for key in gone:
                model.pop(key, None)
            before, reached = reached, refresh(index, store, reached)
            assert reached != before
            assert refresh(index, store, reached) == reached
            names = {number: key for key, number in store.row_ids(model).items()}
            ids, codes = index.dump()
            assert {names[number]: code.tobytes() for number, code in zip(ids.tolist(), codes, strict=True)} == {
                key: each.code for key, each in model.items()
            }
        in_texts = index.dump(group=store.modalities()["text"])[0]
        assert sorted(names[number] for number in in_texts.tolist()) == sorted(key for key in model if key[0] == "text")
        fresh = HammingIndex(N_BITS)
        assert refresh(fresh, other) == reached
        np.testing.assert_array_equal(fresh.dump()[1], index.dump()[1])
        with pytest.raises(ValueError, match="8 bits"):
            refresh(HammingIndex(8), store)

    # -- several processes

    def test_a_scan_under_changes(self, store, other):
        store.add([record(f"{i:02}") for i in range(40)])
        found = []
        for n, each in enumerate(store.scan()):
            found.append(each.id)
            if n == 3:
                other.remove(texts("00", "39"))
                other.add([record("new"), record("20", text="new")], replace=True)
        untouched = [f"{i:02}" for i in range(40) if i not in (20, 39)]
        assert [id for id in found if id not in ("20", "39")] == untouched
        assert len(found) == len(set(found))
        assert "new" not in found

    def test_codes_under_changes(self, store, other):
        store.add([record(f"{i:02}") for i in range(40)])
        pages = store.codes()
        found = next(pages)[0].tolist()
        other.remove(texts("00", "39"))
        other.add([record("new")])
        for numbers, _, _ in pages:
            found += numbers.tolist()
        assert [n for n in found if n != 40] == list(range(1, 40))

    def test_threads_share_a_handle(self, store):
        def work(writer):
            for batch in range(10):
                store.add([record(f"{writer}-{batch}-{i}") for i in range(5)])
                assert store.get(f"{writer}-{batch}-4", modality="text")

        _run_all([threading.Thread(target=work, args=(writer,)) for writer in "abc"])
        assert store.count() == 150

    def test_two_writers_at_once(self, store, open_store):
        """Batches get numbers that lie together, and an id that both want is added by one of them."""
        taken, refused = {}, []

        def work(writer):
            with open_store() as own:
                for batch in range(15):
                    mine = [record(f"{writer}-{batch}-{i}") for i in range(4)]
                    taken[writer, batch] = own.add([*mine, record(f"own-{writer}-{batch}", "image")]).tolist()
                    try:
                        own.add([record(f"both-{batch}")])
                    except ValueError:
                        refused.append(batch)

        _run_all([threading.Thread(target=work, args=(writer,)) for writer in "ab"])
        assert sorted(refused) == list(range(15))
        assert store.count() == 2 * 15 * 5 + 15
        assert all(numbers == list(range(numbers[0], numbers[0] + 5)) for numbers in taken.values())
        assert len({n for numbers in taken.values() for n in numbers}) == 150

    # -- errors

    def test_a_busy_store_is_named(self, open_store, block_writers, store):
        with open_store(timeout=0.05) as other, block_writers():
            with pytest.raises(StoreBusyError, match="another process is writing"):
                other.add([record("a")])
            assert other.count() == 0, "readers continue"
        store.add([record("a")])

    def test_a_closed_store_says_so(self, open_store):
        store = open_store(n_bits=N_BITS)
        store.close()
        store.close()
        for use in (store.count, store.revision, lambda: store.add([record("a")]), lambda: list(store.scan())):
            with pytest.raises(StoreError, match="is closed"):
                use()
        with open_store() as again:
            assert len(again) == 0

    def test_other_code_lengths_are_refused(self, store, open_store):
        with pytest.raises(StoreError, match=r"holds codes of 16 bits; n_bits is 32"):
            open_store(n_bits=32)
        with pytest.raises(ValueError, match="n_bits is 0"):
            open_store(n_bits=0)


def _random_filter(rng, labels, *, only_labels, depth):
    if depth and rng.random() < 0.7:
        parts = [
            _random_filter(rng, labels, only_labels=only_labels, depth=depth - 1) for _ in range(rng.integers(1, 4))
        ]
        return Not(parts[0]) if len(parts) == 1 else (And, Or)[rng.integers(2)](tuple(parts))
    operator = ("=", "!=")[rng.integers(2)]
    others = [("kind", "learned"), ("modality", "image"), ("year", 2002), ("id", "7")]
    field, value = others[rng.integers(4)] if not only_labels and rng.random() < 0.5 else ("label", None)
    if field == "label":
        label = labels[rng.integers(len(labels))]
        value = str(label).upper() if isinstance(label, str) else label
    return Comparison(field, operator, value)


def _passes(each, where):
    """Whether an item passes a filter, the slow and obvious way."""
    if isinstance(where, Not):
        return not _passes(each, where.part)
    if isinstance(where, And | Or):
        return (all if isinstance(where, And) else any)(_passes(each, part) for part in where.parts)
    own = {
        "label": [str(label).casefold() for label in each.labels],
        "kind": [each.kind],
        "modality": [each.modality],
        "year": [each.extra.get("year")],
        "id": [each.id],
    }[where.field]
    wanted = str(where.value).casefold() if where.field == "label" else where.value
    return (wanted in own) == (where.operator == "=")


def _run_all(threads):
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
