"""How far rounding decides greedy answers: strict decoding at other widths and in another dtype, and plain decoding.

    python -m benchmarks.rounding [--prompts 16] [--widths 1,8,16] [--dtype float32] [--max-new-tokens 96]

In the folder of a run, on development prompts. In exact arithmetic the answers of all of them are equal. In bfloat16 a
product is summed in another order for another number of rows, and near ties fall the other way. Plain decoding and the
other dtype, that of the target's weights, have the first width. For each decoding: answers with the ids of the first
one, tokens in front of the first other id, and answers with another score, which answers that --max-new-tokens cuts do
not have.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts
from gistgate.decoding.batches import decode_all
from gistgate.errors import UserError
from gistgate.integrations.lm_eval.prompts import Prompt
from gistgate.integrations.lm_eval.task import Task
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.pairs.pair import Pair, load_pair
from pipeline.pairs.source import MODEL
from pipeline.params import MethodParams, read_params
from pipeline.studies.labels.rounding import dtype_of
from pipeline.tasks.loading import load_task


def main(
    prompts: int = 16,
    widths: str = "1,8,16",
    dtype: str = "",
    max_new_tokens: int = 0,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    """Compare the widths.

    Args:
        prompts: development prompts.
        widths: rows decoded together; the first is what all others are compared with.
        dtype: dtype of torch of one more decoding, such as float32; default: none.
        max_new_tokens: longest answer; default: the task's, and only then scores mean something.
        threads: threads of torch.
        results: folder of the result.
    """
    torch.set_num_threads(threads)
    if prompts < 1:
        raise UserError("--prompts has to be 1 or more.")
    sizes, wanted, params = counts(widths, "--widths"), dtype_of(dtype) if dtype else None, read_params()
    pair, task, some = load_pair(params), load_task(params), read_prompts("development")[:prompts]
    own, limit = str(pair.target.dtype).removeprefix("torch."), request_of(some, pair)["max_new_tokens"]
    request = {**request_of(some, pair), "max_new_tokens": max_new_tokens or limit}
    answers = decoded(pair, [prompt["ids"] for prompt in some], sizes, wanted, params.decoding.block, request)
    found = differences(answers)
    if request["max_new_tokens"] >= limit:
        scores = {name: scores_of(task, pair, some, given) for name, given in answers.items()}
        first = next(iter(scores.values()))
        for name, entry in found.items():
            entry["other_scores"] = differing(first, scores[name])
    said = {"pair": pair.name, "task": params.task, "dtype": own, "block": params.decoding.block, "n": len(some)}
    save(f"rounding-{params.task}", {**said, "max_new_tokens": request["max_new_tokens"], "against": found}, results)


def decoded(
    pair: Pair,
    ids: Sequence[list[int]],
    sizes: Sequence[int],
    dtype: torch.dtype | None,
    block: int,
    request: Mapping[str, Any],
) -> dict[str, list[list[int]]]:
    """The answers of every decoding, in token ids; afterwards the target of `pair` has the other dtype.

    Args:
        pair: target and draft.
        ids: token ids of every prompt.
        sizes: rows decoded together, one decoding for each; plain decoding and the other dtype take the first.
        dtype: the other dtype, or None for none.
        block: K of strict decoding, in tokens.
        request: arguments of `decode_all`.
    """
    answers = {}

    def decode(name: str, width: int, drafter: str = MODEL) -> None:
        decoder = make_decoder(pair, MethodParams("exact", drafter=drafter), {}, block if drafter == MODEL else 0)
        answers[name] = [one.ids for one in decode_all(decoder, ids, batch_size=width, **request)]
        print(name, flush=True)

    for width in sizes:
        decode(f"strict, {width} rows", width)
    decode(f"plain, {sizes[0]} rows", sizes[0], "none")
    if dtype is not None:
        pair.target.to(dtype)
        decode(f"strict, {str(dtype).removeprefix('torch.')}", sizes[0])
    return answers


def differences(answers: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, dict[str, Any]]:
    """What is equal in the first decoding and in each other one; no scores yet."""
    (_, first), *others = answers.items()
    return {name: {**compared(first, given), "other_scores": None} for name, given in others}


def scores_of(task: Task, pair: Pair, prompts: Sequence[Prompt], answers: Sequence[list[int]]) -> list[float]:
    """The task's score of each answer."""
    texts = [task.text(pair.tokenizer, answer) for answer in answers]
    return [task.score(prompt["doc"], text) for prompt, text in zip(prompts, texts, strict=True)]


def compared(first: Sequence[Sequence[int]], other: Sequence[Sequence[int]]) -> dict[str, Any]:
    """Equal answers, and tokens in front of the first other id, on average over the answers that differ."""
    common = [prefix(one, two) for one, two in zip(first, other, strict=True) if list(one) != list(two)]
    return {"equal": len(first) - len(common), "common_tokens": sum(common) / len(common) if common else None}


def prefix(first: Sequence[int], other: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return next((n for n, (a, b) in enumerate(zip(first, other, strict=False)) if a != b), min(len(first), len(other)))


def differing(first: Sequence[float], other: Sequence[float]) -> int:
    """Places with other values."""
    return sum(a != b for a, b in zip(first, other, strict=True))


if __name__ == "__main__":
    run(main, kept=False)
