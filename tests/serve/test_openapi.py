"""The description names what this engine has."""

from __future__ import annotations

import pytest

from modalhash import Engine


def test_the_description_names_what_there_is(client):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
        "/audit",
        "/duplicates",
        "/engine",
        "/search",
        "/items",
        "/items/{id}",
        "/media/{id}",
        "/values",
        "/healthz",
        "/livez",
        "/readyz",
        "/metrics",
    }
    body = schema["paths"]["/search"]["post"]["requestBody"]["content"]
    for one in body["application/json"]["schema"]["oneOf"]:
        assert one["properties"]["want"]["anyOf"][0]["enum"] == ["image", "text"]
        assert one["properties"]["want"]["anyOf"][1]["items"]["enum"] == ["image", "text"]
    assert set(body) == {"application/json", "multipart/form-data"}
    for path in schema["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert "HTTPValidationError" not in schema["components"]["schemas"]


@pytest.mark.slow
def test_the_description_follows_to_the_modalities_of_another_engine(make_client, engine, until):
    def modalities():
        body = client.get("/openapi.json").json()["paths"]["/search"]["post"]["requestBody"]["content"]
        wanted = body["application/json"]["schema"]["oneOf"][0]["properties"]["want"]
        return wanted["anyOf"][0]["enum"]

    client = make_client()
    assert modalities() == ["image", "text"]
    lines = [{"text": f"a {word} box", "labels": [word]} for word in ("red", "green", "blue")] * 8
    named = [{**line, "id": str(number), "modality": "caption"} for number, line in enumerate(lines)]
    Engine.train(named, engine.path, n_bits=8, encoders={"caption": "tfidf"}, overwrite=True).close()
    until(lambda: modalities() == ["caption"])
