"""Suffix decoding proposes what followed most often."""

import random
from itertools import product

import pytest

from gistgate.drafters.suffix import DEPTH, MIN_PROBABILITY, SuffixDrafter, best_path
from tests.architectures import BATCH, SIZES
from tests.drafters.proposing import decoded, num_accepted, proposed, wanted


def count(text: list[int], run: list[int]) -> int:
    return sum(text[start : start + len(run)] == run for start in range(len(text)))


def by_search(text: list[int], num: int, depth: int) -> set[tuple[float, tuple]]:
    """(score, ids) of every best path by counting in a plain list; several where counts are
    equal.
    """
    best, kept = 0.0, set()
    for length in range(1, min(len(text), depth - 1) + 1):
        most = min(num, length, depth - length)
        todo: list[tuple[list[int], list[int], float, float]] = [(text[-length:], [], 1.0, 0.0)]
        while todo:
            run, ids, path, score = todo.pop()
            after = {token: count(text, [*run, token]) for token in range(5)}
            top = max(after.values())
            odds = path * top / count(text, run)
            if len(ids) < most and top and odds >= MIN_PROBABILITY - 1e-9:
                todo += [
                    ([*run, t], [*ids, t], odds, score + odds) for t, n in after.items() if n == top
                ]
            elif ids and score >= best - 1e-9:
                kept = {one for one in kept if one[0] >= score - 1e-9} | {(score, tuple(ids))}
                best = max(best, score)
    return {(round(score, 6), ids) for score, ids in kept}


@pytest.mark.parametrize("depth", [DEPTH, 4])
def test_the_best_path_by_definition(depth: int):
    dice, non_empty = random.Random(0), 0
    for _ in range(60):
        text = [dice.choice([0, 0, 1, 1, 2, 3, 4]) for _ in range(dice.randint(1, 25))]
        path, found = best_path(text, 5, depth), by_search(text, 5, depth)
        assert bool(path.ids) == bool(found)
        if path.ids:
            assert (round(path.score, 6), tuple(path.ids)) in found
            non_empty += 1
    assert non_empty > 20


@pytest.mark.parametrize(
    "text, num, expected",
    [
        ([1, 2, 3, 4, 1, 2, 3], 8, [4, 1, 2]),  # a match of three tokens is followed for three
        ([1, 2, 3, 4, 1, 2, 3], 2, [4, 1]),
        ([1, 9, 1, 9, 1, 7, 1], 8, [9]),  # 9 came more often than 7, and later than it only once
        ([1, 2, 3], 8, []),  # nothing repeats
        ([7], 8, []),
        ([7, 7], 8, [7]),  # the match may overlap itself
    ],
)
def test_continuation(text: list[int], num: int, expected: list[int]):
    assert proposed(SuffixDrafter(), [text], num) == [expected]


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones(kind: str):
    drafter = SuffixDrafter()
    for block, batch in product((1, 8), (BATCH, BATCH[1:2])):
        assert [one.ids for one in decoded(drafter, kind, batch, block)] == wanted(kind, batch)
    again = [prompt + prompt[:5] for prompt in wanted(kind, BATCH)]
    assert num_accepted(decoded(drafter, kind, again)) > 0
