"""The scope of a certificate of a method of params.yaml. Whatever differs at use makes the certificate void."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gistgate.certificates.scope import decoding_scope, task_scope
from gistgate.gates.gate import Gate
from gistgate.integrations.lm_eval.task import Task
from pipeline.certification.outcomes import method_of
from pipeline.common.drafters import asks_draft, files_behind
from pipeline.pairs.pair import Pair
from pipeline.params import Params

PROMPTS = Path("data/prompts/calibration.jsonl")


def scope_of(
    params: Params, name: str, pair: Pair, task: Task, gate: Gate | None, prompts: Any = PROMPTS
) -> dict[str, Any]:
    """Everything that a certificate of method `name` depends on.

    `prompts` tells the calibration prompts from others: their file, or their token ids.
    """
    method = method_of(params, name)
    draft = pair.draft if asks_draft(method.drafter) else None
    rows, data = params.decoding.batch_size, files_behind(method.drafter)
    decoding = decoding_scope(method, pair.target, draft, pair.tokenizer, gate, rows, data)
    return {**decoding, **task_scope(task, prompts, pair.tokenizer)}
