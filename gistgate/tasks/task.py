"""What models are asked, and what their answers are worth: the interface of every kind of task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Document = dict[str, Any]
Messages = list[dict[str, Any]]
Turns = Generator[tuple[str | Messages, dict[str, Any]], str, None]
"""Requests for the answers of a conversation, each a prompt with further entries; each answer is
sent back."""
TASKS = Path("data/tasks")  # the folder of tasks in the folder of a project


@dataclass(frozen=True)
class Prompting:
    """How a document becomes a prompt; a gate keeps these entries, because it is trained on what
    users serve.
    """

    num_fewshot: int | None = 0
    """Solved examples in front of the question; None takes the task's own number."""
    chat_template: bool = False
    """Whether the prompt is wrapped in the tokenizer's chat template."""
    system: str | None = None
    """System text of the chat template; None for none."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Arguments of the chat template; chat_template chooses one by name."""


@dataclass(frozen=True)
class TaskSpec:
    """Which task, judged by what, on which data, and how it is asked."""

    name: str
    """File name in the folder of tasks without its ending, or the name of an lm-eval task."""
    metric: str | None = None
    """Metric and filter that decide, as lm-eval writes them; None takes the task's first."""
    data: str | None = None
    """Folder with a .jsonl file for each split, which replaces the task's own data."""
    prompting: Prompting = field(default_factory=Prompting)
    max_new_tokens: int = 256
    """Longest answer where the task names no limit, in tokens."""
    allow_code: bool = False
    """Whether the task may run programs that the model writes."""


class Task(ABC):
    """Documents, the prompts that are made of them, and scores of answers."""

    name: str
    prompting: Prompting
    metric: str
    """What decides, for people and for fingerprints."""
    stops: Sequence[str] = ()
    """Texts that end an answer."""
    max_new_tokens: int
    """Longest answer, in tokens."""
    judges = True
    """Whether right answers are known."""
    calls_tools = False
    """Whether answers may call tools."""
    ternary = True
    """Whether scores are 0 or 1, unless answers show otherwise."""
    scores_turns = False
    """Whether all answers of a conversation are scored, or its last one alone."""
    examples = 0
    """Solved examples in front of a question."""
    files: Sequence[Path] = ()
    """The files that define the task, which are part of its fingerprint."""

    @abstractmethod
    def documents(self, split: str) -> list[Document]:
        """The documents of "train" or "test", in the task's order."""

    @abstractmethod
    def question(self, doc: Document) -> str:
        """The document's own text, without examples, chat markers or system text."""

    @abstractmethod
    def problem(self, doc: Document) -> str:
        """What makes two documents the same problem."""

    @abstractmethod
    def context(self, doc: Document, tokenizer: PreTrainedTokenizerBase | None) -> str:
        """The prompt of a document as a text to continue."""

    @abstractmethod
    def messages(self, doc: Document) -> Messages:
        """The prompt of a document as the messages of a chat, for a server that has the chat
        template itself.
        """

    @abstractmethod
    def score(self, doc: Document, text: str) -> float:
        """What an answer is worth, in [0, 1]."""

    @abstractmethod
    def same_meaning(self, doc: Document, text: str, reference: str) -> bool | None:
        """Whether an answer says the same as `reference`; None where nothing is known."""

    def entries(self, doc: Document) -> dict[str, Any]:
        """What a request says beside the prompt, such as tools."""
        return {}

    def prompt(self, doc: Document) -> str | Messages:
        """What a server is asked: a text to continue, or the messages of a chat."""
        return self.messages(doc) if self.prompting.chat_template else self.context(doc, None)

    def turns(self, doc: Document) -> Turns:
        """The requests of a document: one, or those of a conversation."""
        yield self.prompt(doc), self.entries(doc)

    def setting(self, doc: Document) -> Any:
        """What tells the answers to a document from others to its prompt; None where nothing
        does.
        """
        return None

    def score_turns(self, doc: Document, texts: Sequence[str]) -> float:
        """What the answers of a conversation are worth, in [0, 1]: those that are scored."""
        return self.score(doc, texts[-1])

    def test_contexts(self, limit: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The prompts of the first `limit` test documents."""
        return [self.context(doc, tokenizer) for doc in self.documents("test")[:limit]]

    def text(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
        """The answer that is scored for these new tokens: decoded and cut at the first stop."""
        answer = str(tokenizer.decode(list(ids), skip_special_tokens=True))
        return self.cut(answer, tokenizer.eos_token)

    def cut(self, text: str, end: str | None = None) -> str:
        """An answer without its first stop, or `end`, and what is behind."""
        for stop in filter(None, [*self.stops, end]):
            text = text.split(stop)[0]
        return text
