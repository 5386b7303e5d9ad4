"""The description names what this engine has."""

from __future__ import annotations


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
        "/healthz",
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
