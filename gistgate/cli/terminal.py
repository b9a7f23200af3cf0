"""Texts that models wrote, on a terminal."""

from __future__ import annotations

CONTROLS = {code: ascii(chr(code))[1:-1] for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""Escapes of the characters that a terminal would obey."""


def inert(text: str) -> str:
    """A text that cannot steer a terminal; letters and signs of every language stay."""
    return text.translate(CONTROLS)
