"""What a certificate holds for. Whatever differs when a method is used makes the combination uncertified."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gistgate.certificates.certificate import gate_hash, model_hash
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer
from gistgate.integrations.lm_eval.task import Task
from pipeline.common.drafters import asks_draft, files_behind
from pipeline.common.resume import fingerprint
from pipeline.pairs.pair import Pair
from pipeline.params import MethodParams, Params

PROMPTS = Path("data/prompts/calibration.jsonl")
FOR_PEOPLE = frozenset({"source"})
"""Entries that are recorded and never compared."""


def binding_of(params: Params, name: str, pair: Pair, task: Task, gate: Gate | None) -> dict[str, Any]:
    """Everything a certificate of method `name` depends on, as plain JSON without dates."""
    return {
        "drafter_data": None,
        **binding(pair, params.method(name), params.block_of(name), gate, params.decoding.batch_size),
        "task": task_hash(task, params),
        "prompts": fingerprint(PROMPTS),
        "prompting": asdict(params.prompting),
        "source": f"training documents of the task '{task.name}'; certificates hold for prompts like these",
    }


def binding(pair: Pair, method: MethodParams, block: int, gate: Gate | None, rows: int) -> dict[str, Any]:
    """What decodes: models, tokenizer, gate, method, what its drafter knows, and how; `rows` prompts at a time."""
    return {
        "target": model_hash(identify_model(pair.target)),
        "draft": model_hash(identify_model(pair.draft)) if asks_draft(method.drafter) else None,
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


def check_binding(certificate: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """What differs between a certificate (a calibration file) and what is about to run, as sentences.

    An empty list means that the certificate applies; anything else makes the combination uncertified.
    """
    certified = certificate.get("binding", {})
    return [
        f"{path} was {shown(then)} when certified and is {shown(now)}."
        for path, then, now in differences(certified, current)
        if path.split(".")[0] not in FOR_PEOPLE
    ]


def differences(then: Any, now: Any, path: Sequence[str] = ()) -> Iterator[tuple[str, Any, Any]]:
    """Leaves that differ between two nested dictionaries, by dotted path; a missing one is None."""
    if isinstance(then, dict) and isinstance(now, dict):
        for key in sorted(then.keys() | now.keys()):
            yield from differences(then.get(key), now.get(key), (*path, key))
    elif then != now:
        yield ".".join(path), then, now


def shown(value: Any) -> str:
    """A value in a sentence; long hashes are cut."""
    text = "absent" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:12]}..."
