"""Rollouts by an engine that is not this library's: it writes a portion, here is decided what stays and what goes on.

A rollout may be over before the engine would end it, because it has rejoined its reference or its answer is given. So
an engine is asked for `PORTION` tokens of every live rollout at a time; one with a prefix cache reads nothing twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from gistgate.block import Sampling
from gistgate.request.rows import Row
from gistgate.request.stopping import Stop
from pipeline.labels.cost import Cost
from pipeline.labels.memories import Memories
from pipeline.labels.rollouts import MOST_AT_ONCE, Answered, Ended, Rollout, decides

PORTION = MOST_AT_ONCE
"""Tokens that the engine is asked for at a time; the test for rejoining looks that far back."""


@dataclass(frozen=True)
class Asked:
    """A text to go on with."""

    text: list[int]
    """Prompt and answer so far, as token ids."""
    num: int
    """Most new tokens."""
    seed: int
    """Seed of sampled tokens."""


GoOn = Callable[[Sequence[Asked], Sampling, Sequence[int]], list[list[int]]]
"""(texts, how tokens are drawn, ids that end a text) -> new tokens of each text; an id that ends one stays in it."""


class ServedRoller:
    """Makes rollouts as `pipeline.labels.rollouts.Roller` does, with the engine behind `go_on`."""

    def __init__(
        self, go_on: GoOn, memories: Memories, tokenizer: PreTrainedTokenizerBase, cost: Cost, **request: Any
    ) -> None:
        """`memories` are for those who scout with the decoder; the engine has a memory of its own."""
        self.go_on, self.memories, self.cost = go_on, memories, cost
        ends = (request["max_new_tokens"], frozenset(request["eos_ids"]), tuple(request["stops"]))
        self.stop = Stop(*ends, tokenizer)

    def run(
        self,
        rollouts: Sequence[Rollout],
        sampling: Sampling | None = None,
        rejoin: int | None = None,
        answered: Answered | None = None,
    ) -> list[Ended]:
        """Every rollout's end, in the order of the rollouts; arguments as of `Roller.run`."""
        is_decided = decides(rollouts, rejoin, answered)
        rows = [begun(index, rollout) for index, rollout in enumerate(rollouts)]
        for row, rollout in zip(rows, rollouts, strict=True):
            self._add(row, [rollout.token])
        while live := [row for row in rows if row.finish is None]:
            asked = [Asked(row.text, min(PORTION, self._room(row)), seed_of(row)) for row in live]
            portions = self.go_on(asked, sampling or Sampling(), sorted(self.stop.eos_ids))
            for row, portion in zip(live, portions, strict=True):
                self._add(row, portion)
                row.finish = is_decided(row) or row.finish  # a decoder would have found the former first
        for row, rollout in zip(rows, rollouts, strict=True):
            self.cost.rolled(len(row.answer) - rollout.position - 1)
        return [Ended(row.answer, str(row.finish)) for row in rows]

    def _room(self, row: Row) -> int:
        return self.stop.max_new_tokens - len(row.answer)

    def _add(self, row: Row, new: list[int]) -> None:
        keep, row.finish = self.stop.cut(row.answer, new)
        row.text += new[:keep]


def begun(index: int, rollout: Rollout) -> Row:
    """The row of a rollout, without its forced token."""
    text = [*rollout.prompt, *rollout.text[: rollout.position]]
    return Row(index, text, len(rollout.prompt), rollout.seed)


def seed_of(row: Row) -> int:
    """Another seed for each portion of a text, so that no portion repeats the draws of the one before."""
    return (row.seed * 1_000_003 + len(row.text)) % 2**31
