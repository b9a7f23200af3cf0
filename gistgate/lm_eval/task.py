"""An lm-eval task defines meaning: its prompts, its stops, what an answer is worth, and which
answers are the same.

Prompts are identical to those that the harness serves, and a metric behind a filter judges as it
does there.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import logging
import re
from collections.abc import Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from numbers import Real
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from lm_eval.api.instance import Instance
from lm_eval.api.task import ConfigurableTask
from lm_eval.defaults import DEFAULT_OTHER_SEED
from lm_eval.tasks import TaskManager
from lm_eval.utils import env as templates
from transformers import PreTrainedTokenizerBase

from gistgate.core.utils import UserError, first_line, replaced
from gistgate.models.tokenizers import rendered
from gistgate.tasks.code import EXPANDED, check_allowed, own_code_eval
from gistgate.tasks.task import TASKS, Document, Messages, Task, TaskSpec

log = logging.getLogger(__name__)

SPLITS = ("training_split", "validation_split", "test_split", "fewshot_split")


def entry_of(name: str, folder: Path | None) -> tuple[TaskManager, Any]:
    """The index of tasks, and what it knows of the task `name` before any document is loaded."""
    manager = TaskManager(include_path=folder and str(folder), include_defaults=folder is None)
    if folder is not None and name not in manager.all_tasks:
        log.info("The task '%s' is not in %s; scanning lm-eval's own tasks.", name, folder)
        manager = TaskManager(include_path=str(folder))
    entry = manager.task_index.get(name)
    if entry is None:
        file = Path(name)
        home = folder or TASKS
        near = difflib.get_close_matches(name, manager.all_subtasks, n=1)
        hint = (
            f"Did you mean '{near[0]}'?"
            if near
            else f"Write {home}/{name}.yaml or choose another task."
        )
        if file.suffix in (".yaml", ".yml"):
            is_away = file.is_file() and file.parent.resolve() != home.resolve()
            copied = f"copy the file to {home} and " if is_away else ""
            hint = f"Tasks are named without folder and ending: {copied}write '{file.stem}'."
        raise UserError(
            f"There is no task '{name}' in {f'{folder} or in ' if folder else ''}lm-eval. {hint}"
        )
    if name not in manager.all_subtasks:
        raise UserError(f"'{name}' is a group of tasks. Name one task of it.")
    return manager, entry


def local_data(folder: Path, config: dict[str, Any]) -> dict[str, Any]:
    """Settings that make the task read `<folder>/<split>.jsonl` (or .json) instead of the hub."""
    files = {}
    for split in sorted({config[key] for key in SPLITS if config.get(key)}):
        found = [
            path for path in (folder / f"{split}.jsonl", folder / f"{split}.json") if path.is_file()
        ]
        if not found:
            raise UserError(
                f"{folder / split}.jsonl is missing, and the task wants that split. Check"
                " `task_data`."
            )
        files[split] = str(found[0])
    return {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}


INVALID = "[invalid]"  # what lm-eval's regex filters say of a text without an answer


def choose_metric(harness: ConfigurableTask, wanted: str | None) -> tuple[Any, str]:
    """The filter and the metric's name: the task's first of each, or those of `wanted`
    ("metric,filter").
    """
    filters = {ensemble.name: ensemble for ensemble in harness._filters}
    metrics = list(harness._metric_fn_list)
    metric, _, name = (wanted or f"{metrics[0]},{next(iter(filters))}").partition(",")
    name = name or next(iter(filters))
    option = "`task_metric` (`gistgate calibrate`: --metric)"
    if metric not in metrics or name not in filters:
        known = ", ".join(f"{m},{f}" for m in metrics for f in filters)
        raise UserError(f"The task has no metric '{wanted}'. Set {option} to one of: {known}.")
    if not harness.higher_is_better().get(metric, True):
        raise UserError(
            f"Of the metric '{metric}' less is better. Set {option} to one where more is better."
        )
    return filters[name], metric


# Names under which a task may limit its answers, in lm-eval's order of priority.
LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


def load_task(spec: TaskSpec, folder: Path) -> HarnessTask:
    """The task of `folder`, else of lm-eval's own, prompted as `spec.prompting` says."""
    name = spec.name
    manager, entry = entry_of(spec.name, folder)
    check_allowed(name, bool((entry.cfg or {}).get("unsafe_code")), spec.allow_code)
    overrides = local_data(Path(spec.data), entry.cfg or {}) if spec.data else None
    index = manager.task_index
    try:
        with own_code_eval() if spec.allow_code else nullcontext():
            task = manager._factory.build(
                index[name], overrides=overrides, registry=index
            )  # loads the documents
    except Exception as error:  # the many ways in which a hub, a file or a YAML can fail
        raise UserError(
            f"The task '{name}' could not be loaded ({type(error).__name__}: {first_line(error)})."
            " Check its YAML and its data; without the hub, set `task_data` in params.yaml to a"
            " folder with a .jsonl file for each split."
        ) from error
    check_allowed(
        name, getattr(task, "UNSAFE_CODE", False), spec.allow_code
    )  # an included file may have said so
    if not isinstance(task, ConfigurableTask) or task.OUTPUT_TYPE != "generate_until":
        raise UserError(NO_TEXT.format(name))
    return HarnessTask(task, spec, files_of(folder / f"{name}.yaml"))


