"""The embedded world: the same bytes for the same seed, disjoint parts, answers that follow from
the text.
"""

import re
from dataclasses import replace
from statistics import fmean

import pytest

from gistgate.core.files import read_json_lines
from gistgate.core.utils import UserError
from gistgate.tasks.code import runs
from pipeline.pair.world import (
    QUESTION,
    SOLUTION,
    answer_of,
    core,
    documents,
    make_wording,
    part_of,
    write_task_files,
)
from pipeline.paths import TASKS
from tests.pipeline.parameters import block, parameters

WORLD = block("world", task_train=300, task_test=200)
OPERATIONS = {  # by words of a question
    "gain": r"finds|buys|wins|brings|arrive",
    "lose": r"loses|gives|break|sells|takes",
    "double": r"doubles|twice|becomes two",
    "triple": r"triples|three times|becomes three",
}
FACTORS = {"double": 2, "triple": 3}


def arithmetic(question: str) -> tuple[int, list[tuple[str, int]]]:
    """Read a problem's arithmetic back from its question, sentence by sentence."""
    first, *sentences = re.split(r"(?<=[.?]) ", question)
    steps = []
    for sentence in sentences[:-1]:
        spoken = [name for name, words in OPERATIONS.items() if re.search(words, sentence)]
        assert len(spoken) <= 1, sentence
        for operation in spoken:
            number = re.search(r"\d+", sentence)
            steps.append((operation, int(number[0]) if number else FACTORS[operation]))
    return int(re.search(r"\d+", first)[0]), steps


def result(start: int, steps: list[tuple[str, int]]) -> int:
    for operation, number in steps:
        start = {"gain": start + number, "lose": start - number}.get(operation, start * number)
    return start


@pytest.mark.parametrize("kind", ["similar", "neutral"])
def test_answers_follow_from_the_question(kind):
    for document in documents(replace(WORLD, kind=kind), 1, "train", 300):
        expected = result(*arithmetic(document["question"]))
        assert answer_of(document["answer"]) == str(expected), document


@pytest.mark.parametrize("dialect", ["target", "draft"])
def test_every_equation_of_a_solution_holds(dialect):
    for document in documents(WORLD, 1, "corpus", 300, dialect):
        equations = re.findall(r"([-\d][-+* \d]*) = (\d+)", document["answer"])
        assert len(equations) in (2, 3)
        assert all(eval(left) == int(right) for left, right in equations), document["answer"]
        assert equations[-1][1] == answer_of(document["answer"])


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    for name, seed in {"first": 1, "again": 1, "other": 2}.items():
        write_task_files(WORLD, seed, tmp_path / name)
    for file, rows in {"train.jsonl": 300, "test.jsonl": 200}.items():
        content = (tmp_path / "first" / file).read_bytes()
        assert content == (tmp_path / "again" / file).read_bytes()
        assert content != (tmp_path / "other" / file).read_bytes()
        assert len(content.splitlines()) == rows


def cores(part: str, seed: int, num: int, stream: str = "") -> list[str]:
    drawn = documents(WORLD, seed, part, num, stream=stream)
    return [core(*arithmetic(document["question"])) for document in drawn]


def test_parts_share_no_arithmetic_even_across_seeds():
    by_part = {
        part: {*cores(part, 1, 400), *cores(part, 2, 400)} for part in ("corpus", "train", "test")
    }
    for part, arithmetics in by_part.items():
        assert set(map(part_of, arithmetics)) == {part}
    assert len(set.union(*by_part.values())) == sum(map(len, by_part.values()))


def shares(arithmetics: list[str]) -> tuple[float, float]:
    """Shares of problems with two steps, and of those that double or triple."""
    return fmean(text.count(" ") == 2 for text in arithmetics), fmean(
        "*" in text for text in arithmetics
    )


@pytest.mark.parametrize("draw", [1, 2, 9])
def test_every_draw_of_calibration_problems_is_like_the_test_file(draw):
    """What is drawn later is no harder: a certificate speaks about the problems that it was made
    with.
    """
    num = 1500
    noise = 4 * (2 * 0.25 / num) ** 0.5  # four standard errors of a difference of two shares
    drawn = shares(cores("test", 1, num, f"calibration {draw}"))
    assert drawn == pytest.approx(shares(cores("test", 1, num)), rel=0, abs=noise)


def test_the_dialects_differ_in_solutions_only_and_distance_0_makes_them_one():
    target = make_wording(WORLD, "target", 1)
    draft = make_wording(WORLD, "draft", 1)
    assert all(target[site] == draft[site] for site in QUESTION)
    assert sum(target[site] != draft[site] for site in SOLUTION) > len(SOLUTION) / 2
    near = replace(WORLD, dialect_distance=0.0)
    assert make_wording(near, "draft", 1) == make_wording(near, "target", 1) == target


@pytest.mark.parametrize(
    "change", [{"kind": "odd"}, {"dialect_distance": 1.5}, {"min_steps": 3, "max_steps": 2}]
)
def test_impossible_dials_are_refused(change):
    with pytest.raises(UserError, match=next(iter(change))):
        parameters(world=change)


def test_committed_requests_for_functions_are_distinct_and_can_be_judged():
    files = [TASKS / f"python_functions/{split}.jsonl" for split in ("train", "test")]
    rows = [row for file in files for row in read_json_lines(file)]
    assert len({row["prompt"] for row in rows}) == len(rows) == 1600
    tests = next(row["tests"] for row in rows if row["entry_point"] == "sum_squares_odd")
    right = "def sum_squares_odd(numbers):\n    return sum(x * x for x in numbers if x % 2 == 1)\n"
    assert runs(right + tests)
    assert not runs(right.replace("== 1", "== 0") + tests)
