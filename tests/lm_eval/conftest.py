"""A tiny pair, and a gate for it as it would be exported."""

from tests.export.exported import gate, inputs, pair, place, tokenizer  # noqa: F401
