"""The recipes for other engines find what all distances say."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from postgres_server import postgres  # noqa: F401  (a fixture)

PAGE = Path(__file__).parents[1] / "docs" / "other-engines.md"
N = 300


def recipe(title):
    section = PAGE.read_text(encoding="utf-8").split(f"## {title}\n")[1]
    return re.search(r"```py\n(.*?)```", section, re.DOTALL)[1]


@pytest.fixture
def codes(tmp_path, rng):
    """A file of codes, a query, and the distance of each id and of the ten nearest."""
    parquet = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    drawn = rng.integers(0, 256, (N, 8), dtype=np.uint8)
    ids = [f"item {number}" for number in range(N)]
    columns = {"id": ids, "modality": ["image"] * N, "code": [code.tobytes() for code in drawn]}
    parquet.write_table(pyarrow.table(columns), tmp_path / "codes.parquet")
    query = drawn[7] ^ np.packbits(rng.random(64) < 0.1)
    distances = dict(zip(ids, np.bitwise_count(drawn ^ query).sum(axis=1).tolist(), strict=True))
    return {"file": str(tmp_path / "codes.parquet"), "query": query.tobytes()}, distances


def check(hits, distances):
    assert len(hits) == 10
    assert [distances[id] for id, _ in hits] == [distance for _, distance in hits] == sorted(distances.values())[:10]
    assert hits[0][0] == "item 7"


def test_pgvector(codes, postgres):  # noqa: F811
    if not postgres.execute("SELECT 1 FROM pg_available_extensions WHERE name = 'vector'"):
        pytest.skip("this PostgreSQL has no pgvector")
    given, distances = codes
    names = {**given, "url": postgres.url}
    exec(recipe("PostgreSQL with pgvector"), names)
    postgres.execute("DROP TABLE codes")
    check(names["hits"], distances)


def test_faiss(codes):
    pytest.importorskip("faiss")
    given, distances = codes
    names = dict(given)
    exec(recipe("FAISS"), names)
    check(names["hits"], distances)


def test_qdrant(codes):
    pytest.importorskip("qdrant_client", reason="qdrant-client is not installed")
    given, distances = codes
    names = dict(given)
    exec(recipe("Qdrant"), names)
    check(names["hits"], distances)


@pytest.mark.parametrize("title", ["PostgreSQL with pgvector", "FAISS", "Qdrant"])
def test_recipes_are_short(title):
    lines = [line for line in recipe(title).splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(lines) <= 20
