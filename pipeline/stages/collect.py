"""Decode the training prompts and keep what the target knew at every mismatch.

    python -m pipeline.stages.collect strict     the target's own text and the sequential walk along it
    python -m pipeline.stages.collect gated      the texts of the pilot gate, whose prefixes a served gate will see

Reads data/prompts and data/reference (and models/pilot), writes data/mismatches/<policy>/rows-*.safetensors. An
interruption costs one shard: finished ones wait in .scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import Task, load_task
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import run
from pipeline.common.pool import side_by_side
from pipeline.common.resume import Shards, sources
from pipeline.labels.mining import by_row, mine, stamped
from pipeline.labels.mismatches import Table, Watcher, concatenated, num_rows
from pipeline.labels.texts import GATED, Trunk, pack
from pipeline.pairs.pair import Pair, load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params

PROMPTS = Path("data/prompts/train.jsonl")
REFERENCE = Path("data/reference/train.jsonl")
PILOT = Path("models/pilot")
MISMATCHES = Path("data/mismatches")
POLICIES = ("strict", "gated")

Collect = Callable[[Sequence[int]], tuple[Table, list[Trunk]]]


def main(policy: str) -> None:
    params = read_params()
    if policy not in POLICIES:
        raise UserError(f"There is no policy '{policy}'. Use one of: {', '.join(POLICIES)}.")
    count = math.ceil(len(minable(params)) / params.collect.shard_prompts)
    side_by_side(collecting, (params, policy), range(count), params.decoding.workers, f"collect, {policy}", "shard")
    shards_of(params, policy).publish(count, MISMATCHES / policy)


def shards_of(params: Params, policy: str) -> Shards:
    """Where finished shards wait."""
    files = [
        PROMPTS,
        REFERENCE,
        *pair_files(params.pair),
        *([PILOT] if policy == "gated" else []),
        *sources("pipeline.stages.collect"),
    ]
    settings = [policy, params.pair, params.seed, params.decoding, params.collect, params.train.features]
    return Shards(f"collect-{policy}", *settings, *files)


def collecting(settings: tuple[Params, str]) -> Callable[[int], None]:
    """Collects one shard after another."""
    params, policy = settings
    torch.set_grad_enabled(False)
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    collect = (strict_collector if policy == "strict" else gated_collector)(params, pair, task, prompts)
    shards, problems, size = shards_of(params, policy), minable(params), params.collect.shard_prompts

    def work(index: int) -> None:
        part = problems[index * size : (index + 1) * size]
        shards.make(index, lambda: checked(*collect(part), index=index), {"policy": policy})

    return work


def minable(params: Params) -> list[int]:
    """Indices of the problems to mine.

    Raises:
        UserError: the target solves none of them.
    """
    problems = [
        i for i, row in enumerate(read_json_lines(REFERENCE)) if row["score"] > 0 or not params.collect.solved_only
    ]
    if not problems:
        raise UserError(
            "The target solves no training prompt, so there is no answer that could be lost. "
            "Choose a stronger target or an easier task, or set collect.solved_only to false."
        )
    return problems


def strict_collector(params: Params, pair: Pair, task: Task, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on strict texts and on the walk that keeps harmless replacements."""
    watcher = Watcher(params.train.features)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block, observer=watcher)

    def same(problem: int, answer: list[int], reference: list[int]) -> bool | None:
        text, expected = task.text(pair.tokenizer, answer), task.text(pair.tokenizer, reference)
        return task.same_meaning(prompts[problem]["doc"], text, expected)

    def collect(problems: Sequence[int]) -> tuple[Table, list[Trunk]]:
        ids = [prompts[problem]["ids"] for problem in problems]
        num_strict = round(params.collect.strict_share * len(ids))
        return mine(decoder, watcher, problems, ids, same, num_strict, **request_of(prompts, pair))

    return collect


def gated_collector(params: Params, pair: Pair, task: Task, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the pilot gate's own texts."""
    watcher = Watcher(params.train.features)
    gate = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)
    settings = {"risk": params.collect.pilot_risk}
    decoder = make_decoder(pair, MethodParams("autojudge"), settings, params.decoding.block, gate, observer=watcher)

    def collect(problems: Sequence[int]) -> tuple[Table, list[Trunk]]:
        answers = decoder.generate([prompts[p]["ids"] for p in problems], **request_of(prompts, pair))
        found = by_row(watcher.take(), [(answer, None) for answer in answers])
        tables = [
            stamped(table, problem, GATED, [-1] * num_rows(table))
            for problem, table in zip(problems, found, strict=True)
            if num_rows(table)
        ]
        trunks = [Trunk(problem, GATED, answer.ids) for problem, answer in zip(problems, answers, strict=True)]
        return (concatenated(tables) if tables else {}), trunks

    return collect


def checked(table: Table, trunks: list[Trunk], index: int) -> dict[str, Tensor]:
    """The shard's tensors, refused when a state is not finite."""
    if not table:
        raise UserError(
            f"Shard {index} has no mismatch: target and draft agree everywhere or no answer could be read. "
            "Choose a weaker draft or check the task's filter."
        )
    for name, column in table.items():
        if name != "kl" and column.is_floating_point() and not bool(column.isfinite().all()):
            row = int((~column.isfinite().flatten(1).all(-1)).nonzero()[0])
            raise UserError(
                f"Shard {index}: '{name}' is not finite in row {row}. Load the target in bfloat16 or float32."
            )
    return {**table, **pack(trunks)}


if __name__ == "__main__":
    run(main)
