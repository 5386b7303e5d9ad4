from __future__ import annotations

import numpy as np
import pytest

from little_world import COLOURS, SHAPES
from modalhash import Engine
from modalhash.engine.search.photo_words import find_named_labels
from shared_space import TOPICS, OtherTexts, Pictures, Texts, Thesaurus, make_world, number_of

ENCODERS = {"image": "shared_space:Pictures", "text": "shared_space:Texts"}
NEW = range(1000, 1060)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """An engine of pictures and texts in one space: no labels, no pairs."""
    folder = tmp_path_factory.mktemp("shared")
    source = make_world(folder, range(300), range(200, 500))
    Engine.train(source, folder / "engine", encoders=ENCODERS, labels="none").close()
    with Engine.open(folder / "engine", trust=True) as engine:
        yield engine


def topics_of(hits):
    return [number_of(hit.id) % TOPICS for hit in hits]


def test_in_one_space_texts_find_pictures_and_pictures_texts_without_a_label(shared):
    assert shared.config["method"] == "itq"
    assert shared.model.space == "shared"
    for want, queries in (
        ("image", {"text": [f"thing {n}" for n in NEW]}),
        ("text", {"image": [str(n).encode() for n in NEW]}),
    ):
        answers = shared.search_many(**queries, want=want, k=5)
        right = [topic == n % TOPICS for n, hits in zip(NEW, answers, strict=True) for topic in topics_of(hits)]
        assert np.mean(right) > 0.9, want  # chance: 1 in 20
        by_code = shared.search_many(**queries, want=want, k=5, refine=False)
        right = [topic == n % TOPICS for n, hits in zip(NEW, by_code, strict=True) for topic in topics_of(hits)]
        assert np.mean(right) > 0.8, "codes alone"
    assert {hit.modality for hit in shared.search(text="thing 7", k=20)} == {"image", "text"}


def test_vectors_of_the_space_order_what_codes_found(shared):
    """Items 200 to 299 are there as pictures and as texts: the vector knows the thing itself, the code its topic."""
    ranks = {}
    for refine in (True, False):
        answers = shared.search_many(
            text=[f"thing {n}" for n in range(200, 300)], want="image", k=15, refine=refine, hybrid=False
        )
        found = [[number_of(hit.id) for hit in hits] for hits in answers]
        ranks[refine] = np.mean([n in some[:1] for n, some in zip(range(200, 300), found, strict=True)])
    assert ranks[True] > ranks[False]
    assert ranks[True] > 0.7  # chance: 1 in 300


def test_what_labels_would_tell_is_not_invented(shared):
    hit = shared.search(text="thing 3", want="image", k=1)[0]
    assert hit.confidence is None
    assert not hit.weak
    assert hit.shared_labels == hit.labels == ()
    assert {record.kind for record in shared.items()} == {"hashed"}
    with pytest.raises(ValueError, match="cannot be applied: this engine learned without labels"):
        shared.search(text="thing 3", min_confidence=0.5)
    with pytest.raises(ValueError, match="no item has the label 'boat'; no item has labels"):
        shared.search(text="thing 3", labels=["boat"])
    facts = shared.info()
    assert (facts["labels"], facts["classes"], facts["collisions"], facts["named_labels"]) == ("none", 0, None, None)


def test_an_engine_without_labels_takes_new_items_and_finds_duplicates(tmp_path):
    source = make_world(tmp_path, range(80), range(80))[0]
    with Engine.train(source, tmp_path / "engine", encoders=ENCODERS, labels="none") as engine:
        assert engine.modalities == ("image",)
        (tmp_path / "copy.png").write_text("7")
        engine.add([{"path": str(tmp_path / "copy.png"), "id": "copy"}])
        hits = engine.search(image=tmp_path / "copy.png", k=3)
        assert {hits[0].id, hits[1].id} == {"copy", "photos/7.png"}
        assert hits[0].score > hits[2].score
        groups = engine.duplicates()
        assert [[record.id for record in group.items] for group in groups] == [["photos/7.png", "copy"]]


@pytest.mark.parametrize("texts", [OtherTexts(), "tfidf"])
def test_what_nothing_brings_together_is_refused_with_three_ways_out(tmp_path, texts):
    source = make_world(tmp_path, range(80), range(80))
    with pytest.raises(ValueError, match=r"(?s)nothing relates 'image' and 'text'.*labels.*same id.*pairs.*CLIP"):
        Engine.train(source, tmp_path / "engine", encoders=ENCODERS | {"text": texts}, labels="none")
    assert not (tmp_path / "engine").exists()


