"""Sampled trees write what the target would: summed over all trees, all outcomes of all tests and
all last draws.
"""

from collections.abc import Iterator, Sequence
from itertools import product

import pytest
import torch
from torch import Tensor

from gistgate.core.block import Reason
from gistgate.core.rule import settle
from gistgate.rules import make_rule
from gistgate.trees.tree import WALKS, Nodes, Walk, normalised, path_to, token_wise, walked
from tests.blocks import random_block

Table = dict[tuple[int, ...], Tensor]
"""A distribution [3] behind every text."""

CHAIN, PAIRS, UNEVEN = [-1, 0, 1], [-1, -1, 0, 0, 1, 1], [-1, 0, 0, -1, 0, 3]
"""Depth three; two successors of everything; three successors under the first and one under the
second branch.
"""


def tables(seed: int, depth: int = 3) -> tuple[Table, Table]:
    """p and q behind every text of up to `depth` tokens; some tokens are impossible for one of
    them.
    """
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(2):
        table = {}
        for length in range(depth + 1):
            for text in product(range(3), repeat=length):
                row = (1.5 * torch.randn(3, generator=generator, dtype=torch.float64)).exp()
                row[seed % 3] *= float(torch.rand((), generator=generator) > 0.2)
                table[text] = row / row.sum()
        made.append(table)
    return made[0], made[1]


def trees(parents: Sequence[int], q: Table) -> Iterator[tuple[float, list[int]]]:
    """(probability, tokens) of every tree of that shape whose nodes are drawn independently."""
    for ids in product(range(3), repeat=len(parents)):
        weight = 1.0
        for node, parent in enumerate(parents):
            weight *= float(q[text_of(parent, parents, ids)][ids[node]])
        if weight > 0:
            yield weight, list(ids)


def text_of(node: int, parents: Sequence[int], ids: Sequence[int]) -> tuple[int, ...]:
    return tuple(ids[step] for step in path_to(node, parents))


def nodes_for(parents: Sequence[int], ids: Sequence[int], p: Table, q: Table | None) -> Nodes:
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents):
        children.setdefault(parent, []).append(node)
    texts = [text_of(node, parents, ids) for node in range(-1, len(parents))]
    drawn = (
        None if q is None else torch.stack([q[text_of(parent, parents, ids)] for parent in parents])
    )
    return Nodes(list(ids), children, torch.stack([p[text] for text in texts]), drawn)


def outcomes(walk: Walk, nodes: Nodes) -> Iterator[tuple[float, list[int], Tensor]]:
    """(probability, accepted path, distribution behind it) over all outcomes of the tests."""
    todo: list[tuple[bool, ...]] = [()]
    while todo:
        decided = todo.pop()
        asked: list[float] = []

        def passes(
            node: int,
            probability: float,
            decided: tuple[bool, ...] = decided,
            asked: list[float] = asked,
        ) -> bool:
            asked.append(min(1.0, probability))
            return decided[len(asked) - 1] if len(asked) <= len(decided) else True

        path, weights = walk(nodes, passes)
        # what was not decided passed; each such test may as well have failed
        known = [*decided, *[True] * (len(asked) - len(decided))]
        todo += [
            (*known[:place], False) for place in range(len(decided), len(asked)) if asked[place] < 1
        ]
        weight = 1.0
        for passed, chance in zip(known, asked, strict=True):
            weight *= chance if passed else 1 - chance
        if weight > 0:
            yield weight, path, weights / weights.sum()


def written(walk: Walk, nodes: Nodes, p: Table, num: int) -> Tensor:
    """Probability of every text of `num` tokens [3, .., 3]; what a round leaves open is from p."""
    total = torch.zeros([3] * num, dtype=torch.float64)
    for weight, path, behind in outcomes(walk, nodes):
        text = tuple(nodes.ids[node] for node in path)
        for rest in product(range(3), repeat=num - len(text)):
            chance = weight * float(behind[rest[0]])
            for place in range(1, len(rest)):
                chance *= float(p[(*text, *rest[:place])][rest[place]])
            total[(*text, *rest)] += chance
    return total


def wanted(p: Table, num: int) -> Tensor:
    total = torch.ones([3] * num, dtype=torch.float64)
    for text in product(range(3), repeat=num):
        for place in range(num):
            total[text] *= p[text[:place]][text[place]]
    return total


