"""Rules that remember: CSD knows how often each pair was refused, the regret budget what a request
has spent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.files import load_tensors, save_tensors
from gistgate.core.rule import Context, Rule
from gistgate.core.utils import Amount, Natural, Positive, UserError

# The key of a pair is x * STRIDE + t: one number, whatever the size of the vocabulary.
STRIDE = 1 << 31
CAPACITY = 1 << 16  # pairs that a table holds unless told otherwise: 1.5 MB


class PairCounts:
    """How often the target refused x for its own t: sorted keys [C] and counts, without the pairs
    met longest ago.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self.capacity = capacity
        self.keys = torch.empty(0, dtype=torch.long)
        self.counts = torch.empty(0, dtype=torch.long)
        # When each pair was met last, in calls of `add`.
        self.seen = torch.empty(0, dtype=torch.long)
        self.clock = 0
        self.num_ids = 0  # one more than the largest token id of a table that was read from a file

    def __len__(self) -> int:
        return self.keys.numel()

    def look_up(self, x: Tensor, t: Tensor) -> Tensor:
        """How often each pair was met, 0 for an unknown one: shape of `x` and `t`. No host
        synchronisation.
        """
        self.to(x.device)
        return self._count(pair_key(x, t))

    def add(self, x: Tensor, t: Tensor) -> None:
        """Count pairs `x [N]`, `t [N]`; the same pair may stand there several times."""
        if not x.numel():
            return
        self.to(x.device)
        keys, counts = pair_key(x, t).unique(return_counts=True)
        self._insert(keys[self._count(keys) == 0])
        place = torch.searchsorted(self.keys, keys)
        # Out of place: a table filled in inference mode can be filled on outside of it.
        self.counts = self.counts.index_add(0, place, counts)
        self.seen = self.seen.index_fill(0, place, self.clock)
        self.clock += 1
        self._forget()

    def save(self, path: str | Path) -> None:
        """Write the table as safetensors."""
        save_tensors(path, {"keys": self.keys, "counts": self.counts, "seen": self.seen})

    @classmethod
    def load(cls, path: str | Path) -> PairCounts:
        """Read a table, all of it; its capacity is the usual one, or its size where that is
        larger.
        """
        tensors = load_tensors(path)
        if set(tensors) != {"keys", "counts", "seen"}:
            raise UserError(
                f"{path} is no table of pair counts. Count again and write it with PairCounts.save."
            )
        table = cls(max(CAPACITY, tensors["keys"].numel()))
        table.keys = tensors["keys"]
        table.counts = tensors["counts"]
        table.seen = tensors["seen"]
        if len(table):
            table.clock = int(table.seen.max()) + 1
            largest = torch.maximum(table.keys // STRIDE, table.keys % STRIDE).max()
            table.num_ids = int(largest) + 1
        return table

    def to(self, device: torch.device) -> None:
        """Move the table."""
        if self.keys.device != device:
            self.keys = self.keys.to(device)
            self.counts = self.counts.to(device)
            self.seen = self.seen.to(device)

    def _count(self, key: Tensor) -> Tensor:
        if not len(self):
            return torch.zeros_like(key)
        place = torch.searchsorted(self.keys, key).clamp_max(len(self) - 1)
        return torch.where(self.keys[place] == key, self.counts[place], 0)

    def _insert(self, new: Tensor) -> None:
        """Insert ascending unknown keys in linear time; sorting again would cost more than a round
        saves.
        """
        place = torch.searchsorted(self.keys, new) + torch.arange(len(new), device=new.device)
        empty = new.new_zeros(len(self) + len(new))
        is_old = torch.ones_like(empty, dtype=torch.bool).index_fill(0, place, False)
        self.keys = empty.masked_scatter(is_old, self.keys).index_copy(0, place, new)
        self.counts = empty.masked_scatter(is_old, self.counts)
        self.seen = empty.masked_scatter(is_old, self.seen)

    def _forget(self) -> None:
        """Drop the pairs that were met longest ago, a sixteenth of the table at a time, so that
        this happens rarely.
        """
        excess = len(self) - self.capacity
        if excess > 0:
            oldest = self.seen.topk(excess + self.capacity // 16, largest=False).indices
            stays = torch.ones_like(self.keys, dtype=torch.bool).index_fill(0, oldest, False)
            self.keys = self.keys[stays]
            self.counts = self.counts[stays]
            self.seen = self.seen[stays]


def pair_key(x: Tensor, t: Tensor) -> Tensor:
    """One int64 per pair of token ids."""
    return x.long() * STRIDE + t.long()


class Counting(Context):
    """An online table."""

    needs_eager = "counts while it decodes"


@dataclass(frozen=True)
class Csd(Rule, id="csd", knob="tau_c", looser="down"):
    """CSD (arXiv 2604.13634): keep x where (x, t*) was met more than min_count times and z(x) -
    z(t*) >= ln tau_c.

    An online table counts every refusal of the strict test while decoding. What is accepted then
    depends on earlier requests, so each user needs a separate rule object.
    """

    tau_c: Positive = 0.01  # smallest p(x) / p(t*) of a tolerated pair; above 1 strict
    min_count: Natural = 6  # the paper's lambda: a pair is known after more refusals than this
    # Counts come from calibration only; or they go on while decoding (the paper).
    table: Literal["frozen", "online"] = "frozen"
    counts: str | Path | PairCounts | None = (
        None  # a file, or a table; None: an online one is empty
    )
    grid = (0.9, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1, 0.05, 0.03, 0.01, 0.003, 0.001)
    variants = ({}, {"min_count": 0}, {"min_count": 2}, {"min_count": 20})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.table == "frozen" and self.counts is None:
            raise UserError(
                "csd: a frozen table needs counts, and none were given. Decode calibration prompts"
                " with table='online' and tau_c=2, which is strict and only counts, write"
                " rule.pairs.save(file), then pass counts=file."
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

    def accept(self, block: Block) -> Tensor:
        if self.pairs.num_ids > block.logits.shape[-1]:
            raise UserError(
                f"csd: counts name token id {self.pairs.num_ids - 1}, which the models lack. Count"
                " anew."
            )
        # accept(j)  <=>  count(x_j, t*_j) > lambda  and  z(x_j) - z(t*_j) >= ln tau_c
        count_BK = self.pairs.look_up(block.draft_ids, block.top_ids[:, :-1])
        if self.table == "online":
            count_BK = count_BK + met_so_far(block)
        return (count_BK > self.min_count) & (block.log_ratio >= math.log(self.tau_c))

    def advance(self, block: Block, acceptance: Acceptance, rows: Sequence[Any]) -> None:
        """Count what was met in an online table: the refusals along the accepted prefix and the one
        that ended it.
        """
        if self.table == "online":
            met_BK = block.refused & (block.places <= acceptance.length[:, None])
            self.pairs.add(block.draft_ids[met_BK], block.top_ids[:, :-1][met_BK])


def met_so_far(block: Block) -> Tensor:
    """Refusals of each position's pair in its block up to there [B, K]: it matters only if all
    before it stay.
    """
    key_BK = pair_key(block.draft_ids, block.top_ids[:, :-1])
    same_BKK = key_BK[:, :, None] == key_BK[:, None]
    return (same_BKK & block.refused[:, None]).tril().sum(-1)


class Spending(Context):
    """Fills `Block.spent`."""

    needs_eager = "remembers what a request has spent"

    def fields(self, block: Block, rows: Sequence[Any]) -> dict[str, Tensor]:
        """What each request has spent so far [B]."""
        totals = [row.statistics.extra.get("spent", 0.0) for row in rows]
        return {"spent": torch.tensor(totals, device=block.logits.device)}


@dataclass(frozen=True)
class RegretBudget(Rule, id="regret-budget", knob="budget", looser="up"):
    """Regret budget (huggingface/transformers#48636): accept while a request's sum of max z - z(x)
    stays in it.

    ASD (arXiv 2608.03447) adds two limits: budget 8 with share 0.25 and most 2 is its published
    setting.
    """

    budget: Amount = 2.0  # logits (nats) that one request may spend; 0 is strict
    # ASD's g: nats that a token may cost for each token of the block from it on; 0: no limit.
    share: Amount = 0.0
    most: Natural = 0  # ASD's m: loose tokens in a block; 0: no limit
    temperatures = "greedy"
    grid = (0.25, 0.5, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0, 48.0)
    variants = ({}, {"share": 0.25, "most": 2})

    def accept(self, block: Block) -> Tensor:
        if self.budget == 0:  # a tie with the best token costs nothing, but is a mismatch
            return block.strict
        # accept(j)  <=>  spent + r_0 + .. + r_j <= budget, where r_i = max z_i - z_i(x_i)
        regret_BK = regret(block)
        accepted_BK = spent(block)[:, None] + regret_BK.cumsum(-1) <= self.budget
        if self.share:  # r_j <= g (K - j), j from 0
            left_K = block.width - block.places
            accepted_BK &= regret_BK <= self.share * left_K
        if self.most:
            accepted_BK &= block.refused.cumsum(-1) <= self.most
        return accepted_BK

    def context(self, tokenizer: Any, think_markers: Sequence[str]) -> Context:
        return Spending()

    def advance(self, block: Block, acceptance: Acceptance, rows: Sequence[Any]) -> None:
        """Add the logits that the accepted tokens cost to the statistics of their requests."""
        stays_BK = block.places < acceptance.length[:, None]
        cost_B = torch.where(stays_BK, regret(block), 0.0).sum(-1)
        for row, total in zip(rows, (spent(block) + cost_B).tolist()):
            row.statistics.extra["spent"] = total


def spent(block: Block) -> Tensor:
    """What each request has spent so far [B]."""
    return block.logits.new_zeros(len(block.logits)) if block.spent is None else block.spent


def regret(block: Block) -> Tensor:
    """max z - z(x) where the strict rule refuses x, else 0 [B, K]; infinite for a forbidden
    token.
    """
    # Both logits stand under the same normaliser, which cancels.
    return torch.where(block.refused, -block.log_ratio, 0.0)
