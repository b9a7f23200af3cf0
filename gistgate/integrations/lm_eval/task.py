"""An evaluation task defines meaning: its contexts, its stops, and which answers count as the same.

    task = load_task(TaskSpec("gsm8k"))
    ids = task.encode(tokenizer, task.context(document, tokenizer))
    task.score(document, text), task.same_meaning(document, text, reference_text)

Any lm-eval `generate_until` task with a training split will do. Meaning is judged by one metric behind one filter:
the first of the task's `metric_list` and the first of its `filter_list`, unless `TaskSpec.metric` names another pair in
lm-eval's own notation ("exact_match,flexible-extract").
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from types import SimpleNamespace
from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.defaults import DEFAULT_OTHER_SEED
from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.task_files import find_task

log = logging.getLogger(__name__)

Document = dict[str, Any]

INVALID = "[invalid]"
"""What lm-eval's regex filters say of a text without an answer."""
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names under which a task may limit its answers, in lm-eval's order of priority."""


@dataclass(frozen=True)
class Prompting:
    """How a document becomes a prompt; a gate keeps these entries, because it is trained on what users serve."""

    num_fewshot: int | None = 0
    """Solved examples in front of the question, in documents; None takes the task's own number."""
    chat_template: bool = False
    """Whether the prompt is wrapped in the tokenizer's chat template."""
    system: str | None = None
    """System text of the chat template; None for none."""


@dataclass(frozen=True)
class TaskSpec:
    """Which task, judged by what, on which data, and how it is asked."""

    name: str
    """File name in data/tasks without its ending, or the name of an lm-eval task."""
    metric: str | None = None
    """Metric and filter that decide, as lm-eval writes them ("exact_match,strict-match"); None: the task's first."""
    data: str | None = None
    """Folder with a .jsonl file for each split, which replaces the task's own data."""
    prompting: Prompting = Prompting()
    """How documents become prompts."""
    max_new_tokens: int = 256
    """Longest answer where the task names no limit, in tokens."""


def load_task(spec: TaskSpec) -> Task:
    """The task, prompted as `spec.prompting` says.

    Raises:
        UserError: there is no such task, it cannot be loaded, it does not generate text or it has no training split.
    """
    return Task(find_task(spec.name, spec.data), spec)


