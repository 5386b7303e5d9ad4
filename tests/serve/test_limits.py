"""Settings that are refused."""

from __future__ import annotations

import pytest

from modalhash.serve import Settings


@pytest.mark.parametrize("token", ["short", "with a space in it", "", "naïve-token"])
def test_tokens_that_are_none(token):
    with pytest.raises(ValueError, match="token_urlsafe"):
        Settings(token=token)
