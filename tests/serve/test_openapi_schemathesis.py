"""Requests drawn from the service's own description: no 500, and every answer is as described."""

from __future__ import annotations

import pytest

schemathesis = pytest.importorskip("schemathesis", reason="schemathesis is not installed (extra test-all)")

from hypothesis import HealthCheck, Phase, given, settings  # noqa: E402
from schemathesis import GenerationMode  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

pytestmark = pytest.mark.slow

NO_INPUT = ("/engine", "/livez", "/readyz", "/healthz", "/metrics")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["as described", "wrong"])
def test_drawn_requests(serve, mode):
    with serve(writable=True) as server:
        base = f"http://127.0.0.1:{server.port}"
        schema = schemathesis.openapi.from_url(f"{base}/openapi.json")
        asked = 0
        for operation in (result.ok() for result in schema.get_all_operations()):
            if mode is GenerationMode.NEGATIVE and operation.path in NO_INPUT:
                continue  # nothing can be wrong there

            @settings(
                max_examples=8, deadline=None, database=None, derandomize=True, phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )  # fmt: skip
            @given(case=operation.as_strategy(generation_mode=mode))
            def one(case):
                nonlocal asked
                asked += 1
                case.call_and_validate(base_url=base, checks=CHECKS, timeout=20)

            one()
        assert asked >= 30
