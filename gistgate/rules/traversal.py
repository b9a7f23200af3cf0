"""Traversal Verification: Block Verification for trees, leaves first (arXiv 2505.12398)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from gistgate.rules.block_verification import BlockVerification


@dataclass(frozen=True)
class Traversal(BlockVerification):
    """On a chain it equals `block`; `gistgate.optional.trees.walks.traverse` applies it to a tree.

    Texts are distributed as by `exact`. Greedy requests are `exact` itself.
    """

    id: ClassVar[str] = "traversal"
