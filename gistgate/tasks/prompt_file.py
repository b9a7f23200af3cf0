"""Prompts of one's own, in place of a task."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from gistgate.core.utils import UserError, refusing
from gistgate.tasks.task import Document, Messages, Task, TaskSpec

EXAMPLE = '{"prompt": "2 + 2?", "answer": "4"}, or with "messages" of a chat in place of a prompt'


class PromptFile(Task):
    """Entries with `prompt` or `messages`, and an `answer` where one is known, or texts."""

    name = "own prompts"
    metric = "the text contains the answer"

    def __init__(self, rows: Sequence[Any], place: str, spec: TaskSpec) -> None:
        if spec.data or spec.metric or spec.allow_code or spec.prompting.num_fewshot:
            raise UserError(
                "--task-data, --metric, --allow-code and --num-fewshot belong to a task. Leave them"
                " out."
            )
        self.docs = [row if isinstance(row, dict) else {"prompt": row} for row in rows]
        self.max_new_tokens = spec.max_new_tokens
        with refusing(
            f"{place} holds something else than prompts", f"Write lines such as {EXAMPLE}."
        ):
            is_chat = any("messages" in doc for doc in self.docs)
            is_chat = is_chat or spec.prompting.chat_template
            self.prompting = replace(spec.prompting, chat_template=is_chat)
            self.judges = all("answer" in doc for doc in self.docs)
            self.check_texts()

    def check_texts(self) -> None:
        """Refuse entries without a text."""
        texts = []
        for doc in self.docs:
            texts += [message["content"] for message in self.messages(doc)]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise ValueError("a prompt is empty or no text")

    def documents(self, split: str) -> list[Document]:
        """All entries, whatever the split."""
        return self.docs

    def question(self, doc: Document) -> str:
        """The prompt, or the messages as they stand in the file."""
        return str(doc.get("messages") or doc["prompt"])

    problem = question

    def context(self, doc: Document, tokenizer: object) -> str:
        """The prompt."""
        return str(doc["prompt"])

    def messages(self, doc: Document) -> Messages:
        """The messages, behind the system text."""
        messages = doc.get("messages") or [{"role": "user", "content": doc["prompt"]}]
        if self.prompting.system:
            return [{"role": "system", "content": self.prompting.system}, *messages]
        return list(messages)

    def score(self, doc: Document, text: str) -> float:
        """Whether the answer stands in the text, as whole words or numbers."""
        answer = plain(str(doc["answer"]))
        whole = rf"(?<!\w)(?<!\d[.,])(?<!-){re.escape(answer)}(?!\w|[.,]\d)"
        return float(bool(re.search(whole, plain(text))))

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool:
        """Whether both texts have the same words."""
        return text.split() == reference.split()


def plain(text: str) -> str:
    """A text in one case, with single spaces."""
    return " ".join(text.casefold().split())
