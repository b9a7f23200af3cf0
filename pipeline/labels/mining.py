"""Sequential mining: walk along the target's answer, force every draft token, keep those that do no harm.

The walk of arXiv 2504.20039 takes one mismatch after the other, because each outcome decides which text comes next.
Here many problems walk at once, and a walk is speculated on: a scout assumes that its next tokens do no harm, and the
rollouts behind all of them are made side by side. Up to the first one that does harm the scout went the right way; what
lies behind is given up, and the walk goes on from there. The labels are those of the plain walk. Nothing is read twice:
rollouts and scouts go on from the scout's own keys and values. No walk waits for another: scouts go on as soon as the
batch of rollouts has room (`Miner.take`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

from gistgate.decoding.decoder import Decoder
from gistgate.forward.cache import RowCache
from gistgate.request.rows import Memory
from gistgate.request.slots import Slots
from pipeline.common.progress import bar
from pipeline.labels.rollouts import Ended, Rollout
from pipeline.labels.schema import Policy
from pipeline.labels.scouting import FAR_ENOUGH, Forced, Scout
from pipeline.labels.tables import Table, num_rows
from pipeline.labels.texts import AnswerText
from pipeline.labels.verdicts import Judge
from pipeline.labels.walks import Step, Walk

GIVEN_UP = "given up"
"""Finish of a rollout whose walk has taken another way."""
WAITING = 2
"""Rollouts that walks keep under way or waiting for every slot, so that few scouts are needed to keep it full."""


class Miner:
    """Walks many problems at once; it supplies the rollouts that its walks wait for."""

    def __init__(self, decoder: Decoder, judge: Judge, batch_size: int, **request: Any) -> None:
        """`decoder` decodes strictly with the pair; `judge` rolls out, `batch_size` rows at a time."""
        self.decoder, self.judge, self.batch_size, self.request = decoder, judge, batch_size, request
        self._walks: list[Walk] = []
        self._under_way: dict[Rollout, tuple[Walk, Step]] = {}
        self._judged, self._lost = 3, 1  # as if one of three had done harm, until outcomes are known

    def walk(
        self, problems: Sequence[int], prompts: Sequence[list[int]], references: Sequence[list[int]]
    ) -> tuple[list[Table], list[AnswerText]]:
        """Records of every mismatch on the walks, with their outcomes, and the texts that these lie on."""
        self._walks = [
            Walk(problem, list(prompt), list(reference), unread(prompt), len(prompt))
            for problem, prompt, reference in zip(problems, prompts, references, strict=True)
        ]
        with bar(title="walks", unit="walk", total=len(problems)) as self._shown:
            self.judge.roller.serve(self)
            self._show()
        texts = [AnswerText(walk.problem, Policy.SEQUENTIAL, walk.answer) for walk in self._walks]
        return [table for walk in self._walks for table in walk.walked], texts

    def take(self, num: int) -> list[Rollout]:
        """The next rollouts; where no step waits for one, scouts go on first."""
        if not (steps := self._waiting()):
            self._scout()
            steps = self._waiting()
        return [self._begin(*one) for one in steps[:num]]

    def decided(self, rollout: Rollout, answer: list[int]) -> str | None:
        """Whether its outcome is known, or not wanted any more; the judge audits it all the same."""
        walk, step = self._under_way[rollout]
        if step not in walk.steps and not self.judge.audits(rollout):
            return GIVEN_UP
        return self.judge.decided(rollout, answer)

    def end(self, rollout: Rollout, ended: Ended) -> None:
        """Its walk goes on, as far as it can."""
        walk, step = self._under_way.pop(rollout)
        if ended.finish == GIVEN_UP:
            return
        step.kept = self.judge.verdict(rollout, ended)
        self._judged, self._lost = self._judged + 1, self._lost + (not step.kept)
        walk.settle()
        self._show()

    def _show(self) -> None:
        """Move the bar to the walks that are over, with the number of labels: a shard may take an hour."""
        labels = sum(num_rows(table) for walk in self._walks for table in walk.walked)
        self._shown.set_postfix_str(f"{labels} labels", refresh=False)
        self._shown.update(sum(walk.over for walk in self._walks) - self._shown.n)

    def _waiting(self) -> list[tuple[Walk, Step]]:
        """Steps without a rollout, those first that most likely lie on their walk."""
        steps = [
            (place, walk, step) for walk in self._walks for place, step in enumerate(walk.steps) if step.rollout is None
        ]
        return [(walk, step) for _, walk, step in sorted(steps, key=lambda one: one[0])]

    def _begin(self, walk: Walk, step: Step) -> Rollout:
        rollout = walk.begin(step)
        self.judge.take_up(rollout)
        self._under_way[rollout] = walk, step
        return rollout

    @property
    def _depth(self) -> int:
        """Steps that a walk may have open: enough to fill the batch, as long as each is more likely than not to lie on
        the walk, by the harm so far."""
        walks = sum(not walk.over for walk in self._walks)
        harm = min(self._lost / self._judged, 0.99)
        return min(-(-WAITING * self.batch_size // walks), 1 + int(log(0.5) / log(1 - harm)))

    def _scout(self) -> None:
        """Scout ahead on every walk that has fewer steps open than it may have."""
        if not (short := [walk for walk in self._walks if not walk.at_end and len(walk.steps) < self._depth]):
            return
        slots = Slots(self.batch_size)
        scout = Scout(self.decoder.block, [self._depth - len(walk.steps) for walk in short])
        done = self.decoder.having(rule=Forced(), observer=scout).resume(
            [walk.memory for walk in short],
            [(walk.keep, walk.added) for walk in short],
            [len(walk.prompt) for walk in short],
            is_decided=scout.is_far_enough,
            slots=slots,
            **self.request,
        )
        self.judge.roller.cost.use(slots.usage)
        met = scout.take([answer for answer, _ in done])
        for walk, table, (answer, memory) in zip(short, met, done, strict=True):
            assert memory is not None
            self.judge.roller.memories.put(memory)
            walk.scouted(table, memory, may_go_on=answer.finish == FAR_ENOUGH)


def unread(prompt: Sequence[int]) -> Memory:
    """A text of which nothing has been read."""
    return Memory(list(prompt), RowCache([]), RowCache([]))
