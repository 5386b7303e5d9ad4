"""Errors of routing and of the store as JSON."""

from __future__ import annotations


def test_a_full_disk_and_a_busy_store(make_client, engine, monkeypatch):
    from modalhash.store import StoreBusyError, StoreFullError

    client = make_client(writable=True)
    for error, status in ((StoreFullError("full"), 507), (StoreBusyError("busy"), 503)):

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(engine, "add", fail)
        assert client.post("/items", json={"text": "a red ball"}).status_code == status


def test_wrong_routes_and_methods(client):
    for method, path, status in (
        ("GET", "/nosuch", 404), ("GET", "/search", 405), ("PUT", "/items/x", 405), ("POST", "/engine", 405),
        ("GET", "/engine/", 404), ("OPTIONS", "/search", 405), ("TRACE", "/", 405),
    ):  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.json()["status"] == status
        assert status != 405 or answer.headers["allow"]
