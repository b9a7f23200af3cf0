"""The stage `prompts` says what publishing would refuse, before a run spends hours on it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.certificates.ledger import Ledger, Look, fingerprint_of, hash_of
from gistgate.certificates.looks import PUBLISHED
from gistgate.files import read_json_lines
from gistgate.integrations.lm_eval.prompts import PromptMaker
from gistgate.integrations.lm_eval.task import Task
from gistgate.integrations.lm_eval.task_files import find_task
from pipeline.certification.looks import choice_of
from pipeline.common.code import CERTIFYING, code_fingerprint
from pipeline.params import Params, parse_params
from pipeline.stages.prompts import write_prompts
from pipeline.tasks.loading import task_spec
from tests.tiny import byte_tokenizer, write_task

SIZES = {"train": 6, "development": 4, "calibration": 3, "guard": 1, "test": 2}
METHODS = {"free": {"exact": {"rule": "exact"}}}
CODE = code_fingerprint(*sorted(CERTIFYING))


def start(folder: Path, monkeypatch: pytest.MonkeyPatch, draw: int = 1) -> Params:
    monkeypatch.chdir(folder)
    write_task(folder)
    return parse_params({"task": "sums", "prompts": {**SIZES, "draw": draw}, "methods": METHODS})


def stage(params: Params) -> list[str]:
    """Write the prompts; returns the hashes of those of calibration."""
    task = Task(find_task("sums", folder=Path("tasks")), task_spec(params))
    write_prompts(PromptMaker(task, byte_tokenizer(), 512), params, Path("prompts"))
    return [hash_of(prompt["ids"]) for prompt in read_json_lines(Path("prompts/calibration.jsonl"))]


def publish(hashes: list[str], choice: str, code: str = CODE) -> None:
    ledger = Ledger.read(PUBLISHED)
    look = Look("embedded, sums, task: exact", fingerprint_of(hashes), code, "sequence", 0.05, choice)
    ledger.admit(look, hashes, 0.05)
    ledger.write(PUBLISHED)


def test_fresh_prompts_and_the_same_choice_by_the_same_code_are_not_warned_of(tmp_path, monkeypatch, capsys):
    params = start(tmp_path, monkeypatch)
    publish(stage(params), choice_of(params, "exact"))
    stage(params)
    assert "judged before" not in capsys.readouterr().out


@pytest.mark.parametrize(("is_choice", "code"), [(True, "other"), (False, CODE)])
def test_another_choice_and_other_code_are_told_with_the_next_free_draw(
    tmp_path, monkeypatch, capsys, is_choice: bool, code: str
):
    params = start(tmp_path, monkeypatch)
    second = replace(params, prompts=replace(params.prompts, draw=2))
    for one in (params, second):
        publish(stage(one), choice_of(one, "exact") if is_choice else "another", code)
    stage(params)
    said = capsys.readouterr().out
    assert "prompts.draw: 1 were judged before for exact" in said and "refused" in said
    assert "prompts.draw: 3 is free" in said


def test_where_documents_run_out_no_draw_is_free(tmp_path, monkeypatch, capsys):
    params = start(tmp_path, monkeypatch)
    monkeypatch.setattr("pipeline.certification.early.FURTHEST", 0)
    publish(stage(params), "another")
    stage(params)
    assert "no further draw is free" in capsys.readouterr().out
