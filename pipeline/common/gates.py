"""Gates of trained heads, where the stage `train` puts them."""

from __future__ import annotations

from pathlib import Path

from gistgate.gates.gate import Gate
from pipeline.common.paths import HEADS, TABLE_MODELS
from pipeline.pairs.pair import Pair


def gate_folder(head: str) -> Path:
    """The gate folder of a head; heads that only the large table asks lie apart."""
    own = TABLE_MODELS / head
    return own if own.is_dir() else HEADS / head


def load_gate(head: str, pair: Pair) -> Gate:
    """The gate of a head, checked against the pair."""
    return Gate.load(gate_folder(head), pair.target, pair.draft, pair.tokenizer)
