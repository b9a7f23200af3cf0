"""Documents of the world: the task's two files and the corpora that the models are taught."""

from __future__ import annotations

import random
from pathlib import Path

from gistgate.files import write_json_lines
from pipeline.common.paths import WORLD
from pipeline.pairs.world.params import WorldParams
from pipeline.pairs.world.problem import draw_problem
from pipeline.pairs.world.style import make_style
from pipeline.pairs.world.telling import Teller


def documents(
    params: WorldParams, seed: int, part: str, count: int, dialect: str = "target", stream: str = ""
) -> list[dict[str, str]]:
    """Draw `count` documents {"question", "answer"} of a part (`corpus`, `train`, `test`).

    The parts share no arithmetic. Within a part every document is drawn independently of the others, so that any two
    sets of documents of a part speak about the same problems, which certificates rely on; an arithmetic may come again
    in other words. (Without repetitions, later documents would be longer: there are fewer short problems.) Both
    dialects tell questions in the target's style, only solutions differ. Each `stream` draws other documents.
    """
    rng = random.Random(" ".join(filter(None, (str(seed), part, dialect, stream))))
    teller = Teller(make_style(params, dialect, seed), params.has_ornaments)
    problems = (draw_problem(params, part, rng) for _ in range(count))
    return [{"question": teller.question(one, rng), "answer": teller.solution(one, rng)} for one in problems]


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
