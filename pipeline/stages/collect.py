"""Decode the training prompts and record every mismatch of target and draft.

    python -m pipeline.stages.collect strict     the target's own text and the sequential walk along it
    python -m pipeline.stages.collect gated      the texts of the pilot gate, whose prefixes a served gate will see

Reads data/prompts and data/reference (and models/pilot), writes data/mismatches/<pass>/rows-*.safetensors: places and
tokens, no features. An interruption costs one shard: finished ones wait in .scratch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import Task, load_task
from pipeline.common.decoders import make_decoder, read_prompts, request_of
from pipeline.common.entry import item, run
from pipeline.common.pool import side_by_side
from pipeline.common.resume import Shards, sources
from pipeline.labels.mining import mine
from pipeline.labels.mismatches import MismatchRecorder, stamped
from pipeline.labels.schema import MISMATCH_FOLDER, MISMATCHES, PASSES, REFERENCE, Policy, checked
from pipeline.labels.tables import Table, concatenated
from pipeline.labels.texts import AnswerText, pack
from pipeline.pairs.pair import Pair, load_pair, pair_files
from pipeline.params import MethodParams, Params, read_params

SOURCES = (
    "gistgate.block", "gistgate.decoding", "gistgate.drafters", "gistgate.rules", "gistgate.integrations.lm_eval.task",
    "pipeline.labels.mining", "pipeline.labels.mismatches", "pipeline.labels.schema", "pipeline.labels.texts",
    "pipeline.stages.collect",
)  # fmt: skip
"""Modules whose change makes finished shards worthless."""
PROMPTS = Path("data/prompts/train.jsonl")
PILOT = Path("models/pilot")

Collect = Callable[[Sequence[int]], tuple[Table, list[AnswerText]]]
"""Indices of problems -> records of their mismatches, and the texts that these lie on."""


def main() -> None:
    name, params = item(), read_params()
    if name not in PASSES:
        raise UserError(f"There is no pass '{name}'. Use one of: {', '.join(PASSES)}.")
    count = math.ceil(len(minable(params)) / params.collect.shard_prompts)
    side_by_side(collecting, (params, name), range(count), params.decoding.workers, f"collect, {name}", "shard")
    shards_of(params, name).publish(count, MISMATCH_FOLDER / name)


def shards_of(params: Params, name: str) -> Shards:
    """Where finished shards of a pass wait."""
    files = [PROMPTS, REFERENCE, *pair_files(params.pair), *([PILOT] if name == "gated" else []), *sources(*SOURCES)]
    return Shards(f"collect-{name}", name, params.pair, params.seed, params.decoding, params.collect, *files)


def collecting(settings: tuple[Params, str]) -> Callable[[int], None]:
    """Collects one shard after another."""
    params, name = settings
    torch.set_grad_enabled(False)
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    collect = (strict_collector if name == "strict" else gated_collector)(params, pair, task, prompts)
    shards, problems, size = shards_of(params, name), minable(params), params.collect.shard_prompts

    def work(index: int) -> None:
        part = problems[index * size : (index + 1) * size]
        shards.make(index, lambda: shard_of(*collect(part), index=index), {"pass": name})

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
    recorder = MismatchRecorder(params.decoding.block)
    decoder = make_decoder(pair, MethodParams("exact"), {}, params.decoding.block, observer=recorder)

    def same(problem: int, answer: list[int], reference: list[int]) -> bool | None:
        text, expected = task.text(pair.tokenizer, answer), task.text(pair.tokenizer, reference)
        return task.same_meaning(prompts[problem]["doc"], text, expected)

    def collect(problems: Sequence[int]) -> tuple[Table, list[AnswerText]]:
        ids = [prompts[problem]["ids"] for problem in problems]
        num_strict = round(params.collect.strict_share * len(ids))
        return mine(decoder, recorder, problems, ids, same, num_strict, **request_of(prompts, pair))

    return collect


def gated_collector(params: Params, pair: Pair, _task: Task, prompts: Sequence[dict[str, Any]]) -> Collect:
    """Collects on the pilot gate's own texts."""
    gate = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)
    return lambda problems: gated_texts(params, pair, gate, prompts, problems, MismatchRecorder(params.decoding.block))


def gated_texts(
    params: Params,
    pair: Pair,
    gate: Gate,
    prompts: Sequence[dict[str, Any]],
    problems: Sequence[int],
    recorder: MismatchRecorder,
) -> tuple[Table, list[AnswerText]]:
    """Decode these problems with the gate at `collect.pilot_risk`; `recorder` sees the blocks."""
    settings = {"risk": params.collect.pilot_risk}
    decoder = make_decoder(pair, MethodParams("autojudge"), settings, params.decoding.block, gate, observer=recorder)
    answers = decoder.generate([prompts[problem]["ids"] for problem in problems], **request_of(prompts, pair))
    found = zip(problems, recorder.take(answers), strict=True)
    tables = [stamped(table, problem, Policy.GATED) for problem, table in found if table]
    texts = [AnswerText(problem, Policy.GATED, answer.ids) for problem, answer in zip(problems, answers, strict=True)]
    return (concatenated(tables) if tables else {}), texts


def shard_of(records: Table, texts: Sequence[AnswerText], index: int) -> Table:
    """The shard's tensors.

    Raises:
        UserError: there is no mismatch, or a record breaks the schema.
    """
    if not records:
        raise UserError(
            f"Shard {index} has no mismatch: target and draft agree everywhere or no answer could be read. "
            "Choose a weaker draft or check the task's filter."
        )
    return pack(checked(records, MISMATCHES, f"Shard {index}"), texts)


if __name__ == "__main__":
    run(main)
