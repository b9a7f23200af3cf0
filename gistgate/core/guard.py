"""What a guard is: something that watches every request and may make it stricter, never looser."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Acceptance, Block
from gistgate.core.request import Row
from gistgate.core.rule import Exact, Rule, settle

CLOSED = "closed"  # the verdict that a row is verified strictly
Verdict = float | str | None
"""What a row may do in this round: None is as the rule says, a number the rule with this stricter
knob, CLOSED nothing loose."""


class Guard:
    """Watches requests; the defaults are those of a guard that permits everything."""

    id: str
    memory: Any = dict  # what it knows of a request that begins
    layers: frozenset[str] = frozenset()  # hidden states that a block has to carry

    def known(self, row: Row) -> Any:
        """What it knows of the request of a row."""
        return row.memory.setdefault(self.id, self.memory())

    def limit(self, block: Block, rows: Sequence[Row]) -> Block:
        """The block with the positions where looseness is permitted; `rows` are those of its
        paths.
        """
        return block

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> Sequence[Verdict]:
        """What every path may do, before anything of the block is accepted."""
        return [None] * len(rows)

    def committed(self, rows: Sequence[Row]) -> None:
        """Look at the texts after tokens were counted."""


class Guards:
    """Several guards as one: every row is judged at the strictest setting that a guard asks for."""

    def __init__(self, guards: Sequence[Guard] = ()) -> None:
        self.guards = tuple(guards)
        self.layers = frozenset[str]().union(*(guard.layers for guard in guards))

    def settle(self, rule: Rule, block: Block, rows: Sequence[Row]) -> Acceptance:
        """What of the block stays; `rows` are those of the block, one for every path."""
        if rule.lossless:  # there is nothing to lose
            return settle(rule, block)
        for guard in self.guards:
            block = guard.limit(block, rows)
        acceptance = settle(rule, block)
        opinions = [guard.verdicts(rule, block, rows) for guard in self.guards]
        verdicts = [strictest(rule, opinion) for opinion in zip(*opinions)]
        for verdict in set(verdicts) - {None}:
            is_meant = [verdict == row_verdict for row_verdict in verdicts]
            mask_B = torch.tensor(is_meant, device=block.draft_ids.device)
            stricter = settle(narrowed(rule, verdict), block)
            acceptance = either(mask_B, stricter, acceptance)
        return acceptance

    def committed(self, rows: Sequence[Row]) -> None:
        """Let every guard look at the texts after tokens were counted."""
        for guard in self.guards:
            guard.committed(rows)


def strictest(rule: Rule, verdicts: Sequence[Verdict]) -> Verdict:
    """Of several verdicts on one row the one that permits least."""
    if CLOSED in verdicts:
        return CLOSED
    values = [verdict for verdict in verdicts if isinstance(verdict, int | float)]
    return min(values, default=None) if rule.looser == "up" else max(values, default=None)


def narrowed(rule: Rule, verdict: Verdict) -> Rule:
    """The rule at a verdict: strict where it is closed, or where the number is no stricter."""
    if verdict == CLOSED or rule.knob is None:
        return Exact()
    before = getattr(rule, rule.knob)
    if strictest(rule, [verdict, before]) == before:
        return Exact()
    return rule.changed(**{rule.knob: verdict})


def either(mask_B: Tensor, a: Acceptance, b: Acceptance) -> Acceptance:
    """Row by row `a` where the mask is set, else `b`."""
    return Acceptance(
        torch.where(mask_B, a.length, b.length),
        torch.where(mask_B, a.own_ids, b.own_ids),
        torch.where(mask_B[:, None], a.reasons, b.reasons),
    )
