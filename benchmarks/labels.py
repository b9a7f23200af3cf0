"""Labels per second: mining in batches from remembered keys and values, against one rollout at a time from scratch.

    python -m benchmarks.labels [rounds] [--problems 96] [--singly 4] [--threads 1] [--results FOLDER]

In the folder of a run, behind the stage `reference`; writes labels-<task>-<cpu|gpu>.json after every round. Both sides
walk along the target's greedy answers to problems that the stage `collect` would take, force every draft token, and ask
the task whether the answer changed (arXiv 2504.20039). The plain side reads the whole prefix again for every token, as
the published procedure does, and takes the first problems of each round. Rounds alternate; ratios are per round.
"""

from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer

from benchmarks.speed import RESULTS, save
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import Task
from gistgate.measure.speed import theirs
from gistgate.measure.statistics import over_rounds
from pipeline.decode import load_task, read_prompts, request_of
from pipeline.labels.labelling import tools_of
from pipeline.labels.mining import collect_strict
from pipeline.labels.rollouts import Cost
from pipeline.labels.schema import read_references
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import read_params
from pipeline.run import run
from pipeline.stages.collect import minable


def main(
    rounds: Annotated[int, typer.Argument(help="Rounds on either side.", min=2)] = 3,
    problems: Annotated[int, typer.Option(help="Problems per round in batches.", min=1)] = 96,
    singly: Annotated[int, typer.Option(help="How many of them one rollout at a time.", min=1)] = 4,
    threads: Annotated[int, typer.Option(help="Threads of torch.", min=1)] = 1,
    results: Annotated[Path, typer.Option(help="Folder of the result.")] = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    params, singly = read_params(), min(singly, problems)
    pair, task, prompts, mined = load_pair(params), load_task(params), read_prompts("train"), minable(params)
    if rounds * problems > len(mined):  # what was read of a prompt is remembered, so that none may come again
        raise UserError(
            f"{rounds} rounds of {problems} problems need {rounds * problems} that can be mined, and there are "
            f"{len(mined)}. Lower the rounds or --problems."
        )
    tools = tools_of(params, pair, task, prompts, read_references(), Cost())
    request, rows = request_of(prompts, pair), []
    for turn in range(rounds):
        some = mined[turn * problems : (turn + 1) * problems]
        started = perf_counter()
        table, _ = collect_strict(params, tools, prompts, some)
        batched = rate(int((table["greedy_kept"] >= 0).sum()) if table else 0, started)
        started = perf_counter()
        plain = rate(sum(len(plain_labels(pair, task, request, prompts[one])) for one in some[:singly]), started)
        rows.append({"ours": batched, "plain": plain, "ratio": batched / plain})
        print(f"round {turn}: {batched:.2f} against {plain:.2f} labels per second, {batched / plain:.1f}x", flush=True)
        found = {
            "labels_per_second": {side: fmean(row[side] for row in rows) for side in ("ours", "plain")},
            "ratio": over_rounds(np.mean, [row["ratio"] for row in rows]),
            "rounds": len(rows),
            "each": rows,
        }
        about = {"pair": pair.name, "task": params.task, "problems": problems, "singly": singly}
        save(f"labels-{params.task}", {**found, **about}, results)


def rate(labels: int, started: float) -> float:
    """Labels per second since then."""
    if not labels:
        raise UserError("These problems have no mismatch to label. Take more of them.")
    return labels / (perf_counter() - started)


def plain_labels(pair: Pair, task: Task, request: dict[str, Any], prompt: dict[str, Any]) -> list[tuple[int, bool]]:
    """(position, kept) of every mismatch of one problem by the plain procedure: every rollout alone, from scratch."""

    def continued(ids: list[int], most: int) -> list[int]:
        return theirs(pair, {**request, "max_new_tokens": most})([ids])[0][0] if most > 0 else []

    ids, most, left = prompt["ids"], request["max_new_tokens"], 0
    current = continued(ids, most)
    expected, labels = task.text(pair.tokenizer, current), []
    while (at := first_mismatch(pair, set(request["eos_ids"]), ids, current, left)) is not None:
        position, token = at
        changed = [*current[:position], token]
        changed += continued([*ids, *changed], most - len(changed))
        kept = bool(task.same_meaning(prompt["doc"], task.text(pair.tokenizer, changed), expected))
        labels.append((position, kept))
        current, left = (changed if kept else current), position + 1
    return labels


@torch.inference_mode()
def first_mismatch(
    pair: Pair, ends: set[int], prompt: list[int], answer: list[int], left: int
) -> tuple[int, int] | None:
    """The first place from `left` on where the draft would write something else, and what."""
    text = torch.tensor([[*prompt, *answer]], device=pair.target.device)
    drafted = pair.draft_model(text).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
    for position in range(left, len(answer)):
        if drafted[position] != answer[position] and not {drafted[position], answer[position]} & ends:
            return position, drafted[position]
    return None


if __name__ == "__main__":
    run(main)
