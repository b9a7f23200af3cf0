"""Close the gate when an answer repeats itself: loops are easy to draft, so broken output looks fastest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from gistgate.block import Block, Reason
from gistgate.errors import UserError
from gistgate.optional.guards.base import CLOSED, Verdict, firsts
from gistgate.request.rows import Row
from gistgate.rules.base import Rule

GRAM = 4
"""Tokens of a gram whose variety is counted."""


@dataclass(frozen=True)
class LoopGuard:
    """Strict verification for `window` tokens once an answer with loose tokens has begun to repeat itself.

    Draft tokens of closed rounds get the reason `loop`; they count as strict ones. Counted in `statistics.extra`:
    `loop_alarms` (times it closed), `loop_rounds` (rounds it kept closed), `loop_target` (windows at whose end the
    strict text looped still, or loops without any loose token before: the target's own) and `loop_open` (1 where the
    answer ends in a loop).
    """

    period: int = 64
    """Longest period that is looked for, in tokens."""
    repeats: int = 4
    """Times a period has to stand in a row."""
    span: int = 256
    """Tokens over which the variety of grams is taken; shorter answers are judged by their period alone."""
    variety: float = 0.3
    """Share of distinct grams below which the span counts as a loop."""
    window: int | None = 128
    """Tokens for which it stays closed; None keeps it closed to the end of the answer."""
    id: ClassVar[str] = "loop"
    layers: ClassVar[frozenset[str]] = frozenset()

    def __post_init__(self) -> None:
        if self.period < 1 or self.repeats < 2 or self.span < GRAM or not (self.window is None or self.window >= 1):
            raise UserError(
                f"A loop guard with period {self.period}, repeats {self.repeats}, span {self.span} and window "
                f"{self.window} is impossible: at least 1, 2, {GRAM} and 1 tokens."
            )

    def verdicts(self, rule: Rule, block: Block, rows: Sequence[Row]) -> list[Verdict]:
        for row in firsts(rows).values():
            row.memory["loop_closed"] = self._is_closed(row)
            count(row, "loop_rounds", row.memory["loop_closed"])
        return [CLOSED if self._is_closed(row) else None for row in rows]

    def _is_closed(self, row: Row) -> bool:
        return bool(len(row.answer) < row.memory.get(self.id, 0))

    def committed(self, rows: Sequence[Row]) -> None:
        for row in rows:
            self._look(row)

    def _look(self, row: Row) -> None:
        answer, until = row.answer, row.memory.get(self.id, 0)
        if row.memory.pop("loop_closed", False):
            mark(row, row.memory["loop_seen"])
        # The target's own token ends every round and may differ each time, so all new ends are looked at.
        new = range(row.memory.get("loop_seen", 0) + 1, len(answer) + 1)
        row.memory["loop_seen"] = len(answer)
        longest = max(self.span, self.period * self.repeats)
        loops = [self.is_loop(answer[max(0, end - longest) : end]) for end in new]
        row.statistics.extra["loop_open"] = float(bool(loops) and loops[-1])
        if not any(loops) or len(answer) < until:
            return
        # A loop without a loose token since the last alarm, or at all, is the target's.
        own = Reason.LOOSE not in row.reasons[row.memory.get("loop_at", 0) :]
        count(row, "loop_target", own)
        count(row, "loop_alarms", not own)
        row.memory["loop_at"] = len(answer)
        row.memory[self.id] = len(answer) + self.window if self.window is not None else float("inf")

    def is_loop(self, ids: Sequence[int]) -> bool:
        """Whether the text ends in a period that stands `repeats` times, or is poor in grams over its last `span`."""
        return self._periodic(ids) or self._poor(ids)

    def _periodic(self, ids: Sequence[int]) -> bool:
        # Comparing one token first spares nearly all the slices.
        longest = min(self.period, len(ids) // self.repeats)
        near = [p for p in range(1, longest + 1) if ids[-1 - p] == ids[-1]]
        return any(ids[-p * (self.repeats - 1) :] == ids[-p * self.repeats : -p] for p in near)

    def _poor(self, ids: Sequence[int]) -> bool:
        if len(ids) < self.span:
            return False
        last = ids[-self.span :]
        grams = {tuple(last[i : i + GRAM]) for i in range(self.span - GRAM + 1)}
        return len(grams) < self.variety * (self.span - GRAM + 1)


def mark(row: Row, start: int) -> None:
    """Give the strict accepts from `start` on the guard's reason: the last round, which was counted before."""
    row.reasons[start:] = [Reason.LOOP if why == Reason.STRICT else why for why in row.reasons[start:]]


def count(row: Row, name: str, number: float) -> None:
    """Add to a row's own counter; nothing appears that never happened."""
    if number:
        row.statistics.extra[name] = row.statistics.extra.get(name, 0.0) + float(number)
