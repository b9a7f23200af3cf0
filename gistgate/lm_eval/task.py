"""An lm-eval task defines meaning: its prompts, its stops, what an answer is worth, and which
answers are the same.

Prompts are identical to those that the harness serves, and a metric behind a filter judges as it
does there.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.utils import env as templates
from transformers import PreTrainedTokenizerBase

from gistgate.core.utils import UserError, first_line, replaced
from gistgate.lm_eval.files import (
    NO_TEXT,
    NO_TRAINING,
    YAML,
    checking_documents,
    entry_of,
    files_of,
    local_data,
)
from gistgate.models.tokenizers import rendered
from gistgate.tasks.code import EXPANDED, check_allowed, own_code_eval
from gistgate.tasks.task import TASKS, Document, Messages, Task, TaskSpec

log = logging.getLogger(__name__)

INVALID = "[invalid]"  # what lm-eval's regex filters say of a text without an answer
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names under which a task may limit its answers, in lm-eval's order of priority."""


def load_named(spec: TaskSpec) -> HarnessTask:
    """The task that a command names: a name, or the path of the task's YAML file."""
    file = Path(spec.name)
    if file.suffix in YAML:
        return load_task(replace(spec, name=file.stem), file.parent)
    return load_task(spec, TASKS)


def load_task(spec: TaskSpec, folder: Path) -> HarnessTask:
    """The task of `folder`, else of lm-eval's own, prompted as `spec.prompting` says."""
    name = spec.name
    manager, entry = entry_of(name, folder)
    config = entry.cfg or {}
    check_allowed(name, bool(config.get("unsafe_code")), spec.allow_code)
    overrides = local_data(Path(spec.data), config) if spec.data else None
    index = manager.task_index
    try:
        with checking_documents(), own_code_eval() if spec.allow_code else nullcontext():
            # This loads the documents.
            task = manager._factory.build(index[name], overrides=overrides, registry=index)
    except UserError:
        raise
    except Exception as error:  # the many ways in which a hub, a file or a YAML can fail
        cause = error.__cause__ or error
        words = " ".join(str(cause).split())[:300]
        raise UserError(
            f"The task '{name}' could not be loaded ({type(cause).__name__}: {words})."
            " Check its YAML and its data; without the hub, set `task_data` in params.yaml to a"
            " folder with a .jsonl file for each split."
        ) from error
    # An included file may have said so.
    check_allowed(name, getattr(task, "UNSAFE_CODE", False), spec.allow_code)
    if not isinstance(task, ConfigurableTask) or task.OUTPUT_TYPE != "generate_until":
        raise UserError(NO_TEXT.format(name))
    return HarnessTask(task, spec, files_of(folder / f"{name}.yaml"))


def choose_metric(harness: ConfigurableTask, named: str | None) -> tuple[Any, str]:
    """The filter and the metric's name: the task's first of each, or those that are `named` as
    "metric,filter".
    """
    filters = {ensemble.name: ensemble for ensemble in harness._filters}
    metrics = list(harness._metric_fn_list)
    first_filter = next(iter(filters))
    metric, _, filter_name = (named or metrics[0]).partition(",")
    filter_name = filter_name or first_filter
    option = "`task_metric` (`gistgate calibrate`: --metric)"
    if metric not in metrics or filter_name not in filters:
        choices = ", ".join(f"{each},{behind}" for each in metrics for behind in filters)
        raise UserError(f"The task has no metric '{named}'. Set {option} to one of: {choices}.")
    if not harness.higher_is_better().get(metric, True):
        raise UserError(
            f"Of the metric '{metric}' less is better. Set {option} to one where more is better."
        )
    return filters[filter_name], metric


def generation_settings(harness: ConfigurableTask, spec: TaskSpec) -> dict[str, Any]:
    """How the answers of a task are generated here: greedily, with its stops and its limit."""
    settings = dict(harness.config.generation_kwargs)
    if settings.get("do_sample") or settings.get("temperature") or harness.config.repeats > 1:
        log.warning(
            "The task '%s' asks for samples; it is decoded greedily, once per document.", spec.name
        )
    limits = [settings.pop(name) for name in LENGTHS if settings.get(name)]
    until = settings.get("until") or []
    return {
        **settings,
        "until": [until] if isinstance(until, str) else list(until),
        "do_sample": False,
        "temperature": 0.0,
        "max_gen_toks": int(limits[0] if limits else spec.max_new_tokens),
    }


