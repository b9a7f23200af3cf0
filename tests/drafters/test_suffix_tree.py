"""The tree counts what a search through the texts counts, while they grow, share and leave."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gistgate.drafters.suffix import Place, SuffixTree, Text

DEPTH = 6


def counted(texts: list[list[int]], depth: int) -> Counter[tuple[int, ...]]:
    """How often every run of up to `depth` tokens occurs."""
    return Counter(
        tuple(ids[start : start + length])
        for ids in texts
        for length in range(1, depth + 1)
        for start in range(len(ids) - length + 1)
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
def test_counts_of_texts_that_grow_side_by_side(alphabet: int, seed: int):
    dice = random.Random(seed)
    tree, texts = SuffixTree(DEPTH), [Text() for _ in range(3)]
    for step in range(60):
        tree.append(dice.choice(texts), dice.randrange(alphabet))
        if step % 7 == 0:
            assert runs_of(tree) == counted([text.ids for text in texts], DEPTH)


@pytest.mark.parametrize("seed", range(5))
def test_a_text_that_leaves_is_gone_and_may_come_back(seed: int):
    dice = random.Random(seed)
    tree, texts = SuffixTree(DEPTH), [Text() for _ in range(4)]
    for step in range(150):
        text = dice.choice(texts)
        if step % 10 == 9:
            tree.remove(text)
            assert text.ids == []
        else:
            tree.append(text, dice.randrange(3))
        if step % 5 == 4:
            assert runs_of(tree) == counted([one.ids for one in texts], DEPTH)
    for text in texts:
        tree.remove(text)
    assert not tree.root.children


@pytest.mark.parametrize("seed", range(5))
def test_find(seed: int):
    dice = random.Random(seed)
    tree, texts = SuffixTree(DEPTH), [Text(), Text()]
    for _ in range(50):
        tree.append(dice.choice(texts), dice.randrange(4))
    known = counted([text.ids for text in texts], DEPTH)
    for _ in range(300):
        run = tuple(dice.randrange(4) for _ in range(dice.randint(1, DEPTH)))
        place = tree.find(run)
        assert (place is not None) == (run in known)
        if place is not None:
            after = {token: known[(*run, token)] for token in range(4) if (*run, token) in known}
            assert tree.follow(place) == after and place.node.count == known[run] and place.length == len(run)


def test_what_nobody_shares_is_not_stored():
    tree, text = SuffixTree(32), Text()
    for token in range(1000):
        tree.append(text, token)
    assert len(tree.root.children) == 1000
    assert not any(child.children for child in tree.root.children.values()) and not text.open


def test_a_walk_takes_the_most_frequent_and_stops_where_it_gets_unlikely():
    tree, text = SuffixTree(8), Text()
    for token in [1, 2, 3, 1, 2, 3, 1, 2, 4, 1, 5, 9]:
        tree.append(text, token)
    place = tree.find([1])
    assert place is not None and place.node.count == 4
    ids, score = tree.walk(place, 2, 0.1, 10)
    assert ids == [2, 3] and score == pytest.approx(3 / 4 + 3 / 4 * 2 / 3)
    assert tree.walk(place, 2, 0.75, 10) == ([2], 0.75)
    assert tree.walk(place, 2, 0.76, 10) == ([], 0.0)
    assert tree.walk(place, 2, 0.0, 3)[0] == [2] and tree.walk(place, 2, 0.0, 2)[0] == []
    assert tree.walk(place, 2, 0.1, 10, lambda counts, total: min(counts, key=counts.__getitem__))[0] == [5, 9]
