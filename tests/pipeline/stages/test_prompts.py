"""Prompts are disjoint by problem and the same for the same seed; every document that is left out
is accounted for.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}

from gistgate.core.files import read_json, read_json_lines
from gistgate.core.utils import UserError
from gistgate.lm_eval.task import load_task
from gistgate.tasks.prompts import PromptMaker, hashes_of
from pipeline.stages import prompts as stage
from pipeline.task import task_spec
from tests.pipeline.parameters import parameters
from tests.tiny import byte_tokenizer, write_rows, write_task

SIZES = {"train": 10, "development": 5, "calibration": 8, "guard": 2, "test": 4}
Make = Callable[..., dict[str, list[dict[str, Any]]]]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes the task, unless it lies there, and returns the prompts of each split."""

    def call(
        context: int = 512, sizes: dict[str, int] | None = None, **blocks: Any
    ) -> dict[str, list[dict[str, Any]]]:
        if not (tmp_path / "tasks").exists():
            write_task(tmp_path)
        given = parameters(task="sums", prompts={**SIZES, **(sizes or {})}, **blocks)
        task = load_task(task_spec(given), tmp_path / "tasks")
        stage.write_prompts(
            PromptMaker(task, byte_tokenizer(), context), given, tmp_path / "prompts"
        )
        return {name: read_json_lines(tmp_path / "prompts" / f"{name}.jsonl") for name in SIZES}

    return call


def test_splits_have_their_sizes_and_share_no_problem(make: Make, tmp_path: Path) -> None:
    splits = make()
    assert {name: len(prompts) for name, prompts in splits.items()} == SIZES
    questions = [prompt["doc"]["question"] for prompts in splits.values() for prompt in prompts]
    assert len(set(questions)) == len(questions) == sum(SIZES.values())
    assert [prompt["id"] for prompt in splits["test"]] == [f"test-{index}" for index in range(4)]
    assert splits["test"][2] == {
        "id": "test-2",
        "doc": {"question": "1002 + 1?", "answer": "It is so.\n#### 1003"},
        "context": "Q: 1002 + 1?\nA:",
        "ids": byte_tokenizer().encode("Q: 1002 + 1?\nA:"),
        "stops": ["\n", "Q:"],
        "max_new_tokens": 12,
    }
    learned = read_json(tmp_path / "prompts/problems.json")[
        "train"
    ]  # for the gates that learn from them
    words = [f"q {prompt['doc']['question'].split()[0]} 1 a" for prompt in splits["train"]]
    assert learned == hashes_of(words) and len(learned.split()) == SIZES["train"]


def test_the_seed_decides_and_equal_seeds_give_equal_bytes(make: Make, tmp_path: Path) -> None:
    written = []
    for seed in (1, 1, 2):
        make(seed=seed)
        written.append((tmp_path / "prompts/train.jsonl").read_bytes())
    assert written[0] == written[1] != written[2]


def test_more_training_prompts_move_no_split_in_front_of_them(make: Make) -> None:
    few, many = make(), make(sizes={"train": 15})
    assert few == {**many, "train": many["train"][:10], "guard": few["guard"]}


def test_a_problem_told_twice_serves_once_and_never_beside_the_test(
    make: Make, tmp_path: Path
) -> None:
    write_task(tmp_path, num_train=25)
    rows = read_json_lines(tmp_path / "train.jsonl")
    again = [
        {"question": "  5 + 1 ", "answer": "#### 6"},
        {"question": "1000 + 1?", "answer": "#### 1001"},
    ]
    write_rows(tmp_path / "train.jsonl", [*rows, *again])
    told = [
        "".join(prompt["doc"]["question"].split())
        for prompts in make().values()
        for prompt in prompts
    ]
    assert [sum(text.startswith(start) for text in told) for start in ("5+1", "1000+1")] == [1, 1]
    with pytest.raises(
        UserError, match="11 train, 2 guard .* 26 together.*27 training .*only 25 are usable"
    ):
        make(sizes={"train": 11})
    with pytest.raises(UserError, match="prompts.test is 7, but 'sums' has 6 test documents"):
        make(sizes={"test": 7})


def test_prompts_longer_than_the_context_are_left_out_and_counted(
    make: Make, tmp_path: Path
) -> None:
    write_task(tmp_path, num_train=25)
    long = {"question": "why " * 50, "answer": "#### 1"}
    write_rows(tmp_path / "train.jsonl", [*read_json_lines(tmp_path / "train.jsonl"), long])
    tests = read_json_lines(tmp_path / "test.jsonl")
    write_rows(tmp_path / "test.jsonl", [tests[0], long, *tests[2:]])
    splits = make(context=100)
    assert [prompt["id"] for prompt in splits["test"]] == ["test-0", "test-2", "test-3"]
    assert all(len(prompt["ids"]) <= 100 - 12 for prompts in splits.values() for prompt in prompts)
    summary = read_json(tmp_path / "prompts/summary.json")
    assert (summary["too_long"]["test"], summary["prompts"]["test"]) == (1, 3)
    for context, said in (
        (13, "All 4 test prompts are longer than 1 token"),
        (12, "An answer may take all 12 tokens"),
    ):
        with pytest.raises(UserError, match=said):
            make(context=context)


def test_documents_that_dvc_does_not_watch_are_refused(tmp_path: Path) -> None:
    task = load_task(task_spec(parameters(task="sums")), write_task(tmp_path))
    stage.check_watched(task, str(tmp_path))
    with pytest.raises(
        UserError, match="train.jsonl, which `dvc repro` does not watch. Set `documents`"
    ):
        stage.check_watched(task, "data/world")


@pytest.mark.parametrize("repeated", [0, 2])
def test_a_world_without_end_replaces_problems_that_come_again(
    repeated: int, make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further documents are asked for where some of the first ones cannot be used; other splits do
    not move.
    """
    asked: list[int] = []

    def documents(
        _world: Any, _seed: int, _part: str, count: int, stream: str
    ) -> list[dict[str, str]]:
        asked.append(count)
        return [
            {"question": f"q {500 + max(0, place - repeated)} 1 a", "answer": "1"}
            for place in range(count)
        ]

    monkeypatch.setattr(stage, "of_the_world", lambda _params: True)
    monkeypatch.setattr(stage, "documents", documents)
    few = make()
    assert len(few["calibration"]) == SIZES["calibration"]
    assert asked == ([8] if repeated == 0 else [8, 16])
    monkeypatch.setattr(stage, "PASSED_OVER", SIZES["calibration"])
    few, many = make(), make(sizes={"calibration": 40})
    assert len(many["calibration"]) == 40 and many["calibration"][:8] != few["train"][:8]
    assert {**many, "calibration": []} == {**few, "calibration": []}
