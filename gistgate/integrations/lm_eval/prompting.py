"""How documents of a task become prompts: few-shot examples, system text and chat template, as lm-eval builds them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from lm_eval.api.task import ConfigurableTask
from lm_eval.defaults import DEFAULT_OTHER_SEED
from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError

Document = dict[str, Any]


@dataclass(frozen=True)
class Prompting:
    """How a document becomes a prompt; a gate keeps these entries, because it is trained on what users serve."""

    num_fewshot: int | None = 0
    """Solved examples in front of the question, in documents; None takes the task's own number."""
    chat_template: bool = False
    """Whether the prompt is wrapped in the tokenizer's chat template."""
    system: str | None = None
    """System text of the chat template; None for none."""


class Prompter:
    """Builds the prompts of one task's documents."""

    def __init__(self, harness: ConfigurableTask, prompting: Prompting) -> None:
        self.harness, self.prompting = harness, prompting

    def question(self, doc: Document) -> str:
        """The document's own text, without examples, chat markers or system text."""
        return str(self.harness.doc_to_text(doc))

    def context(self, doc: Document, tokenizer: PreTrainedTokenizerBase | None) -> str:
        """The prompt of one document. Few-shot examples depend on the document alone and never contain it."""
        return self._context(doc, self._prompting(tokenizer))

    def messages(self, doc: Document) -> list[dict[str, str]]:
        """The prompt of one document as the messages of a chat, for a server that has the chat template itself."""
        rendered = self._context(doc, {**self._prompting(None), "chat_template": as_json})
        messages: list[dict[str, str]] = json.loads(rendered)
        return messages

    def _context(self, doc: Document, prompting: dict[str, Any]) -> str:
        seed = int.from_bytes(hashlib.sha256(self.question(doc).encode()).digest()[:4], "big")
        self.harness.set_fewshot_seed(seed)
        sampler = getattr(self.harness, "sampler", None)
        self.harness.sampler = WithoutItself(sampler, doc)
        try:
            context = self.harness.fewshot_context(
                doc,
                num_fewshot=self.harness.config.num_fewshot,
                gen_prefix=self.harness.doc_to_prefix(doc),
                **prompting,
            )
        finally:
            self.harness.sampler = sampler
        return str(context)

    def test_contexts(self, limit: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The prompts of the first `limit` test documents, as lm-eval builds them for `limit=limit`.

        Its few-shot examples come from one random stream, so that a prompt depends on all before it: build them
        together or not at all.
        """
        self.restart_examples()
        self.harness.build_all_requests(limit=limit, **self._prompting(tokenizer))
        return [str(request.args[0]) for request in self.harness.instances]

    def restart_examples(self) -> None:
        """Put the stream of few-shot examples back to where `simple_evaluate` starts it."""
        self.harness.set_fewshot_seed(DEFAULT_OTHER_SEED)

    def evaluation_arguments(self) -> dict[str, Any]:
        """How lm-eval has to be called to serve the prompts of `test_contexts`."""
        arguments = self._prompting(None)
        del arguments["chat_template"]  # the model brings it
        return arguments

    def _prompting(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """How lm-eval shall build contexts; examples become turns of their own in a chat."""
        chat = self.prompting.chat_template
        return {
            "system_instruction": self.prompting.system,
            "apply_chat_template": chat,
            "fewshot_as_multiturn": chat,
            "chat_template": chat_template(tokenizer) if chat and tokenizer is not None else None,
        }


class WithoutItself:
    """lm-eval's sampler of few-shot examples, kept from showing a document its own solution."""

    def __init__(self, sampler: Any, doc: Document) -> None:
        self.sampler, self.doc = sampler, doc

    def sample(self, n: int, **_: Any) -> Sequence[Document]:
        """`n` examples other than the document."""
        pool = self.sampler.fewshot_docs()
        # lm-eval draws one document more than it needs where it has to leave one out.
        doc: Document | None = self.doc if len(pool) > n else None
        if doc is None and (len(pool) < n or self.doc in pool):
            raise UserError(f"The task has too few documents to show {n} others as examples. Lower num_fewshot.")
        examples: Sequence[Document] = self.sampler.sample(n=n, eval_doc=doc)
        return examples


def chat_template(tokenizer: PreTrainedTokenizerBase) -> Callable[..., str]:
    """The function that renders a chat as lm-eval does, with this tokenizer.

    Raises:
        UserError: the tokenizer has no chat template.
    """
    from lm_eval.models.huggingface import HFLM  # costs seconds, and only chats need it

    if not tokenizer.chat_template:
        raise UserError(
            "The tokenizer has no chat template. Switch the chat template off (`prompting.chat_template: false`)."
        )
    bare = SimpleNamespace(tokenizer=tokenizer, chat_template_args={})

    def render(history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        return str(HFLM.apply_chat_template(bare, history, add_generation_prompt))

    return render


def as_json(history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
    """A chat as JSON, in the place of a chat template."""
    return json.dumps(history)
