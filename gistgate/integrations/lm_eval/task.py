"""An evaluation task defines meaning: its contexts, its stops, and which answers count as the same.

    task = load_task(TaskSpec("gsm8k"))
    ids = task.encode(tokenizer, task.context(document, tokenizer))
    task.score(document, text), task.same_meaning(document, text, reference_text)

Any lm-eval `generate_until` task with a training split will do. Meaning is judged by one metric behind one filter:
the first of the task's `metric_list` and the first of its `filter_list`, unless `TaskSpec.metric` names another pair in
lm-eval's own notation ("exact_match,flexible-extract").
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from lm_eval.api.task import ConfigurableTask
from transformers import PreTrainedTokenizerBase

from gistgate.errors import UserError
from gistgate.integrations.lm_eval.judging import Judge
from gistgate.integrations.lm_eval.prompting import Document, Prompter, Prompting
from gistgate.integrations.lm_eval.task_files import find_task

log = logging.getLogger(__name__)

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
"""Names under which a task may limit its answers, in lm-eval's order of priority."""


@dataclass(frozen=True)
class TaskSpec:
    """Which task, judged by what, on which data, and how it is asked."""

    name: str
    """File name in data/tasks without its ending, or the name of an lm-eval task."""
    metric: str | None = None
    """Metric and filter that decide, as lm-eval writes them ("exact_match,strict-match"); None: the task's first."""
    data: str | None = None
    """Folder with a .jsonl file for each split, which replaces the task's own data."""
    prompting: Prompting = field(default_factory=Prompting)
    """How documents become prompts."""
    max_new_tokens: int = 256
    """Longest answer where the task names no limit, in tokens."""
    allow_code: bool = False
    """Whether a task may run programs that the model writes."""


def load_task(spec: TaskSpec) -> Task:
    """The task, prompted as `spec.prompting` says.

    Raises:
        UserError: there is no such task, it cannot be loaded, it does not generate text, it has no training split, or
            it runs programs and `spec` does not allow that.
    """
    return Task(find_task(spec.name, spec.data, allow_code=spec.allow_code), spec)


class Task(Prompter, Judge):
    """A loaded lm-eval task: prompts of its documents, and scores of answers."""

    def __init__(self, harness: ConfigurableTask, spec: TaskSpec) -> None:
        self.harness = harness
        """The task object that lm-eval itself evaluates; prompting, limits and greedy decoding are already set."""
        self.name = spec.name
        if not harness.has_training_docs():
            raise UserError(
                f"The task '{self.name}' has no training split, so there is nothing to train or calibrate a gate on. "
                "Choose a task whose YAML names a `training_split`."
            )
        Prompter.__init__(self, harness, spec.prompting)
        self._prepare(spec.max_new_tokens)
        Judge.__init__(self, harness, spec.name, spec.metric)

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
        asked, own = self.prompting.num_fewshot, self.harness.config.num_fewshot or 0
        if asked is not None and asked < own:
            log.warning(
                "The task '%s' is made for %d solved examples in front of the question and gets %d. Answers may have "
                "another form than its filter expects. Set prompting.num_fewshot to null (on the command line "
                "--num-fewshot %d), or choose another task.",
                *(self.name, own, asked, own),
            )
        self.harness.set_config("num_fewshot", own if asked is None else asked)

    @property
    def stops(self) -> list[str]:
        """Texts that end an answer."""
        return list(self.harness.config.generation_kwargs["until"])

    @property
    def max_new_tokens(self) -> int:
        """Longest answer in tokens: the task's own limit, or `TaskSpec.max_new_tokens` where it names none."""
        return int(self.harness.config.generation_kwargs["max_gen_toks"])

    def documents(self, split: str) -> list[Document]:
        """The documents of "train" (the training split) or "test" (what lm-eval evaluates), in the task's order."""
        return list(self.harness.training_docs() if split == "train" else self.harness.eval_docs)

    def problem(self, doc: Document) -> str:
        """What makes two documents the same problem: their words, whatever case, spaces and punctuation."""
        return re.sub(r"[\W_]+", " ", self.question(doc).casefold()).strip()

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
