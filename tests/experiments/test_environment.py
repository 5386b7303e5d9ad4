"""What is recorded of the machine."""

from __future__ import annotations

import numpy as np

from modalhash.experiments import describe_environment


def test_versions_and_threads_are_recorded():
    found = describe_environment()
    assert found["versions"]["numpy"] == np.__version__
    assert found["threads"] >= 1
    assert "cores" in found["machine"]
