"""What a model's configuration says about lengths, and a tokenizer about ids, under whatever name."""

from __future__ import annotations

from typing import Any

CONTEXT = ("max_position_embeddings", "max_seq_len")
"""Names of the longest text in tokens; the second is that of MPT."""


def context_of(config: Any) -> int | None:
    """Tokens that a model reads, of its text configuration; None where it does not say."""
    return next((int(value) for name in CONTEXT if (value := getattr(config, name, None))), None)


def num_ids(tokenizer: Any) -> int:
    """One more than the largest id of a tokenizer: its length counts entries, and ids may have gaps."""
    largest: int = max(tokenizer.get_vocab().values())
    return 1 + largest