NO_TEXT = "The task '{}' is not an ordinary `generate_until` task. Choose one that is."
NO_TRAINING = "The task '{}' has no training split. Choose one that names a `training_split`."


def check_files(name: str, file: Path) -> None:
    """Refuse a task that could not be loaded for want of a text or of training documents, as its
    files say.
    """
    text = "\n".join(
        part.read_text(encoding="utf-8") for part in files_of(file) if part.suffix != ".py"
    )
    kind, split = (
        re.search(rf"^{key}: *['\"]?(?!null)(\w+)", text, re.M)
        for key in ("output_type", "training_split")
    )
    if not re.search("^class:", text, re.M) and (
        (other := kind and kind[1] != "generate_until") or split is None
    ):
        raise UserError((NO_TEXT if other else NO_TRAINING).format(name))


def words_of(text: str, between: str = r"\W_") -> str:
    return re.sub(f"[{between}]+", " ", text.casefold()).strip()


def known(value: Any) -> Any:
    """A value for a text, in which a missing one would stand as "None"."""
    return StrictUndefined(name="a field") if value is None else value


class HarnessTask(Task):
    """A loaded lm-eval task: prompts of its documents, and scores of answers by one metric behind
    one filter.
    """

    def __init__(
        self, harness: ConfigurableTask, spec: TaskSpec, files: Sequence[Path] = ()
    ) -> None:
        self.harness = harness
        self.name = spec.name
        self.prompting = spec.prompting
        self.files = files
        if not harness.has_training_docs():
            raise UserError(NO_TRAINING.format(self.name))
        settings = dict(harness.config.generation_kwargs)
        if settings.get("do_sample") or settings.get("temperature") or harness.config.repeats > 1:
            log.warning(
                "The task '%s' asks for samples; it is decoded greedily, once per document.",
                self.name,
            )
        limits = [settings.pop(name) for name in LENGTHS if settings.get(name)]
        until = settings.get("until") or []
        settings["until"] = [until] if isinstance(until, str) else list(until)
        settings |= {
            "do_sample": False,
            "temperature": 0.0,
            "max_gen_toks": int([*limits, spec.max_new_tokens][0]),
        }
        harness.set_config("generation_kwargs", settings)
        harness.set_config("repeats", 1)
        asked = self.prompting.num_fewshot
        own = harness.config.num_fewshot or 0
        if asked is not None and asked < own:
            log.warning(
                "The task '%s' is made for %d solved examples and gets %d, so that answers may have"
                " another form than its filter expects. Set prompting.num_fewshot to null (or"
                " --num-fewshot %d), or choose another task.",
                *(self.name, own, asked, own),
            )
        self.examples = own if asked is None else asked
        harness.set_config("num_fewshot", self.examples)
        self._filter, self._metric = choose_metric(harness, spec.metric)
        self.metric = f"{self._metric},{self._filter.name}"
        self.stops = settings["until"]
        self.max_new_tokens = settings["max_gen_toks"]

    def documents(self, split: str) -> list[Document]:
        """The documents of "train" (the training split) or "test" (what lm-eval evaluates), in the
        task's order.
        """
        docs = list(self.harness.training_docs() if split == "train" else self.harness.eval_docs)
        lacking: dict[str, int] = {}  # the first document with each set of empty fields
        for at, doc in enumerate(docs):
            lacking.setdefault(
                ", ".join(name for name, value in doc.items() if value is None) or "none", at
            )
        for names, at in lacking.items():
            try:
                with replaced(templates, "finalize", known):
                    (
                        str(known(self.harness.doc_to_text(docs[at]))),
                        str(known(self.harness.doc_to_target(docs[at]))),
                    )
            except (AttributeError, LookupError, TemplateError, TypeError, ValueError) as error:
                raise UserError(
                    f"Document {at} of the {split} split of '{self.name}' lacks what its prompt or"
                    f" reference needs ({first_line(error)}; empty fields: {names}). Complete it,"
                    " or leave it out."
                ) from error
        return docs

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
        signs = {
            words_of(text, r"\s_.,;:!?'\"‘’“”–—") for text in texts
        }  # without what stands in a sentence
        words = len(set(map(words_of, texts)))
        return words >= max(0.9 * len(texts), 0.99 * len(signs))

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
        prompting = {
            **self._prompting(None),
            "chat_template": lambda history, *_, **__: json.dumps(history),
        }
        messages: Messages = json.loads(self._context(doc, prompting))
        return messages

    def _context(self, doc: Document, prompting: dict[str, Any]) -> str:
        seed = hashlib.sha256(self.question(doc).encode()).digest()[:4]
        sampler = self.harness.sampler
        self.harness.set_fewshot_seed(int.from_bytes(seed, "big"))

        def others(n: int, **_: Any) -> Any:
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

        with replaced(self.harness, "sampler", SimpleNamespace(sample=others)):
            number = self.examples
            prefix = self.harness.doc_to_prefix(doc)
            context = self.harness.fewshot_context(
                doc, num_fewshot=number, gen_prefix=prefix, **prompting
            )
        return str(context)

    def test_contexts(self, limit: int, tokenizer: PreTrainedTokenizerBase) -> list[str]:
        """The prompts of the first `limit` test documents, as lm-eval builds them for
        `limit=limit`.
        """
        # all examples come from one random stream, so that a prompt depends on all before it
        self.restart_examples()
        self.harness.build_all_requests(limit=limit, **self._prompting(tokenizer))
        return [str(request.args[0]) for request in self.harness.instances]

    def restart_examples(self) -> None:
        """Put the stream of few-shot examples back to where `simple_evaluate` starts it."""
        self.harness.set_fewshot_seed(DEFAULT_OTHER_SEED)

    def evaluation_arguments(self) -> dict[str, Any]:
        """How lm-eval has to be called to serve the prompts of `test_contexts`."""
        return {
            name: value for name, value in self._prompting(None).items() if name != "chat_template"
        }  # the model's

    def _prompting(self, tokenizer: PreTrainedTokenizerBase | None) -> dict[str, Any]:
        """How lm-eval shall build contexts; examples become turns of their own in a chat."""
        chat = self.prompting.chat_template
        make = partial(rendered, tokenizer, **self.prompting.arguments)
        return {
            "system_instruction": self.prompting.system,
            "apply_chat_template": chat,
            "fewshot_as_multiturn": chat,
            "chat_template": make if chat and tokenizer is not None else None,
        }

    def verdicts_of(self, results: dict[str, Any]) -> dict[int, tuple[float, str]]:
        """Score and answer of every document that lm-eval judged, by its place in the test
        split.
        """
        samples = results["samples"][self.harness.task_name]
        mine = [sample for sample in samples if sample["filter"] == self._filter.name]
        return {sample["doc_id"]: (self._value(sample), sample["resps"][0][0]) for sample in mine}

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
        if not (callable(self.harness.config.process_results) or self.harness.config.unsafe_code):
            return bool(self._against(expected, answer) == self._against(expected, expected))
        verdicts = self.score(doc, text), self.score(doc, reference)
        return None if verdicts == (0, 0) else verdicts[0] >= verdicts[1]

    def answer(self, doc: Document, text: str) -> Any:
        """What the filter leaves of a text."""
        run = Instance(
            request_type="generate_until", doc=doc, arguments=("", {}), idx=0, resps=[text]
        )
        self._filter.apply([run])
        return run.filtered_resps[self._filter.name]

    def _against(self, reference: Any, answer: Any) -> Any:
        """The metric's value where `reference` is the solution."""
        metric = self.harness._metric_fn_list[self._metric]
        settings = self.harness._metric_fn_kwargs[self._metric]
        try:
            value = metric(references=[reference], predictions=[answer], **settings)
        except TypeError:  # lm-eval's other form of a metric
            value = metric([reference, answer])
        return value.get(self._metric) if isinstance(value, dict) else value


INCLUDE = re.compile(r"^include:\s*['\"]?([^\s'\"]+)", re.MULTILINE)
NAME = re.compile(r"^task:\s*['\"]?([^\s'\"#]+)", re.MULTILINE)
FUNCTION = re.compile(
    r"!function\s+['\"]?([\w./-]+)\.\w+"
)  # lm-eval looks for its module beside the YAML first


def files_of(task: Path) -> list[Path]:
    """The file of a task, those that it includes and those beside it with its functions, each
    once.
    """
    if not task.is_file():
        return []
    text = task.read_text(encoding="utf-8")
    modules = [task.parent / f"{name.replace('.', '/')}.py" for name in FUNCTION.findall(text)]
    included = [path for name in INCLUDE.findall(text) for path in files_of(task.parent / name)]
    return list(dict.fromkeys([task, *included, *(path for path in modules if path.is_file())]))