def examples_of(harness: ConfigurableTask, spec: TaskSpec) -> int:
    """Solved examples in front of a question: as many as asked for, else the task's own number."""
    usual: int = harness.config.num_fewshot or 0
    number = spec.prompting.num_fewshot
    if number is None:
        return usual
    if number < usual:
        log.warning(
            "The task '%s' is made for %d solved examples and gets %d, so that answers may have"
            " another form than its filter expects. Set prompting.num_fewshot to null (or"
            " --num-fewshot %d), or choose another task.",
            *(spec.name, usual, number, usual),
        )
    return number


def words_of(text: str, between: str = r"\W_") -> str:
    """A text in lower case with one space in place of signs."""
    return re.sub(f"[{between}]+", " ", text.casefold()).strip()


def present(value: Any) -> Any:
    """A value for a text, in which a missing one would stand as "None"."""
    return StrictUndefined(name="a field") if value is None else value


class HarnessTask(Task):
    """A loaded lm-eval task: prompts of its documents, and scores of answers by one metric behind
    one filter.
    """

    def __init__(self, harness: ConfigurableTask, spec: TaskSpec, files: Sequence[Path]) -> None:
        if not harness.has_training_docs():
            raise UserError(NO_TRAINING.format(spec.name))
        self.harness = harness
        self.name = spec.name
        self.prompting = spec.prompting
        self.files = files
        settings = generation_settings(harness, spec)
        self.stops = settings["until"]
        self.max_new_tokens = settings["max_gen_toks"]
        self.examples = examples_of(harness, spec)
        harness.set_config("generation_kwargs", settings)
        harness.set_config("repeats", 1)
        harness.set_config("num_fewshot", self.examples)
        self._filter, self._metric = choose_metric(harness, spec.metric)
        self.metric = f"{self._metric},{self._filter.name}"

    def documents(self, split: str) -> list[Document]:
        """The documents of "train" (the training split) or "test" (what lm-eval evaluates), in the
        task's order; the first with each set of empty fields is checked.
        """
        docs = list(self.harness.training_docs() if split == "train" else self.harness.eval_docs)
        places: dict[str, int] = {}
        for place, doc in enumerate(docs):
            empty = ", ".join(name for name, value in doc.items() if value is None)
            places.setdefault(empty or "none", place)
        for empty, place in places.items():
            try:
                self._check_fields(docs[place])
            except (AttributeError, LookupError, TemplateError, TypeError, ValueError) as error:
                raise UserError(
                    f"Document {place} of the {split} split of '{self.name}' lacks what its prompt"
                    f" or reference needs ({first_line(error)}; empty fields: {empty}). Complete"
                    " it, or leave it out."
                ) from error
        return docs

    def _check_fields(self, doc: Document) -> None:
        """Raise what lm-eval raises where prompt or reference need a field that is empty."""
        with replaced(templates, "finalize", present):
            str(present(self.harness.doc_to_text(doc)))
            str(present(self.harness.doc_to_target(doc)))

    def problem(self, doc: Document) -> str:
        """What makes two documents the same problem: words and numbers, or the text in tasks that
        need other signs.
        """
        text = " ".join(self.question(doc).split())
        return words_of(text) if self._tells_by_words else text

    @cached_property
    def _tells_by_words(self) -> bool:
        """Whether words and numbers tell nearly all training documents apart, as in word problems,
        but not in sums.
        """
        texts = {" ".join(self.question(doc).split()) for doc in self.documents("train")}
        words = {words_of(text) for text in texts}
        # All signs but those that stand in a sentence.
        signs = {words_of(text, r"\s_.,;:!?'\"‘’“”–—") for text in texts}
        return len(words) >= max(0.9 * len(texts), 0.99 * len(signs))

    def question(self, doc: Document) -> str:
        """The document's own text, without examples, chat markers or system text."""
        return str(self.harness.doc_to_text(doc))

    def context(self, doc: Document, tokenizer: PreTrainedTokenizerBase | None) -> str:
        """The prompt of one document. Few-shot examples depend on the document alone and never
        contain it.
        """
        return self._context(doc, self._prompting(tokenizer))

    def messages(self, doc: Document) -> Messages:
        """The prompt of one document as the messages of a chat, for a server that has the chat
        template itself.
        """
        prompting = self._prompting(None)
        prompting["chat_template"] = lambda history, *_, **__: json.dumps(history)
        messages: Messages = json.loads(self._context(doc, prompting))
        return messages

    def _context(self, doc: Document, prompting: dict[str, Any]) -> str:
        """The prompt of one document as lm-eval builds it."""
        seed = hashlib.sha256(self.question(doc).encode()).digest()[:4]
        sampler = self.harness.sampler
        self.harness.set_fewshot_seed(int.from_bytes(seed, "big"))

        def sample(n: int, **_: Any) -> Any:
            """`n` examples other than the document; lm-eval draws one more where it has to leave
            one out.
            """
            pool = sampler.fewshot_docs()
            if len(pool) < n or (len(pool) == n and doc in pool):
                raise UserError(
                    f"The task has too few documents to show {n} others as examples. Lower"
                    " num_fewshot."
                )
            return sampler.sample(n=n, eval_doc=doc if len(pool) > n else None)

        with replaced(self.harness, "sampler", SimpleNamespace(sample=sample)):
            context = self.harness.fewshot_context(
                doc,
                num_fewshot=self.examples,
                gen_prefix=self.harness.doc_to_prefix(doc),
                **prompting,
            )
        return str(context)

    def test_contexts(self, limit: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The prompts of the first `limit` test documents, as lm-eval builds them for
        `limit=limit`.
        """
        # All examples come from one random stream, so that a prompt depends on all before it.
        self.restart_examples()
        self.harness.build_all_requests(limit=limit, **self._prompting(tokenizer))
        return [str(request.args[0]) for request in self.harness.instances]

    def restart_examples(self) -> None:
        """Put the stream of few-shot examples back to where `simple_evaluate` starts it."""
        self.harness.set_fewshot_seed(DEFAULT_OTHER_SEED)

    def evaluation_arguments(self) -> dict[str, Any]:
        """How lm-eval has to be called to serve the prompts of `test_contexts`."""
        arguments = self._prompting(None)
        del arguments["chat_template"]  # the model's
        return arguments

    def _prompting(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """How lm-eval shall build contexts; examples become turns of their own in a chat."""
        is_chat = self.prompting.chat_template
        template = None
        if is_chat and tokenizer is not None:
            template = partial(rendered, tokenizer, **self.prompting.arguments)
        return {
            "system_instruction": self.prompting.system,
            "apply_chat_template": is_chat,
            "fewshot_as_multiturn": is_chat,
            "chat_template": template,
        }

    def verdicts_of(self, results: dict[str, Any]) -> dict[int, tuple[float, str]]:
        """Score and answer of every document that lm-eval judged, by its place in the test
        split.
        """
        verdicts = {}
        for sample in results["samples"][self.harness.task_name]:
            if sample["filter"] == self._filter.name:
                verdicts[sample["doc_id"]] = (self._value(sample), sample["resps"][0][0])
        return verdicts

    def score(self, doc: Document, text: str) -> float:
        """The task's own verdict on an answer, in [0, 1]."""
        return self._value(self.harness.process_results(doc, [self.answer(doc, text)]))

    def _value(self, results: dict[str, Any]) -> float:
        """The metric's value among results of lm-eval, refused where it is no number from 0 to
        1.
        """
        value = results.get(self._metric, results.get(EXPANDED.get(self._metric, "")))
        if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) <= 1:
            raise UserError(
                f"The metric '{self.metric}' gives {value!r}, not a number from 0 to 1. Set"
                " `task_metric`."
            )
        return float(value)

    def same_meaning(self, doc: Document, text: str, reference: str) -> bool | None:
        """Whether filter and metric cannot tell `text` from `reference`; None where nothing is
        known.

        Where a scoring function or unit tests hide answers, a text keeps the meaning if it scores
        no less, and two failures with different texts are unknown.
        """
        answer = self.answer(doc, text)
        expected = self.answer(doc, reference)
        if expected in (INVALID, [INVALID], self.answer(doc, "")):
            return None
        if answer == expected:
            return True
        config = self.harness.config
        if not (callable(config.process_results) or config.unsafe_code):
            return bool(self._against(expected, answer) == self._against(expected, expected))
        score = self.score(doc, text)
        expected_score = self.score(doc, reference)
        return None if score == expected_score == 0 else score >= expected_score

    def answer(self, doc: Document, text: str) -> Any:
        """What the filter leaves of a text."""
        instance = Instance(
            request_type="generate_until", doc=doc, arguments=("", {}), idx=0, resps=[text]
        )
        self._filter.apply([instance])
        return instance.filtered_resps[self._filter.name]

    def _against(self, reference: Any, answer: Any) -> Any:
        """The metric's value where `reference` is the solution."""
        metric = self.harness._metric_fn_list[self._metric]
        settings = self.harness._metric_fn_kwargs[self._metric]
        try:
            value = metric(references=[reference], predictions=[answer], **settings)
        except TypeError:  # lm-eval's other form of a metric
            value = metric([reference, answer])
        return value.get(self._metric) if isinstance(value, dict) else value
