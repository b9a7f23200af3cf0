"""Let lm-eval judge a method on the test split, at the setting that is certified for the headline budget.

    python -m pipeline.stages.evaluate fly     writes reports/evaluation/fly/{summary.json,samples.jsonl}

"plain" decodes without a drafter. A method that has no certified setting at the headline budget runs strictly, and its
summary says so.
"""

import logging
from dataclasses import dataclass
from typing import Any

from gistgate.core.certificate import scope_mismatch
from gistgate.core.decoder import Decoder
from gistgate.core.files import read_json, write_json, write_json_lines
from gistgate.core.gate import Gate
from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError
from gistgate.lm_eval.model import GatedLM
from gistgate.lm_eval.task import Task
from pipeline.decode import (
    Operating,
    calibration_file,
    evaluation_folder,
    load_gate,
    load_task,
    make_decoder,
    operating_point,
    read_prompts,
)
from pipeline.outcomes import scope_of
from pipeline.pair.pair import load_pair, read_pair
from pipeline.params import Params, read_params
from pipeline.run import run
from pipeline.stages.prompts import context_length


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


def main(name: str) -> None:
    params = read_params()
    point, evaluation = operating_point(params, name), Evaluation(params)
    judged, folder = evaluation.judge(evaluation.decoder(point)), evaluation_folder(name)
    write_json_lines(folder / "samples.jsonl", judged.samples)
    write_json(folder / "summary.json", evaluation.summary(point, judged))
    tau, cut = judged.statistics.mean_accepted_length, f"{judged.cut} of {len(judged.samples)} answers cut"
    print(f"{name}: accuracy {judged.accuracy:.4f}, tau {tau:.3f}, {cut} at the limit")


class Evaluation:
    """The pair, the task and the test prompts."""

    def __init__(self, params: Params) -> None:
        logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)  # it warns of every loaded model
        self.params, self.pair, self.task = params, load_pair(params), load_task(params)
        self.prompts = read_prompts("test")
        if not self.prompts:
            raise UserError("data/prompts/test.jsonl is empty. Run the stage `prompts` again.")

    def decoder(self, point: Operating) -> Decoder:
        """The decoder of a method, certified for what it is about to do."""
        method = point.as_method()
        gate = load_gate(method, self.pair)
        self.check_certificate(point, gate)
        return make_decoder(self.pair, method, point.settings, point.block, gate=gate)

    def judge(self, decoder: Decoder) -> Judged:
        """lm-eval's verdict on a decoder."""
        lm = GatedLM(
            self.pair.target,
            decoder=decoder,
            tokenizer=self.pair.tokenizer,
            batch_size=self.params.decoding.batch_size,
            max_length=context_length(read_pair(self.params.pair)),
            seed=self.params.seed,
        )
        return judge(lm, self.task, self.prompts)

    def check_certificate(self, point: Operating, gate: Gate | None) -> None:
        """Refuse a certificate that was made for other models, prompts or settings."""
        if point.knob is None:
            return
        certified = read_json(calibration_file(point.method))["proof"]["scope"]
        broken = scope_mismatch(certified, scope_of(self.params, point.method, self.pair, self.task, gate))
        if broken:
            raise UserError(f"Method '{point.method}': {broken}")

    def summary(self, point: Operating, judged: Judged) -> dict[str, Any]:
        """What the report reads."""
        counted = judged.statistics
        return {
            **point.as_dict(),
            "metric": self.task.metric,
            "n": len(judged.samples),
            "accuracy": judged.accuracy,
            "cut": judged.cut,
            "mean_accepted_length": counted.mean_accepted_length,
            "loose_per_100": counted.loose_per_100,
            "statistics": counted.as_dict(timed=False),
        }


if __name__ == "__main__":
    run(main)
