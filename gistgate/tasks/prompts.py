"""Prompts from the documents of a task, and the prompts that a finished run has not used."""

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from gistgate.certificates.outcomes import Answer
from gistgate.core.batches import decode_all
from gistgate.core.decoder import Decoder
from gistgate.core.files import fingerprint, read_json_lines
from gistgate.core.request import eos_ids
from gistgate.core.utils import UserError
from gistgate.models.tokenizers import encode
from gistgate.tasks.task import Document, Task

Prompt = dict[str, Any]  # id, doc, context, ids, stops, max_new_tokens
USED = Path("data/prompts")  # where a finished run keeps its prompts
# hexadecimal digits that stand for one problem: of 10,000, two share one with a chance of 1e-8
DIGITS = 10


class PromptMaker:
    """Makes prompts out of documents, and counts those that do not fit."""

    def __init__(self, task: Task, tokenizer: PreTrainedTokenizerBase, context_length: int) -> None:
        self.task = task
        self.tokenizer = tokenizer
        self.room = (
            context_length - task.max_new_tokens
        )  # longest prompt that leaves space for an answer, in tokens
        self.too_long = {
            "train": 0,
            "test": 0,
        }  # documents left out because their prompt is longer, by split
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
            found = (
                f"prompts.test is {number}, but '{self.task.name}' has {len(docs)} test documents."
            )
            raise UserError(f"{found} Lower it; the other sizes share the training documents.")
        contexts = self.task.test_contexts(number, self.tokenizer)
        made = (
            self.prompt("test", at, doc, text)
            for at, (doc, text) in enumerate(zip(docs, contexts, strict=False))
        )
        if not (prompts := [prompt for prompt in made if prompt is not None]):
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
        if (prompt := maker.prompt("train", index, docs[index], context)) is not None:
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


def used_problems(task: Task) -> set[str]:
    """The problems of a finished run, each of which shaped the gate or its settings, or was
    judged.
    """
    found = set()
    for prompt in (row for file in sorted(USED.glob("*.jsonl")) for row in read_json_lines(file)):
        with suppress(
            KeyError, TypeError, TemplateError
        ):  # of another task, which this one cannot show
            found.add(task.problem(prompt["doc"]))
    return found


def decode_prompts(
    decoder: Decoder, prompts: Sequence[Prompt], seeds: Sequence[int], **batches: Any
) -> list[Answer]:
    """Answers in the order of the prompts; `batches` (batch_size, memory, progress) go to
    `decode_all`.
    """
    request = {name: prompts[0][name] for name in ("max_new_tokens", "stops")}
    request["eos_ids"] = eos_ids(decoder.target, decoder.tokenizer)
    done = decode_all(
        decoder, [prompt["ids"] for prompt in prompts], seeds=list(seeds), **request, **batches
    )
    return [Answer(answer.ids, answer.statistics) for answer in done]
