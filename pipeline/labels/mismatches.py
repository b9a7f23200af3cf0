"""Records of the mismatches that a text really came to, taken from the very blocks that are decoded.

A record holds tokens and places alone. What a gate sees there is read later (pipeline/labels/features.py).

Axis letters: B rows, K drafted tokens, N mismatches.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.block import Acceptance, Block
from gistgate.request.rows import Generation, Row
from gistgate.rules.base import allowed
from pipeline.labels.schema import Policy
from pipeline.labels.tables import Table, concatenated, num_rows, picked


class MismatchRecorder:
    """An observer that keeps one record for each mismatch of a text.

    Those are the refused token of a block and the loosely accepted tokens before it. Tokens behind a refusal were
    drafted for a text that nobody wrote.
    """

    def __init__(
        self,
        block: int,
        more: Callable[[Block], Table] | None = None,
        layers: Collection[str] = (),
        wants_q: bool = False,
    ) -> None:
        """Begin without records.

        Args:
            block: K of the decoder.
            more: gives further columns for all places of a block, each [B, K, ...].
            layers: hidden states that `more` reads.
            wants_q: whether `more` reads draft probabilities.
        """
        self.block, self.more, self.layers, self.wants_q = block, more, layers, wants_q
        self._tables: list[Table] = []

    def __call__(self, block: Block, acceptance: Acceptance, rows: list[Row]) -> None:
        device = block.draft_ids.device
        reached_BK = torch.arange(block.draft_ids.shape[1], device=device) <= acceptance.length[:, None]
        at_B, at_K = (reached_BK & ~block.match & allowed(block)).nonzero(as_tuple=True)
        if not at_B.numel():
            return
        index = torch.tensor([row.index for row in rows], device=device)
        length = torch.tensor([len(row.answer) for row in rows], device=device)
        further = {} if self.more is None else self.more(block)
        table = {
            "row": index[at_B],
            "position": length[at_B] + at_K,
            "draft_id": block.draft_ids[at_B, at_K],
            "target_id": block.top_ids[at_B, at_K],
            "behind": behind(block, at_B, at_K, self.block - 1),
            "accepted": (at_K < acceptance.length[at_B]).to(torch.int8),
            **{name: values[at_B, at_K] for name, values in further.items()},
        }
        self._tables.append({name: column.cpu() for name, column in table.items()})

    def take(self, answers: Sequence[Generation]) -> list[Table]:
        """The records since the last call for each answer, by position, without those that its stop cut off."""
        tables, self._tables = self._tables, []
        if not tables:
            return [{} for _ in answers]
        table = concatenated(tables)
        table = picked(table, torch.argsort(table["row"] * 1_000_000 + table["position"]))
        lengths = torch.tensor([len(answer.ids) for answer in answers])
        table = picked(table, table["position"] < lengths[table["row"]])
        return [picked(table, table["row"] == row) for row in range(len(answers))]


def behind(block: Block, at_B: Tensor, at_K: Tensor, num: int) -> Tensor:
    """The `num` draft tokens behind the given places [N, num], -1 behind the draft's end."""
    ids_BK = torch.where(block.valid, block.draft_ids, -1)
    padded = F.pad(ids_BK, (0, num), value=-1)
    places = at_K[:, None] + 1 + torch.arange(num, device=at_K.device)
    return padded[at_B[:, None], places].to(torch.int32)


def stamped(table: Table, problem: int, policy: Policy, greedy_kept: int = -1) -> Table:
    """The records of one text with its problem and policy, and what is known of their greedy rollouts."""
    num = num_rows(table)
    rest = {name: column for name, column in table.items() if name != "row"}
    return {
        **rest,
        "problem": torch.full((num,), problem, dtype=torch.int64),
        "policy": torch.full((num,), policy, dtype=torch.int8),
        "greedy_kept": torch.full((num,), greedy_kept, dtype=torch.int8),
    }
