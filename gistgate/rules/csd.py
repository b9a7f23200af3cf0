"""CSD: let through a pair that was refused often, where the target finds it not too unlikely (arXiv 2604.13634)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.errors import UserError
from gistgate.rules.base import Context, LooseRule, State
from gistgate.rules.pair_counts import PairCounts, pair_key


class Counting(Context):
    """An online table."""

    needs_eager = "counts while it decodes"


@dataclass(frozen=True)
class Csd(LooseRule):
    """Accept where the pair (x, t*) was counted more than `min_count` times and z(x) - z(t*) >= ln tau_c.

    A frozen table never changes. An online table also counts every refusal during decoding, before it tests. What is
    accepted then depends on earlier requests, so each user needs a separate rule object. In sampled requests a refusal
    is one of the lossless test, and z are the processed logits.
    """

    tau_c: float = 0.01
    """Smallest p(x) / p(t*) of a tolerated pair; above 1 strict."""
    min_count: int = 6
    """The paper's lambda: a pair is known after more refusals than this."""
    table: Literal["frozen", "online"] = "frozen"
    """frozen: counts from calibration only; online: counts go on while decoding (the paper)."""
    counts: str | Path | PairCounts | None = None
    """File of pair counts, or a table in memory; an online table may begin with nothing."""
    id: ClassVar[str] = "csd"
    knob: ClassVar[str | None] = "tau_c"
    looser: ClassVar[Literal["up", "down"]] = "down"
    grid: ClassVar[tuple[float, ...]] = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.03, 0.01, 0.003, 0.001)
    variants: ClassVar[tuple[dict[str, Any], ...]] = ({}, {"min_count": 0}, {"min_count": 2}, {"min_count": 20})

    def __post_init__(self) -> None:
        if not self.tau_c > 0 or self.min_count < 0 or self.table not in ("frozen", "online"):
            raise UserError(
                f"csd: tau_c {self.tau_c}, min_count {self.min_count}, table '{self.table}' do not fit: tau_c lies "
                "above 0 (above 1 is strict), min_count is 0 or more, the table 'frozen' or 'online'."
            )
        if self.table == "frozen" and self.counts is None:
            raise UserError(
                "csd: a frozen table needs counts, and none were given. Decode calibration prompts with table='online' "
                "and tau_c=2, which is strict and only counts, write rule.pairs.save(file), then pass counts=file."
            )
        _ = self.pairs  # a file that cannot be read is refused before decoding starts

    @cached_property
    def pairs(self) -> PairCounts:
        """The table."""
        if isinstance(self.counts, PairCounts):
            return self.counts
        return PairCounts() if self.counts is None else PairCounts.load(self.counts)

    def changed(self, **settings: Any) -> Csd:
        """A copy with other settings, which shares the table."""
        return replace(self, **{"counts": self.pairs, **settings})

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        return Counting() if self.table == "online" else Context()

    @property
    def known_by(self) -> tuple[object, ...]:
        # The table itself, not its address: that may be another table's once this one is gone.
        return (repr(self), self.pairs, self.pairs.clock)

    def to(self, device: torch.device) -> None:
        """Move the table."""
        self.pairs.to(device)

    def accept(self, block: Block, state: State) -> Tensor:
        if self.pairs.num_ids > block.logits.shape[-1]:
            raise UserError(
                f"csd: the pair counts name token id {self.pairs.num_ids - 1}, but the models share only "
                f"{block.logits.shape[-1]} ids. Count again with these models."
            )
        # accept(j)  <=>  count(x_j, t*_j) > lambda  and  z(x_j) - z(t*_j) >= ln tau_c
        count_BK = self.pairs.look_up(block.draft_ids, block.top_ids[:, :-1])
        if self.table == "online":
            count_BK = count_BK + met_so_far(block)
        gap_BK = block.draft_logprob - block.top_logprob[:, :-1]
        return (count_BK > self.min_count) & (gap_BK >= math.log(self.tau_c))

    def advance(self, block: Block, acceptance: Acceptance, state: State) -> State:
        """Count what was met in an online table: the refusals along the accepted prefix and the one that ended it."""
        if self.table == "online":
            place_K = torch.arange(block.draft_ids.shape[1], device=block.draft_ids.device)
            met_BK = refusals(block) & (place_K <= acceptance.length[:, None])
            self.pairs.add(block.draft_ids[met_BK], block.top_ids[:, :-1][met_BK])
        return state


def refusals(block: Block) -> Tensor:
    """Draft tokens that the strict rule refuses [B, K]."""
    return block.valid & ~block.strict


def met_so_far(block: Block) -> Tensor:
    """Refusals of each position's pair within its block, up to and including that position [B, K].

    A position matters only if all positions before it stay, so decoding has met all refusals before it.
    """
    key_BK = pair_key(block.draft_ids, block.top_ids[:, :-1])
    same_BKK = (key_BK[:, :, None] == key_BK[:, None, :]) & refusals(block)[:, None, :]
    return same_BKK.tril().sum(-1)
