"""Search, facts of the engine, health and metrics over HTTP."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from modalhash.serve.schemas import EngineInfo, Item, SearchFields, SearchResponse


def search(client, **body):
    answer = client.post("/search", json=body)
    assert answer.status_code == 200, answer.text
    SearchResponse.model_validate(answer.json())
    return answer.json()


def upload(client, data, **fields):
    return client.post("/search", files={"image": ("x.png", data, "image/png")}, data=fields)


@pytest.mark.slow
def test_near_duplicates_of_better_hits_are_left_out(engine, client):
    engine.add([{"id": f"copy {number}", "text": "a purple elephant in the red corner"} for number in range(9)])
    query = {"text": "a purple elephant in the red corner", "want": "text", "k": 5}
    plain, unique = search(client, **query), search(client, **query, unique=True)
    assert (plain["unique"], unique["unique"]) == (False, True)
    assert sum(hit["id"].startswith("copy") for hit in plain["hits"]) == 5
    assert [hit["id"].startswith("copy") for hit in unique["hits"]] == [True, *[False] * 4]
    SearchResponse.model_validate(unique)


def test_words_find_what_the_engine_finds(client, engine):
    found = search(client, text="a red ball", k=7, want=["image"])
    hits = engine.search(text="a red ball", k=7, want="image")
    assert [(hit["id"], hit["distance"], hit["code"]) for hit in found["hits"]] == [
        (hit.id, hit.distance, hit.code.hex()) for hit in hits
    ]
    assert found["searched"] == 60
    assert found["n_bits"] == 32
    assert found["want"] == ["image"]
    assert found["query"]["kind"] == found["query"]["modality"] == "text"
    assert "uri" not in found["hits"][0]
    assert found["hits"][0]["media"].startswith("/media/photos%2F")


def test_codes_tell_the_distance(client):
    found = search(client, text="a red ball", k=20)
    query = int(found["query"]["code"], 16)
    assert len(found["query"]["code"]) == 8
    for hit in found["hits"]:
        assert (query ^ int(hit["code"], 16)).bit_count() == hit["distance"]


def test_a_picture_finds_texts(client, engine):
    picture = engine.get("photos/0.png")
    data = engine.path_of(picture).read_bytes()
    answer = upload(client, data, k="5", want="text")
    assert answer.status_code == 200, answer.text
    SearchResponse.model_validate(answer.json())
    assert answer.json()["query"]["kind"] == "image"
    assert {hit["modality"] for hit in answer.json()["hits"]} == {"text"}
    assert [hit["id"] for hit in answer.json()["hits"]] == [
        hit.id for hit in engine.search(image=data, k=5, want="text")
    ]


def test_an_item_finds_others(client):
    found = search(client, id="photos/3.png", modality="image", k=5)
    assert found["query"]["id"] == "photos/3.png"
    assert found["query"]["labels"]
    assert found["query"]["media"] == "/media/photos%2F3.png?modality=image"
    assert "photos/3.png" not in {hit["id"] for hit in found["hits"]}
    assert search(client, id="items.csv:3")["query"]["text"]


def test_an_item_that_is_searched_by_brings_its_own_fields(client, engine):
    engine.add([{"id": "mine", "text": "a red ball", "name": "The red ball"}])
    found = search(client, id="mine")
    assert found["query"]["extra"] == {"name": "The red ball"}
    assert SearchResponse.model_validate(found).query.extra == {"name": "The red ball"}


@pytest.mark.parametrize("query", [{"text": "a red ball"}, {"id": "photos/3.png"}])
def test_asymmetric_hits_have_scores(client, query):
    scores = [hit["score"] for hit in search(client, **query, k=6, asymmetric=True, hybrid=False)["hits"]]
    assert scores == sorted(scores, reverse=True)


def test_filters_are_exact(client, engine):
    engine.add([{"id": str(n), "text": f"a red ball {n}", "labels": ["rare"]} for n in range(3)])
    red = search(client, text="a blue box", k=50, labels=["red", "circle"], want=["image"])["hits"]
    assert red
    assert all({"red", "circle"} <= set(hit["labels"]) for hit in red)
    everything = search(client, text="a blue box", k=200, hybrid=False)["hits"]
    expected = [hit["id"] for hit in everything if "rare" in hit["labels"]]
    rare = search(client, text="a blue box", k=2, labels=["RARE"], hybrid=False)["hits"]
    assert [hit["id"] for hit in rare] == expected[:2]
    assert {hit["kind"] for hit in search(client, text="a blue box", k=50, kind="hashed")["hits"]} == {"hashed"}


@pytest.mark.parametrize("where", ["label = red and not kind = hashed", {"label": "red", "not": {"kind": "hashed"}}])
def test_a_filter_is_text_or_json(client, engine, where):
    found = search(client, text="a blue box", k=50, where=where, hybrid=False)
    assert found["where"] == "label = red and not kind = hashed"
    expected = engine.search(text="a blue box", k=50, where=where, hybrid=False)
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
    assert all("red" in hit["labels"] for hit in found["hits"])
    data = engine.path_of(engine.get("photos/0.png")).read_bytes()
    form = upload(client, data, k="50", where=where if isinstance(where, str) else json.dumps(where))
    assert form.status_code == 200, form.text
    assert {hit["id"] for hit in form.json()["hits"]} <= {hit["id"] for hit in found["hits"]}


def test_one_modality_or_several(client):
    one, several = (search(client, text="a red ball", want=want)["hits"] for want in ("image", ["image"]))
    assert one == several
    both = search(client, text="a red ball", k=200, want=["text", "image"])
    assert {hit["modality"] for hit in both["hits"]} == {"image", "text"}


def test_all_within_a_radius(client, engine):
    found = search(client, text="a red ball", radius=6, k=1)
    expected = engine.search(text="a red ball", radius=6)
    assert len(expected) > 1
    assert [hit["id"] for hit in found["hits"]] == [hit.id for hit in expected]
    assert [found["radius"], "radius" in search(client, text="a red ball")] == [6, False]
    engine.add([{"id": str(n), "text": "a red ball"} for n in range(250)])
    assert len(search(client, text="a red ball", radius=32)["hits"]) == 200, "at most 200"
    assert len(search(client, text="a red ball", radius=32, where="label = red")["hits"]) < 200


def test_words_of_the_items_themselves_are_searched(client, engine):
    engine.add([{"id": "dino", "text": "a dinosaur in the museum"}])
    first = search(client, text="dinosaur")["hits"][0]
    assert [first["id"], first["found_by"][-1]] == ["dino", "words"]
    plain = search(client, text="dinosaur", hybrid=False)
    assert not any("words" in hit["found_by"] for hit in plain["hits"])
    assert plain["hybrid"] is False


def test_words_that_nobody_knows_are_warned_about(client):
    unknown = search(client, text="zzqqxx")
    assert unknown["known"] == 0
    assert unknown["message"].startswith("None of these words is known")
    assert unknown["warnings"] == [unknown["message"]]
    known = search(client, text="red")
    assert [known["known"], known["message"], known["warnings"]] == [1, None, []]
    assert search(client, id="photos/1.png")["known"] is None


def test_confidence_needs_an_engine_that_tells_it(client):
    assert not any("confidence" in hit for hit in search(client, text="red")["hits"])
    response = client.post("/search", json={"text": "red", "min_confidence": 0.5})
    assert response.status_code == 422
    assert "has no confidence" in response.text
    assert client.post("/search", json={"text": "red", "min_confidence": 1.5}).status_code == 422


def test_a_text_that_looks_like_a_page_stays_text(client, engine):
    evil = "<script>alert(1)</script> red ball"
    engine.add([{"id": "<b>&'\"", "text": evil}])
    found = [hit for hit in search(client, text=evil, k=200)["hits"] if hit["id"] == "<b>&'\""]
    assert found[0]["text"] == evil
    assert client.get("/items/%3Cb%3E%26'%22").json()["text"] == evil


def test_a_picture_with_words_is_one_search(client, engine):
    alone = search(client, id="photos/1.png", k=10)
    both = search(client, id="photos/1.png", text="a red ball", k=10)
    assert (both["query"]["kind"], both["query"]["text"]) == ("id", "a red ball")
    assert "photos/1.png" not in [hit["id"] for hit in both["hits"]]
    assert len(both["hits"]) == 10
    assert [hit["id"] for hit in both["hits"]] != [hit["id"] for hit in alone["hits"]]
    picture = engine.path_of(engine.get("photos/2.png")).read_bytes()
    form = upload(client, picture, text="a red ball", k="5").json()
    assert (form["query"]["kind"], form["query"]["text"], len(form["hits"])) == ("image", "a red ball", 5)
    assert "got id and image" in upload(client, picture, id="photos/2.png").json()["error"]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, "got no query; expected text, id or image, or text with one"),
        ({"text": ""}, 422, "text: "),
        ({"text": "x" * 2001}, 422, "at most 2000"),
        ({"text": "a\0b"}, 422, "NUL"),
        ({"text": "..."}, 422, "no word"),
        ({"text": 5}, 422, "valid string"),
        ({"text": "red", "k": 0}, 422, "k: "),
        ({"text": "red", "k": 201}, 422, "k: "),
        ({"text": "red", "k": 10**400}, 422, "k: "),
        ({"text": "red", "k": "5"}, 422, "k: "),
        ({"text": "red", "want": ["sound"]}, 422, "no modality 'sound'; it has 'image', 'text'"),
        ({"text": "red", "want": "sound"}, 422, "no modality 'sound'; it has 'image', 'text'"),
        ({"text": "red", "want": 3}, 422, "want"),
        ({"text": "red", "radius": -1}, 422, "radius: "),
        ({"text": "red", "where": "label ="}, 422, "the filter at character 8: expected a value"),
        ({"text": "red", "where": {"label": {"~": 1}}}, 422, "operator '~'"),
        ({"text": "red", "where": "label = redd"}, 422, "no item has the label 'redd'; did you mean 'red'"),
        ({"text": "red", "labels": ["redd"]}, 422, "did you mean 'red'"),
        ({"text": "red", "where": 3}, 422, "where"),
        ({"text": "red", "where": {}}, 422, "expected an object"),
        ({"text": "red", "modality": "image"}, 422, "does not accept texts"),
        ({"text": "red", "kind": "other"}, 422, "kind: "),
        ({"text": "red", "labels": ["x"] * 21}, 422, "labels: "),
        ({"text": "red", "path": "/etc/passwd"}, 422, "path: Extra"),
        ({"id": "nosuch"}, 404, "no item has the id 'nosuch'"),
        ({"id": "photos/1.png", "modality": "text"}, 404, "in 'text'"),
        ({"id": "photos/1.png", "modality": "sound"}, 422, "no modality 'sound'"),
    ],
)
def test_a_wrong_search_says_what_is_wrong(client, body, status, message):
    answer = client.post("/search", json=body)
    assert answer.status_code == status
    assert message in answer.json()["error"]
    assert answer.json()["status"] == status


def test_an_id_that_is_in_several_modalities(client, engine):
    engine.add([{"id": "pair", "path": str(engine.path_of(engine.get("photos/0.png"))), "text": "a red ball"}])
    answer = client.post("/search", json={"id": "pair"})
    assert (answer.status_code, "say which with 'modality'" in answer.json()["error"]) == (422, True)
    assert search(client, id="pair", modality="text")["query"]["modality"] == "text"


def test_asymmetric_by_a_lost_file_does_not_tell_where_it_was(client, engine, tmp_path):
    copy = tmp_path / "secret-name.png"
    copy.write_bytes(engine.path_of(engine.get("photos/0.png")).read_bytes())
    engine.add([{"id": "lost", "path": str(copy)}])
    copy.unlink()
    answer = client.post("/search", json={"id": "lost", "asymmetric": True})
    assert answer.status_code == 422
    assert "secret-name" not in answer.text


@pytest.mark.slow
def test_features_alone(make_client, tmp_path):
    """An engine without encoders is searched by its items."""
    from starlette.testclient import TestClient

    from modalhash import Engine
    from modalhash.data import Dataset, generate
    from modalhash.serve import Settings, make_app

    data = generate(n_items=60, seed=0)
    names = [f"class {number}" for number in range(data.Y["image"].shape[1])]
    with Engine.train(Dataset(data.X, data.Y, class_names=names), tmp_path / "features", n_bits=16) as engine:
        with TestClient(make_app(engine, Settings(quiet=True)), base_url="http://127.0.0.1") as client:
            assert client.get("/engine").json()["modalities"]["image"]["query"] is False
            assert "Search by id" in client.post("/search", json={"text": "red"}).json()["error"]
            hits = search(client, id="7", modality="text", want=["image"], k=3)["hits"]
            assert len(hits) == 3
            assert "media" not in hits[0]
            Item.model_validate(client.get("/items/7?modality=text").json())
        assert np.all([hit["modality"] == "image" for hit in hits])


@pytest.mark.parametrize(("text", "how"), [("", "empty"), ("  ", "only white space")])
def test_a_query_without_words_says_so(client, text, how):
    refused = client.post("/search", json={"text": text})
    assert refused.status_code == 422
    assert refused.json()["error"] == f"text: the query is {how}; expected some words, e.g. 'red boat'"


def test_labels_that_no_item_has_are_an_error_unless_they_need_not_be_checked(client):
    body = {"text": "red ball", "labels": ["nosuch"], "refine": False}
    refused = client.post("/search", json=body)
    assert [refused.status_code, refused.json()["reason"]] == [422, "unknown_label"]
    assert client.post("/search", json={**body, "check_labels": False}).json()["hits"] == []
    others = {"text": "red ball", "where": "not label = nosuch", "check_labels": False}
    assert client.post("/search", json=others).json()["hits"]
    wrong = client.post("/search", json={"text": "red ball", "where": "kind = nosuch", "check_labels": False})
    assert [wrong.status_code, "reason" in wrong.json()] == [422, False]


def test_what_the_engine_is(client, engine):
    about = client.get("/engine").json()
    EngineInfo.model_validate(about)
    assert about["items"] == len(engine) == 120
    assert about["modalities"]["image"] == {"items": 60, "query": True, "reads": "image"}
    assert set(about["examples"]) <= {"red", "green", "blue", "circle", "square"}
    assert about["writable"] is False
    assert {"k", "want", "labels", "kind"} <= set(about["options"])
    assert set(about["options"]) | {"min_confidence"} == set(SearchFields.model_fields)


@pytest.mark.parametrize("confidence", [None, "something"])
def test_a_least_confidence_is_offered_where_the_engine_tells_one(client, engine, confidence):
    engine.confidence = confidence
    assert ("min_confidence" in client.get("/engine").json()["options"]) == (confidence is not None)


def test_duplicates_are_announced_where_there_is_a_route_for_them(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert client.get("/engine").json()["duplicates"] is ("/duplicates" in paths)


def test_examples_are_those_given_or_those_of_the_engine(make_client, engine):
    assert make_client(examples=("red ball",), name="Balls").get("/engine").json()["examples"] == ["red ball"]
    engine.config["examples"] = ["blue box"]
    assert make_client().get("/engine").json()["examples"] == ["blue box"]


def test_labels_that_do_not_read_as_words_are_no_examples(make_client, engine):
    labels = ["2019", "x", "IMG_7", "a", "tee-shirt", "the open sea", "été"]
    engine.add([{"id": f"{label} {n}", "text": "a", "labels": [label]} for label in labels for n in range(90)])
    examples = make_client().get("/engine").json()["examples"]
    assert set(examples[:3]) == {"tee-shirt", "the open sea", "été"}
    assert set(examples[3:]) <= {"red", "green", "blue", "circle", "square"}


def test_metrics(client):
    parser = pytest.importorskip("prometheus_client.parser")
    client.get("/engine")
    for text in ("red", "blue"):
        client.post("/search", json={"text": text})
    client.post("/search", json={"id": "photos/0.png"})
    client.get("/nosuch")
    client.request("BREW", "/items/photos/0.png")
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in parser.text_string_to_metric_families(answer.text)}
    values = {(s.name, *sorted(s.labels.items())): s.value for family in families.values() for s in family.samples}

    def value(name, **labels):
        return values[name, *sorted(labels.items())]

    assert {name: family.type for name, family in families.items() if name.startswith("modalhash_")} == {
        "modalhash_requests": "counter",
        "modalhash_request_seconds": "histogram",
        "modalhash_searches": "counter",
        "modalhash_batch_size": "histogram",
        "modalhash_items": "gauge",
        "modalhash_requests_under_way": "gauge",
        "modalhash_uptime_seconds": "gauge",
    }
    assert value("modalhash_requests_total", route="/search", method="POST", status="200") == 3
    assert value("modalhash_requests_total", route="other", method="GET", status="404") == 1
    assert sum(n for key, n in values.items() if ("method", "other") in key and ("status", "405") in key) == 1
    assert value("modalhash_request_seconds_bucket", route="/search", le="+Inf") == 3
    assert value("modalhash_request_seconds_count", route="/search") == 3
    assert value("modalhash_searches_total", by="text") == 2
    assert value("modalhash_batch_size_sum", stage="search") == 3
    assert value("modalhash_items", modality="image") == 60
    assert value("modalhash_requests_under_way") == 1
    assert value("modalhash_uptime_seconds") >= 0
    assert "_created" not in answer.text
    if sys.platform == "linux":
        assert value("process_resident_memory_bytes") > 10**7


def test_each_app_has_metrics_of_its_own(make_client):
    first, second = make_client(), make_client()
    first.post("/search", json={"text": "red"})
    assert 'modalhash_searches_total{by="text"} 1.0' in first.get("/metrics").text
    assert 'by="text"' not in second.get("/metrics").text
