"""Chains and tries of weighted candidates, by definition."""

from __future__ import annotations

import numpy as np
import pytest

from gistgate.retrieval.sense import END, Votes, chain, trie


def some(seed: int, num: int = 30, depth: int = 4) -> Votes:
    """Candidates over three tokens that end anywhere."""
    draw = np.random.default_rng(seed)
    ids = draw.integers(0, 3, (num, depth))
    ids[np.arange(depth) >= draw.integers(0, depth + 1, (num, 1))] = END
    return Votes(ids, draw.random(num) + 0.1)


def weight(votes: Votes, path: tuple[int, ...]) -> float:
    """What the candidates weigh that begin with a path."""
    begins = (votes.ids[:, : len(path)] == np.array(path, int)).all(1)
    return float(votes.weights[begins].sum())


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.3])
def test_a_chain_goes_where_most_weight_goes_and_ends_where_too_little_is_left(seed: int, share: float):
    votes = some(seed)
    wanted: list[int] = []
    while len(wanted) < 4:
        best = max(range(3), key=lambda token: weight(votes, (*wanted, token)))
        heaviest = weight(votes, (*wanted, best))
        if not heaviest or heaviest < share * votes.weights.sum():
            break
        wanted.append(best)
    assert chain(votes, share) == wanted


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("nodes", [1, 6, 200])
def test_a_trie_has_the_heaviest_nodes(seed: int, nodes: int):
    votes = some(seed)
    ids, parents = trie(votes, nodes, 0.02)
    paths: list[tuple[int, ...]] = []
    for node, (token, parent) in enumerate(zip(ids, parents, strict=True)):
        assert parent < node, "parents stand before their children"
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    every = {tuple(row[:end].tolist()) for row in votes.ids for end in range(1, 5) if END not in row[:end]}
    likely = [path for path in every if weight(votes, path) >= 0.02 * votes.weights.sum()]
    assert len(set(paths)) == len(paths) == min(nodes, len(likely))
    heaviest = sorted((weight(votes, path) for path in likely), reverse=True)[: len(paths)]
    np.testing.assert_allclose([weight(votes, path) for path in paths], heaviest)


def test_groups_are_weighed_against_each_other():
    one, other = some(0).scaled(3.0), some(1).scaled(1.0)
    both = one.beside(other)
    assert both.weights.sum() == pytest.approx(4) and len(both.ids) == 60
    assert chain(one.beside(other.scaled(1e-9)), 0.2) == chain(one, 0.2)


def test_candidates_that_are_over_propose_nothing():
    over = Votes(np.full((3, 4), END), np.ones(3))
    assert chain(over, 0.0) == [] and trie(over, 8, 0.0) == ([], [])
