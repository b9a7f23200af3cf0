"""The scope of a certificate: everything that it holds for. Whatever differs at use makes it void."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from gistgate.gates.gate import Gate
from gistgate.identity import gate_hash, identify_model, identify_tokenizer, model_scope
from gistgate.integrations.lm_eval.task import Task
from pipeline.common.resume import fingerprint
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params
from pipeline.studies.retrieval.drafters import asks_draft, files_behind

PROMPTS = Path("data/prompts/calibration.jsonl")


def scope_of(params: Params, name: str, pair: Pair, task: Task, gate: Gate | None) -> dict[str, Any]:
    """Everything a certificate of method `name` depends on, as plain JSON without dates."""
    return {
        "drafter_data": None,
        **decoding_scope(pair, params.method(name), params.block_of(name), gate, params.decoding.batch_size),
        "task": task_hash(task, params),
        "prompts": fingerprint(PROMPTS),
        "prompting": asdict(params.prompting),
    }


def decoding_scope(pair: Pair, method: MethodParams, block: int, gate: Gate | None, rows: int) -> dict[str, Any]:
    """What decodes: models, tokenizer, gate, method, what its drafter knows, and how; `rows` prompts at a time."""
    return {
        "target": model_scope(identify_model(pair.target)),
        "draft": model_scope(identify_model(pair.draft)) if asks_draft(method.drafter) else None,
        **({"drafter_data": fingerprint(*files)} if (files := files_behind(method.drafter)) else {}),
        "tokenizer": identify_tokenizer(pair.tokenizer).vocabulary,
        "gate": None if gate is None else gate_hash(gate),
        **method_settings(method, block),
        "temperature": 0.0,
        "engine": "eager",
        "batching": {"rows": rows, "ragged": True},
        "guards": [],
    }


def task_hash(task: Task, params: Params) -> str:
    """Hash of how a task is asked and judged; its own file is included where it is ours."""
    own = Path("data/tasks") / f"{params.task}.yaml"
    limits = [task.name, task.metric, list(task.stops), task.max_new_tokens]
    return fingerprint(limits, *([own] if own.is_file() else []))


def method_settings(method: MethodParams, block: int) -> dict[str, Any]:
    """The method's part: its rule and drafter, and everything but the knob's value."""
    return {"rule": method.rule, "drafter": method.drafter, "block": block, "knob": method.knob}
