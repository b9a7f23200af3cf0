"""Labels per second: mining in batches from remembered keys and values, against one rollout at a time from scratch.

    python -m benchmarks.labels [rounds] [--problems 96] [--singly 4] [--threads 1] [--results FOLDER]

In the folder of a run, behind the stage `reference`; writes labels-<cpu|gpu>.json after every round, for another task
than that of the embedded pair labels-<task>-<cpu|gpu>.json. Both sides walk along the target's greedy answers to
problems that the stage `collect` would take, force every draft token, and ask the task whether the answer changed
(arXiv 2504.20039). The plain side reads the whole prefix again for every token, as the published procedure does, and
takes the first problems of each round. Rounds alternate; ratios are per round, with their range, or with a bootstrap
over them from eight rounds on.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from time import perf_counter
from typing import Annotated, Any

import torch
import typer

from benchmarks.intervals import over_rounds
from benchmarks.speed import RESULTS, save
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import Task
from gistgate.measure.speed import theirs
from pipeline.decode import read_prompts, request_of
from pipeline.labels.labelling import tools_of
from pipeline.labels.mining import strict_collector
from pipeline.labels.rollouts import Cost
from pipeline.labels.schema import read_references
from pipeline.pair.pair import Pair, load_pair
from pipeline.params import read_params
from pipeline.run import run
from pipeline.stages.collect import minable
from pipeline.tasks import load_task

EMBEDDED = "wordproblems"
"""The task of the embedded pair."""


def main(
    rounds: Annotated[int, typer.Argument(help="Rounds on either side.", min=2)] = 3,
    problems: Annotated[int, typer.Option(help="Problems per round in batches.", min=1)] = 96,
    singly: Annotated[int, typer.Option(help="How many of them one rollout at a time.", min=1)] = 4,
    threads: Annotated[int, typer.Option(help="Threads of torch.", min=1)] = 1,
    results: Annotated[Path, typer.Option(help="Folder of the result.")] = RESULTS,
) -> None:
    torch.set_num_threads(threads)
    params = read_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    mined = minable(params)
    check_sizes(rounds, problems, singly, len(mined))
    plain = Plain(pair, task, request_of(prompts, pair))
    tools = tools_of(params, pair, task, prompts, read_references(), Cost())
    collect = strict_collector(params, tools, prompts)
    rows = []
    for turn in range(rounds):
        some = mined[turn * problems : (turn + 1) * problems]
        started = perf_counter()
        table, _ = collect(some)
        ours = rate(int((table["greedy_kept"] >= 0).sum()), started)
        started = perf_counter()
        singles = rate(sum(len(plain.labels(prompts[problem])) for problem in some[:singly]), started)
        rows.append({"ours": ours, "plain": singles, "ratio": ours / singles})
        print(f"round {turn}: {ours:.2f} against {singles:.2f} labels per second, {ours / singles:.1f}x", flush=True)
        about = {"pair": pair.name, "task": params.task, "problems": problems, "singly": singly}
        save("labels" if params.task == EMBEDDED else f"labels-{params.task}", {**summary(rows), **about}, results)


def check_sizes(rounds: int, problems: int, singly: int, prompts: int) -> None:
    """Refuse sizes with which a problem comes again, because what was read of its prompt is remembered.

    Raises:
        UserError: which sizes have to be smaller.
    """
    if singly > problems:
        raise UserError(f"--singly {singly} is more than --problems {problems}. Lower it.")
    if rounds * problems > prompts:
        raise UserError(
            f"{rounds} rounds of {problems} problems need {rounds * problems} that can be mined, and there are "
            f"{prompts}. Lower the rounds or --problems."
        )


def rate(labels: int, started: float) -> float:
    """Labels per second since then.

    Raises:
        UserError: the problems have no mismatch.
    """
    if not labels:
        raise UserError("These problems have no mismatch to label. Take more of them.")
    return labels / (perf_counter() - started)


@dataclass(frozen=True)
class Plain:
    """The plain procedure: every rollout alone, from scratch."""

    pair: Pair
    task: Task
    request: dict[str, Any]

    def labels(self, prompt: dict[str, Any]) -> list[tuple[int, bool]]:
        """(position, kept) of every mismatch of one problem."""
        ids, left = prompt["ids"], 0
        current = self.generated(ids, self.request["max_new_tokens"])
        expected, labels = self.text(current), []
        while (at := self.first_mismatch(ids, current, left)) is not None:
            position, token = at
            changed = [*current[:position], token]
            changed += self.generated([*ids, *changed], self.request["max_new_tokens"] - len(changed))
            kept = bool(self.task.same_meaning(prompt["doc"], self.text(changed), expected))
            labels.append((position, kept))
            current, left = (changed if kept else current), position + 1
        return labels

    def text(self, answer: list[int]) -> str:
        """The answer as the task reads it."""
        return self.task.text(self.pair.tokenizer, answer)

    @torch.inference_mode()
    def first_mismatch(self, prompt: list[int], answer: list[int], left: int) -> tuple[int, int] | None:
        """The first place from `left` on where the draft would write something else, and what."""
        draft = self.pair.draft_model
        text = torch.tensor([[*prompt, *answer]], device=self.pair.target.device)
        drafted = draft(text).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
        ends = set(self.request["eos_ids"])
        for position in range(left, len(answer)):
            if drafted[position] != answer[position] and not {drafted[position], answer[position]} & ends:
                return position, drafted[position]
        return None

    def generated(self, ids: list[int], max_new_tokens: int) -> list[int]:
        """The target's greedy continuation, up to a text or token that ends the answer."""
        if max_new_tokens < 1:
            return []
        answers, _ = theirs(self.pair, {**self.request, "max_new_tokens": max_new_tokens})([ids])
        return answers[0]


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means, and the mean ratio with its ends over rounds."""
    return {
        "labels_per_second": {side: fmean(row[side] for row in rows) for side in ("ours", "plain")},
        "ratio": over_rounds(lambda seen: seen["ratio"].mean(-1), {"ratio": [row["ratio"] for row in rows]}),
        "rounds": len(rows),
        "each": rows,
    }


if __name__ == "__main__":
    run(main, kept=False)
