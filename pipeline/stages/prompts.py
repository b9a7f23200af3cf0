"""Turn the task's documents into prompts for training, development, calibration, guard and test,
disjoint by problem: `python -m pipeline.stages.prompts` writes data/prompts/*.jsonl. All but test
come from the task's training split in an order that the seed decides; test is what lm-eval
evaluates, in its own order."""

import random
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

from gistgate.core.files import write_json, write_json_lines
from gistgate.core.utils import UserError
from gistgate.lm_eval.files import files_of
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
SPLITS = ("calibration", "development", "train", "guard")
"""Splits that share the training documents, in the order they are served: more training prompts
move no split before them. Further draws of calibration prompts come last."""
WORLD_TASK = "wordproblems"  # the task whose problems are drawn from the embedded world
NOTE = (
    "All prompts but those of test come from the task's training split. A pretrained model may have"
    " seen those problems; only the test prompts speak about unseen ones."
)
PASSED_OVER = (
    1000  # most training documents that stand in for the calibration prompts of the world, unused
)


def main() -> None:
    params = read_params()
    source = read_pair(params.pair)
    tokenizer = load_tokenizer(source)
    if not params.prompting.chat_template:
        warn_untemplated(tokenizer, TEMPLATE)
    maker = PromptMaker(task := load_task(params), tokenizer, context_length(source))
    check_watched(task, params.documents)
    write_prompts(maker, params, PROMPTS)


def check_watched(task: HarnessTask, documents: str) -> None:
    """Refuse documents that DVC does not watch: nobody would notice that they changed."""
    config = task.harness.config
    watched = [Path(place).resolve() for place in (TASKS, documents)]
    named = (config.dataset_kwargs or {}).get("data_files") or []
    groups = [*(named.values() if isinstance(named, dict) else [named])]
    groups += [config.dataset_path] if Path(str(config.dataset_path)).exists() else []
    groups += map(str, files_of(TASKS / f"{task.name}.yaml"))
    for file in (
        one
        for group in groups
        for one in ([group] if isinstance(group, str) else group)
        if "://" not in one
    ):
        if not any(Path(file).resolve().is_relative_to(place) for place in watched):
            raise UserError(
                f"The task '{task.name}' reads {file}, which `dvc repro` does not watch. Set"
                " `documents` in params.yaml to it or its folder."
            )


def write_prompts(maker: PromptMaker, params: Params, folder: Path) -> None:
    """Fill `folder` with a file for each split, and with summary.json."""
    splits = {"test": maker.test_prompts(params.prompts.test)}
    taken = {maker.task.problem(prompt["doc"]) for prompt in splits["test"]}
    splits |= training_prompts(maker, params, taken)
    for name, prompts in splits.items():
        write_json_lines(folder / f"{name}.jsonl", prompts)
    counts = {name: len(prompts) for name, prompts in splits.items()}
    summary = {
        "prompts": counts,
        "too_long": maker.too_long,
        "metric": maker.task.metric,
        "note": NOTE,
    }
    write_json(folder / "summary.json", summary)
    learned = hashes_of(maker.task.problem(prompt["doc"]) for prompt in splits["train"])
    write_json(folder / LEARNED.name, {"train": learned})
    left_out = ", ".join(
        f"{count} {split} documents" for split, count in maker.too_long.items() if count
    )
    told = f"(too long for the context: {left_out})" if left_out else ""
    print("prompts:", ", ".join(f"{count} {name}" for name, count in counts.items()), told)


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
    if of_the_world(
        params
    ):  # which draws calibration prompts without end, so that their number moves no other split
        sizes["calibration"] = min(sizes["calibration"], PASSED_OVER)
    splits = {name: list(islice(supply, size)) for name, size in sizes.items()}
    found = sum(map(len, splits.values()))
    wanted = sum(sizes.values())
    if found < wanted:
        raise UserError(
            "The prompts block asks for"
            f" {', '.join(f'{size} {name}' for name, size in sizes.items())} prompts, {wanted} with"
            f" the defaults of sizes that it leaves out, but of the {len(docs)} training documents"
            f" of '{maker.task.name}' only {found} are usable: the others repeat a problem or are"
            " longer than the context. Lower the sizes in params.yaml."
        )
    if params.prompts.draw > 1 or of_the_world(params):
        seen |= {
            maker.task.problem(prompt["doc"]) for prompts in splits.values() for prompt in prompts
        }
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
        prompts: list[Prompt] = []
        for count in (size, 2 * size):  # a few of them may repeat a problem or be too long
            # As those of the test file, so that a certificate made with them speaks about the
            # problems of that file.
            docs = documents(params.world, params.seed, "test", count, stream=f"calibration {draw}")
            fresh = fresh_prompts(
                maker, docs, random.Random(f"{params.seed} draw {draw}"), set(seen)
            )
            if len(prompts := list(islice(fresh, size))) == size:
                break
    else:
        prompts = list(islice(supply, (draw - 2) * size, (draw - 1) * size))
    if len(prompts) < size:
        raise UserError(
            f"Draw {draw} needs {size} prompts, and {len(prompts)} are left. Lower one of the two."
        )
    return [{**prompt, "id": f"draw-{draw}-{place}"} for place, prompt in enumerate(prompts)]


def of_the_world(params: Params) -> bool:
    """Whether the task's problems are drawn from the embedded world, which has no end of them."""
    return params.task == WORLD_TASK and params.task_data is None


if __name__ == "__main__":
    run(main)
