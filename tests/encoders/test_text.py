"""Text encoders against scikit-learn, on several scripts, and the rules for empty texts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer

from modalhash.encoders import HashingEncoder, ItemError, TfidfEncoder
from modalhash.encoders.text import FEW_TEXTS, pieces_of, words_of

TEXTS = [
    "Ein rotes Boot im Hafen; im Hintergrund ein Haus.",
    "Zwei Boote und ein Segelboot auf dem See",
    "Die STRASSE führt nach Süden, die Straße nach Norden",
    "ein Haus mit rotem Dach an der Straße",
]


FITTED = TfidfEncoder(min_df=1).fit(TEXTS)


def dense(rows) -> np.ndarray:
    return rows.toarray()


def test_words():
    assert words_of("Die Straße (nach Süden) – 2 Boote; «blaue».") == [
        "die",
        "strasse",
        "nach",
        "süden",
        "2",
        "boote",
        "blaue",
    ]
    assert words_of("Su\u0308den") == ["süden"]
    assert words_of("हिन्दी भाषा") == ["हिन्दी", "भाषा"]
    assert words_of("日本語、東京。") == ["日本語", "東京"]
    assert words_of("a\u00a0b\u2009c…d") == ["a", "b", "c", "d"]
    assert words_of("👩‍🚀 fliegt") == ["👩‍🚀", "fliegt"]
    assert words_of("ΣΊΣΥΦΟΣ Привет ｆｕｌｌ") == ["σίσυφοσ", "привет", "full"]


@pytest.mark.parametrize(("text", "message"), [("", "empty"), (" \n\t", "empty"), ("?! –", "no word in the text"), (None, "got NoneType"), (b"a", "got bytes")])  # fmt: skip
@pytest.mark.parametrize("encoder", [HashingEncoder(), FITTED], ids=["hashing", "tfidf"])
def test_texts_without_words_are_refused(encoder, text, message):
    with pytest.raises(ItemError, match=message):
        encoder.encode([text])


def test_tfidf_is_that_of_scikit_learn():
    options = {"sublinear_tf": True, "min_df": 2, "dtype": np.float64}
    words = TfidfVectorizer(analyzer=words_of, **options)
    pieces = TfidfVectorizer(analyzer=lambda t: [p for w in words_of(t) for p in pieces_of(w, 3, 4)], **options)
    expected = np.hstack([dense(v.fit(TEXTS[:3]).transform(TEXTS)) for v in (words, pieces)]) / np.sqrt(2)
    found = TfidfEncoder(min_df=2, context=0).fit(TEXTS[:3]).encode(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(dense(found), expected, atol=1e-6)


def test_case_sharp_s_and_composition_do_not_matter():
    encoder = TfidfEncoder(min_df=1).fit(TEXTS)
    a, b = dense(encoder.encode(["Straße nach Süden", "STRASSE NACH SU\u0308DEN"]))
    np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("encoder", [HashingEncoder(), FITTED], ids=["hashing", "tfidf"])
def test_compounds_meet_their_parts(encoder):
    query, boats, street = dense(encoder.encode(["Hausboot", "Boote im Hafen", "die Straße"]))
    assert query @ boats > query @ street + 0.05


def test_vocabulary_limits_and_order():
    encoder = TfidfEncoder(min_df=1, max_words=3, max_pieces=5).fit(TEXTS)
    again = TfidfEncoder(min_df=1, max_words=3, max_pieces=5).fit(TEXTS[::-1])
    assert encoder.dim == 8
    assert encoder.digest == again.digest
    assert encoder.state.config["vocabulary"][0] == ["ein", "haus", "strasse"]
    assert TfidfEncoder(min_df=1, pieces=None, max_words=3).fit(TEXTS).dim == 3


def test_unknown_text_is_a_row_of_zeros():
    rows = TfidfEncoder(pieces=None, context=0).fit(TEXTS).encode(["xylophon", "haus"])
    assert rows[[0]].nnz == 0
    assert rows[[1]].nnz == 1


def test_fit_passes_over_what_encode_refuses():
    assert TfidfEncoder(min_df=1).fit(["", *TEXTS, None]).digest == TfidfEncoder(min_df=1).fit(TEXTS).digest
    with pytest.raises(ValueError, match="none of 2 items has a word"):
        TfidfEncoder().fit(["", "…"])
    with pytest.raises(ValueError, match="take min_df=1"):
        TfidfEncoder(min_df=2).fit(["ab"])


def test_not_fitted():
    with pytest.raises(NotFittedError, match="call fit"):
        TfidfEncoder().encode(["a"])
    assert "not fitted" in repr(TfidfEncoder())


def test_hashing_is_stable_between_versions():
    rows = HashingEncoder(columns=64).encode(["ein rotes Boot"])
    assert rows.indices.tolist() == [1, 24, 25, 32, 33, 37, 38, 39, 44, 50, 55, 56, 57, 58, 59, 61, 63]
    assert np.linalg.norm(rows.data) == pytest.approx(1)


def test_hashing_needs_even_columns():
    with pytest.raises(ValueError, match="even number"):
        HashingEncoder(columns=11)
    with pytest.raises(ValueError, match=r"e\.g\. \(3, 4\)"):
        HashingEncoder(pieces=(4, 3))


@given(st.lists(st.text(min_size=1), min_size=1, max_size=4))
@settings(deadline=None, max_examples=25)
def test_any_text_gives_rows_of_length_at_most_one(texts):
    for kind in (FITTED, HashingEncoder(columns=128)):
        for text in texts:
            try:
                rows = kind.encode([text])
            except (ItemError, UnicodeEncodeError):
                continue
            assert rows.shape == (1, kind.dim)
            assert np.isfinite(rows.data).all()
            assert np.linalg.norm(rows.data) <= 1 + 1e-5


HARBOUR = ["boat harbour water", "boat sail water", "dog bone", "dog kennel bone"]


def test_a_word_alone_looks_like_the_texts_that_have_it():
    plain, mixed = (TfidfEncoder(pieces=None, context=share).fit(HARBOUR) for share in (0, 0.5))
    word, texts = ["boat"], ["harbour water sail", "bone kennel"]
    assert dense(plain.encode(word) @ plain.encode(texts).T).tolist() == [[0, 0]]
    found = dense(mixed.encode(word) @ mixed.encode(texts).T)[0]
    assert found[0] > 0.2
    assert found[1] == 0


def test_a_context_is_the_mean_row_of_the_texts_with_the_word():
    plain = TfidfEncoder(context=0).fit(HARBOUR)
    rows, share = dense(plain.encode(HARBOUR)), 0.3
    columns = list(plain.state.config["vocabulary"][0])
    means = np.array([rows[[word in text.split() for text in HARBOUR]].mean(axis=0) for word in columns])
    context = rows[:, : len(columns)] @ means
    expected = (1 - share) * rows + share * context / np.linalg.norm(context, axis=1, keepdims=True)
    expected /= np.linalg.norm(expected, axis=1, keepdims=True)
    found = TfidfEncoder(context=share).fit(HARBOUR).encode(HARBOUR)
    np.testing.assert_allclose(dense(found), expected, atol=2e-3)  # contexts are rounded


def test_only_the_largest_terms_of_a_context_are_kept(monkeypatch):
    from modalhash.encoders import text

    monkeypatch.setattr(text, "CONTEXT_TERMS", 2)
    contexts = TfidfEncoder().fit(HARBOUR).state.arrays
    assert np.diff(contexts["context_indptr"]).tolist() == [2] * 7


def test_unknown_words_have_no_context_and_weigh_no_more_than_before():
    plain, mixed = (TfidfEncoder(context=share).fit(HARBOUR) for share in (0, 0.5))
    unknown = ["boathouse", "xyzzy"]
    np.testing.assert_allclose(dense(mixed.encode(unknown)), dense(plain.encode(unknown)), atol=1e-7)
    assert mixed.encode(["xyzzy"]).nnz == 0
    np.testing.assert_allclose(np.linalg.norm(dense(mixed.encode(HARBOUR)), axis=1), 1, rtol=1e-6)


def test_an_encoder_that_was_saved_without_contexts_has_none():
    state = TfidfEncoder(min_df=2, context=0).fit(TEXTS).state
    assert "context" not in state.config  # as they were saved: the same state, the same digest
    again = TfidfEncoder.restore(state)
    assert again.context == 0
    assert (again.encode(TEXTS) != TfidfEncoder(min_df=2, context=0).fit(TEXTS).encode(TEXTS)).nnz == 0


def test_contexts_are_saved_and_do_not_depend_on_the_order_of_the_texts():
    encoder = TfidfEncoder().fit(HARBOUR)
    again = TfidfEncoder.restore(encoder.state)
    assert (again.encode(HARBOUR) != encoder.encode(HARBOUR)).nnz == 0
    assert again.digest == encoder.digest == TfidfEncoder().fit(HARBOUR[::-1]).digest


@pytest.mark.parametrize("share", [-0.1, 1, 1.5])
def test_a_context_is_a_share(share):
    with pytest.raises(ValueError, match="context is"):
        TfidfEncoder(context=share)


def test_known_words_are_whole_words():
    encoder = TfidfEncoder(min_df=1).fit(["ein rotes Boot", "zwei Boote im Hafen"])
    texts = ["rotes Boot", "Segelboot", "das rote BOOT im Hafen!", "Boot xyzzy"]
    np.testing.assert_allclose(encoder.known(texts), [1, 0, 3 / 5, 1 / 2])
    assert HashingEncoder().known(["xyzzy"]).tolist() == [1]


def test_a_stored_context_with_indices_out_of_range_is_refused():
    state = TfidfEncoder(context=0.5).fit(HARBOUR).state
    state.arrays["context_indices"][-1] = 10**6
    with pytest.raises(ValueError, match="'tfidf', context: a broken sparse matrix: column indices"):
        TfidfEncoder.restore(state)


WORDS = st.text("abcdé", min_size=1, max_size=5)
SENTENCES = st.lists(WORDS, min_size=1, max_size=12).map(" ".join)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(
    texts=st.lists(SENTENCES, min_size=1, max_size=30),
    queries=st.lists(SENTENCES, min_size=1, max_size=FEW_TEXTS),
    pieces=st.sampled_from([(3, 4), (1, 2), (2, 2), None]),
    context=st.sampled_from([0.0, 0.25, 0.9]),
    limits=st.sampled_from([(4096, 4096), (5, 20)]),
)
def test_rows_of_a_few_texts_are_those_of_the_matrices(texts, queries, pieces, context, limits):
    encoder = TfidfEncoder(pieces=pieces, context=context, max_words=limits[0], max_pieces=limits[1]).fit(texts)
    together = encoder.encode(queries)
    for row, query in enumerate([*queries, *texts]):
        expected, found = encoder._encode_many([query]), encoder.encode([query])
        np.testing.assert_allclose(dense(found), dense(expected), rtol=0, atol=1e-6)
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        assert found.has_canonical_format
        if row < len(queries):
            np.testing.assert_array_equal(dense(together)[row], dense(found)[0])


def test_the_same_row_among_few_texts_and_among_many():
    many = [f"{text} {number}" for number in range(2 * FEW_TEXTS) for text in TEXTS]
    rows = dense(FITTED.encode(many))
    assert len(many) > FEW_TEXTS
    for number, text in enumerate(many):
        np.testing.assert_allclose(dense(FITTED.encode([text]))[0], rows[number], rtol=0, atol=1e-6)
