"""Trees for tests: random ones, and drafters that hide the target's own text in one of many
branches.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gistgate.core.block import Draft
from gistgate.core.drafter import Drafter
from gistgate.trees.drafter import TreeDrafter
from gistgate.trees.tree import Trees, tree
from tests.architectures import greedy


def random_parents(batch: int, num: int, seed: int = 0) -> Tensor:
    """Parents of random trees [B, N], the first nine nodes a chain."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(batch):
        pick = [
            int(torch.randint(-1, max(node, 1), (1,), generator=generator)) for node in range(num)
        ]
        rows.append([node - 1 if node < 9 else pick[node] for node in range(num)])
    return torch.tensor(rows)


def tree_drafter(model: Any, **sizes: int) -> TreeDrafter:
    """A drafter of trees of other sizes than its own."""
    drafter = TreeDrafter(model)
    vars(drafter).update(sizes)
    return drafter


def merge(candidates: Sequence[Sequence[tuple[list[int], float]]], num: int, depth: int) -> Draft:
    """A tree of at most `num` nodes for the candidates of every row, the best first."""
    grown = []
    for row in candidates:
        nodes: dict[tuple[int, int], int] = {}  # (parent, token): node
        for tokens, _ in sorted(row, key=lambda one: -one[1]):
            node = -1
            for token in tokens[:depth]:
                if (node, token) not in nodes and len(nodes) == num:
                    break
                node = nodes.setdefault((node, token), len(nodes))
        grown.append(list(nodes))
    return tree(
        [[token for _, token in row] for row in grown],
        [[parent for parent, _ in row] for row in grown],
    )


class Hiding(Drafter):
    """Knows what the target will write; some beginning of it stands in a branch among wrong ones,
    never the first.
    """

    form = Trees
    nodes = 40

    def __init__(
        self, kind: str, prompts: Sequence[Sequence[int]], num: int, seed: int = 0, deeper: int = 0
    ) -> None:
        self.texts = {
            tuple(prompt): [*prompt, *greedy(kind, tuple(prompt), num)] for prompt in prompts
        }
        self.generator = torch.Generator().manual_seed(seed)
        self.deeper = deeper

    def propose(self, texts: Sequence[Sequence[int]], num_draft: int, **request: Any) -> Draft:
        return merge(
            [self.branches(text, num_draft) for text in texts], self.nodes, num_draft + self.deeper
        )

    def branches(self, text: Sequence[int], num_draft: int) -> list[tuple[list[int], float]]:
        whole = next(full for full in self.texts.values() if full[: len(text)] == list(text))
        right = whole[len(text) : len(text) + num_draft + self.deeper]
        found = [(right[: self._below(len(right) + 1)], 1.0 + index) for index in range(2)]
        wrong = [
            [*right[: self._below(len(right) + 1)], *self._noise(1 + self.deeper + self._below(4))]
            for _ in "123"
        ]
        return [*found, *((tokens, 9.0 + index) for index, tokens in enumerate(wrong))]

    def _below(self, num: int) -> int:
        return int(torch.randint(num, (1,), generator=self.generator))

    def _noise(self, num: int) -> list[int]:
        return torch.randint(259, (num,), generator=self.generator).tolist()
