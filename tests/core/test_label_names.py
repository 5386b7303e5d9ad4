"""Spellings of labels that are one label."""

from __future__ import annotations

import unicodedata

from hypothesis import given, strategies as st

from modalhash.core.label_names import LabelNames, label_key

TEXT = st.text(min_size=1, max_size=12)
DECOMPOSED = unicodedata.normalize("NFD", "Café")


@given(TEXT)
def test_case_spaces_and_normalization_do_not_matter(label):
    key = label_key(label)
    assert key == label_key(key)
    for form in ("NFC", "NFD"):
        assert label_key(unicodedata.normalize(form, label)) == key
    assert label_key(f" {label}\t") == key
    assert label_key(label.casefold()) == key


def test_words_are_still_words():
    assert label_key("New  York") == label_key("NEW YORK") != label_key("newyork")
    assert label_key(7) == "7"
    assert len({label_key(label) for label in ("cat", "cats", "c-at", "cät")}) == 4


def test_the_first_spelling_is_shown_and_what_was_joined_is_described():
    names = LabelNames(["Cat"])
    assert names.of(["cat", "CAT ", "Café"]) == ("Cat", "Café")
    assert names.of([DECOMPOSED, 7]) == ("Café", "7")
    assert names.describe_joined() == (
        "'Cat', 'cat' and 'CAT ' are one label: shown as 'Cat'; "
        f"'Café' and '{DECOMPOSED}' are one label (accents stored in two ways): shown as 'Café'"
    )
    for number in range(5):
        names.of([f"a{number}", f"A{number}"])
    assert names.describe_joined().endswith("and 4 more")
    assert LabelNames(["a", "A"]).describe_joined() is None


def test_further_names_are_read_only_if_needed_and_once():
    read = []
    names = LabelNames(["Cat"], lambda: read.append(1) or ["Dog"])
    assert names.of(["cat"]) == ("Cat",)
    assert read == []
    assert names.of(["dog", "bird", "BIRD"]) == ("Dog", "bird")
    assert read == [1]