class Task:
    """A loaded lm-eval task: prompts of its documents, and scores of answers."""

    def __init__(self, harness: ConfigurableTask, spec: TaskSpec) -> None:
        self.harness = harness
        """The task object that lm-eval itself evaluates; prompting, limits and greedy decoding are already set."""
        self.name, self.prompting = spec.name, spec.prompting
        if not harness.has_training_docs():
            raise UserError(
                f"The task '{self.name}' has no training split, so there is nothing to train or calibrate a gate on. "
                "Choose a task whose YAML names a `training_split`."
            )
        self._prepare(spec.max_new_tokens)
        self._filter, self._metric = choose_metric(harness, spec.metric)

    def _prepare(self, max_new_tokens: int) -> None:
        """Make the harness's task prompt and decode as the specification says."""
        settings = dict(self.harness.config.generation_kwargs)
        if settings.get("do_sample") or settings.get("temperature") or self.harness.config.repeats > 1:
            log.warning("The task '%s' asks for samples; it is decoded greedily, once per document.", self.name)
        limits = [settings.pop(name) for name in LENGTHS if settings.get(name)]
        until = settings.get("until") or []
        settings["until"] = [until] if isinstance(until, str) else list(until)
        settings |= {"do_sample": False, "temperature": 0.0, "max_gen_toks": int([*limits, max_new_tokens][0])}
        self.harness.set_config("generation_kwargs", settings)
        self.harness.set_config("repeats", 1)
        if self.prompting.num_fewshot is not None:
            self.harness.set_config("num_fewshot", self.prompting.num_fewshot)
        self.harness.set_config("num_fewshot", self.harness.config.num_fewshot or 0)

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return list(self.harness.config.generation_kwargs["until"])

    @property
    def max_new_tokens(self) -> int:
        """Longest answer in tokens: the task's own limit, or `TaskSpec.max_new_tokens` where it names none."""
        return int(self.harness.config.generation_kwargs["max_gen_toks"])

    @property
    def metric(self) -> str:
        """The metric and filter that decide, as lm-eval writes them: "exact_match,strict-match"."""
        return f"{self._metric},{self._filter.name}"

    def documents(self, split: str) -> list[Document]:
        """The documents of "train" (the training split) or "test" (what lm-eval evaluates), in the task's order."""
        return list(self.harness.training_docs() if split == "train" else self.harness.eval_docs)

    def question(self, doc: Document) -> str:
        """The document's own text, without examples, chat markers or system text."""
        return str(self.harness.doc_to_text(doc))

    def problem(self, doc: Document) -> str:
        """What makes two documents the same problem: their words, whatever case, spaces and punctuation."""
        return re.sub(r"[\W_]+", " ", self.question(doc).casefold()).strip()

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

    def verdicts_of(self, results: dict[str, Any]) -> dict[int, tuple[float, str]]:
        """Score and answer of every document that lm-eval judged, by its place in the test split."""
        samples = results["samples"][self.harness.task_name]
        mine = [sample for sample in samples if sample["filter"] == self._filter.name]
        return {sample["doc_id"]: (self._in_range(sample[self._metric]), sample["resps"][0][0]) for sample in mine}

    def _prompting(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """How lm-eval shall build contexts; examples become turns of their own in a chat."""
        chat = self.prompting.chat_template
        return {
            "system_instruction": self.prompting.system,
            "apply_chat_template": chat,
            "fewshot_as_multiturn": chat,
            "chat_template": chat_template(tokenizer) if chat and tokenizer is not None else None,
        }

    def encode(self, tokenizer: PreTrainedTokenizerBase, context: str) -> list[int]:
        """The ids that lm-eval's transformers backend serves for this context: no second <s> before a first one."""
        has_bos = bool(tokenizer.bos_token) and context.startswith(str(tokenizer.bos_token))
        return list(tokenizer.encode(context, **({"add_special_tokens": False} if has_bos else {})))

    def text(self, tokenizer: PreTrainedTokenizerBase, ids: Sequence[int]) -> str:
        """The answer that lm-eval would score for these new tokens: decoded and cut at the first stop."""
        return self.cut(str(tokenizer.decode(list(ids), skip_special_tokens=True)), tokenizer.eos_token)

    def cut(self, text: str, end: str | None = None) -> str:
        """An answer as lm-eval scores it: without its first stop, or `end`, and what is behind."""
        for stop in filter(None, [*self.stops, end]):
            text = text.split(stop)[0]
        return text

    def score(self, doc: Document, text: str) -> float:
        """The task's own verdict on an answer, in [0, 1].

        Raises:
            UserError: the metric has no value for a single answer, or one outside [0, 1].
        """
        return self._in_range(self._verdict(doc, text))

    def _in_range(self, value: Any) -> float:
        """The metric's value as a number, refused where it is none."""
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise UserError(
                f"The metric '{self.metric}' of the task '{self.name}' gives {value!r} for one answer, not a number "
                "from 0 to 1. Name another metric (`task_metric` in params.yaml), for instance exact_match."
            )
        return float(value)

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool | None:
        """Whether the task's filter and metric cannot tell `text` from `reference`; None where nothing is known.

        The filtered answers are compared, not their correctness: two different wrong answers differ. The metric is
        asked with the reference's answer in the place of the solution, so that what it ignores (case, commas) is
        ignored here as well. A task with a scoring function of its own hides its answers in there; then equal
        verdicts other than zero count as the same, and two failures with different texts as unknown.
        """
        answer, expected = self.answer(doc, text), self.answer(doc, reference)
        if expected in (INVALID, [INVALID], self.answer(doc, "")):
            return None
        if answer == expected:
            return True
        if not callable(self.harness.config.process_results):
            return bool(self._against(expected, answer) == self._against(expected, expected))
        verdicts = self.score(doc, text), self.score(doc, reference)
        return None if verdicts == (0, 0) else verdicts[0] == verdicts[1]

    def answer(self, doc: Document, text: str) -> Any:
        """What the filter leaves of a text."""
        run = Instance(request_type="generate_until", doc=doc, arguments=("", {}), idx=0, resps=[text])
        self._filter.apply([run])
        return run.filtered_resps[self._filter.name]

    def _verdict(self, doc: Document, text: str) -> Any:
        """The metric's value against the document's own solution."""
        return self.harness.process_results(doc, [self.answer(doc, text)]).get(self._metric)

    def _against(self, reference: Any, answer: Any) -> Any:
        """The metric's value where `reference` is the solution."""
        metric, settings = (
            self.harness._metric_fn_list[self._metric],
            self.harness._metric_fn_kwargs[self._metric],
        )
        try:
            value = metric(references=[reference], predictions=[answer], **settings)
        except TypeError:  # lm-eval's other form of a metric
            value = metric([reference, answer])
        return value.get(self._metric) if isinstance(value, dict) else value


class WithoutItself:
    """lm-eval's sampler of few-shot examples, kept from showing a document its own solution."""

    def __init__(self, sampler: Any, doc: Document) -> None:
        self.sampler, self.doc = sampler, doc

    def sample(self, n: int, **_: Any) -> Sequence[Document]:
        """`n` examples other than the document."""
        examples: Sequence[Document] = self.sampler.sample(n=n, eval_doc=self.doc)
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


def choose_metric(harness: ConfigurableTask, wanted: str | None) -> tuple[Any, str]:
    """The filter and the metric's name: the task's first of each, or those of `wanted` ("metric,filter").

    Raises:
        UserError: the task has no such metric or filter, or less of it would be better.
    """
    filters = {ensemble.name: ensemble for ensemble in harness._filters}
    metrics = list(harness._metric_fn_list)
    metric, _, name = (wanted or f"{metrics[0]},{next(iter(filters))}").partition(",")
    name = name or next(iter(filters))
    if metric not in metrics or name not in filters:
        known = ", ".join(f"{m},{f}" for m in metrics for f in filters)
        raise UserError(f"The task has no metric '{wanted}'. Set `task_metric` to one of: {known}.")
    if not harness.higher_is_better().get(metric, True):
        raise UserError(f"Of the metric '{metric}' less is better. Set `task_metric` to one where more is better.")
    return filters[name], metric
