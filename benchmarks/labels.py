"""Labels per second: mining in batches from remembered keys and values, against one rollout at a time from scratch.

    python -m benchmarks.labels [rounds]      writes benchmarks/results/labels-<cpu|gpu>.json

Both sides walk along the target's greedy answers, force every draft token, and ask the task whether the answer
changed (arXiv 2504.20039). The plain side reads the whole prefix again for every token, as the published procedure
does. Rounds alternate; ratios are per round, their interval is a bootstrap over rounds.
"""

from __future__ import annotations

from pathlib import Path
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import torch
import typer
from scipy.stats import bootstrap

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.task import Task
from gistgate.request.stopping import eos_ids
from pipeline.common.code import write_result
from pipeline.common.decoders import read_prompts
from pipeline.common.entry import run
from pipeline.labels.collecting import strict_collector
from pipeline.labels.cost import Cost
from pipeline.labels.texts import read_references
from pipeline.labels.tools import tools_of
from pipeline.pairs.pair import Pair, load_pair
from pipeline.params import read_params
from pipeline.speed.clock import machine
from pipeline.tasks.loading import load_task

OURS, PLAIN = 96, 4
"""Problems per round on either side: a batch of the usual size, and as many as one at a time allow."""


def main(rounds: Annotated[int, typer.Argument(help="Rounds on either side.")] = 3) -> None:
    if rounds < 2:
        raise UserError("An interval over rounds needs at least two. Pass a larger number, or none for three rounds.")
    params = read_params()
    pair, task, prompts = load_pair(params), load_task(params), read_prompts("train")
    tools = tools_of(params, pair, task, prompts, read_references(), "speculative", Cost())
    collect = strict_collector(params, tools, prompts)
    rows = []
    for turn in range(rounds):
        problems = [(turn * OURS + offset) % len(prompts) for offset in range(OURS)]
        started = perf_counter()
        table, _ = collect(problems)
        ours = int((table["greedy_kept"] >= 0).sum()) / (perf_counter() - started)
        started = perf_counter()
        labels = [label for problem in problems[:PLAIN] for label in one_by_one(pair, task, prompts[problem])]
        plain = len(labels) / (perf_counter() - started)
        rows.append({"ours": ours, "plain": plain, "ratio": ours / plain})
        print(f"round {turn}: {ours:.1f} against {plain:.1f} labels per second, {ours / plain:.1f}x")
    write_result(
        Path(f"benchmarks/results/labels-{device()}.json"), {**summary(rows), "machine": machine()}, "benchmarks.labels"
    )


@torch.inference_mode()
def one_by_one(pair: Pair, task: Task, prompt: dict[str, Any]) -> list[tuple[int, bool]]:
    """(position, kept) of every mismatch of one problem, by the plain procedure."""
    ids, left = prompt["ids"], 0
    current = reference = generated(pair, ids, prompt["max_new_tokens"])
    expected, labels = task.text(pair.tokenizer, reference), []
    while (at := first_mismatch(pair, ids, current, left)) is not None:
        position, token = at
        changed = [*current[:position], token]
        changed += generated(pair, [*ids, *changed], prompt["max_new_tokens"] - len(changed))
        kept = bool(task.same_meaning(prompt["doc"], task.text(pair.tokenizer, changed), expected))
        labels.append((position, kept))
        current, left = (changed if kept else current), position + 1
    return labels


def first_mismatch(pair: Pair, prompt: list[int], answer: list[int], left: int) -> tuple[int, int] | None:
    """The first place from `left` on where the draft would write something else, and what."""
    text = torch.tensor([[*prompt, *answer]], device=pair.draft.device)
    drafted = pair.draft(text).logits[0].argmax(-1)[len(prompt) - 1 : -1].tolist()
    ends = set(eos_ids(pair.target, pair.tokenizer))
    for position in range(left, len(answer)):
        if drafted[position] != answer[position] and not {drafted[position], answer[position]} & ends:
            return position, drafted[position]
    return None


def generated(pair: Pair, ids: list[int], max_new_tokens: int) -> list[int]:
    """The target's greedy continuation."""
    if max_new_tokens < 1:
        return []
    text = torch.tensor([ids], device=pair.target.device)
    out = pair.target.generate(
        input_ids=text,
        attention_mask=torch.ones_like(text),
        do_sample=False,
        max_new_tokens=max_new_tokens,
        eos_token_id=eos_ids(pair.target, pair.tokenizer),
        pad_token_id=pair.tokenizer.pad_token_id,
    )
    return list(out[0, len(ids) :].tolist())


def summary(rows: list[dict[str, float]]) -> dict[str, Any]:
    """Means, and the ratio with its 90 % bootstrap interval over rounds."""
    ratios = np.array([row["ratio"] for row in rows])
    found = bootstrap((ratios,), np.mean, confidence_level=0.9, method="percentile", rng=0).confidence_interval
    return {
        "labels_per_second": {side: float(np.mean([row[side] for row in rows])) for side in ("ours", "plain")},
        "ratio": {"mean": float(ratios.mean()), "low": float(found.low), "high": float(found.high)},
        "rounds": len(rows),
    }


def device() -> str:
    return "gpu" if torch.cuda.is_available() else "cpu"


if __name__ == "__main__":
    run(main)
