"""Sequential mining: walk along the target's answer, force every draft token, keep what does no harm.

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
from gistgate.request.rows import Generation, Memory
from pipeline.labels.mismatches import Table, Watcher, concatenated, num_rows, picked
from pipeline.labels.texts import SEQUENTIAL, STRICT, Trunk

Same = Callable[[int, list[int], list[int]], bool | None]
"""(problem, answer, reference answer) -> whether the task cannot tell them apart; None where nothing is known."""


@dataclass
class Walk:
    """One problem on its way: the text as far as it was walked, and the mismatches ahead."""

    problem: int
    prompt: list[int]
    reference: list[int]
    """The target's own answer; what every forced one is compared with."""
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
    def fork(self) -> tuple[int, list[int]]:
        """Tokens of the text to keep, and the draft token to force behind them."""
        position = int(self.ahead["position"][self.next])
        return len(self.prompt) + position, [int(self.ahead["draft_id"][self.next])]


def mine(
    decoder: Decoder,
    watcher: Watcher,
    problems: Sequence[int],
    prompts: Sequence[list[int]],
    same: Same,
    num_strict: int,
    **request: Any,
) -> tuple[Table, list[Trunk]]:
    """Records of every mismatch on the walks and on the first `num_strict` strict texts, and the texts they lie on.

    The column `outcome` is 1 where the forced token kept the meaning, 0 where not, and -1 on strict texts, where the
    tokens behind the first have not been forced.
    """
    starts = [Memory(list(prompt), RowCache([]), RowCache([])) for prompt in prompts]
    whole = [(len(prompt), []) for prompt in prompts]
    lengths = [len(prompt) for prompt in prompts]
    first = decoder.resume(starts, whole, lengths, **request)
    records = by_row(watcher.take(), first)
    walks = [
        Walk(problem, list(prompt), answer.ids, memory, records[index])
        for index, (problem, prompt, (answer, memory)) in enumerate(zip(problems, prompts, first, strict=True))
        if memory is not None and same(problem, answer.ids, answer.ids)
    ]
    tables = [stamped(walk.ahead, walk.problem, STRICT, [-1] * num_rows(walk.ahead)) for walk in walks[:num_strict]]
    while live := [walk for walk in walks if not walk.over]:
        step(decoder, watcher, live, same, **request)
    trunks = [Trunk(walk.problem, STRICT, walk.reference) for walk in walks]
    trunks += [Trunk(walk.problem, SEQUENTIAL, walk.memory.text[len(walk.prompt) :]) for walk in walks]
    tables += [table for walk in walks for table in walk.walked]
    filled = [table for table in tables if num_rows(table)]
    return (concatenated(filled) if filled else {}), trunks


def step(decoder: Decoder, watcher: Watcher, live: Sequence[Walk], same: Same, **request: Any) -> None:
    """Force the next draft token of every walk, judge the outcome, and go on along the text that it leaves."""
    forks = [walk.fork for walk in live]
    memories = [walk.memory for walk in live]
    done = decoder.resume(memories, forks, [len(walk.prompt) for walk in live], **request)
    records = by_row(watcher.take(), done)
    for walk, (answer, memory), found in zip(live, done, records, strict=True):
        kept = bool(same(walk.problem, answer.ids, walk.reference))
        here = picked(walk.ahead, torch.tensor([walk.next]))
        walk.walked.append(stamped(here, walk.problem, SEQUENTIAL, [int(kept)]))
        walk.next += 1
        if kept and memory is not None:
            walk.memory, walk.ahead, walk.next = memory, found, 0


def by_row(table: Table, done: Sequence[tuple[Generation, Memory | None]]) -> list[Table]:
    """The records of each row, without those that its stop cut off."""
    lengths = [len(answer.ids) for answer, _ in done]
    if not table:
        return [{} for _ in lengths]
    inside = picked(table, table["position"] < torch.tensor(lengths)[table["row"]])
    counts = torch.bincount(inside["row"], minlength=len(lengths)).tolist()
    ends = torch.tensor(counts).cumsum(0).tolist()
    return [picked(inside, torch.arange(end - count, end)) for count, end in zip(counts, ends, strict=True)]


def stamped(table: Table, problem: int, prefix: int, outcomes: Sequence[int]) -> Table:
    """The records with their problem, policy and outcome."""
    if not table:
        return {}
    num = num_rows(table)
    rest = {name: column for name, column in table.items() if name != "row"}
    return {
        **rest,
        "problem": torch.full((num,), problem, dtype=torch.int64),
        "prefix": torch.full((num,), prefix, dtype=torch.int8),
        "outcome": torch.tensor(list(outcomes), dtype=torch.int8),
    }
