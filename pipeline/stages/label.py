"""Label every mismatch: `python -m pipeline.stages.label strict | gated`, data/mismatches/<pass> ->
data/labels/<pass>. Rollouts behind the draft token tell whether the meaning is kept, or, with
`label.recipe: suffix`, the target's own text behind it does (pipeline/labels/suffix.py); `both`
makes labels of either kind. `answers` compares two whole answers, with the draft token and with the
target's own, by score and length. What labels cost is in reports/labels/label-<pass>.json.
"""

from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch import Tensor

from gistgate.core.architecture import num_ids
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
    if shards.fill(count, labelling, (params, name, shards), workers, title):
        report_costs(shards.folder, f"label-{name}", count)
        labels = schema.concatenated(tables(schema.read_records(shards.folder, schema.LABELS)))
        shards.publish(count, schema.LABEL_FOLDER / name, rates(labels))


def tables(shards: Sequence[tuple[schema.Table, schema.Texts]]) -> list[schema.Table]:
    """The records of the shards."""
    return [records for records, _ in shards]


def labelling(settings: tuple[Params, str, Shards]) -> Callable[[int], None]:
    """Labels one shard after another."""
    params, name, shards = settings
    torch.set_grad_enabled(False)
    recipe = params.label.recipe
    engine = engine_of(params) if recipe != "suffix" else None
    pair = load_pair(params, weights=recipe == "both" or engine is None)
    task = load_task(params)
    prompts = read_prompts("train")
    mined = schema.read_records(schema.MISMATCH_FOLDER / name, schema.MISMATCHES)
    sizes = [schema.num_rows(records) for records in tables(mined)]
    chosen = chosen_rows(schema.concatenated(tables(mined)), params).split(sizes)

    def labels_of(index: int, cost: Cost) -> schema.Table:
        records, texts = mined[index]
        records = {column: records[column] for column in schema.MISMATCHES}
        wanted = schema.picked(records, chosen[index])
        if recipe == "suffix":
            labels = suffix_labels(params, pair, prompts, wanted, texts)
            cost.labels = schema.num_rows(labels)
            return labels
        # Several shards may be under way, so that their bars say which they are.
        shard = f", shard {index + 1} of {len(mined)}" if len(mined) > 1 else ""
        tools = tools_of(params, pair, task, prompts, cost, engine)
        labeller = Labeller(tools, prompts, params.label, params.seed, f"label, {name}{shard}")
        if recipe == "answers":
            score = partial(score_of, task, pair.tokenizer, prompts)
            cost.labels = schema.num_rows(wanted)
            return paired_labels(labeller, score, wanted, texts)
        outcomes = labeller.label(records, texts, chosen[index])
        if recipe == "outcome":
            return outcomes
        labels = suffix_labels(params, pair, prompts, records, texts)
        cost.labels += schema.num_rows(labels)
        return schema.concatenated([labels, outcomes])

    def produce(index: int) -> schema.Table:
        cost = Cost()
        started = perf_counter()
        labels = labels_of(index, cost)
        cost.seconds = perf_counter() - started
        cost.save(shards.folder, index)
        checked = schema.checked(labels, schema.LABELS, f"Shard {index}")
        return schema.pack(checked, mined[index][1].values())

    return lambda index: shards.make(index, lambda: produce(index), {"pass": name})


def score_of(
    task: Task,
    tokenizer: Any,
    prompts: Sequence[dict[str, Any]],
    problem: int,
    ids: list[int],
) -> float:
    """What the task thinks of an answer, as token ids, to the prompt of a problem."""
    return float(task.score(prompts[problem]["doc"], task.text(tokenizer, ids)))


def paired_labels(
    labeller: Labeller,
    score: Callable[[int, list[int]], float],
    records: schema.Table,
    texts: schema.Texts,
) -> schema.Table:
    """The records as rows of LABELS by what the draft token does to the whole answer, and the
    column `trial`; `score` is what the task thinks of a problem's answer, as token ids.
    """
    columns = labeller.pairs(records, texts, score)
    trial = torch.stack([columns[name] for name in schema.TRIAL], dim=-1)
    blocks = {name: records[name] for name in schema.BLOCK}
    return labelled(blocks, columns["kept"], rollouts=1) | {"trial": trial}


def labelled(records: schema.Table, kept: Tensor, rollouts: int) -> schema.Table:
    """The records with their labels `kept [N]`, which so many rollouts have said."""
    return {
        **records,
        "greedy_kept": kept.to(torch.int8),
        "kept": kept.float(),
        "rollouts": torch.full((len(kept),), rollouts, dtype=torch.int16),
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
    window = params.label.window
    ends = eos_ids(pair.target, pair.tokenizer)
    protocol = added_ids(pair.tokenizer)
    labeller = SuffixLabeller(pair.target, num_ids(pair.tokenizer), ends, protocol, window)
    rows_of: dict[tuple[int, int], list[int]] = {}  # the rows of each text
    columns = [records[name].tolist() for name in ("problem", "policy", "position", "target_id")]
    for row, (problem, policy, position, token) in enumerate(zip(*columns)):
        if texts[problem, policy].ids[position : position + 1] == [token]:
            rows_of.setdefault((problem, policy), []).append(row)
    marked = []
    for key, rows in rows_of.items():
        at = records["position"][rows].tolist()
        z = records["draft_id"][rows].tolist()
        marked.append(Text(prompts[key[0]]["ids"], texts[key].ids, at, z))
    loss_N = torch.full((schema.num_rows(records),), torch.nan)
    losses = labeller.losses(marked, params.label.batch_size * window)
    for rows, loss in zip(rows_of.values(), losses):
        loss_N[rows] = loss
    has_loss = loss_N.isfinite()
    with_loss = schema.picked(records, has_loss)
    del with_loss["accepted"]
    return labelled(with_loss, loss_N[has_loss] <= params.label.nats, rollouts=0)


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
