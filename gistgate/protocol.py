"""Tokens that steer an answer instead of being a part of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def added_ids(tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Every added token of a tokenizer: chat, think and tool markers, and ends of text.

    No rule accepts one loosely, and every draft may propose it.
    """
    return () if tokenizer is None else tuple(sorted(int(token) for token in tokenizer.added_tokens_decoder))
