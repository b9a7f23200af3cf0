"""Texts that many mismatches share: a mismatch is a position on a trunk, and its prefix is the trunk up to there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pipeline.labels.mismatches import Table

STRICT, SEQUENTIAL, GATED = 0, 1, 2
"""Whose prefixes: the target's own text; its text with harmless replacements kept; a gate's text."""


@dataclass(frozen=True)
class Trunk:
    """One text in which mismatches were found."""

    problem: int
    """Index of its prompt in the split."""
    prefix: int
    """STRICT, SEQUENTIAL or GATED."""
    answer: list[int]
    """The answer as token ids, behind the prompt."""


def pack(trunks: Sequence[Trunk]) -> Table:
    """Trunks as tensors; names begin with `trunk_` and do not share the leading axis of the records."""
    lengths = torch.tensor([len(trunk.answer) for trunk in trunks], dtype=torch.int64)
    return {
        "trunk_ids": torch.tensor([token for trunk in trunks for token in trunk.answer], dtype=torch.int32),
        "trunk_lengths": lengths,
        "trunk_problem": torch.tensor([trunk.problem for trunk in trunks], dtype=torch.int64),
        "trunk_prefix": torch.tensor([trunk.prefix for trunk in trunks], dtype=torch.int8),
    }


def unpack(table: Table) -> tuple[Table, dict[tuple[int, int], Trunk]]:
    """The records without their trunks, and the trunks by (problem, prefix)."""
    texts = table["trunk_ids"].split(table["trunk_lengths"].tolist())
    keys = zip(table["trunk_problem"].tolist(), table["trunk_prefix"].tolist(), strict=True)
    trunks = {key: Trunk(*key, answer=text.tolist()) for key, text in zip(keys, texts, strict=True)}
    return {name: column for name, column in table.items() if not name.startswith("trunk_")}, trunks
