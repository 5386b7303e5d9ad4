"""Files of the page and of the viewer, and nothing else."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "name", ["..%2fapp.py", "%2e%2e%2fapp.py", "..%5capp.py", "nosuch.js", "page.js%00", "../app.py", "__init__.py"]
)
def test_only_files_of_the_page(client, name):
    for folder in ("static", "docs"):
        answer = client.get(f"/{folder}/{name}")
        assert answer.status_code == 404
        assert "import" not in answer.text


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
