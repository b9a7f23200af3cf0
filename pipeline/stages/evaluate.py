"""Let lm-eval judge a method on the test split at the setting that is certified for the headline
budget, strictly where there is none: `python -m pipeline.stages.evaluate fly` writes
reports/evaluation/fly/{summary.json,samples.jsonl}. "plain" decodes without a drafter.
"""

import logging
from dataclasses import asdict
from typing import Any

from gistgate.core.files import read_json, write_json, write_json_lines
from gistgate.core.request import Statistics, total
from gistgate.core.utils import UserError
from gistgate.lm_eval.answered import AnsweredLM
from gistgate.lm_eval.model import GatedLM
from gistgate.lm_eval.task import HarnessTask
from pipeline.decode import decode_split, decoder_at, load_gate
from pipeline.operating import Operating, operating_point
from pipeline.outcomes import scope_of
from pipeline.pair.pair import Pair, read_pair
from pipeline.params import Params, read_params
from pipeline.paths import calibration_file, evaluation_folder
from pipeline.run import run
from pipeline.served import answering_decoder, load_answering
from pipeline.task import context_length, load_task, read_prompts


def main(name: str) -> None:
    # It warns of every loaded model.
    logging.getLogger("lm_eval.models.huggingface").setLevel(logging.ERROR)
    params = read_params()
    pair = load_answering(params)
    task = load_task(params)
    point = operating_point(params, name)
    if point.knob is not None:  # its certificate may be of other models, prompts or settings
        certified = read_json(calibration_file(name))["proof"]["scope"]
        scope = scope_of(params, name, pair, task)
        changed = [key for key in {*certified, *scope} if certified.get(key) != scope.get(key)]
        if changed:
            raise UserError(
                f"Method '{name}': its certificate was made with another"
                f" {', '.join(sorted(changed))}. Run the stage calibrate again."
            )
    prompts = read_prompts("test")
    if pair.server is None:
        lm = GatedLM(
            pair.target,
            decoder=decoder_at(pair, point, engine=point.engine),
            tokenizer=pair.tokenizer,
            batch_size=point.batch_size or params.decoding.batch_size,
            max_length=context_length(read_pair(params.pair)),
            seed=params.seed,
            chat_template_args=params.prompting.arguments,
        )
    else:
        lm = answered(params, pair, task, point, prompts)
    samples, counted = judge(lm, task, prompts)
    num = len(samples)
    accuracy = float(sum(sample["correct"] for sample in samples) / num)
    cut = sum(sample["cut"] for sample in samples)
    tau = counted.mean_accepted_length
    summary = {
        **asdict(point),
        "metric": task.metric,
        "n": num,
        "accuracy": accuracy,
        "cut": cut,
        "mean_accepted_length": tau,
        "loose_per_100": counted.loose_per_100,
        "statistics": counted.as_dict(timed=False),
    }
    folder = evaluation_folder(name)
    write_json_lines(folder / "samples.jsonl", samples)
    write_json(folder / "summary.json", summary)
    print(
        f"{name}: accuracy {accuracy:.4f}, tau {tau:.3f}, {cut} of {num} answers cut at the limit"
    )


def answered(
    params: Params, pair: Pair, task: HarnessTask, point: Operating, prompts: list[dict[str, Any]]
) -> AnsweredLM:
    """An lm-eval model that gives the answers of the pair's server to `prompts`."""
    decoder = answering_decoder(pair, point.choice, load_gate(point, pair))
    decoded = decode_split(decoder, pair, prompts, params, f"test, {point.method}")
    answers = {tuple(prompt["ids"]): answer for prompt, answer in zip(prompts, decoded)}
    return AnsweredLM(task, pair.tokenizer, answers)


def judge(
    lm: GatedLM | AnsweredLM, task: HarnessTask, prompts: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], Statistics]:
    """lm-eval's verdict on the documents of `prompts`, in their order, and the sum of their
    statistics.
    """
    from lm_eval.evaluator import evaluate

    places = [int(prompt["id"].rpartition("-")[2]) for prompt in prompts]
    task.restart_examples()
    # Not `simple_evaluate`, which also describes the machine and asks Git, 1.5 s each time.
    results = evaluate(
        lm=lm,
        task_dict={"tasks": {task.harness.task_name: task.harness}},
        limit=max(places) + 1,
        log_samples=True,
        bootstrap_iters=0,
        # a task that runs programs was refused when it was loaded, unless allowed
        confirm_run_unsafe_code=True,
        **task.evaluation_arguments(),
    )
    verdicts = task.verdicts_of(results)
    samples = []
    counted = []
    for place, prompt in zip(places, prompts):
        answers = lm.served.get(tuple(prompt["ids"]))
        if not answers:
            raise UserError(
                "data/prompts/test.jsonl is out of date: lm-eval serves other tokens. Run `prompts`"
                " again."
            )
        answer = answers[0]
        score, text = verdicts[place]
        counted.append(answer.statistics)
        sample = {"id": prompt["id"], "correct": score, "text": text}
        sample["cut"] = answer.finish == "length"
        sample["statistics"] = answer.statistics.as_dict(timed=False)
        samples.append(sample)
    return samples, total(counted)


if __name__ == "__main__":
    run(main)
