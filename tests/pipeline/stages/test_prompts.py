"""Prompts are disjoint by problem and the same for the same seed; every document that is left out is accounted for."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.core.files import read_json, read_json_lines
from gistgate.core.utils import UserError
from gistgate.lm_eval.prompts import PromptMaker, hashes_of
from gistgate.lm_eval.task import Task, find_task
from pipeline.params import Params, parse_params
from pipeline.stages import prompts as stage
from pipeline.stages.prompts import write_prompts
from pipeline.tasks import task_spec
from tests.tiny import byte_tokenizer, write_rows, write_task

SIZES = {"train": 10, "development": 5, "calibration": 8, "guard": 2, "test": 4}
SPLITS = tuple(SIZES)


def params(sizes: dict[str, int] | None = None, **blocks: Any) -> Params:
    return parse_params({"task": "sums", "prompts": {**SIZES, **(sizes or {})}, **blocks})


def make(folder: Path, given: Params, context: int = 512) -> dict[str, list[dict[str, Any]]]:
    task = Task(find_task("sums", folder=folder / "tasks"), task_spec(given))
    write_prompts(PromptMaker(task, byte_tokenizer(), context), given, folder / "prompts")
    return {name: read_json_lines(folder / "prompts" / f"{name}.jsonl") for name in SPLITS}


def test_splits_have_their_sizes_and_share_no_problem(tmp_path: Path) -> None:
    write_task(tmp_path)
    splits = make(tmp_path, params())
    assert {name: len(prompts) for name, prompts in splits.items()} == SIZES
    questions = [prompt["doc"]["question"] for prompts in splits.values() for prompt in prompts]
    assert len(set(questions)) == len(questions) == sum(SIZES.values())


def test_training_problems_are_written_for_the_gates_that_learn_from_them(tmp_path: Path) -> None:
    write_task(tmp_path)
    splits = make(tmp_path, params())
    found = read_json(tmp_path / "prompts/problems.json")["train"]
    words = [f"q {prompt['doc']['question'].split()[0]} 1 a" for prompt in splits["train"]]
    assert found == hashes_of(words) and len(found.split()) == SIZES["train"]


def test_a_line_says_everything_that_decoding_needs(tmp_path: Path) -> None:
    write_task(tmp_path)
    prompt = make(tmp_path, params())["test"][2]
    assert prompt == {
        "id": "test-2",
        "doc": {"question": "1002 + 1?", "answer": "It is so.\n#### 1003"},
        "context": "Q: 1002 + 1?\nA:",
        "ids": byte_tokenizer().encode("Q: 1002 + 1?\nA:"),
        "stops": ["\n", "Q:"],
        "max_new_tokens": 12,
    }


def test_test_prompts_keep_the_tasks_order(tmp_path: Path) -> None:
    write_task(tmp_path)
    assert [prompt["id"] for prompt in make(tmp_path, params())["test"]] == [f"test-{index}" for index in range(4)]


def test_the_seed_decides_and_equal_seeds_give_equal_bytes(tmp_path: Path) -> None:
    write_task(tmp_path)
    make(tmp_path, params())
    first = (tmp_path / "prompts/train.jsonl").read_bytes()
    make(tmp_path, params())
    assert (tmp_path / "prompts/train.jsonl").read_bytes() == first
    make(tmp_path, params(seed=2))
    assert (tmp_path / "prompts/train.jsonl").read_bytes() != first


def test_more_training_prompts_move_no_other_split(tmp_path: Path) -> None:
    write_task(tmp_path)
    few, many = make(tmp_path, params()), make(tmp_path, params({"train": 15}))
    assert few["calibration"] == many["calibration"]
    assert few["development"] == many["development"]
    assert few["train"] == many["train"][:10]


def test_a_problem_told_twice_serves_once_and_never_beside_the_test(tmp_path: Path) -> None:
    write_task(tmp_path, num_train=25)
    rows = read_json_lines(tmp_path / "train.jsonl")
    again = [{"question": "  5 + 1 ", "answer": "#### 6"}, {"question": "1000 + 1?", "answer": "#### 1001"}]
    write_rows(tmp_path / "train.jsonl", [*rows, *again])
    splits = make(tmp_path, params())
    told = ["".join(prompt["doc"]["question"].split()) for name in SPLITS for prompt in splits[name]]
    assert sum(text.startswith("5+1") for text in told) == 1
    assert sum(text.startswith("1000+1") for text in told) == 1
    with pytest.raises(UserError, match=r"26 training.*27 training documents.*only 25 are usable"):
        make(tmp_path, params({"train": 11}))


def test_too_few_documents_are_counted(tmp_path: Path) -> None:
    write_task(tmp_path)
    with pytest.raises(UserError, match="asks for 7 documents, but the test split of 'sums' has 6"):
        make(tmp_path, params({"test": 7}))


def test_prompts_longer_than_the_context_are_left_out_and_counted(tmp_path: Path) -> None:
    write_task(tmp_path, num_train=25)
    long = "why " * 50
    write_rows(
        tmp_path / "train.jsonl",
        [*read_json_lines(tmp_path / "train.jsonl"), {"question": long, "answer": "#### 1"}],
    )
    tests = read_json_lines(tmp_path / "test.jsonl")
    write_rows(tmp_path / "test.jsonl", [tests[0], {"question": long, "answer": "#### 1"}, *tests[2:]])
    splits = make(tmp_path, params(), context=100)
    assert [prompt["id"] for prompt in splits["test"]] == ["test-0", "test-2", "test-3"]
    assert all(len(prompt["ids"]) <= 100 - 12 for name in SPLITS for prompt in splits[name])
    summary = read_json(tmp_path / "prompts/summary.json")
    assert summary["too_long"]["test"] == 1
    assert summary["prompts"]["test"] == 3
    with pytest.raises(UserError, match="All 4 test prompts are longer than 1 token"):
        make(tmp_path, params(), context=13)
    with pytest.raises(UserError, match="leaves nothing for the prompt"):
        make(tmp_path, params(), context=12)


def test_an_empty_prompt_is_refused(tmp_path: Path) -> None:
    write_task(tmp_path, **{'"Q: {{question}}\\nA:"': '"{{question}}"'})
    rows = read_json_lines(tmp_path / "test.jsonl")
    write_rows(tmp_path / "test.jsonl", [rows[0], {"question": " ", "answer": "#### 1"}, *rows[2:]])
    with pytest.raises(UserError, match="Document 1 of the test split of 'sums' gives an empty prompt"):
        make(tmp_path, params())


@pytest.mark.parametrize("repeated", [0, 2])
def test_a_world_without_end_replaces_problems_that_come_again(
    repeated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further documents are asked for where some of the first ones cannot be used, and the first ones stay."""
    asked: list[int] = []

    def documents(_world: Any, _seed: int, count: int, _draw: int) -> list[dict[str, str]]:
        asked.append(count)
        return [{"question": f"q {500 + max(0, place - repeated)} 1 a", "answer": "1"} for place in range(count)]

    write_task(tmp_path)
    monkeypatch.setattr(stage, "of_the_world", lambda _params: True)
    monkeypatch.setattr(stage, "further_documents", documents)
    splits = make(tmp_path, params())
    assert len(splits["calibration"]) == SIZES["calibration"]
    assert asked == [8] if repeated == 0 else [8, 16]


def test_the_number_of_calibration_prompts_of_a_world_without_end_moves_no_other_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_task(tmp_path)  # 25 training documents
    monkeypatch.setattr(stage, "of_the_world", lambda _params: True)
    monkeypatch.setattr(stage, "PASSED_OVER", SIZES["calibration"])
    monkeypatch.setattr(
        stage,
        "further_documents",
        lambda *given: [{"question": f"q {500 + n} 1 a", "answer": "1"} for n in range(given[2])],
    )
    few, many = make(tmp_path, params()), make(tmp_path, params({"calibration": 40}))
    assert len(many["calibration"]) == 40 and many["calibration"][:8] != few["train"][:8]
    assert all(many[name] == few[name] for name in SPLITS if name != "calibration")
