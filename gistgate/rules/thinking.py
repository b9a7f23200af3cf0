"""Which positions of a block lie between the think markers, for rules that tell thinking from answering.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.block import Block
from gistgate.errors import UserError
from gistgate.rules.base import Context


class Thinking(Context):
    """Fills `Block.thinking`; the markers themselves are never accepted loosely."""

    needs_eager = "asks where the think markers are"

    def __init__(self, markers: tuple[int, int]) -> None:
        """`markers` are the ids of the tokens that begin and end thinking."""
        self.markers = self.protocol_ids = markers

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """Positions between the markers [B, K]; behind an end marker in the draft the answer begins."""
        now_B = torch.tensor([self.is_thinking(row) for row in rows], device=block.draft_ids.device)
        ends_BK = (block.draft_ids == self.markers[1]).long()
        return {"thinking": now_B[:, None] & (ends_BK.cumsum(-1) - ends_BK == 0)}

    def is_thinking(self, row: Any) -> bool:
        """Whether the text of a row ends between the markers; only what is new of it is read."""
        seen, thinking = row.memory.get("thinking", (0, False))
        thinking = between_markers(row.text[seen:], thinking, self.markers)
        row.memory["thinking"] = (len(row.text), thinking)
        return thinking


def find_markers(tokenizer: Any, names: Sequence[str]) -> tuple[int, int]:
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


def between_markers(ids: Sequence[int], thinking: bool, markers: tuple[int, int]) -> bool:
    """Whether the text goes on inside the think markers after `ids`, given that it did (or not) before."""
    for token in ids:
        thinking = token == markers[0] or (thinking and token != markers[1])
    return thinking
