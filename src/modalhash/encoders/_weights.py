"""Encoders whose weights lie in a file of another package: the digest of the file is part of the state."""

from __future__ import annotations

from typing import Self

from modalhash.encoders.base import EncoderBase, State


class WeightsEncoder(EncoderBase):
    """An encoder that is only restored where the installed weights are those it had."""

    _sha256: str
    """Of the weights, set by the constructor; the state has it as ``weights``."""

    @classmethod
    def restore(cls, state: State) -> Self:
        """Return the encoder, if the installed weights are those it had."""
        config = dict(state.config)
        expected = config.pop("weights")
        encoder = cls(**config)
        check_weights(cls.name, encoder._sha256, expected)
        return encoder


def check_weights(name: str, installed: str, expected: str) -> None:
    """Raise ``ValueError`` if the weights that are installed are not those an encoder was saved with."""
    if installed != expected:
        raise ValueError(
            f"the weights of {name!r} are not those it was saved with: their SHA-256 starts with "
            f"{installed[:12]}, expected {str(expected)[:12]}. Install the package version of that time"
        )
