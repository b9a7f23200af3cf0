"""lm-eval against a strict server (`local-completions`) reads the answers that it gets from this library's decoder."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import MODEL, Configuration, serving
from tests.tiny import write_task
from tests.vllm.engine import prepare

pytestmark = pytest.mark.vllm


def judged(tasks: Path, model: str, arguments: dict[str, Any]) -> tuple[list[str], float]:
    """The answers to all test documents in order, and the score."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    import gistgate.integrations.lm_eval.model  # noqa: F401 (registers the model)

    manager = TaskManager(include_path=str(tasks), include_defaults=False)
    found = lm_eval.simple_evaluate(model, arguments, tasks=["sums"], task_manager=manager, bootstrap_iters=0)
    samples = sorted(found["samples"]["sums"], key=lambda sample: sample["doc_id"])
    score = next(value for name, value in found["results"]["sums"].items() if name.startswith("exact_match,"))
    return [sample["resps"][0][0] for sample in samples], score


def test_a_server_gives_the_quality_of_the_in_process_run(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(os, "environ", os.environ.copy())
    prepare({"cache": str(tmp_path / "cache"), "alone": False})
    tasks = write_task(tmp_path, num_test=6, limit=24)
    target, draft = str(place / "target"), str(place / "draft")
    shared = {"batch_size": 1, "max_length": 256}
    own = judged(
        tasks,
        "gistgate",
        {"pretrained": target, "draft": draft, "rule": "exact", "dtype": "float32", "device": "cpu", **shared},
    )
    speculation = {"method": "draft_model", "model": draft, "num_speculative_tokens": 4}
    options = ["--enforce-eager", "--max-model-len", "256", "--max-num-seqs", "4"]
    server = Configuration(place / "target", speculation, {"strict": True}, options=options)
    with serving(server, tmp_path / "log") as address:
        arguments = {"model": MODEL, "base_url": f"{address}/v1/completions", "tokenizer": target, **shared}
        served = judged(tasks, "local-completions", {**arguments, "num_concurrent": 2})
    assert served == own
    assert len(set(own[0])) > 1
