"""What a draft looks like to the loop: where its tokens stand, how it is judged, and what of it both models keep.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Acceptance, Block, Draft
from gistgate.drafters.base import Drafter
from gistgate.forward.reader import Layout, Reader
from gistgate.rules.base import Rule

Settle = Callable[[Block, int], tuple[Block, Acceptance]]
"""Judges a block with a number of paths for every row, those of one row together; returns the block, with what was
learned of it, and what of every path stays."""


@dataclass(frozen=True)
class Judged:
    """A block with its verdict."""

    block: Block
    """The block that was judged [B, K]; of a tree the best path of every row."""
    acceptance: Acceptance
    """What of it stays."""
    paths: list[list[int]] | None = None
    """The accepted nodes of each row's tree; None for chains."""


class Chains:
    """Drafts whose tokens follow each other."""

    def check(self, models: Sequence[PreTrainedModel], rule: Rule) -> None:
        """Refuse models that cannot read such drafts, and rules that cannot judge them."""

    def check_sampled(self, rule: Rule) -> None:
        """Refuse rules that cannot judge such drafts of a sampled request."""

    def places(self, draft: Draft) -> Tensor:
        """How many drafted tokens stand in front of each one, [K] or [B, K]."""
        return torch.arange(draft.ids.shape[1], device=draft.ids.device)

    def layout(self, draft: Draft) -> Layout | None:
        """How the target reads the draft; None in order."""
        return None

    def judge(self, block: Block, draft: Draft, rule: Rule, settle: Settle) -> Judged:
        """What of the draft stays."""
        return Judged(*settle(block, 1))

    def keep(self, reader: Reader, drafter: Drafter, draft: Draft, judged: Judged) -> None:
        """Take back what both models read of the refused tokens."""
        lengths = judged.acceptance.length.tolist()
        reader.keep(draft.ids.shape[1], lengths, draft.valid.sum(-1).tolist())
        drafter.keep(lengths)
