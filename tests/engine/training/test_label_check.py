"""Labels before anything is learned from them."""

from __future__ import annotations

import unicodedata

import pytest

from modalhash.engine import LabelCheck, NoSharedLabelError, describe_label_overlap


def check_of(**labels: list[str]) -> LabelCheck:
    return LabelCheck.of({name: [[label] for label in own] for name, own in labels.items()})


def test_what_modalities_share():
    found = check_of(image=["boat", "boat", "sea"], text=["boat", "city", "city"])
    assert (found.shared, found.only("image"), found.only("text")) == (["boat"], ["sea"], ["city"])
    said = "image and text share 1 of 3 labels; only image has 1 ('sea'); only text has 1 ('city')"
    assert describe_label_overlap(found.to_config()) == said
    found.check_shared()


def test_no_shared_label_is_refused_with_both_lists():
    with pytest.raises(NoSharedLabelError, match="'image' and 'text' have no label in common") as caught:
        check_of(image=["boat"] * 3, text=["house", "city", "city"]).check_shared()
    (note,) = caught.value.__notes__
    head, *rows = [line.split() for line in note.splitlines()]
    assert head == ["image:", "1", "labels", "text:", "2", "labels"]
    assert rows == [["3", "'boat'", "2", "'city'"], ["1", "'house'"]]


def test_a_third_modality_that_shares_nothing_is_named():
    with pytest.raises(NoSharedLabelError, match="'sound' and 'image' and 'text' have no label"):
        check_of(image=["boat"], text=["boat"], sound=["noise"]).check_shared()
    check_of(image=["boat"]).check_shared()  # alone there is nothing to share


@pytest.mark.parametrize(
    ("image", "text", "alike"),
    [
        ("Boat", "boat", True),
        ("boat ", "boat", True),
        ("red_boat", "red boat", True),
        ("red-boat", "Red  boat", True),
        (unicodedata.normalize("NFD", "Bär"), unicodedata.normalize("NFC", "Bär"), True),
        ("boats", "boat", True),
        ("cities", "city", True),
        ("boat", "goat", False),
        ("boat", "boat house", False),
    ],
)
def test_labels_that_are_probably_one(image, text, alike):
    found = check_of(image=[image], text=[text])
    assert found.alike == ([tuple(sorted((image, text)))] if alike else [])
    with pytest.raises(NoSharedLabelError, match="Spell labels the same way" if alike else "Give them the same labels"):
        found.check_shared()


def test_a_plural_beside_its_singular_may_be_meant():
    assert check_of(image=["glass", "glasses"], text=["glass"]).alike == []
    assert check_of(image=["Boat", "boat"]).alike == [("Boat", "boat")]


def test_several_in_one_and_rare():
    found = check_of(
        text=["mountain, outdoor", "a;b", "sea", "sky", "sea/sky", "AC/DC", "rock and roll", *["boat"] * 5]
    )
    assert found.several_in_one == {"mountain, outdoor": 1, "a;b": 1, "sea/sky": 1}
    assert "boat" not in found.rare
    assert found.rare["sea"] == 1
