"""Log, metrics, errors of our own, and the description."""

from __future__ import annotations

import json
import re

import pytest


@pytest.fixture
def lines(make_client):
    """A client, and the lines that its service logs."""
    found = []

    def make(**settings):
        client = make_client(**{"quiet": False, **settings})
        client.app.state.service.log._write = lambda line: found.append(json.loads(line))
        return client, found

    return make


def test_the_log_has_a_line_per_request(lines):
    client, found = lines()
    client.get("/engine?secret=1")
    client.post("/search", json={"text": "a secret wish"})
    client.get("/nosuch/" + "x" * 500)
    assert [(line["request"], line["method"], line["status"]) for line in found] == [
        (1, "GET", 200), (2, "POST", 200), (3, "GET", 404),
    ]  # fmt: skip
    assert found[0]["path"] == "/engine"
    assert found[1]["bytes"] > 100
    assert found[1]["ms"] > 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", found[0]["time"])
    assert len(found[2]["path"]) < 210
    assert "secret" not in json.dumps(found)


def test_the_log_knows_no_token(lines):
    client, found = lines(token="correct-horse")
    client.get("/?token=correct-horse")
    client.get("/engine", headers={"Authorization": "Bearer correct-horse"})
    client.get("/engine?token=wrong-horse")
    assert [line["status"] for line in found] == [303, 200, 200]
    assert "horse" not in json.dumps(found)


def test_a_quiet_one(lines):
    client, found = lines(quiet=True)
    client.get("/engine")
    assert found == []


def test_a_mistake_of_ours_is_a_number_and_no_trace(lines, engine, monkeypatch):
    client, found = lines()

    def broken(asks):
        raise RuntimeError("the secret wish was /etc/passwd")

    monkeypatch.setattr(client.app.state.service.searcher.answer, "_work", broken)
    answer = client.post("/search", json={"text": "a secret wish"})
    assert answer.status_code == 500
    assert answer.json() == {
        "error": "the service made a mistake; its log has more under request 1", "status": 500, "request": 1,
    }  # fmt: skip
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert found[0]["error"] == "RuntimeError"
    assert "in broken" in found[0]["where"]
    assert "secret wish was" not in found[0]["where"].replace(
        'raise RuntimeError("the secret wish was /etc/passwd")', ""
    )
    assert (found[1]["request"], found[1]["status"]) == (1, 500)


def test_a_full_disk_and_a_busy_store(make_client, engine, monkeypatch):
    from modalhash.store import StoreBusyError, StoreFullError

    client = make_client(writable=True)
    for error, status in ((StoreFullError("full"), 507), (StoreBusyError("busy"), 503)):

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(engine, "add", fail)
        assert client.post("/items", json={"text": "a red ball"}).status_code == status


def samples(text):
    return dict(line.rpartition(" ")[::2] for line in text.splitlines() if not line.startswith("#"))


def test_metrics(client):
    client.get("/engine")
    for text in ("red", "blue"):
        client.post("/search", json={"text": text})
    client.post("/search", json={"id": "photos/0.png"})
    client.get("/nosuch")
    client.request("BREW", "/items/photos/0.png")
    answer = client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    found = samples(answer.text)
    assert found['modalhash_requests_total{route="/search",method="POST",status="200"}'] == "3"
    assert found['modalhash_requests_total{route="other",method="GET",status="404"}'] == "1"
    assert any('method="other",status="405"' in name for name in found)
    assert found['modalhash_request_seconds_bucket{route="/search",le="+Inf"}'] == "3"
    assert found['modalhash_searches_total{by="text"}'] == "2"
    assert found['modalhash_batch_size_sum{stage="search"}'] == "3.000000"
    assert found['modalhash_items{modality="image"}'] == "60"
    assert found["modalhash_requests_under_way"] == "1"
    assert float(found["modalhash_uptime_seconds"]) >= 0


def test_metrics_are_prometheus(client):
    parser = pytest.importorskip("prometheus_client.parser", reason="prometheus-client is not installed")
    client.post("/search", json={"text": "red"})
    families = {family.name: family for family in parser.text_string_to_metric_families(client.get("/metrics").text)}
    assert families["modalhash_request_seconds"].type == "histogram"
    assert families["modalhash_requests"].type == "counter"


def test_the_description_names_what_there_is(client):
    schema = client.get("/openapi.json").json()
    assert set(schema["paths"]) == {
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
        assert one["properties"]["want"]["anyOf"][0]["items"]["enum"] == ["image", "text"]
    assert set(body) == {"application/json", "multipart/form-data"}
    for path in schema["paths"].values():
        for operation in path.values():
            for status, answer in operation["responses"].items():
                if status >= "400":
                    assert answer["content"]["application/json"]["schema"] == {"$ref": "#/components/schemas/Error"}
    assert "HTTPValidationError" not in schema["components"]["schemas"]


def test_the_viewer_loads_nothing_from_elsewhere(client):
    page = client.get("/docs")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("docs.js", "docs.css"):
        assert f"/docs/{name}" in page.text
        content = client.get(f"/docs/{name}")
        assert content.status_code == 200
        assert "http" not in content.text
    assert "http" not in page.text
    assert "style=" not in page.text


def test_wrong_addresses_and_methods(client):
    for method, path, status in (
        ("GET", "/nosuch", 404), ("GET", "/search", 405), ("PUT", "/items/x", 405), ("POST", "/engine", 405),
        ("GET", "/engine/", 404), ("OPTIONS", "/search", 405), ("TRACE", "/", 405),
    ):  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.json()["status"] == status
        assert status != 405 or answer.headers["allow"]
