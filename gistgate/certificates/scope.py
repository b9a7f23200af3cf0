"""The scope of a certificate: everything that decides what is decoded, as plain JSON without dates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel

from gistgate.certificates.calibration import Method
from gistgate.files import fingerprint
from gistgate.identity import gate_hash, identify_model, model_scope, tokenizer_scope
from gistgate.request.stopping import eos_ids
from gistgate.task_files import files_of


def decoding_scope(
    method: Method,
    target: PreTrainedModel,
    draft: PreTrainedModel | None,
    tokenizer: Any,
    gate: Any,
    rows: int,
    data: Sequence[Path] = (),
    drafting: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """What decodes: models, tokenizer, gate, method, and how.

    Args:
        method: rule, drafter, K and knob.
        target, tokenizer, gate: the parts that are served; the gate may be None.
        draft: the draft model; None where the drafter does not ask it.
        rows: prompts that are decoded together.
        data: files and folders that the drafter reads.
        drafting: the drafter's `binding`; nothing is written where it is empty.
    """
    return {
        "target": model_scope(identify_model(target)),
        "draft": None if draft is None else model_scope(identify_model(draft)),
        **({"drafter_data": fingerprint(*data)} if data else {}),
        **({"drafting": drafting} if drafting else {}),
        **({"rule_data": fingerprint(*method.files)} if method.files else {}),
        **tokenizer_scope(tokenizer, ("encoding",)),
        "ends": eos_ids(target, tokenizer),
        "gate": None if gate is None else gate_hash(gate),
        "rule": method.rule,
        "drafter": method.drafter,
        "block": method.block,
        "knob": method.knob,
        "temperature": 0.0,
        "engine": "eager",
        "batching": {"rows": rows, "ragged": True},
        "guards": [],
    }


def task_scope(task: Any, prompts: Any, tokenizer: Any = None) -> dict[str, Any]:
    """What is asked and how answers are judged.

    Args:
        task: an lm-eval task of `gistgate.integrations.lm_eval.task`.
        prompts: what tells the calibration prompts from others: their token ids, or the file (as Path).
        tokenizer: whose chat template the prompts have; None where a server writes them.
    """
    asked = task.prompting
    has_template = asked.chat_template and tokenizer is not None
    return {
        **({"template": tokenizer_scope(tokenizer, ("template",))["template"]} if has_template else {}),
        "task": task_hash(task),
        "prompts": fingerprint(prompts),
        "prompting": {"num_fewshot": asked.num_fewshot, "chat_template": asked.chat_template, "system": asked.system},
    }


def task_hash(task: Any) -> str:
    """Hash of how a task is asked and judged; its own files are included where data/tasks has them."""
    limits = [task.name, task.metric, list(task.stops), task.max_new_tokens]
    return fingerprint(limits, *files_of(Path("data/tasks") / f"{task.name}.yaml"))
