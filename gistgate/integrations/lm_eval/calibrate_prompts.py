"""The prompts on which `gistgate calibrate` chooses and certifies: none that a run has used or judged."""

from __future__ import annotations

from gistgate.certificates.ledger import Ledger, hash_of
from gistgate.certificates.looks import LOCAL, PUBLISHED
from gistgate.certificates.planning import default_n
from gistgate.errors import UserError
from gistgate.integrations.lm_eval.calibrate_models import Models
from gistgate.integrations.lm_eval.calibrate_options import Options
from gistgate.integrations.lm_eval.prompts import Prompt, PromptMaker, unused_prompts, used_prompts
from gistgate.integrations.lm_eval.task import Task

LONGEST = 2048
"""Context assumed where a model does not say its own, in tokens."""


def prompts_of(options: Options, models: Models, task: Task, ternary: bool) -> dict[str, list[Prompt]]:
    """Development and calibration prompts, without problems of a finished run in data/prompts.

    Prompts that the ledgers know from a pipeline are left out as well: its earlier draws are training documents, too.

    Raises:
        UserError: nothing is left for calibration.
    """
    config = models.target.config.get_text_config()
    maker = PromptMaker(task, models.tokenizer, getattr(config, "max_position_embeddings", None) or LONGEST)
    docs = task.documents("train")
    unused, judged = unused_prompts(maker, docs, len(docs), options.seed, used_prompts()), judged_prompts()
    found = [prompt for prompt in unused if hash_of(prompt["ids"]) not in judged]
    available = len(found) - options.development
    if available < 1:
        raise UserError(
            f"The task '{options.task}' has {len(found)} unused training documents, of which {options.development} "
            "choose settings and none is left to calibrate. Lower --development or take a larger task."
        )
    planned = default_n(options.budget, options.confidence, ternary, available, options.stop)
    n = min(available, options.prompts or planned)
    calibration = found[options.development :][(options.draw - 1) * n : options.draw * n]
    if len(calibration) < n:
        raise UserError(
            f"Draw {options.draw} needs {n} calibration prompts that no earlier draw has, but '{options.task}' has "
            f"only {len(calibration)} left. Lower --prompts, or take a task with more documents."
        )
    return {"development": found[: options.development], "calibration": calibration}


def judged_prompts() -> set[str]:
    """Hashes of the prompts that stages of a pipeline judged; unlike commands, they record what led to their choice.

    Raises:
        UserError: a ledger was edited.
    """
    ledgers = [Ledger.read(path) for path in (LOCAL, PUBLISHED)]
    return {mark for ledger in ledgers for look in ledger.looks if look.choice for mark in ledger.draws[look.prompts]}