def test_methods_and_labels_have_to_fit(tmp_path):
    source = make_world(tmp_path, range(80), range(80))
    train = {"encoders": {"image": Pictures(), "text": Texts()}}
    with pytest.raises(ValueError, match=r"amsh learns from labels.*Omit the method, which selects itq"):
        Engine.train(source, tmp_path / "engine", labels="none", method="amsh", **train)
    with pytest.raises(ValueError, match="itq does not learn from labels"):
        Engine.train(source, tmp_path / "engine", labels="names", method="itq", **train)
    with pytest.raises(ValueError, match="labels is 'some'; expected one of 'given', 'folders', 'names', 'none'"):
        Engine.train(source, tmp_path / "engine", labels="some", **train)
    with pytest.raises(ValueError, match=r"'image': none of 80 items has a label.*--labels none"):
        Engine.train(source, tmp_path / "engine", method="rlh", **train)


def test_where_no_item_has_a_label_features_alone_are_learned_from(tmp_path):
    source = make_world(tmp_path, range(80), range(80))
    encoders = {"image": Pictures(), "text": Texts()}
    with Engine.train(source, tmp_path / "engine", encoders=encoders, n_bits=32) as engine:
        assert engine.info()["method"] == "itq"
        assert engine.info()["labels"] == "none"


# -- labels that texts name


def coloured_world(n=48):
    """Pictures by label, as vectors of pixels; texts that name the labels and have none."""
    rng = np.random.default_rng(0)
    colours, shapes = list(COLOURS), list(SHAPES)
    kinds = [(colours[i % 3], shapes[i // 3 % 2]) for i in range(n)]
    prototypes = {kind: rng.standard_normal(12) for kind in set(kinds)}
    pictures = [prototypes[kind] + 0.2 * rng.standard_normal(12) for kind in kinds]
    texts = [f"{['two', 'some', 'many'][i % 3]} {colour} {shape}s" for i, (colour, shape) in enumerate(kinds)]
    return kinds, np.array(pictures, dtype=np.float32), texts


class Rows(Pictures):
    """Vectors of the coloured pictures by number."""

    name = "toy-rows"
    space = None

    @property
    def dim(self):
        return 12

    def encode(self, batch):
        return coloured_world()[1][[number_of(item) for item in batch]]


def coloured_source(folder):
    kinds, _, texts = coloured_world()
    for number, (colour, shape) in enumerate(kinds):
        path = folder / "photos" / colour / shape / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(number))
    (folder / "texts.csv").write_text("\n".join(["id,text", *(f"t{n},{text}" for n, text in enumerate(texts))]))
    return [folder / "photos", folder / "texts.csv"]


def test_texts_learn_the_labels_that_they_name(tmp_path):
    source = coloured_source(tmp_path)
    encoders = {"image": "test_without_labels:Rows"}
    with pytest.raises(ValueError, match=r"'text': none of 48 .*--labels names\), because 48 of 48 texts .*none\)"):
        Engine.train(source, tmp_path / "engine", encoders=encoders)
    with Engine.train(source, tmp_path / "engine", encoders=encoders, labels="names", n_bits=16) as engine:
        named = engine.info()["named_labels"]["text"]
        assert (named["texts"], named["labelled"], named["labels"]) == (48, 48, 5)
        assert named["examples"]["circle"] == ["circles", 24]
        for colour in COLOURS:
            for shape in SHAPES:
                hits = engine.search(text=f"a {colour} {shape}", want="image", k=5)
                assert [set(hit.labels) for hit in hits] == [{colour, shape}] * 5
        texts = [record for record in engine.items() if record.modality == "text"]
        assert not any(record.labels for record in texts), "weak labels are learned from, not stored"
        assert {record.kind for record in texts} == {"hashed"}


def test_names_are_found_in_any_number_and_by_any_of_their_words():
    texts = ["Two BOATS, near the harbour.", "a church", "the boathouse", "", "food: an apple, on plates"]
    names = ["boat", "churches", "food-fruit", "in & of", "plate 3"]
    found = find_named_labels(texts, names)
    assert found.labels == [("boat",), ("churches",), (), (), ("food-fruit", "plate 3")]
    assert found.to_config()["labelled"] == 3
    assert find_named_labels(["a boat"], []).labels == [()]


def test_an_encoder_that_knows_meanings_finds_labels_of_another_language():
    texts = ["der Himmel über der Stadt", "ein Schiff und zwei Boote im Boot", "eine Wiese"]
    assert find_named_labels(texts, ["sky", "boat"], Thesaurus()).labels == [("sky",), ("boat",), ()]
    assert find_named_labels(texts, ["sky", "boat"], Texts()).labels == [(), (), ()]
