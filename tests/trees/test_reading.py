"""One forward reads a tree as if every path were alone, and the cache keeps one path."""

import pytest
import torch
from torch import Tensor

from gistgate.core.reader import Reader, left_padded
from gistgate.core.utils import UserError
from gistgate.trees.tree import attention_kinds, lineage, path_to, paths_of, tree, tree_layout
from tests.architectures import SIZES, pair, prompts, tiny_model
from tests.trees.growing import random_parents

TEXTS = prompts(5, 17, 2, 10, seed=3)
"""Ragged; the second is longer than the windows."""
NUM = 18


def alone(kind: str, text: list[int]) -> Tensor:
    """The last row [V] of a text read in one piece by transformers."""
    with torch.no_grad():
        return pair(kind)[0](torch.tensor([text])).logits[0, -1]


@torch.no_grad()
@pytest.mark.parametrize("texts", [TEXTS, TEXTS[1:2]], ids=["ragged", "single"])
@pytest.mark.parametrize("kind", SIZES)
def test_every_node_is_read_behind_its_own_path(kind: str, texts: list[list[int]]):
    """Twice in a row: the second tree stands behind the path that was kept of the first, whose
    length varies.
    """
    reader, texts = Reader(pair(kind)[0], len(texts)), [list(text) for text in texts]
    for turn in range(2):
        parents = random_parents(len(texts), NUM, seed=turn)
        assert lineage(parents).sum(-1).max() > 7  # deeper than the windows
        nodes = torch.randint(259, parents.shape, generator=torch.Generator().manual_seed(turn))
        valid = torch.ones_like(nodes, dtype=torch.bool)
        if len(texts) > 1:
            valid[1, NUM - 3 :] = False
        ids, pending = left_padded(reader.unread(texts), torch.device("cpu"))
        used = torch.cat(
            [torch.ones_like(ids, dtype=torch.bool) if pending is None else pending, valid], dim=1
        )
        z = reader.read(
            torch.cat([ids, nodes], dim=1),
            None if bool(used.all()) else used,
            NUM + 1,
            tree_layout(parents),
        )
        kept = []
        for row, text in enumerate(texts):
            above = parents[row].tolist()
            for node in range(-1, int(valid[row].sum())):
                path = path_to(node, above)
                assert torch.allclose(
                    z[row, node + 1], alone(kind, text + nodes[row, path].tolist()), atol=2e-4
                )
            kept.append(path_to((5 * row + 3) % (NUM - 3), above)[: 4 - row])
        reader.keep_paths(NUM, kept, valid.sum(-1).tolist())
        for row, path in enumerate(kept):
            texts[row] += [*nodes[row, path].tolist(), 7]  # and the target's own token
        assert reader.known == [len(text) - 1 for text in texts]
    z = reader.read(*left_padded(reader.unread(texts), torch.device("cpu")), keep=1)
    for row, text in enumerate(texts):
        assert torch.allclose(z[row, 0], alone(kind, text), atol=2e-4)


def test_shapes_follow_from_the_parents():
    parents, valid = (
        torch.tensor([[-1, 0, 0, -1, 2], [-1, 0, 1, 2, 3]]),
        torch.ones(2, 5, dtype=torch.bool),
    )
    valid[0, 4] = False
    assert lineage(parents).sum(-1).tolist() == [[1, 2, 2, 1, 3], [1, 2, 3, 4, 5]]
    assert lineage(parents)[0, 4].tolist() == [True, False, True, False, True]
    none = [-1] * 5
    assert paths_of(parents, valid).tolist() == [
        [[0, 1, -1, -1, -1], [0, 2, -1, -1, -1], [3, -1, -1, -1, -1]],
        [[0, 1, 2, 3, 4], none, none],
    ]
    assert paths_of(parents, torch.zeros_like(valid)).tolist() == [[[-1]], [[-1]]]


def test_attention_without_masks_for_pairs_is_refused():
    model = tiny_model("llama")
    assert attention_kinds(model) == {"full_attention"}
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(UserError, match="takes no mask of a tree.*attn_implementation='sdpa'"):
        attention_kinds(model)
    model.config.layer_types = ["chunked_attention", "full_attention"]
    with pytest.raises(UserError, match="layers are of chunked_attention"):
        attention_kinds(model)


def test_without_branches_a_tree_is_a_chain():
    branched = tree([[1, 2, 4], [7]], [[-1, 0, 0], [-1]])
    assert branched.parents is not None
    assert branched.parents.tolist() == [[-1, 0, 0], [-1, -1, -1]]
    assert branched.valid.sum(-1).tolist() == [3, 1]
    draft = tree([[1, 2, 3], [], [7]], [[-1, 0, 1], [], [-1]])
    assert draft.parents is None and draft.q is None and draft.forwards == 0
    assert draft.ids.tolist() == [[1, 2, 3], [0, 0, 0], [7, 0, 0]]
    assert draft.valid.sum(-1).tolist() == [3, 0, 1]
