"""Turn the task's documents into prompts for training, development, calibration and test, disjoint by problem.

    python -m pipeline.stages.prompts     reads params.yaml (pair, task, prompting, prompts), writes data/prompts/*.jsonl

Training, development and calibration come from the task's training split in an order that the seed decides; test is
what lm-eval evaluates, in its own order. Training problems may be known to real models from their own training, which
flatters their accuracy on everything but test; summary.json says so beside the counts.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from lm_eval.defaults import DEFAULT_MAX_LENGTH
from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.files import write_json, write_json_lines
from gistgate.integrations.lm_eval.task import Document, Task, load_task
from pipeline.common.entry import run
from pipeline.pairs.loading import load_config, load_tokenizer
from pipeline.pairs.source import PairSource, read_pair
from pipeline.params import Params, read_params

PROMPTS = Path("data/prompts")
SPLITS = ("calibration", "development", "train")
"""Splits that share the training documents, in the order they are served: more training prompts move no other split."""
NOTE = (
    "Train, development and calibration prompts come from the task's training split. A pretrained model may have seen "
    "those problems; only the test prompts speak about unseen ones."
)

Prompt = dict[str, Any]
"""One line of the files: id, doc, context, ids, stops, max_new_tokens."""


def main() -> None:
    params = read_params()
    source = read_pair(params.pair)
    maker = Maker(load_task(params), load_tokenizer(source), context_length(source))
    write_prompts(maker, params, PROMPTS)


def context_length(source: PairSource) -> int:
    """Tokens that both models can read."""
    configs = [load_config(model).get_text_config() for model in (source.target, source.draft)]
    return min(getattr(config, "max_position_embeddings", None) or DEFAULT_MAX_LENGTH for config in configs)


def write_prompts(maker: Maker, params: Params, folder: Path) -> None:
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


class Maker:
    """Makes prompts out of documents, and counts those that do not fit."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        self.task, self.tokenizer = task, tokenizer
        self.room = context_length - task.max_new_tokens
        """Longest prompt that leaves space for the longest answer, in tokens."""
        self.too_long = {"train": 0, "test": 0}
        """Documents left out because their prompt is longer than that, by the task's split."""
        if self.room < 1:
            raise UserError(
                f"The models read {context_length} tokens and an answer may take {task.max_new_tokens}, which leaves "
                "nothing for the prompt. Lower max_gen_toks of the task (or decoding.max_new_tokens)."
            )

    def test_prompts(self, number: int) -> list[Prompt]:
        """What lm-eval serves for the first `number` test documents, without those that do not fit."""
        docs = self.task.documents("test")
        if len(docs) < number:
            raise UserError(
                f"prompts.test asks for {number} documents, but the test split of '{self.task.name}' has {len(docs)}. "
                f"Set prompts.test to at most {len(docs)}."
            )
        contexts = self.task.test_contexts(number, self.tokenizer)
        made = [self.prompt("test", *pair) for pair in enumerate(zip(docs, contexts, strict=False))]
        prompts = [prompt for prompt in made if prompt is not None]
        if not prompts:
            raise UserError(
                f"All {number} test prompts are longer than {self.room} tokens. Use fewer few-shot examples."
            )
        return prompts

    def prompt(self, split: str, index: int, document: tuple[Document, str]) -> Prompt | None:
        """One line of the files; None for a prompt that does not fit.

        Raises:
            UserError: the prompt is empty.
        """
        doc, context = document
        ids = self.task.encode(self.tokenizer, context)
        if not ids or not context.strip():
            raise UserError(
                f"Document {index} of the {split} split of '{self.task.name}' gives an empty prompt. "
                "Mend the document, or doc_to_text in the task's YAML."
            )
        if len(ids) > self.room:
            self.too_long[split] += 1
            return None
        return {
            "id": f"{split}-{index}",
            "doc": json.loads(json.dumps(doc, default=str)),
            "context": context,
            "ids": ids,
            "stops": self.task.stops,
            "max_new_tokens": self.task.max_new_tokens,
        }

    def problem(self, doc: Document) -> str:
        """What makes two documents the same problem: their words, whatever case, spaces and punctuation."""
        return re.sub(r"[\W_]+", " ", self.task.question(doc).casefold()).strip()


def training_prompts(maker: Maker, params: Params, taken: set[str]) -> dict[str, list[Prompt]]:
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


def fresh_prompts(maker: Maker, docs: list[Document], order: random.Random, seen: set[str]) -> Iterator[Prompt]:
    """Prompts of the documents in random order, every problem once."""
    for index in order.sample(range(len(docs)), len(docs)):
        problem = maker.problem(docs[index])
        if problem in seen:
            continue
        seen.add(problem)
        context = maker.task.context(docs[index], maker.tokenizer)
        prompt = maker.prompt("train", index, (docs[index], context))
        if prompt is not None:
            yield prompt


if __name__ == "__main__":
    run(main)
