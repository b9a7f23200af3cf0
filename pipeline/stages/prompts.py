"""Turn the task's documents into prompts for training, development, calibration and test, disjoint by problem.

    python -m pipeline.stages.prompts     params.yaml (pair, task, prompting, prompts) -> data/prompts/*.jsonl

Training, development and calibration come from the task's training split in an order that the seed decides; test is
what lm-eval evaluates, in its own order. Training problems may be known to real models from their own training, which
flatters their accuracy on everything but test; summary.json says so beside the counts.
"""

from __future__ import annotations

import random
import warnings
from itertools import islice
from pathlib import Path

from lm_eval.defaults import DEFAULT_MAX_LENGTH

from gistgate.errors import UserError
from gistgate.files import write_json, write_json_lines
from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, fresh_prompts
from pipeline.common.entry import run
from pipeline.pairs.loading import load_config, load_tokenizer
from pipeline.pairs.source import PairSource, read_pair
from pipeline.params import Params, read_params
from pipeline.tasks.loading import load_task

PROMPTS = Path("data/prompts")
SPLITS = ("calibration", "development", "train")
"""Splits that share the training documents, in the order they are served: more training prompts move no other split."""
UNTEMPLATED = (
    "The tokenizer has a chat template, and `prompting.chat_template` in params.yaml is false. Instruction-tuned "
    "models answer worse without their template; set it to true unless the model is a base model."
)
NOTE = (
    "Train, development and calibration prompts come from the task's training split. A pretrained model may have seen "
    "those problems; only the test prompts speak about unseen ones."
)


def main() -> None:
    params = read_params()
    source = read_pair(params.pair)
    tokenizer = load_tokenizer(source)
    if tokenizer.chat_template is not None and not params.prompting.chat_template:
        warnings.warn(UNTEMPLATED, stacklevel=1)
    maker = PromptMaker(load_task(params), tokenizer, context_length(source))
    write_prompts(maker, params, PROMPTS)


def context_length(source: PairSource) -> int:
    """Tokens that both models can read."""
    configs = [load_config(model).get_text_config() for model in (source.target, source.draft)]
    known = [getattr(config, "max_position_embeddings", None) for config in configs]
    return min(int(length or DEFAULT_MAX_LENGTH) for length in known)


def write_prompts(maker: PromptMaker, params: Params, folder: Path) -> None:
    """Fill `folder` with a file for each split, and with summary.json.

    Raises:
        UserError: too few documents, or an empty prompt.
    """
    splits = {"test": maker.test_prompts(params.prompts.test)}
    splits |= training_prompts(maker, params, {maker.problem(prompt["doc"]) for prompt in splits["test"]})
    for name, prompts in splits.items():
        write_json_lines(folder / f"{name}.jsonl", prompts)
    counts = {name: len(prompts) for name, prompts in splits.items()}
    summary = {"prompts": counts, "too_long": maker.too_long, "metric": maker.task.metric, "note": NOTE}
    write_json(folder / "summary.json", summary)
    print("prompts:", ", ".join(f"{count} {name}" for name, count in counts.items()), report(maker.too_long))


def report(too_long: dict[str, int]) -> str:
    """Who was left out, if anybody was."""
    left_out = [f"{count} {split} documents" for split, count in too_long.items() if count]
    return f"(too long for the context: {', '.join(left_out)})" if left_out else ""


def training_prompts(maker: PromptMaker, params: Params, taken: set[str]) -> dict[str, list[Prompt]]:
    """The three splits from the training documents; problems in `taken` and repeated ones are passed over."""
    docs = maker.task.documents("train")
    supply = fresh_prompts(maker, docs, random.Random(params.seed), set(taken))
    sizes = {name: getattr(params.prompts, name) for name in SPLITS}
    splits = {name: list(islice(supply, size)) for name, size in sizes.items()}
    found, wanted = sum(map(len, splits.values())), sum(sizes.values())
    if found < wanted:
        raise UserError(
            f"The prompts block asks for {wanted} training, development and calibration prompts, but of the {len(docs)}"
            f" training documents of '{maker.task.name}' only {found} are usable: the others repeat a problem or are "
            "longer than the context. Lower the sizes in params.yaml."
        )
    return splits


if __name__ == "__main__":
    run(main)
