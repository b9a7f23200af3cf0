"""Candidates become one tree that holds every one of them, the best first."""

from __future__ import annotations

from gistgate.trees.tree import merge

ABC, ABD, X = ([1, 2, 3], 0.5), ([1, 2, 4], 0.9), ([7], 0.1)


def rows(draft) -> list[list[tuple[int, int]]]:
    return [
        [(x, p) for x, p, ok in zip(ids, parents, valid, strict=True) if ok]
        for ids, parents, valid in zip(draft.ids.tolist(), draft.parents.tolist(), draft.valid.tolist(), strict=True)
    ]


def test_what_begins_alike_is_shared_and_the_best_comes_first():
    draft = merge([[ABC, X, ABD], [X]], num_nodes=8, depth=8, forwards=2)
    assert rows(draft) == [[(1, -1), (2, 0), (4, 1), (3, 1), (7, -1)], [(7, -1)]]
    assert draft.forwards == 2 and draft.q is None


def test_the_budget_goes_to_the_best():
    assert rows(merge([[ABC, X, ABD]], num_nodes=4, depth=8)) == [[(1, -1), (2, 0), (4, 1), (3, 1)]]
    assert rows(merge([[ABC, X, ABD]], num_nodes=9, depth=1)) == [[(1, -1), (7, -1)]]


def test_without_branches_it_is_a_chain():
    draft = merge([[ABC], [], [X]], num_nodes=8, depth=8)
    assert draft.parents is None
    assert draft.ids.tolist() == [[1, 2, 3], [0, 0, 0], [7, 0, 0]] and draft.valid.sum(-1).tolist() == [3, 0, 1]


def test_nothing_at_all():
    draft = merge([[], []], num_nodes=8, depth=8)
    assert draft.ids.shape == (2, 0) and draft.parents is None
