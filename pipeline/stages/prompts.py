"""Turn the task's documents into prompts for training, development, calibration, guard, draft and
test, disjoint by problem: `python -m pipeline.stages.prompts` writes data/prompts/*.jsonl. All but
test come from the task's training split in an order that the seed decides; test is what lm-eval
evaluates, in its own order.
"""

import itertools
import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gistgate.core.files import write_json, write_json_lines
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import HarnessTask
from gistgate.models.tokenizers import warn_untemplated
from gistgate.tasks.prompts import Prompt, PromptMaker, fresh_prompts, hashes_of
from pipeline.pair.pair import load_tokenizer, read_pair
from pipeline.pair.world import documents
from pipeline.params import Params, read_params
from pipeline.paths import LEARNED, PROMPTS, TASKS
from pipeline.run import run
from pipeline.task import context_length, load_task

TEMPLATE = "set `prompting.chat_template` in params.yaml to true unless the model is a base model"
"""What helps where the tokenizer has a chat template that prompts are not wrapped in."""
SPLITS = ("calibration", "development", "train", "guard", "draft")
"""Splits that share the training documents, in the order they are served: more training prompts
move no split before them. Further draws of calibration prompts come last.
"""
WORLD_TASK = "wordproblems"  # the task whose problems are drawn from the embedded world
NOTE = (
    "All prompts but those of test come from the task's training split. A pretrained model may have"
    " seen those problems; only the test prompts speak about unseen ones."
)
PASSED_OVER = 1000
"""Most training documents that stand in for the calibration prompts of the world, unused."""


def main() -> None:
    params = read_params()
    source = read_pair(params.pair)
    tokenizer = load_tokenizer(source)
    if not params.prompting.chat_template:
        warn_untemplated(tokenizer, TEMPLATE)
    task = load_task(params)
    check_watched(task, params.documents)
    write_prompts(PromptMaker(task, tokenizer, context_length(source)), params, PROMPTS)


def check_watched(task: HarnessTask, documents: str) -> None:
    """Refuse documents that DVC does not watch: nobody would notice that they changed."""
    watched = [Path(place).resolve() for place in (TASKS, documents)]
    for file in read_files(task):
        if not any(Path(file).resolve().is_relative_to(place) for place in watched):
            raise UserError(
                f"The task '{task.name}' reads {file}, which `dvc repro` does not watch. Set"
                " `documents` in params.yaml to it or its folder."
            )


def read_files(task: HarnessTask) -> list[str]:
    """The local files that a task is defined by and takes its documents from."""
    config = task.harness.config
    named = (config.dataset_kwargs or {}).get("data_files") or []
    files: list[str] = []
    for group in named.values() if isinstance(named, dict) else [named]:
        files += [group] if isinstance(group, str) else group
    if Path(str(config.dataset_path)).exists():
        files.append(config.dataset_path)
    files += map(str, task.files)
    return [file for file in files if "://" not in file]


def write_prompts(maker: PromptMaker, params: Params, folder: Path) -> None:
    """Fill `folder` with a file for each split, and with summary.json."""
    splits = {"test": maker.test_prompts(params.prompts.test)}
    splits |= training_prompts(maker, params, problems_of(maker, splits))
    for name, prompts in splits.items():
        write_json_lines(folder / f"{name}.jsonl", prompts)
    counts = {name: len(prompts) for name, prompts in splits.items()}
    too_long = maker.too_long
    metric = maker.task.metric
    summary = {"prompts": counts, "too_long": too_long, "metric": metric, "note": NOTE}
    write_json(folder / "summary.json", summary)
    lessons = itertools.chain(splits["train"], splits["draft"])  # of the gate and of the draft
    learned = hashes_of(maker.task.problem(prompt["doc"]) for prompt in lessons)
    write_json(folder / LEARNED.name, {"train": learned})
    print(f"prompts: {listed(counts)}")
    if any(too_long.values()):
        print(f"too long for the context: {listed(too_long)}")


def listed(counts: dict[str, int]) -> str:
    """Numbers by what they count, in a sentence, without zeros."""
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def problems_of(maker: PromptMaker, splits: dict[str, list[Prompt]]) -> set[str]:
    """The problems of the prompts of some splits."""
    prompts = itertools.chain.from_iterable(splits.values())
    return {maker.task.problem(prompt["doc"]) for prompt in prompts}


def training_prompts(
    maker: PromptMaker, params: Params, taken: set[str]
) -> dict[str, list[Prompt]]:
    """The splits from the training documents; problems in `taken` and repeated ones are passed
    over.
    """
    docs = maker.task.documents("train")
    seen = set(taken)
    supply = fresh_prompts(maker, docs, random.Random(params.seed), seen)
    sizes = {name: getattr(params.prompts, name) for name in SPLITS}
    if of_the_world(params):  # whose calibration prompts are drawn, so that they move no split
        sizes["calibration"] = min(sizes["calibration"], PASSED_OVER)
    splits = {name: list(islice(supply, size)) for name, size in sizes.items()}
    needed = sum(sizes.values())
    usable = sum(map(len, splits.values()))
    if usable < needed:
        raise UserError(
            f"The prompts block asks for {listed(sizes)} prompts, {needed} together, but of the"
            f" {len(docs)} training documents of '{maker.task.name}' only {usable} are usable: the"
            " others repeat a problem or are longer than the context. Lower the sizes in"
            " params.yaml."
        )
    if params.prompts.draw > 1 or of_the_world(params):
        seen |= problems_of(maker, splits)
        splits["calibration"] = drawn_prompts(maker, params, supply, seen)
    return splits


def drawn_prompts(
    maker: PromptMaker, params: Params, supply: Iterator[Prompt], seen: set[str]
) -> list[Prompt]:
    """Calibration prompts of `prompts.draw`, of the world or else of `supply`; `seen` are all other
    problems.
    """
    draw = params.prompts.draw
    size = params.prompts.calibration
    if of_the_world(params):
        prompts = world_prompts(maker, params, seen)
    else:
        prompts = list(islice(supply, (draw - 2) * size, (draw - 1) * size))
    if len(prompts) < size:
        raise UserError(
            f"Draw {draw} needs {size} prompts, and {len(prompts)} are left. Lower one of the two."
        )
    return [{**prompt, "id": f"draw-{draw}-{place}"} for place, prompt in enumerate(prompts)]


def world_prompts(maker: PromptMaker, params: Params, seen: set[str]) -> list[Prompt]:
    """Calibration prompts drawn as the problems of the test file are, so that a certificate made
    with them speaks about those.
    """
    draw = params.prompts.draw
    size = params.prompts.calibration
    prompts: list[Prompt] = []
    for count in (size, 2 * size):  # some of the first may repeat a problem or be too long
        docs = documents(params.world, params.seed, "test", count, stream=f"calibration {draw}")
        order = random.Random(f"{params.seed} draw {draw}")
        prompts = list(islice(fresh_prompts(maker, docs, order, set(seen)), size))
        if len(prompts) == size:
            break
    return prompts


def of_the_world(params: Params) -> bool:
    """Whether the task's problems are drawn from the embedded world, which has no end of them."""
    return params.task == WORLD_TASK and params.task_data is None


if __name__ == "__main__":
    run(main)
