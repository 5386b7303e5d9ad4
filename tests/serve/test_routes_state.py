"""Facts of the engine, health and metrics over HTTP."""

from __future__ import annotations

import sys

import pytest

from modalhash.serve.schemas import EngineInfo, SearchFields


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
