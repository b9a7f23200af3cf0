"""Prompts made of the documents of a task, every problem once."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gistgate.core.files import fingerprint, read_json_lines
from gistgate.core.utils import UserError
from gistgate.models.tokenizers import encode
from gistgate.tasks.task import Document, Task

Prompt = dict[str, Any]  # id, doc, context, ids, stops, max_new_tokens
USED = Path(
    "data/prompts"
)  # the folder in that of a project where a finished run keeps its prompts
DIGITS = 10
"""Hexadecimal digits that stand for one problem: of 10,000, two share one with a chance of 1e-8."""


class PromptMaker:
    """Makes prompts out of documents, and counts those that do not fit."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.room = context_length - task.max_new_tokens
        """Longest prompt that leaves space for an answer, in tokens."""
        self.too_long = {"train": 0, "test": 0}
        """Documents left out because their prompt is longer, by split."""
        if self.room < 1:
            raise UserError(
                f"An answer may take all {context_length} tokens. Lower max_gen_toks or"
                " max_new_tokens."
            )

    def test_prompts(self, number: int) -> list[Prompt]:
        """What lm-eval serves for the first `number` test documents, without those that do not
        fit.
        """
        docs = self.task.documents("test")
        if len(docs) < number:
            raise UserError(
                f"prompts.test is {number}, but '{self.task.name}' has {len(docs)} test documents."
                " Lower it; the other sizes share the training documents."
            )
        prompts = []
        for index, context in enumerate(self.task.test_contexts(number, self.tokenizer)):
            prompt = self.prompt("test", index, docs[index], context)
            if prompt is not None:
                prompts.append(prompt)
        if not prompts:
            raise UserError(
                f"All {number} test prompts are longer than {self.room} tokens. Lower num_fewshot."
            )
        return prompts

    def prompt(self, split: str, index: int, doc: Document, context: str) -> Prompt | None:
        """One line of the files; None for a prompt that does not fit."""
        ids = encode(self.tokenizer, context)
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


def fresh_prompts(
    maker: PromptMaker, docs: Sequence[Document], order: Random, seen: set[str]
) -> Iterator[Prompt]:
    """Prompts of the documents in random order, every problem once."""
    for index in distinct_documents(maker.task, docs, order, seen):
        context = maker.task.context(docs[index], maker.tokenizer)
        prompt = maker.prompt("train", index, docs[index], context)
        if prompt is not None:
            yield prompt


def distinct_documents(
    task: Task, docs: Sequence[Document], order: Random, seen: set[str]
) -> Iterator[int]:
    """Places of the documents in random order, every problem once and none of `seen`, which
    grows.
    """
    for index in order.sample(range(len(docs)), len(docs)):
        problem = task.problem(docs[index])
        if problem not in seen:
            seen.add(problem)
            yield index


def hashes_of(problems: Iterable[str]) -> str:
    """The hashes of problems, sorted and with spaces between, as a gate keeps those that it was
    trained on.
    """
    return " ".join(sorted({fingerprint(problem)[:DIGITS] for problem in problems}))


def used_problems(task: Task, folder: Path) -> set[str]:
    """The problems of a finished run, each of which shaped the gate or its settings, or was judged;
    `folder` has its prompts.
    """
    problems = set()
    for file in sorted(folder.glob("*.jsonl")):
        for prompt in read_json_lines(file):
            # A prompt of another task, which this one cannot show.
            with suppress(KeyError, TypeError, TemplateError):
                problems.add(task.problem(prompt["doc"]))
    return problems
