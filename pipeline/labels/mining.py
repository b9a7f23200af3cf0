"""Sequential mining: walk along the target's answer, force every draft token, keep those that do no harm.

After arXiv 2504.20039, batched over problems: each step forces one token in every problem at once, and both models go
on from remembered keys and values instead of reading the prefix again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gistgate.decoding.decoder import Decoder
from gistgate.forward.cache import RowCache
from gistgate.request.rows import Memory
from pipeline.labels.mismatches import MismatchRecorder, stamped
from pipeline.labels.schema import Policy
from pipeline.labels.tables import Table, concatenated, num_rows, picked
from pipeline.labels.texts import AnswerText

Same = Callable[[int, list[int], list[int]], bool | None]
"""(problem, answer, reference answer) -> whether both mean the same; None where the task cannot compare them."""


@dataclass
class Walk:
    """One problem on its way: the text as far as it was walked, and the mismatches ahead."""

    problem: int
    prompt: list[int]
    reference: list[int]
    """The target's own answer; every answer behind a forced token is compared with it."""
    memory: Memory
    ahead: Table
    """Records on the present text, by position; the walk takes them from the front."""
    next: int = 0
    """Place of the next record in `ahead`."""
    walked: list[Table] = field(default_factory=list)

    @property
    def over(self) -> bool:
        return self.next >= num_rows(self.ahead)

    @property
    def continuation(self) -> tuple[int, list[int]]:
        """The number of text tokens to keep, and the draft token to force behind them."""
        position = int(self.ahead["position"][self.next])
        return len(self.prompt) + position, [int(self.ahead["draft_id"][self.next])]


def mine(
    decoder: Decoder,
    recorder: MismatchRecorder,
    problems: Sequence[int],
    prompts: Sequence[list[int]],
    same: Same,
    num_strict: int,
    **request: Any,
) -> tuple[Table, list[AnswerText]]:
    """Records of every mismatch on the walks and on the first `num_strict` strict texts, and the texts they lie on.

    `greedy_kept` is known on the walks and -1 on strict texts, where no token has been forced.
    """
    starts = [Memory(list(prompt), RowCache([]), RowCache([])) for prompt in prompts]
    whole: list[tuple[int, list[int]]] = [(len(prompt), []) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    first = decoder.resume(starts, whole, lengths, **request)
    records = recorder.take([answer for answer, _ in first])
    walks = [
        Walk(problem, list(prompt), answer.ids, memory, found)
        for problem, prompt, (answer, memory), found in zip(problems, prompts, first, records, strict=True)
        if memory is not None and same(problem, answer.ids, answer.ids)
    ]
    tables = [stamped(walk.ahead, walk.problem, Policy.STRICT) for walk in walks[:num_strict] if walk.ahead]
    while live := [walk for walk in walks if not walk.over]:
        step(decoder, recorder, live, same, **request)
    texts = [AnswerText(walk.problem, Policy.STRICT, walk.reference) for walk in walks]
    texts += [AnswerText(walk.problem, Policy.SEQUENTIAL, walk.memory.text[len(walk.prompt) :]) for walk in walks]
    tables += [table for walk in walks for table in walk.walked]
    return (concatenated(tables) if tables else {}), texts


def step(decoder: Decoder, recorder: MismatchRecorder, live: Sequence[Walk], same: Same, **request: Any) -> None:
    """Force the next draft token of every walk, ask whether the meaning is kept, and go on along the right text."""
    continuations = [walk.continuation for walk in live]
    memories = [walk.memory for walk in live]
    done = decoder.resume(memories, continuations, [len(walk.prompt) for walk in live], **request)
    records = recorder.take([answer for answer, _ in done])
    for walk, (answer, memory), found in zip(live, done, records, strict=True):
        kept = bool(same(walk.problem, answer.ids, walk.reference))
        here = picked(walk.ahead, torch.tensor([walk.next]))
        walk.walked.append(stamped(here, walk.problem, Policy.SEQUENTIAL, int(kept)))
        walk.next += 1
        if kept and memory is not None:
            walk.memory, walk.ahead, walk.next = memory, found, 0
