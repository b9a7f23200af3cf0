"""What the target knew at every mismatch, taken from the very blocks that are decoded.

The same `extract` builds the features here and in a served gate, so training and serving cannot drift apart.

Axis letters: B rows, K drafted tokens, V vocabulary, N mismatches.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block
from gistgate.gates.features import extract, layers_needed
from gistgate.request.rows import Row
from gistgate.rules.base import allowed

Table = dict[str, Tensor]
"""Columns by name, all with leading axis N."""


class Watcher:
    """An observer that keeps one record for each mismatch a text really came to.

    Those are the refused token of a block and the loosely accepted ones before it; what lies behind a refusal was
    drafted for a text that nobody wrote.
    """

    def __init__(self, features: Sequence[str]) -> None:
        self.features = tuple(features)
        self.layers = layers_needed(self.features)
        self.wants_q = True
        self._tables: list[Table] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        num_draft = block.draft_ids.shape[1]
        reached_BK = torch.arange(num_draft, device=block.draft_ids.device) <= acceptance.length[:, None]
        at_B, at_K = (reached_BK & ~block.match & allowed(block)).nonzero(as_tuple=True)
        if not at_B.numel():
            return
        index = torch.tensor([row.index for row in rows], device=at_B.device)
        length = torch.tensor([len(row.answer) for row in rows], device=at_B.device)
        table = {name: values[at_B, at_K].float() for name, values in extract(block, self.features).items()}
        table["row"], table["position"] = index[at_B], length[at_B] + at_K
        table["draft_id"], table["target_id"] = block.draft_ids[at_B, at_K], block.top_ids[at_B, at_K]
        table["accepted"] = (at_K < acceptance.length[at_B]).to(torch.int8)
        table["kl"] = divergence(block, at_B, at_K)
        self._tables.append({name: column.cpu() for name, column in table.items()})

    def take(self) -> Table:
        """All records since the last call, by row and position."""
        tables, self._tables = self._tables, []
        if not tables:
            return {}
        table = concatenated(tables)
        return picked(table, torch.argsort(table["row"] * 1_000_000 + table["position"]))


def divergence(block: Block, at_B: Tensor, at_K: Tensor) -> Tensor:
    """KL(p || q) in nats at the given places [N]; NaN without draft probabilities. q is floored at 1e-10."""
    if block.q is None:
        return torch.full((len(at_B),), torch.nan, device=at_B.device)
    logp_NV = block.logprobs[at_B, at_K]
    logq_NV = block.q[at_B, at_K].float().clamp_min(1e-10).log()
    return (logp_NV.exp() * (logp_NV.clamp_min(-1e9) - logq_NV)).sum(-1)


def concatenated(tables: Sequence[Table]) -> Table:
    """Tables below each other."""
    return {name: torch.cat([table[name] for table in tables]) for name in tables[0]}


def picked(table: Table, index: Tensor) -> Table:
    """Rows of a table, in the order of `index [N']` (or those where a mask holds)."""
    return {name: column[index] for name, column in table.items()}


def num_rows(table: Table) -> int:
    """N."""
    return len(next(iter(table.values()))) if table else 0
