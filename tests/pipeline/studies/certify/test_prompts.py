"""Prompts of `make certify` and of studies beside it: new problems of the world, and none of them twice."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from shutil import copytree
from types import SimpleNamespace
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.errors import UserError
from gistgate.files import read_json_lines
from gistgate.integrations.lm_eval.prompts import PromptMaker, unused_prompts
from pipeline.certification import further
from pipeline.pairs.world.corpus import documents, write_task_files
from pipeline.pairs.world.params import WorldParams
from pipeline.pairs.world.supply import PURPOSES, further_documents
from pipeline.params import Params, parse_params
from pipeline.stages import prompts as prompts_stage
from pipeline.stages.prompts import WORLD_TASK, write_prompts
from pipeline.studies.certify import certify
from pipeline.studies.certify.params import CertifyParams
from pipeline.tasks.loading import load_task
from tests.tiny import byte_tokenizer

ROOT = Path(__file__).parents[4]
WORLD = WorldParams(task_train=80, task_test=20)
SIZES = {"train": 40, "development": 10, "guard": 20, "calibration": 20, "test": 10}


@pytest.fixture
def params(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Params:
    """A folder with the world's task, and the prompts that the stage `prompts` draws from it."""
    monkeypatch.chdir(tmp_path)
    for folder in ("data/tasks", "models/pairs"):
        copytree(ROOT / folder, folder)
    given = parse_params({"task": WORLD_TASK, "world": {"task_train": 100, "task_test": 20}, "prompts": SIZES})
    write_task_files(given.world, given.seed)
    write_prompts(PromptMaker(load_task(given), byte_tokenizer(), 4096), given, Path("data/prompts"))
    monkeypatch.setattr(further, "load_pair", lambda _params: SimpleNamespace(tokenizer=byte_tokenizer()))
    monkeypatch.setattr(further, "context_length", lambda _source: 4096)
    return given


def questions(prompts: list[dict[str, Any]]) -> set[str]:
    return {prompt["doc"]["question"] for prompt in prompts}


def test_a_study_beside_make_certify_shares_no_problem_with_anything(params: Params):
    certified = further.new_prompts(params, 60, "certify")
    beside = further.new_prompts(params, 30, "labels", beside=certified)
    assert (len(questions(certified)), len(questions(beside))) == (60, 30)
    assert not questions(certified) & questions(beside)
    of_the_run = {split: questions(read_json_lines(Path(f"data/prompts/{split}.jsonl"))) for split in SIZES}
    assert {split: len(found) for split, found in of_the_run.items()} == SIZES
    assert not set().union(*of_the_run.values()) & (questions(certified) | questions(beside))
    assert questions(further.new_prompts(params, 60, "certify")) == questions(certified)


def test_other_tasks_offer_what_their_training_split_has_left(params: Params, monkeypatch: pytest.MonkeyPatch):
    """`new_prompts` invents problems for the embedded world alone; elsewhere 100 - 70 documents are left."""
    monkeypatch.setattr(further, "of_the_world", lambda _params: False)
    own = CertifyParams(methods=("autojudge",), budgets=(0.1,), prompts=8, block=4, ece_problems=1)
    monkeypatch.setattr(certify, "read_certify_params", lambda: own)
    certified = certify.calibration_prompts(params)
    assert len(certified) == 8 and len(further.new_prompts(params, 30, "labels", beside=certified)) == 22
    monkeypatch.setattr(certify, "read_certify_params", lambda: CertifyParams(("autojudge",), (0.1,), 31, 4, 1))
    with pytest.raises(
        UserError, match="asks for 31 prompts, but draw 1 of the task 'wordproblems' has only 30 unused ones"
    ):
        certify.calibration_prompts(params)


def test_prompts_of_the_runs_earlier_draws_are_left_out(params: Params, monkeypatch: pytest.MonkeyPatch):
    """They are documents of the same split, and `data/prompts` no longer holds them."""
    for module in (further, prompts_stage):
        monkeypatch.setattr(module, "of_the_world", lambda _params: False)
    drawn, runs = {}, {draw: replace(params, prompts=replace(params.prompts, guard=0, draw=draw)) for draw in (1, 2)}
    for draw, run in runs.items():
        write_prompts(PromptMaker(load_task(run), byte_tokenizer(), 4096), run, Path("data/prompts"))
        drawn[draw] = questions(read_json_lines(Path("data/prompts/calibration.jsonl")))
    assert len(drawn[1]) == len(drawn[2]) == 20 and not drawn[1] & drawn[2]
    fresh = questions(further.new_prompts(runs[2], 100, "certify"))
    assert len(fresh) == 100 - 40 - 10 - 2 * 20 and not fresh & (drawn[1] | drawn[2])


def test_unused_prompts_tell_no_used_problem_in_other_words(params: Params):
    maker = PromptMaker(load_task(params), byte_tokenizer(), 4096)
    docs = documents(params.world, 7, "train", 12)
    used = [{"doc": {**docs[3], "question": docs[3]["question"].upper() + " !"}}]
    found = unused_prompts(maker, docs, 12, 1, used)
    assert questions(found) == {doc["question"] for doc in docs} - {docs[3]["question"]}
    assert found != unused_prompts(maker, docs, 12, 2, used)
    assert unused_prompts(maker, docs, 5, 1, used) == found[:5]


def test_further_documents_of_the_world_repeat_no_text():
    def draw(purpose: str, number: int, seed: int = 1) -> list[str]:
        return [row["question"] for row in further_documents(WORLD, seed, purpose, 10, number)]

    told = {row["question"] for part in ("train", "test") for row in documents(WORLD, 1, part, WORLD.task_train)}
    drawn = [question for purpose in PURPOSES for number in (1, 2) for question in draw(purpose, number)]
    assert len(set(drawn)) == len(drawn) == 20 * len(PURPOSES) and not told & set(drawn)
    assert draw("certify", 2) == draw("certify", 2) != draw("certify", 2, seed=2)
    with pytest.raises(ValueError, match="lunch"):
        draw("lunch", 1)
