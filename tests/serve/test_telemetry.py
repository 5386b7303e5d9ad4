"""Spans of requests and batches, and the metrics of Prometheus, by OpenTelemetry."""

from __future__ import annotations

import pytest

from modalhash.serve import telemetry


@pytest.fixture
def collected(make_client, monkeypatch):
    """A client whose service is observed, and what is observed."""
    sdk = "opentelemetry is not installed (extra telemetry)"
    memory = pytest.importorskip("opentelemetry.sdk.trace.export.in_memory_span_exporter", reason=sdk)
    metrics = pytest.importorskip("opentelemetry.sdk.metrics.export", reason=sdk)
    traces = pytest.importorskip("opentelemetry.sdk.trace.export", reason=sdk)
    monkeypatch.setattr(telemetry, "span", telemetry.span)
    client, spans, reader = make_client(), memory.InMemorySpanExporter(), metrics.InMemoryMetricReader()
    telemetry.start_with(traces.SimpleSpanProcessor(spans), reader, client.app.state.service.metrics.registry.collect)
    return client, spans, reader


def test_requests_and_batches_are_spans(collected):
    client, spans, _ = collected
    assert client.post("/search", json={"text": "a red ball"}).status_code == 200
    assert client.get("/items/nothing").status_code == 404
    found = [(span.name, dict(span.attributes)) for span in spans.get_finished_spans()]
    get = {"http.request.method": "GET", "http.response.status_code": 404, "http.route": "/items/{id:any}"}
    post = {"http.request.method": "POST", "http.response.status_code": 200, "http.route": "/search"}
    expected = [("prepare", {"batch": 1}), ("request", get), ("request", post), ("search", {"batch": 1})]
    assert sorted(found, key=lambda one: (one[0], str(one[1].get("http.route")))) == expected


def test_metrics_are_those_of_prometheus(collected):
    client, _, reader = collected
    for _ in range(3):
        client.post("/search", json={"text": "a red ball"})
    (resource,) = reader.get_metrics_data().resource_metrics
    assert resource.resource.attributes["service.name"] == "modalhash"
    points = {one.name: one.data.data_points for scope in resource.scope_metrics for one in scope.metrics}
    (searches,) = points["modalhash_searches"]
    assert (searches.value, searches.attributes) == (3, {"by": "text"})
    assert [point.value for point in points["modalhash_request_seconds_count"]] == [3]
    assert [point.value for point in points["modalhash_requests_under_way"]] == [0]


def test_nothing_is_sent_unless_a_variable_asks_for_it(monkeypatch):
    for name in telemetry.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert telemetry.start(list) is False
    monkeypatch.setenv(telemetry.VARIABLES[0], "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert telemetry.start(list) is False
    with telemetry.span({"name": "request"}) as attributes:
        attributes["status"] = 200
