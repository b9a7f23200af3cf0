"""Sequential mining: walk along the target's answer, force every draft token, keep those that do no harm.

The walk of arXiv 2504.20039 takes one mismatch after the other, because each outcome decides which text comes next.
Here many problems walk at once, and where they are too few to fill a batch, a walk is speculated on: a scout assumes
that its next tokens do no harm, and the rollouts behind all of them share a batch. Up to the first one that does harm
the scout went the right way; what lies behind is thrown away, and the walk goes on from there. The labels are those of
the plain walk. Nothing is read twice: rollouts and scouts go on from the scout's own keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

import torch

from gistgate.decoding.decoder import Decoder
from gistgate.forward.cache import RowCache
from gistgate.request.rows import Memory
from gistgate.request.slots import Slots
from pipeline.labels.mismatches import stamped
from pipeline.labels.rollouts import Rollout
from pipeline.labels.schema import Policy
from pipeline.labels.scouting import FAR_ENOUGH, Forced, Scout
from pipeline.labels.tables import Table, num_rows, picked
from pipeline.labels.texts import AnswerText
from pipeline.labels.verdicts import Judge


@dataclass
class Walk:
    """One problem on its way: the text as far as it was walked."""

    problem: int
    prompt: list[int]
    reference: list[int]
    """The target's own answer; every answer behind a forced token is compared with it."""
    memory: Memory
    """What both models know of the prompt and of what the last scout wrote."""
    keep: int
    """Tokens of the memory's text, prompt included, that the walk has made sure of."""
    added: list[int] = field(default_factory=list)
    """What it puts behind them: the target's own token where the draft's did harm."""
    walked: list[Table] = field(default_factory=list)
    over: bool = False

    @property
    def answer(self) -> list[int]:
        """The answer as far as it was walked; whole when the walk is over."""
        return self.memory.text[len(self.prompt) :]

    def rollouts(self, met: Table) -> list[Rollout]:
        """One for each mismatch that the scout has met."""
        forced = zip(met["position"].tolist(), met["draft_id"].tolist(), strict=True)
        return [Rollout(self.problem, self.prompt, self.answer, *place, self.reference) for place in forced]

    def go_on(self, met: Table, kept: Sequence[bool], may_go_on: bool) -> None:
        """Take over what the scout met up to the first harm, and stand where the walk stands then."""
        harmless = kept.index(False) if False in kept else len(kept)
        sure = picked(met, torch.arange(min(harmless + 1, len(kept))))
        if num_rows(sure):
            walked = stamped(sure, self.problem, Policy.SEQUENTIAL)
            known = torch.tensor(kept[: num_rows(sure)], dtype=torch.int8)
            self.walked.append({**walked, "greedy_kept": known})
        self.keep, self.added, self.over = len(self.memory.text), [], not may_go_on
        if harmless < len(kept):
            self.keep = len(self.prompt) + int(met["position"][harmless])
            self.added, self.over = [int(met["target_id"][harmless])], False


class Miner:
    """Walks many problems at once."""

    def __init__(self, decoder: Decoder, judge: Judge, batch_size: int, **request: Any) -> None:
        """`decoder` decodes strictly with the pair; `judge` rolls out, `batch_size` rows at a time."""
        self.decoder, self.judge, self.batch_size, self.request = decoder, judge, batch_size, request
        self._walked, self._lost = 3, 1  # as if one of three had done harm, until outcomes are known

    def walk(
        self, problems: Sequence[int], prompts: Sequence[list[int]], references: Sequence[list[int]]
    ) -> tuple[list[Table], list[AnswerText]]:
        """Records of every mismatch on the walks, with their outcomes, and the texts that these lie on."""
        walks = [
            Walk(problem, list(prompt), list(reference), unread(prompt), len(prompt))
            for problem, prompt, reference in zip(problems, prompts, references, strict=True)
        ]
        while live := [walk for walk in walks if not walk.over]:
            self._wave(live)
        texts = [AnswerText(walk.problem, Policy.SEQUENTIAL, walk.answer) for walk in walks]
        return [table for walk in walks for table in walk.walked], texts

    def _wave(self, live: Sequence[Walk]) -> None:
        """Scout ahead on every walk, roll out behind all that was met, and go on along the right texts."""
        met, may_go_on = self._scout(live, min(-(-self.batch_size // len(live)), self._worthwhile))
        rollouts = [walk.rollouts(table) if table else [] for walk, table in zip(live, met, strict=True)]
        for walk in live:
            self.judge.roller.memories.put(walk.memory)
        kept = self.judge.kept([rollout for some in rollouts for rollout in some])
        self._walked, self._lost = self._walked + len(kept), self._lost + kept.count(False)
        outcomes = iter(kept)
        for walk, table, some, more in zip(live, met, rollouts, may_go_on, strict=True):
            walk.go_on(table, [next(outcomes) for _ in some], more)

    @property
    def _worthwhile(self) -> int:
        """Mismatches to speculate on: as many as are more likely than not to lie on the walk, by the harm so far."""
        harm = min(self._lost / self._walked, 0.99)
        return 1 + int(log(0.5) / log(1 - harm))

    def _scout(self, live: Sequence[Walk], depth: int) -> tuple[list[Table], list[bool]]:
        """For each walk the next mismatches, at most `depth`, and whether its text goes on behind them."""
        scout, slots = Scout(self.decoder.block, depth), Slots(self.batch_size)
        done = self.decoder.having(rule=Forced(), observer=scout).resume(
            [walk.memory for walk in live],
            [(walk.keep, walk.added) for walk in live],
            [len(walk.prompt) for walk in live],
            is_decided=scout.is_far_enough,
            slots=slots,
            **self.request,
        )
        self.judge.roller.cost.use(slots.usage)
        for walk, (_, memory) in zip(live, done, strict=True):
            assert memory is not None
            walk.memory = memory
        answers = [answer for answer, _ in done]
        return scout.take(answers), [answer.finish == FAR_ENOUGH for answer in answers]


def unread(prompt: Sequence[int]) -> Memory:
    """A text of which nothing has been read."""
    return Memory(list(prompt), RowCache([]), RowCache([]))
