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
from pipeline.labels.cost import Cost
from pipeline.labels.kept_rollouts import KeptRollouts
from pipeline.labels.memories import Memories
from pipeline.labels.rolling import begun
from pipeline.labels.rollouts import Ended, Rollout, Supply, stop_of

PORTION = 64
"""Tokens that the engine is asked for at a time."""
MOST_LIVE = 1024
"""Most rollouts under way; the engine makes its own batches of them."""


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

    kept: KeptRollouts | None = None
    """As of `Roller`."""

    def __init__(
        self, go_on: GoOn, memories: Memories, tokenizer: PreTrainedTokenizerBase, cost: Cost, **request: Any
    ) -> None:
        """`memories` are for those who scout with the decoder; the engine has a memory of its own."""
        self.go_on, self.memories, self.cost = go_on, memories, cost
        self.stop = stop_of(tokenizer, **request)

    def serve(self, supply: Supply, sampling: Sampling | None = None) -> None:
        """Make what `supply` asks for until it asks for nothing more; arguments as of `Roller.serve`."""
        supply = supply if self.kept is None else self.kept.over(supply, sampling)
        rows: dict[Rollout, Row] = {}
        while live := self._live(rows, supply):
            asked = [Asked(row.text, min(PORTION, self._room(row)), seed_of(row)) for row in live.values()]
            portions = self.go_on(asked, sampling or Sampling(), sorted(self.stop.eos_ids))
            for row, portion in zip(live.values(), portions, strict=True):
                self._add(row, portion)
            rows = live

    def _live(self, rows: dict[Rollout, Row], supply: Supply) -> dict[Rollout, Row]:
        """Those that have to go on, and new ones beside them."""
        live = self._going_on(rows, supply)
        while len(live) < MOST_LIVE and (taken := supply.take(MOST_LIVE - len(live))):
            fresh = {rollout: begun(0, rollout) for rollout in taken}
            for rollout, row in fresh.items():
                self._add(row, [rollout.token])
            live |= self._going_on(fresh, supply)
        return live

    def _going_on(self, rows: dict[Rollout, Row], supply: Supply) -> dict[Rollout, Row]:
        """Hand out the rollouts that have ended and return the others."""
        for rollout, row in rows.items():
            row.finish = (
                supply.decided(rollout, row.answer) or row.finish
            )  # a decoder would have found the former first
            if row.finish is not None:
                self.cost.rolled(len(row.answer) - rollout.position - 1)
                supply.end(rollout, Ended(row.answer, row.finish))
        return {rollout: row for rollout, row in rows.items() if row.finish is None}

    def _room(self, row: Row) -> int:
        return self.stop.max_new_tokens - len(row.answer)

    def _add(self, row: Row, new: list[int]) -> None:
        keep, row.finish = self.stop.cut(row.answer, new)
        row.text += new[:keep]


def seed_of(row: Row) -> int:
    """Another seed for each portion of a text, so that no portion repeats the draws of the one before."""
    return (row.seed * 1_000_003 + len(row.text)) % 2**31
