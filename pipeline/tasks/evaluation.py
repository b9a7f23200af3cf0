"""lm-eval's verdict on a model, for exactly the prompts of data/prompts/test.jsonl."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from lm_eval.evaluator import evaluate

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.model import GatedLM
from gistgate.integrations.lm_eval.task import Task
from gistgate.request.slots import Usage
from gistgate.request.statistics import Statistics, total


@dataclass(frozen=True)
class Judged:
    """What lm-eval found."""

    samples: list[dict[str, Any]]
    """Per prompt: id, correct (the metric's value), text, cut (whether the limit ended it), statistics; in order."""
    statistics: Statistics
    """The sum over the prompts."""
    usage: Usage = field(default_factory=Usage)
    """How the slots of what was decoded for this verdict were used."""

    @property
    def accuracy(self) -> float:
        """Mean of the task's metric."""
        return float(sum(sample["correct"] for sample in self.samples) / len(self.samples))

    @property
    def cut(self) -> int:
        """Answers that the limit ended; their metric says little about their meaning."""
        return sum(sample["cut"] for sample in self.samples)


def judge(lm: GatedLM, task: Task, prompts: list[dict[str, Any]]) -> Judged:
    """Evaluate the documents of `prompts` with lm-eval.

    Raises:
        UserError: lm-eval serves other token ids than the prompts have, so the file is out of date.
    """
    # `evaluate` rather than `simple_evaluate`: the latter also describes the machine and asks Git, 1.5 s each time.
    wanted = {int(prompt["id"].rpartition("-")[2]): prompt for prompt in prompts}
    task.restart_examples()
    results = evaluate(
        lm=lm,
        task_dict={"tasks": {task.harness.task_name: task.harness}},
        limit=max(wanted) + 1,
        log_samples=True,
        bootstrap_iters=0,
        confirm_run_unsafe_code=True,  # a task that runs programs was refused when it was loaded, unless allowed
        **task.evaluation_arguments(),
    )
    found = task.verdicts_of(results)
    samples, counted = [], []
    for index, prompt in wanted.items():
        answers = lm.served.answers.get(tuple(prompt["ids"]))
        if answers is None:
            raise UserError("data/prompts/test.jsonl is out of date: lm-eval serves other tokens. Run `prompts` again.")
        counted.append(answers[0].statistics)
        score, text = found[index]
        told = {"cut": answers[0].finish == "length", "statistics": answers[0].statistics.as_dict(timed=False)}
        samples.append({"id": prompt["id"], "correct": score, "text": text, **told})
    return Judged(samples, total(counted))
