"""Label every mismatch: `python -m pipeline.stages.label strict | gated`, data/mismatches/<pass> ->
data/labels/<pass>. Rollouts behind the draft token tell whether the meaning is kept, or, with
`label.recipe: answers`, two whole answers are compared by score and length: with the draft token
and with the target's own. What labels cost is in reports/labels/label-<pass>.json.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from pipeline.labels import schema
from pipeline.labels.labelling import Labeller, chosen_rows, engine_of, tools_of
from pipeline.labels.rollouts import Cost, counted, report_costs
from pipeline.pair.pair import load_pair, pair_files
from pipeline.params import Params, read_params
from pipeline.run import Shards, run, shard_files
from pipeline.task import load_task, read_prompts, task_parts


def main(name: str) -> None:
    params = read_params()
    folder = schema.MISMATCH_FOLDER / name
    count = len(shard_files(folder))
    files = [folder, schema.REFERENCE, *pair_files(params.pair), *task_parts(params)]
    train = params.train
    shares = [train.test_share, train.calibration_share, train.validation_share]
    blocks = (params.decoding.deciding, params.label, params.engine)
    shards = Shards(f"label-{name}", name, params.pair, params.seed, *blocks, shares, *files)
    title = f"label, {name}"
    workers = params.decoding.workers
    job = (params, name, shards.folder)
    if shards.fill(count, labelling, job, workers, title, {"pass": name}):
        report_costs(shards.folder, f"label-{name}", count)
        labels = schema.concatenated(tables(schema.read_records(shards.folder, schema.LABELS)))
        shards.publish(count, schema.LABEL_FOLDER / name, rates(labels))


def tables(shards: Sequence[tuple[schema.Table, schema.Texts]]) -> list[schema.Table]:
    """The records of the shards."""
    return [records for records, _ in shards]


def labelling(settings: tuple[Params, str, Path]) -> Callable[[int], schema.Table]:
    """Labels one shard after another; costs go to the folder."""
    params, name, folder = settings
    torch.set_grad_enabled(False)
    engine = engine_of(params)
    pair = load_pair(params, weights=engine is None)
    task = load_task(params)
    prompts = read_prompts("train")
    mined = schema.read_records(schema.MISMATCH_FOLDER / name, schema.MISMATCHES)
    sizes = [schema.num_rows(records) for records in tables(mined)]
    chosen = chosen_rows(schema.concatenated(tables(mined)), params).split(sizes)

    def labels_of(index: int, cost: Cost) -> schema.Table:
        records, texts = mined[index]
        records = {column: records[column] for column in schema.MISMATCHES}
        # Several shards may be under way, so that their bars say which they are.
        shard = f", shard {index + 1} of {len(mined)}" if len(mined) > 1 else ""
        tools = tools_of(params, pair, task, prompts, cost, engine)
        labeller = Labeller(tools, f"label, {name}{shard}")
        if params.label.recipe == "outcome":
            return labeller.label(records, texts, chosen[index])
        cost.labels = int(chosen[index].sum())
        return labeller.pairs(schema.picked(records, chosen[index]), texts)

    def produce(index: int) -> schema.Table:
        with counted(folder, index) as cost:
            labels = labels_of(index, cost)
        checked = schema.checked(labels, schema.LABELS, f"Shard {index}")
        return schema.pack(checked, mined[index][1])

    return produce


def rates(labels: schema.Table) -> dict[str, Any]:
    """For each policy: rows, the share that greedy rollouts keep, and the mean label of the
    others.
    """
    by_policy = {}
    for policy in schema.Policy:
        rows = schema.picked(labels, labels["policy"] == policy)
        if num := schema.num_rows(rows):
            unsure = rows["kept"][rows["greedy_kept"] == 0]
            by_policy[policy.name.lower()] = {
                "rows": num,
                "greedy_kept": float(rows["greedy_kept"].float().mean()),
                "kept_of_others": float(unsure.mean()) if len(unsure) else None,
            }
    return by_policy


if __name__ == "__main__":
    run(main)
