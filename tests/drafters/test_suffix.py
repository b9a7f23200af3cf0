"""Suffix decoding proposes what followed most often; its tree counts what a search through the
texts counts.
"""

import random
from collections import Counter
from itertools import product

import pytest

from gistgate.drafters.suffix import DEPTH, MIN_PROBABILITY, Place, SuffixDrafter, SuffixTree
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
        tree = SuffixTree(depth)
        for token in text:
            tree.append(token)
        match, found = tree.best(5, 100), by_search(text, 5, depth)
        assert bool(match.ids) == bool(found)
        if match.ids:
            assert (round(match.score, 6), tuple(match.ids)) in found
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


def test_rows_that_grow_leave_and_are_taken_back():
    """Whatever happens to the batch, the proposals are those for the texts alone."""
    dice = random.Random(3)
    texts = [[dice.randrange(4) for _ in range(n)] for n in (3, 30, 12, 1)]
    drafter = SuffixDrafter()
    drafter.start(4)

    def check() -> None:
        assert proposed(drafter, texts, 6) == [
            proposed(SuffixDrafter(), [text], 6)[0] for text in texts
        ]

    for _ in range(10):
        check()
        texts = [[*text, *(dice.randrange(4) for _ in range(dice.randint(1, 4)))] for text in texts]
        drafter.keep([0] * len(texts))
    drafter.select([2, 0, 1])
    texts = [texts[2], texts[0], texts[1]]
    check()
    texts = [texts[0][:5] + [3, 2, 1], texts[1], texts[2][:-1]]  # not a continuation
    check()
    texts = [[*text, 1, 2] for text in texts]
    check()
    memory = drafter.snapshot([1, 0])
    assert [cache.length for cache in memory] == [0, 0]
    drafter.restore(memory, [0, 0])
    texts = [texts[1][:4], texts[0]]
    check()
    assert [cache.length for cache in drafter.read(texts)] == [0, 0]
    check()


@pytest.mark.parametrize("kind", SIZES)
def test_strict_answers_are_the_greedy_ones(kind: str):
    drafter = SuffixDrafter()
    for block, batch in product((1, 8), (BATCH, BATCH[1:2])):
        assert [one.ids for one in decoded(drafter, kind, batch, block)] == wanted(kind, batch)
    again = [prompt + prompt[:5] for prompt in wanted(kind, BATCH)]
    assert num_accepted(decoded(drafter, kind, again)) > 0


def counted(text: list[int], depth: int) -> Counter[tuple[int, ...]]:
    """How often every run of up to `depth` tokens occurs."""
    return Counter(
        tuple(text[start : start + length])
        for length in range(1, depth + 1)
        for start in range(len(text) - length + 1)
    )


def runs_of(tree: SuffixTree) -> dict[tuple[int, ...], int]:
    """How often the tree says that every run occurs."""
    found: dict[tuple[int, ...], int] = {}
    todo: list[tuple[tuple[int, ...], Place]] = [((), Place(tree.root))]
    while todo:
        run, place = todo.pop()
        for token, count in tree.follow(place).items():
            found[(*run, token)] = count
            todo.append(((*run, token), tree.step(place, token)))
    return found


@pytest.mark.parametrize("alphabet", [1, 2, 3, 9])
@pytest.mark.parametrize("seed", range(5))
def test_counts_of_a_text_that_grows(alphabet: int, seed: int):
    dice, depth = random.Random(seed), 6
    tree = SuffixTree(depth)
    for step in range(120):
        tree.append(dice.randrange(alphabet))
        if step % 7 == 0:
            assert runs_of(tree) == counted(tree.ids, depth)
