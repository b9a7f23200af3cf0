"""Tokens that some rules need to know by name: think markers, and the prompt before a second reading."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError


def find_markers(tokenizer: PreTrainedTokenizerBase | None, names: Sequence[str]) -> tuple[int, int]:
    """Ids of the tokens that begin and end thinking.

    Raises:
        UserError: there is no tokenizer, or it does not know them as single tokens.
    """
    if tokenizer is None:
        raise UserError("The rule looks between think markers. Pass tokenizer=... to the decoder, or set scope: all.")
    vocabulary = tokenizer.get_vocab()
    for name in names:
        if name not in vocabulary:
            raise UserError(
                f"The tokenizer does not know the think marker '{name}' as one token. Pass think_markers=(begin, end) "
                "with the model's own, or set scope: all to apply the rule everywhere."
            )
    begin, end = (vocabulary[name] for name in names)
    return begin, end


def reflection(rule: Any, tokenizer: PreTrainedTokenizerBase | None) -> tuple[int, ...]:
    """Ids of the prompt between two readings; empty for a rule that reads once.

    Raises:
        UserError: there is no tokenizer to write it with.
    """
    if "second" not in rule.needs:
        return ()
    if tokenizer is None:
        raise UserError(f"The rule '{rule.id}' puts a prompt in front of its second reading. Pass tokenizer=...")
    return tuple(tokenizer.encode(rule.prompt, add_special_tokens=False))


def between_markers(ids: Sequence[int], thinking: bool, markers: tuple[int, int]) -> bool:
    """Whether the text goes on inside the think markers after `ids`, given that it did (or not) before."""
    for token in ids:
        thinking = token == markers[0] or (thinking and token != markers[1])
    return thinking
