"""The calibration error on a tiny pair and task: its problems are new, and an interrupted run goes on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.gates.config import GateConfig
from gistgate.gates.gate import Gate
from gistgate.identity import identify_model, identify_tokenizer
from gistgate.integrations.lm_eval import task_files
from pipeline.params import Params, parse_params
from pipeline.studies.certify import certify
from pipeline.studies.certify.params import CertifyParams
from pipeline.studies.labels import calibration_error
from tests.architectures import pair
from tests.tiny import byte_tokenizer, write_task

OWN = CertifyParams(methods=("autojudge",), budgets=(0.1,), prompts=10, block=4, ece_problems=45)


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A folder with a pair, a task of 60 documents and a gate, as a finished run leaves them."""
    monkeypatch.chdir(tmp_path)
    given = parse_params({"pair": "tiny", "task": "sums"})
    any_answer = {'"#### (-?[0-9.,]+)"': '"(?s)(.)"'}  # a random model writes no numbers
    tasks = write_task(tmp_path, num_train=60, **any_answer)
    monkeypatch.setattr(task_files.find_task, "__defaults__", (None, tasks, False))
    models = pair("llama", noise=0.1)
    for name, model in zip(("target", "draft"), models, strict=True):
        model.save_pretrained(f"models/tiny/{name}")
        byte_tokenizer().save_pretrained(f"models/tiny/{name}")
    places = {name: {"model": f"models/tiny/{name}", "dtype": "float32"} for name in ("target", "draft")}
    Path("models/pairs").mkdir()
    Path("models/pairs/tiny.yaml").write_text(yaml.safe_dump(places))
    partners = *map(identify_model, models), identify_tokenizer(byte_tokenizer())
    gate = Gate(GateConfig({"type": "linear"}, {"h_tok:post": 32}, *partners))
    gate.save(f"models/heads/{given.train.headline_head}")
    for module in (certify, calibration_error):
        monkeypatch.setattr(module, "read_certify_params", lambda: OWN)
    return given


def test_its_problems_are_new_and_it_goes_on_behind_finished_parts(params: Params, monkeypatch: pytest.MonkeyPatch):
    decoded: list[list[str]] = []
    collected = calibration_error.collected

    def counting(params: Any, pair: Any, part: list[dict[str, Any]]) -> Any:
        decoded.append([prompt["doc"]["question"] for prompt in part])
        return collected(params, pair, part)

    monkeypatch.setattr(calibration_error, "collected", counting)
    with torch.no_grad():
        first, table = calibration_error.labelled(params, 20), calibration_error.labelled(params)
    assert [len(part) for part in decoded] == [20, 20, 5]
    questions = {question for part in decoded for question in part}
    assert len(questions) == 45
    assert not questions & {prompt["doc"]["question"] for prompt in certify.calibration_prompts(params)}
    rows = len(first["problem"])
    assert rows and all(torch.equal(table[name][:rows], column) for name, column in first.items())
    assert first["problem"].max() < 20 <= table["problem"][rows:].min() and table["problem"].max() >= 40
    assert 0 < table["probability"].min() <= table["probability"].max() < 1
    assert calibration_error.measured(table)["n"] == len(table["kept"])
