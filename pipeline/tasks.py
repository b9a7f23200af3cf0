"""The task of params.yaml, and lm-eval's verdict on a model for exactly the prompts of data/prompts/test.jsonl."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError
from gistgate.lm_eval import task as tasks
from gistgate.lm_eval.model import GatedLM
from gistgate.lm_eval.task import Prompting, Task, TaskSpec
from pipeline.params import Params
from pipeline.paths import TASKS


@dataclass(frozen=True)
class Judged:
    """What lm-eval found."""

    samples: list[dict[str, Any]]
    """Per prompt: id, correct (the metric's value), text, cut (whether the limit ended it), statistics; in order."""
    statistics: Statistics  # the sum over the prompts

    @property
    def accuracy(self) -> float:
        """Mean of the task's metric."""
        return float(sum(sample["correct"] for sample in self.samples) / len(self.samples))

    @property
    def cut(self) -> int:
        """Answers that the limit ended; their metric says little about their meaning."""
        return sum(sample["cut"] for sample in self.samples)


def judge(lm: GatedLM, task: Task, prompts: list[dict[str, Any]]) -> Judged:
    """Evaluate the documents of `prompts` with lm-eval."""
    from lm_eval.evaluator import evaluate

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


def load_task(params: Params) -> Task:
    """The task of params.yaml, prompted as its block `prompting` says."""
    return tasks.load_task(task_spec(params))


def task_parts(params: Params) -> list[Any]:
    """What verdicts depend on besides code, for a fingerprint: the task's settings, its files and its documents."""
    data = [Path(params.task_data)] if params.task_data else []
    return [params.task, params.task_metric, TASKS, *data]


def task_spec(params: Params) -> TaskSpec:
    """What params.yaml says about the task."""
    asked = params.prompting
    prompting = Prompting(asked.num_fewshot, asked.chat_template, asked.system)
    longest = params.decoding.max_new_tokens
    return TaskSpec(params.task, params.task_metric, params.task_data, prompting, longest, params.allow_code)
