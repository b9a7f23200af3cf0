"""The prompts on which `gistgate calibrate` chooses and certifies: none that a run has used or judged."""

from __future__ import annotations

import warnings

from gistgate.certificates.ledger import Ledger, hash_of
from gistgate.certificates.looks import LOCAL, PUBLISHED, level
from gistgate.certificates.planning import default_n
from gistgate.errors import UserError
from gistgate.forward.context import context_of
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.calibrate_models import Models
from gistgate.integrations.lm_eval.calibrate_options import Options
from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, hashes_of, unused_prompts, used_prompts
from gistgate.integrations.lm_eval.task import Task

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""


def prompts_of(options: Options, models: Models, task: Task, ternary: bool) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without problems of a run in data/prompts or of the gate's training.

    Prompts that the ledgers know from a pipeline are left out as well: its earlier draws are training documents, too.

    Raises:
        UserError: nothing is left for calibration.
    """
    maker = PromptMaker(task, models.tokenizer, context_of_all(models))
    docs = task.documents("train")
    learned = learned_by(models.gate)
    unused = unused_prompts(maker, docs, len(docs), options.seed, used_prompts(), learned)
    judged = judged_marks()
    found = [prompt for prompt in unused if judged.isdisjoint(marks_of(task, prompt))]
    available = len(found) - options.development
    if available < 1:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, of which {options.development} "
            "choose settings and none is left to calibrate. Lower --development or take a larger task."
        )
    confidence = level(options.confidence, options.looks)
    planned = default_n(options.budget, confidence, ternary, available, options.stop)
    n = min(available, options.prompts or planned)
    calibration = found[options.development :][(options.draw - 1) * n : options.draw * n]
    if len(calibration) < n:
        raise UserError(
            f"Draw {options.draw} needs {n} calibration prompts that no earlier draw has, but '{options.task}' has "
            f"only {len(calibration)} left. Lower --prompts, or take a task with more documents."
        )
    return {"development": found[: options.development], "calibration": calibration}


def context_of_all(models: Models) -> int:
    """Tokens that target and draft can read."""
    used = [models.target] if models.draft is None else [models.target, models.draft]
    return min(context_of(model.config.get_text_config()) or LONGEST for model in used)


def learned_by(gate: Gate | None) -> str:
    """Hashes of the problems that a gate was trained on; a gate of an earlier version does not say them."""
    if gate is not None and not gate.config.problems:
        warnings.warn(
            "The gate does not say which problems it was trained on. If they are among the documents of this task, and "
            "data/prompts does not hold them, the certificate promises too much. Train the gate again with this "
            "version.",
            stacklevel=2,
        )
    return "" if gate is None else gate.config.problems


def marks_of(task: Task, prompt: Prompt) -> set[str]:
    """By what ledgers know a prompt: its token ids, and its problem."""
    return {hash_of(prompt["ids"]), hashes_of([task.problem(prompt["doc"])])}


def judged_marks() -> set[str]:
    """Hashes of prompts and problems that stages of a pipeline judged; unlike commands, these record their choice.

    Raises:
        UserError: a ledger was edited.
    """
    ledgers = [Ledger.read(path) for path in (LOCAL, PUBLISHED)]
    return {mark for ledger in ledgers for look in ledger.looks if look.choice for mark in ledger.marks(look)}
