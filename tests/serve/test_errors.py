"""Errors of routing and of the store as JSON."""

from __future__ import annotations


def test_what_the_store_refuses_is_no_internal_error(make_client, engine, monkeypatch):
    from modalhash.store import StoreAccessError, StoreBusyError, StoreFullError

    client = make_client(writable=True)
    refused = ((StoreFullError("full"), 507), (StoreBusyError("busy"), 503), (StoreAccessError("a role's name"), 503))
    for error, status in refused:

        def fail(*arguments, error=error, **options):
            raise error

        monkeypatch.setattr(engine, "add", fail)
        answer = client.post("/items", json={"text": "a red ball"})
        assert answer.status_code == status
        assert "role's name" not in answer.text


def test_wrong_routes_and_methods(client):
    for method, path, status in (
        ("GET", "/nosuch", 404), ("GET", "/search", 405), ("PUT", "/items/x", 405), ("POST", "/engine", 405),
        ("GET", "/engine/", 404), ("OPTIONS", "/search", 405), ("TRACE", "/", 405),
    ):  # fmt: skip
        answer = client.request(method, path)
        assert answer.status_code == status, (method, path)
        assert answer.json()["status"] == status
        assert status != 405 or answer.headers["allow"]
