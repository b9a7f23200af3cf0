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
GAIN, LOSE = r"finds|buys|wins|brings|arrive", r"loses|gives|break|sells|takes"


def arithmetic(question: str) -> tuple[int, list[tuple[str, int]]]:
    """Read a problem's arithmetic back from its question, sentence by sentence."""
    first, *others = re.split(r"(?<=[.?]) ", question)
    steps = []
    for sentence in others[:-1]:
        number = [int(n) for n in re.findall(r"\d+", sentence)]
        if number:
            assert bool(re.search(GAIN, sentence)) != bool(re.search(LOSE, sentence)), sentence
            steps.append(("gain" if re.search(GAIN, sentence) else "lose", number[0]))
        elif re.search(r"doubles|twice|becomes two", sentence):
            steps.append(("double", 2))
        elif re.search(r"triples|three times|becomes three", sentence):
            steps.append(("triple", 3))
    return int(re.search(r"\d+", first)[0]), steps


def result(start: int, steps: list[tuple[str, int]]) -> int:
    for operation, number in steps:
        start = {"gain": start + number, "lose": start - number}.get(operation, start * number)
    return start


@pytest.mark.parametrize("kind", ["similar", "neutral"])
def test_answers_follow_from_the_question(kind):
    for document in documents(replace(WORLD, kind=kind), 1, "train", 300):
        assert answer_of(document["answer"]) == str(result(*arithmetic(document["question"]))), (
            document
        )


@pytest.mark.parametrize("dialect", ["target", "draft"])
def test_every_equation_of_a_solution_holds(dialect):
    for document in documents(WORLD, 1, "corpus", 300, dialect):
        equations = re.findall(r"([-\d][-+* \d]*) = (\d+)", document["answer"])
        assert len(equations) in (2, 3)
        assert all(eval(left) == int(right) for left, right in equations), document["answer"]
        assert equations[-1][1] == answer_of(document["answer"])


def test_same_seed_gives_the_same_bytes_and_another_seed_does_not(tmp_path):
    for seed, name in ((1, "a"), (1, "b"), (2, "c")):
        write_task_files(WORLD, seed, tmp_path / name)
    for file in ("train.jsonl", "test.jsonl"):
        a, b, c = ((tmp_path / name / file).read_bytes() for name in "abc")
        assert a == b and a != c
        assert len(a.splitlines()) == (300 if file == "train.jsonl" else 200)


def test_parts_share_no_arithmetic_even_across_seeds():
    cores = {}
    for part in ("corpus", "train", "test"):
        questions = [
            doc["question"] for seed in (1, 2) for doc in documents(WORLD, seed, part, 400)
        ]
        cores[part] = {core(*arithmetic(question)) for question in questions}
        assert {part_of(one) for one in cores[part]} == {part}
    assert len(set.union(*cores.values())) == sum(map(len, cores.values()))


def shares(docs: list[dict[str, str]]) -> tuple[float, float]:
    """Shares of problems with two steps, and of those that double or triple."""
    told = [core(*arithmetic(doc["question"])) for doc in docs]
    return fmean(one.count(" ") == 2 for one in told), fmean("*" in one for one in told)


def test_every_draw_of_calibration_problems_is_like_the_test_file():
    """What is drawn later is no harder: a certificate speaks about the problems that it was made
    with.
    """
    n = 1500
    expected = shares(documents(WORLD, 1, "test", n))
    noise = 4 * (2 * 0.25 / n) ** 0.5  # four standard errors of a difference of two shares
    for draw in (1, 2, 9):
        drawn = documents(WORLD, 1, "test", n, stream=f"calibration {draw}")
        assert shares(drawn) == pytest.approx(expected, rel=0, abs=noise)


def test_the_dialects_differ_in_solutions_only_and_distance_0_makes_them_one():
    target, draft = (make_wording(WORLD, dialect, 1) for dialect in ("target", "draft"))
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
    rows = [
        row
        for split in ("train", "test")
        for row in read_json_lines(TASKS / f"python_functions/{split}.jsonl")
    ]
    assert len({row["prompt"] for row in rows}) == len(rows) == 1600
    row = next(row for row in rows if row["entry_point"] == "sum_squares_odd")
    solution = (
        "def sum_squares_odd(numbers):\n    return sum(x * x for x in numbers if x % 2 == 1)\n"
    )
    assert runs(solution + row["tests"]) and not runs(
        solution.replace("== 1", "== 0") + row["tests"]
    )
