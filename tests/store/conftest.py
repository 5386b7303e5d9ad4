from __future__ import annotations

import pytest

from postgres_server import postgres, schema  # noqa: F401

pytest.register_assert_rewrite("store_contract")
