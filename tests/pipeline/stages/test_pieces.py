"""Finished pieces of stages that judge answers are not found again once the task judges in another way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gistgate.files import write_text
from pipeline.params import Params, parse_params
from pipeline.stages import collect, label, reference

ROOT = Path(__file__).parents[3]
STAGES: dict[str, Callable[[Params], Path]] = {
    "reference": reference.pieces_folder,
    "collect": lambda params: collect.shards_of(params, "strict").folder,
    "label": lambda params: label.shards_of(params, "strict").folder,
}


@pytest.mark.parametrize("stage", STAGES)
def test_pieces_belong_to_the_tasks_files_metric_and_documents(
    stage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_text("models/pairs/embedded.yaml", (ROOT / "models/pairs/embedded.yaml").read_text())
    params = replace(parse_params({"pair": "embedded", "task": "sums"}), task_data="documents")
    seen = [STAGES[stage](params)]
    write_text("data/tasks/sums.yaml", "task: sums\n")
    seen.append(STAGES[stage](params))
    write_text("documents/train.jsonl", "{}\n")
    seen.append(STAGES[stage](params))
    seen.append(STAGES[stage](replace(params, task_metric="exact_match")))
    assert len(set(seen)) == 4 and STAGES[stage](params) == seen[2]
