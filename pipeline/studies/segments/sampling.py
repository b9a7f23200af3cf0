"""Prefixes of the target's answers, and the segments that a model writes behind them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from gistgate.block import Sampling
from gistgate.integrations.lm_eval.task import Task
from gistgate.optional.segments.boundaries import Boundaries
from gistgate.optional.segments.writing import SegmentWriter
from pipeline.common.decoders import request_of
from pipeline.pairs.pair import Pair
from pipeline.studies.segments.params import SegmentParams


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
    number: int,
    prompt: dict[str, Any],
    answer: Sequence[int],
    boundaries: Boundaries,
    task: Task,
    tokenizer: Any,
    params: SegmentParams,
    seed: int,
) -> list[Prefix]:
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
    model: PreTrainedModel,
    pair: Pair,
    prefixes: Sequence[Prefix],
    boundaries: Boundaries,
    params: SegmentParams,
    prompts: Sequence[dict[str, Any]],
    batch_size: int,
    seed: int,
) -> list[list[list[int]]]:
    """For each prefix the finished segments among `params.samples` draws; those that the limit cut are left out.

    Row r of prefix p draws with the seed `seed + p * samples + r`, whatever the batch.
    """
    request = request_of(prompts, pair)
    ends = {"eos_ids": request["eos_ids"], "stops": request["stops"]}
    writer = SegmentWriter(model, pair.tokenizer, boundaries, params.limit, **ends)
    rows = [(index, seed + index * params.samples + r) for index in range(len(prefixes)) for r in range(params.samples)]
    texts = [prefix.ids for prefix in prefixes]
    found: list[list[list[int]]] = [[] for _ in prefixes]
    for start in range(0, len(rows), batch_size):
        behind, seeds = zip(*rows[start : start + batch_size], strict=True)
        for index, segment in zip(
            behind, writer.write(texts, behind, Sampling(params.temperature), seeds), strict=True
        ):
            if segment.finished:
                found[index].append(segment.ids)
    return found