def over_all_trees(
    walk: Walk, parents: Sequence[int], seed: int, num: int
) -> tuple[Tensor, Tensor]:
    p, q = tables(seed)
    total = torch.zeros([3] * num, dtype=torch.float64)
    for weight, ids in trees(parents, q):
        total += weight * written(walk, nodes_for(parents, ids, p, q), p, num)
    return total, wanted(p, num)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("parents", [CHAIN, PAIRS, UNEVEN], ids=["chain", "pairs", "uneven"])
@pytest.mark.parametrize("rule_id", WALKS)
def test_they_write_what_the_target_would(rule_id: str, parents: list[int], seed: int):
    depth = 3 if parents is CHAIN else 2
    total, expected = over_all_trees(WALKS[rule_id], parents, seed, depth + 1)
    assert torch.allclose(total, expected, atol=1e-9)


@pytest.mark.parametrize("rule_id", WALKS)
def test_what_was_drawn_may_decide_where_the_tree_goes_on(rule_id: str):
    """As the draft model's tree does: of two first tokens only the more probable one gets
    successors.
    """
    p, q = tables(0)
    total = torch.zeros([3] * 3, dtype=torch.float64)
    for first in product(range(3), repeat=2):
        best = int(q[()][first[1]] > q[()][first[0]])
        parents = [-1, -1, best, best]
        for behind in product(range(3), repeat=2):
            ids = (*first, *behind)
            weight = 1.0
            for node, parent in enumerate(parents):
                weight *= float(q[text_of(parent, parents, ids)][ids[node]])
            if weight > 0:
                total += weight * written(WALKS[rule_id], nodes_for(parents, ids, p, q), p, 3)
    assert torch.allclose(total, wanted(p, 3), atol=1e-9)


@pytest.mark.parametrize("rule_id", WALKS)
@pytest.mark.parametrize(
    "ids", [(0, 1, 2, 0, 0, 2), (2, 0, 0, 1, 1, 2), (1, 2, 1, 0, 2, 0), (0, 1, 2), (2, 2, 0)]
)
def test_a_tree_that_counts_as_certain_changes_nothing(rule_id: str, ids: tuple[int, ...]):
    """Retrieved trees and chains: siblings differ, and none of them was drawn."""
    parents, num = (CHAIN, 4) if len(ids) == 3 else (PAIRS, 3)
    for seed in range(3):
        p, _ = tables(seed)
        total = written(WALKS[rule_id], nodes_for(parents, ids, p, None), p, num)
        assert torch.allclose(total, wanted(p, num), atol=1e-9)


def test_a_residual_that_stays_behind_would_be_noticed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("gistgate.trees.tree.normalised", lambda weights, otherwise: otherwise)
    total, expected = over_all_trees(token_wise, [-1, -1], 0, 2)
    assert not torch.allclose(total, expected, atol=0.01)
    assert normalised(torch.tensor([0.0, -1.0]), torch.tensor([1.0, 2.0])).tolist() == [1.0, 2.0]


@pytest.mark.parametrize(("rule_id", "chain_id"), [("traversal", "block"), ("exact", "exact")])
@pytest.mark.parametrize("with_q", [True, False])
def test_on_a_chain_they_are_the_chain_rules_number_by_number(
    rule_id: str, chain_id: str, with_q: bool
):
    """So what is summed above for chains holds for `exact` and `block` as well."""
    chain = random_block(seed=3, batch=300, num=5, temperature=1.0, with_q=with_q)
    parents = torch.arange(-1, 4).expand(300, -1)
    judged, expected = (
        walked(chain, parents, WALKS[rule_id]),
        settle(make_rule(chain_id), chain),
    )
    assert judged.acceptance.length.tolist() == expected.length.tolist()
    assert judged.acceptance.own_ids.tolist() == expected.own_ids.tolist()
    assert (judged.acceptance.reasons == Reason.STRICT).all()
    assert max(judged.acceptance.length.tolist()) > 1
    for row, path in enumerate(judged.paths):
        assert (
            judged.block.draft_ids[row, : len(path)].tolist() == chain.draft_ids[row, path].tolist()
        )


def test_traversal_keeps_more_than_token_by_token():
    """Expected lengths over all trees of one shape, by enumeration."""
    means = {}
    for name, walk in WALKS.items():
        p, q = tables(4)
        means[name] = sum(
            weight * chance * len(path)
            for weight, ids in trees(PAIRS, q)
            for chance, path, _ in outcomes(walk, nodes_for(PAIRS, ids, p, q))
        )
    assert means["traversal"] > means["exact"] + 1e-6
