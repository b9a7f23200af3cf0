"""How far rounding decides greedy answers: the same strict decoding in batches of other widths, and of plain decoding.

    python -m benchmarks.rounding [--prompts 16] [--widths 1,8,16] [--max-new-tokens 96] [--results FOLDER]

In the folder of a run, on development prompts. In exact arithmetic the answers of all of them are equal. In bfloat16 a
product is summed in another order for another number of rows, and near ties fall the other way. For each decoding:
answers with the ids of the first one, tokens in front of the first other id, and answers with another score, which
answers that --max-new-tokens cuts do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from benchmarks.bench import RESULTS, save
from benchmarks.counts import counts
from gistgate.decoding.batches import decode_all
from gistgate.errors import UserError
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.pairs.pair import load_pair
from pipeline.params import MethodParams, read_params
from pipeline.tasks.loading import load_task


def main(
    prompts: int = 16,
    widths: str = "1,8,16",
    max_new_tokens: int = 0,
    threads: int = 2,
    results: Path = RESULTS,
) -> None:
    """Compare the widths.

    Args:
        prompts: development prompts.
        widths: rows decoded together; the first is what all others are compared with.
        max_new_tokens: longest answer; default: the task's, and only then scores mean something.
        threads: threads of torch.
        results: folder of the result.
    """
    torch.set_num_threads(threads)
    if prompts < 1:
        raise UserError("--prompts has to be 1 or more.")
    params = read_params()
    pair, task, some = load_pair(params), load_task(params), read_prompts("development")[:prompts]
    request = request_of(some, pair)
    request["max_new_tokens"] = max_new_tokens or request["max_new_tokens"]
    ids = [prompt["ids"] for prompt in some]
    strict = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block)
    plain = make_decoder(pair, MethodParams("exact", drafter="none"), {}, 0)
    kinds = {f"strict, {width} rows": (strict, width) for width in counts(widths, "--widths")}
    kinds["plain, 1 row"] = (plain, 1)
    answers = {}
    for name, (decoder, width) in kinds.items():
        answers[name] = [one.ids for one in decode_all(decoder, ids, batch_size=width, **request)]
        print(name, flush=True)
    whole = request["max_new_tokens"] >= request_of(some, pair)["max_new_tokens"]
    scores = {
        name: [
            task.score(one["doc"], task.text(pair.tokenizer, answer)) for one, answer in zip(some, given, strict=True)
        ]
        for name, given in (answers.items() if whole else ())
    }
    first = next(iter(answers))
    found = {
        name: {
            **compared(answers[first], given),
            "other_scores": differing(scores[first], scores[name]) if whole else None,
        }
        for name, given in answers.items()
        if name != first
    }
    said = {
        "pair": pair.name,
        "task": params.task,
        "dtype": str(pair.target.dtype).removeprefix("torch."),
        "block": params.decoding.block,
    }
    save(
        f"rounding-{params.task}",
        {**said, "n": len(some), "max_new_tokens": request["max_new_tokens"], "against": found},
        results,
    )


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
