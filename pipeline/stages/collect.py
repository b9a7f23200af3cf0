"""Decode the training prompts and record every mismatch of target and draft, without features:
`python -m pipeline.stages.collect strict` the target's own text and the sequential walk along it,
`gated` the texts of the pilot gate, whose prefixes a served gate will see. What that cost is in
reports/labels/collect-<pass>.json.
"""

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from gistgate.core.files import read_json_lines
from gistgate.core.utils import UserError
from gistgate.gate import Gate
from pipeline.labels.labelling import engine_of, tools_of
from pipeline.labels.mining import collect_gated, collect_strict
from pipeline.labels.rollouts import Cost, counted, report_costs
from pipeline.labels.schema import (
    MISMATCH_FOLDER,
    MISMATCHES,
    PASSES,
    REFERENCE,
    Table,
    Texts,
    checked,
    pack,
)
from pipeline.pair.pair import load_pair, pair_files
from pipeline.params import Params, read_params
from pipeline.paths import PILOT, prompts_of
from pipeline.run import Shards, run
from pipeline.task import load_task, read_prompts, task_parts


def main(name: str) -> None:
    params = read_params()
    if name not in PASSES:
        raise UserError(f"There is no pass '{name}'. Use one of: {', '.join(PASSES)}.")
    count = math.ceil(len(minable(params)) / params.collect.shard_prompts)
    files = [prompts_of("train"), REFERENCE, *task_parts(params), *pair_files(params.pair)]
    if name == "gated":
        files.append(PILOT)
    rolling = [params.label.batch_size, params.label.audit]
    blocks = (params.decoding.deciding, params.collect, params.engine)
    shards = Shards(f"collect-{name}", name, params.pair, params.seed, *blocks, rolling, *files)
    workers = params.decoding.workers
    job = (params, name, shards.folder)
    if shards.fill(count, collecting, job, workers, f"collect, {name}", {"pass": name}):
        report_costs(shards.folder, f"collect-{name}", count)
        shards.publish(count, MISMATCH_FOLDER / name)


def collecting(settings: tuple[Params, str, Path]) -> Callable[[int], Table]:
    """Collects one shard after another; costs go to the folder."""
    params, name, folder = settings
    torch.set_grad_enabled(False)
    is_gated = name == "gated"
    engine = None if is_gated or params.collect.recipe == "text" else engine_of(params)
    pair = load_pair(params)
    prompts = read_prompts("train")
    minable_problems = minable(params)
    size = params.collect.shard_prompts
    if is_gated:
        pilot = Gate.load(PILOT, pair.target, pair.draft, pair.tokenizer)
    else:
        task = load_task(params)

    def collected(problems: list[int], cost: Cost) -> tuple[Table, Texts]:
        if is_gated:
            return collect_gated(params, pair, pilot, prompts, problems)
        tools = tools_of(params, pair, task, prompts, cost, engine)
        return collect_strict(tools, problems)

    def produce(index: int) -> Table:
        with counted(folder, index) as cost:
            records, texts = collected(minable_problems[index * size : (index + 1) * size], cost)
        if not records:
            records = no_records(params.decoding.block, ["probability"] if is_gated else [])
        return pack(checked(records, MISMATCHES, f"Shard {index}"), texts)

    return produce


def minable(params: Params) -> list[int]:
    """Indices of the problems to mine."""
    scores = [row["score"] for row in read_json_lines(REFERENCE)]
    solved_only = params.collect.solved_only
    problems = [problem for problem, score in enumerate(scores) if score > 0 or not solved_only]
    if not problems:
        raise UserError(
            f"The target solves no training prompt; {REFERENCE} has its answers. Check the task's"
            " filter and metric, take an easier task, or set collect.solved_only: false."
        )
    return problems


def no_records(block: int, further: Sequence[str] = ()) -> Table:
    """The columns of a shard without mismatches at K = `block`, and `further` ones."""
    columns = {name: torch.zeros(0, dtype=dtype) for name, dtype in MISMATCHES.items()}
    columns["behind"] = columns["behind"].view(0, block - 1)
    return {**columns, **{name: torch.zeros(0) for name in further}}


if __name__ == "__main__":
    run(main)
