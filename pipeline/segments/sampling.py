"""Prefixes of the target's answers, and the segments that a model writes behind them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gistgate.block import Sampling
from gistgate.decoding.decoder import Decoder
from gistgate.decoding.rows import Row
from gistgate.rules.exact import Exact
from gistgate.segments.boundaries import Boundaries
from pipeline.decode import request_of
from pipeline.pairs import Pair
from pipeline.segments.params import SegmentParams
from pipeline.tasks import Task


@dataclass(frozen=True)
class Prefix:
    """A text up to somewhere in its answer."""

    problem: int
    """Number of the prompt in its split."""
    prompt: list[int]
    answer: list[int]
    """Tokens of the answer that are kept."""

    @property
    def ids(self) -> list[int]:
        return [*self.prompt, *self.answer]


def prefixes_of(
    number: int, prompt: dict[str, Any], answer: Sequence[int], boundaries: Boundaries, task: Task,
    tokenizer: Any, params: SegmentParams, seed: int,
) -> list[Prefix]:  # fmt: skip
    """Some prefixes of one answer: the first at a segment's end, the others anywhere, as decoding meets both.

    A prefix that already holds the task's answer is left out: nothing behind it could change the meaning.
    """
    chosen = random.Random(f"{seed}:{number}")
    ends, at = [0], 0
    for segment in boundaries.cut(answer)[:-1]:
        at += len(segment)
        ends.append(at)
    final = task.text(tokenizer, answer)
    anywhere = list(range(1, len(answer)))
    chosen.shuffle(ends)
    chosen.shuffle(anywhere)
    found: list[Prefix] = []
    for length in dict.fromkeys([*ends[:1], *anywhere, *ends[1:]]):
        if len(found) == params.prefixes:
            break
        if not task.same_meaning(prompt["doc"], task.text(tokenizer, answer[:length]), final):
            found.append(Prefix(number, list(prompt["ids"]), list(answer[:length])))
    return found


def sample_segments(
    model: PreTrainedModel, pair: Pair, prefixes: Sequence[Prefix], boundaries: Boundaries, params: SegmentParams,
    prompts: Sequence[dict[str, Any]], batch_size: int, seed: int,
) -> list[list[list[int]]]:  # fmt: skip
    """For each prefix the finished segments among `params.samples` draws; those that the limit cut are left out.

    Row r of prefix p draws with the seed `seed + p * samples + r`, whatever the batch.
    """
    decoder = Decoder(model, None, Exact(), 0, tokenizer=pair.tokenizer, vocabulary=len(pair.tokenizer))
    request = {**request_of(prompts, pair), "max_new_tokens": params.limit}
    rows = [(index, seed + index * params.samples + r) for index in range(len(prefixes)) for r in range(params.samples)]
    found: list[list[list[int]]] = [[] for _ in prefixes]
    for start in range(0, len(rows), batch_size):
        batch = rows[start : start + batch_size]
        needed = sorted({index for index, _ in batch})
        memories = dict(zip(needed, decoder.remember([prefixes[index].ids for index in needed]), strict=True))
        lengths = [len(prefixes[index].ids) for index, _ in batch]
        done = decoder.resume(
            [memories[index] for index, _ in batch], [(length, []) for length in lengths], lengths,
            sampling=Sampling(params.temperature), seeds=[one for _, one in batch],
            is_decided=ended(boundaries), remember=False, **request,
        )  # fmt: skip
        for (index, _), (generation, _) in zip(batch, done, strict=True):
            if generation.finish != "length" or boundaries.ends(generation.ids):
                found[index].append(generation.ids)
    return found


def ended(boundaries: Boundaries) -> Callable[[Row], str | None]:
    """Ends a row with its segment."""
    return lambda row: "segment" if boundaries.ends(row.answer) else None
