"""Documents of the world: the task's two files and the corpora that the models are taught."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from gistgate.errors import UserError
from gistgate.files import write_json_lines
from pipeline.common.paths import WORLD
from pipeline.pairs.world.params import WorldParams
from pipeline.pairs.world.problem import draw_problem
from pipeline.pairs.world.style import make_style
from pipeline.pairs.world.telling import Teller

PATIENCE = 3000
"""Problems drawn again in a row before the world counts as exhausted."""


def documents(params: WorldParams, seed: int, part: str, count: int, dialect: str = "target") -> list[dict[str, str]]:
    """Draw `count` documents {"question", "answer"} of a part (`corpus`, `train`, `test`).

    Arithmetic cores are unique within the task's files and disjoint between all parts; a corpus may meet a core again
    in other words. Both dialects tell questions in the target's style, only solutions differ.
    """
    rng = random.Random(f"{seed} {part} {dialect}")
    teller = Teller(make_style(params, dialect, seed), params.has_ornaments)
    rows: list[Any] = []
    seen: set[Any] = set()
    misses = 0
    while len(rows) < count:
        problem = draw_problem(params, part, rng)
        if part != "corpus" and problem.core in seen:
            misses += 1
            if misses > PATIENCE:
                raise UserError(
                    f"The world holds fewer than {count} different problems for its {part} file. "
                    "Lower world.task_train and world.task_test, or raise world.max_steps or world.max_total."
                )
            continue
        misses = 0
        seen.add(problem.core)
        rows.append({"question": teller.question(problem, rng), "answer": teller.solution(problem, rng)})
    return rows


def write_task_files(params: WorldParams, seed: int, folder: Path = WORLD) -> None:
    """Write train.jsonl and test.jsonl, byte by byte the same for the same parameters and seed."""
    for part, count in (("train", params.task_train), ("test", params.task_test)):
        write_json_lines(folder / f"{part}.jsonl", documents(params, seed, part, count))


def prompt_text(question: str) -> str:
    """The context of a problem, as `doc_to_text` of data/tasks/wordproblems.yaml builds it."""
    return f"Question: {question}\nAnswer:"


def answer_of(text: str) -> str | None:
    """The number after the first `####`, or None."""
    _, mark, rest = text.partition("#### ")
    digits = rest.split()[:1]
    return digits[0].rstrip(".") if mark and digits else None
