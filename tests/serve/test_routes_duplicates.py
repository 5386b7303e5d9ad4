"""Duplicates over HTTP."""

from __future__ import annotations

import pytest

from modalhash.serve.schemas import DuplicatesResponse


@pytest.fixture
def found(client):
    response = client.get("/duplicates?modality=text")
    assert response.status_code == 200
    return response.json()


def test_groups_as_described(found):
    DuplicatesResponse.model_validate(found)
    assert len(found["groups"]) == len(found["exact"]) == len(found["sizes"]) > 1
    assert found["exact"] == sorted(found["exact"], reverse=True)
    assert found["message"] is None
    for group, exact in zip(found["groups"], found["exact"], strict=True):
        assert len(group) > 1
        assert {hit["modality"] for hit in group} == {"text"}
        assert group[0]["score"] == 1
        if exact:
            assert len({hit["text"] for hit in group}) == 1


def test_an_added_copy(engine, make_client, found):
    client = make_client(writable=True)
    client.post("/items", json={"id": "first", "text": "a purple elephant in the red corner"})
    client.post("/items", json={"id": "second", "text": "a purple elephant in the red corner"})
    groups = client.get("/duplicates?modality=text").json()["groups"]
    assert ["first", "second"] in [[hit["id"] for hit in group] for group in groups]


def test_pages(client, found):
    first = client.get("/duplicates?modality=text&limit=1").json()
    assert first["groups"] == found["groups"][:1]
    assert first["more"]
    second = client.get("/duplicates?modality=text&limit=200&offset=1").json()
    assert second["groups"] == found["groups"][1:]
    assert not second["more"]


def test_only_among_items_that_pass_a_filter(client, found):
    red = client.get("/duplicates", params={"modality": "text", "where": "label = red"}).json()
    assert 0 < sum(red["sizes"]) < sum(found["sizes"])
    assert all("red" in hit["labels"] for group in red["groups"] for hit in group)
    assert client.get("/duplicates", params={"modality": "text", "where": '{"label": "red"}'}).json() == red
    for wrong, expected in [("label =", "where: the filter at character 8"), ("label = reed", "did you mean 'red'")]:
        response = client.get("/duplicates", params={"where": wrong})
        assert response.status_code == 422
        assert expected in response.json()["error"]


def test_large_groups_are_cut(engine, client):
    engine.add([{"id": f"copy {number}", "text": "a purple elephant in the red corner"} for number in range(60)])
    answer = client.get("/duplicates?modality=text&limit=1").json()
    assert (answer["sizes"], len(answer["groups"][0])) == ([60], 50)


@pytest.mark.parametrize("wrong", ["modality=sound", "limit=0", "limit=201", "offset=-1", "limit=x"])
def test_wrong_fields(client, wrong):
    response = client.get(f"/duplicates?{wrong}")
    assert response.status_code == 422
    assert wrong.partition("=")[0] in response.json()["error"]
