"""What strict answers were made with, as a mark on each of them: they are compared with answers of the same models."""

from __future__ import annotations

from collections.abc import Sequence

from gistgate.files import fingerprint
from gistgate.identity import identify_model, model_scope, tokenizer_scope
from gistgate.request.stopping import eos_ids
from pipeline.pairs.pair import Pair

DIGITS = 10
"""Hexadecimal digits of a mark."""


def maker_of(pair: Pair) -> str:
    """Fingerprint of all of a pair that decides an answer: weights and forms of its models, and how texts are read."""
    models = [model_scope(identify_model(model)) for model in pair.models]
    return fingerprint(models, tokenizer_scope(pair.tokenizer, ("encoding",)), eos_ids(pair.target, pair.tokenizer))


def mark(maker: str, ids: Sequence[int]) -> str:
    """The mark of an answer of `maker` to the prompt with these token ids."""
    return fingerprint(maker, [int(token) for token in ids])[:DIGITS]
