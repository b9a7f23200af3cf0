"""Label every mismatch: `python -m pipeline.stages.label strict | gated`, data/mismatches/<pass> ->
data/labels/<pass>. Rollouts behind the draft token tell whether the meaning is kept, or, with
`label.recipe: suffix`, the target's own text behind it does (pipeline/labels/suffix.py); `both`
makes labels of either kind. `answers` compares two whole answers, with the draft token and with the
target's own, by score and length. What labels cost is in reports/labels/label-<pass>.json."""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch

from gistgate.core.reader import num_ids
from gistgate.core.request import eos_ids
from gistgate.core.utils import added_ids
from gistgate.tasks.task import Task
from pipeline.labels import schema
from pipeline.labels.labelling import Labeller, chosen_rows, engine_of, tools_of
from pipeline.labels.rollouts import Cost, report_costs
from pipeline.labels.suffix import SuffixLabeller, Text
from pipeline.pair.pair import Pair, load_pair, pair_files
from pipeline.params import Params, read_params
from pipeline.run import Shards, run, shard_files
from pipeline.task import load_task, read_prompts, task_parts

Score = Callable[[int, list[int]], float]
"""(problem, answer as token ids) -> what the task thinks of it."""


def main(name: str) -> None:
    params = read_params()
    count = len(shard_files(schema.MISMATCH_FOLDER / name))
    files = [
        schema.MISMATCH_FOLDER / name,
        schema.REFERENCE,
        *pair_files(params.pair),
        *task_parts(params),
    ]
    parts = [params.train.test_share, params.train.calibration_share, params.train.validation_share]
    blocks = (params.decoding.deciding, params.label, params.engine)
    shards = Shards(f"label-{name}", name, params.pair, params.seed, *blocks, parts, *files)
    if shards.fill(
        count, labelling, (params, name, shards), params.decoding.workers, f"label, {name}"
    ):
        report_costs(shards.folder, f"label-{name}", count)
        found = schema.concatenated(
            [records for records, _ in schema.read_records(shards.folder, schema.LABELS)]
        )
        shards.publish(count, schema.LABEL_FOLDER / name, rates(found))


def labelling(settings: tuple[Params, str, Shards]) -> Callable[[int], None]:
    """Labels one shard after another."""
    params, name, shards = settings
    torch.set_grad_enabled(False)
    recipe = params.label.recipe
    engine = engine_of(params) if recipe != "suffix" else None
    pair = load_pair(params, weights=recipe == "both" or engine is None)
    task = load_task(params)
    prompts = read_prompts("train")
    found = schema.read_records(schema.MISMATCH_FOLDER / name, schema.MISMATCHES)
    sizes = [schema.num_rows(records) for records, _ in found]
    chosen = chosen_rows(schema.concatenated([records for records, _ in found]), params).split(
        sizes
    )

    def produce(index: int) -> schema.Table:
        (records, texts) = found[index]
        cost = Cost()
        started = perf_counter()
        # Several shards may be under way, so that their bars say which they are.
        title = f"label, {name}" + (
            f", shard {index + 1} of {len(found)}" if len(found) > 1 else ""
        )
        if recipe != "suffix":
            tools = tools_of(params, pair, task, prompts, cost, engine)
            labeller = Labeller(tools, prompts, params.label, params.seed, title)
        if recipe == "answers":
            score = partial(score_of, task, pair.tokenizer, prompts)
            labels = paired_labels(labeller, score, schema.picked(records, chosen[index]), texts)
            cost.labels = schema.num_rows(labels)
            cost.seconds = perf_counter() - started
            cost.save(shards.folder, index)
            return schema.pack(
                schema.checked(labels, schema.LABELS, f"Shard {index}"), texts.values()
            )
        records = {
            column: values for column, values in records.items() if column in schema.MISMATCHES
        }
        made = list[schema.Table]()
        if recipe != "outcome":
            some = chosen[index] if recipe == "suffix" else torch.ones_like(chosen[index])
            made.append(suffix_labels(params, pair, prompts, schema.picked(records, some), texts))
            cost.labels = schema.num_rows(made[0])
        if recipe != "suffix":
            made.append(labeller.label(records, texts, chosen[index]))
        labels = schema.concatenated(made)
        cost.seconds = perf_counter() - started
        cost.save(shards.folder, index)
        return schema.pack(schema.checked(labels, schema.LABELS, f"Shard {index}"), texts.values())

    return lambda index: shards.make(index, lambda: produce(index), {"pass": name})


