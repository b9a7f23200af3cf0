"""What a guard is, and how its verdict narrows what a rule may do.

Axis letters: B rows, K drafted tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, ClassVar, Protocol

import torch

from gistgate.block import Acceptance, Block
from gistgate.decoding.guarding import Unguarded
from gistgate.request.rows import Row
from gistgate.rules.base import Rule, State, settle
from gistgate.rules.exact import Exact

CLOSED = "closed"
"""Verdict: this row is verified strictly."""

Verdict = float | str | None
"""What a row may do in this round: None as the rule says, a number the rule with that stricter knob, or CLOSED."""


class Guard(Protocol):
    """Watches every request and takes looseness away; it never adds any.

    Guards are frozen dataclasses shared by all sessions; what they know about a request lies in its row, under their
    id, and what they count goes to the row's `statistics.extra`.
    """

    id: ClassVar[str]

    @property
    def layers(self) -> Collection[str]:
        """Hidden states that a block has to carry for it."""
        ...

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        """What every row may do in this round [B], before anything is accepted.

        A row stands there once for every path of its tree, and counts once.
        """
        ...

    def committed(self, rows: Sequence[Row]) -> None:
        """Look at the texts after the accepted tokens were appended and counted."""
        ...


class Guards(Unguarded):
    """Several guards as one: every row is judged at the strictest setting that a guard asks for."""

    def __init__(self, guards: Sequence[Guard]) -> None:
        self.guards = tuple(guards)
        self.layers = frozenset().union(*(guard.layers for guard in guards))

    def settle(self, rule: Rule, block: Block, state: State, rows: Sequence[Row]) -> Acceptance:
        acceptance = super().settle(rule, block, state, rows)
        if rule.lossless:  # there is nothing to lose
            return acceptance
        opinions = [guard.verdicts(rule, block, rows) for guard in self.guards]
        chosen = [strictest(rule, row) for row in zip(*opinions, strict=True)]
        for verdict in {verdict for verdict in chosen if verdict is not None}:
            mask_B = torch.tensor([verdict == other for other in chosen], device=block.draft_ids.device)
            acceptance = either(mask_B, settle(narrowed(rule, verdict), block, state), acceptance)
        return acceptance

    def committed(self, rows: Sequence[Row]) -> None:
        for guard in self.guards:
            guard.committed(rows)


def firsts(rows: Sequence[Row]) -> dict[int, Row]:
    """Where every row stands first, by its place in the batch."""
    places = {id(row): place for place, row in reversed(list(enumerate(rows)))}
    return {place: rows[place] for place in sorted(places.values())}


def strictest(rule: Rule, verdicts: Sequence[Verdict]) -> Verdict:
    """Of several verdicts on one row the one that permits least."""
    asked = [verdict for verdict in verdicts if verdict is not None]
    if not asked:
        return None
    values = [float(verdict) for verdict in asked if verdict != CLOSED]
    if len(values) < len(asked):
        return CLOSED
    return min(values) if rule.looser == "up" else max(values)


def narrowed(rule: Rule, verdict: Verdict) -> Rule:
    """The rule at a verdict: strict where it is closed, or where the number would be no stricter than the rule is."""
    if verdict == CLOSED or rule.knob is None or not is_stricter(rule, float(verdict or 0)):
        return Exact()
    changes: dict[str, Any] = {rule.knob: verdict}
    narrower: Rule = rule.changed(**changes)
    return narrower


def is_stricter(rule: Rule, value: float) -> bool:
    """Whether the rule accepts less with its knob at `value` than it does now."""
    now = getattr(rule, rule.knob or "")
    return bool(value < now if rule.looser == "up" else value > now)


def either(mask_B: torch.Tensor, a: Acceptance, b: Acceptance) -> Acceptance:
    """Row by row `a` where the mask is set, else `b`."""
    return Acceptance(
        torch.where(mask_B, a.length, b.length),
        torch.where(mask_B, a.own_ids, b.own_ids),
        torch.where(mask_B[:, None], a.reasons, b.reasons),
    )