def score_of(
    task: Task, tokenizer: Any, prompts: Sequence[dict[str, Any]], problem: int, ids: list[int]
) -> float:
    """What the task thinks of an answer, as token ids, to the prompt of a problem."""
    return float(task.score(prompts[problem]["doc"], task.text(tokenizer, ids)))


def paired_labels(
    labeller: Labeller, score: Score, records: schema.Table, texts: schema.Texts
) -> schema.Table:
    """The records as rows of LABELS by what the draft token does to the whole answer, and the
    column `trial`.
    """
    columns = labeller.pairs(records, texts, score)
    rest = {name: records[name] for name in schema.BLOCK}
    kept = columns["kept"]
    trial = torch.stack([columns[name] for name in schema.TRIAL], dim=-1)
    rollouts = torch.ones(len(kept), dtype=torch.int16)
    return {
        **rest,
        "greedy_kept": kept.to(torch.int8),
        "kept": kept,
        "rollouts": rollouts,
        "trial": trial,
    }


def suffix_labels(
    params: Params,
    pair: Pair,
    prompts: Sequence[dict[str, Any]],
    records: schema.Table,
    texts: schema.Texts,
) -> schema.Table:
    """The records with the target's own text behind them as rows of the schema LABELS, by their
    suffix labels.
    """
    own = params.label
    ends = eos_ids(pair.target, pair.tokenizer)
    protocol = added_ids(pair.tokenizer)
    labeller = SuffixLabeller(pair.target, num_ids(pair.tokenizer), ends, protocol, own.window)
    places: dict[tuple[int, int], list[int]] = {}  # the rows of each text
    columns = (records[name].tolist() for name in ("problem", "policy", "position", "target_id"))
    for row, (problem, policy, position, token) in enumerate(zip(*columns, strict=True)):
        if texts[problem, policy].ids[position : position + 1] == [token]:
            places.setdefault((problem, policy), []).append(row)
    at, z = (records[name] for name in ("position", "draft_id"))
    marked = [
        Text(prompts[key[0]]["ids"], texts[key].ids, at[rows].tolist(), z[rows].tolist())
        for key, rows in places.items()
    ]
    loss = torch.full((schema.num_rows(records),), torch.nan)
    for rows, found in zip(
        places.values(), labeller.losses(marked, own.batch_size * own.window), strict=True
    ):
        loss[rows] = found
    known = loss.isfinite()
    kept = loss[known] <= own.nats
    rest = schema.picked(records, known)
    rest = {name: column for name, column in rest.items() if name != "accepted"}
    rollouts = torch.zeros(len(kept), dtype=torch.int16)
    return {**rest, "greedy_kept": kept.to(torch.int8), "kept": kept.float(), "rollouts": rollouts}


def rates(labels: schema.Table) -> dict[str, Any]:
    """For each policy: rows, the share that greedy rollouts keep, and the mean label of the
    others.
    """
    found = {}
    for policy in schema.Policy:
        rows = schema.picked(labels, labels["policy"] == policy)
        if schema.num_rows(rows):
            unsure = rows["kept"][rows["greedy_kept"] == 0]
            found[policy.name.lower()] = {
                "rows": schema.num_rows(rows),
                "greedy_kept": float(rows["greedy_kept"].float().mean()),
                "kept_of_others": float(unsure.mean()) if len(unsure) else None,
            }
    return found


if __name__ == "__main__":
    run(main)
