"""From what the target says about the nodes of a tree to the one path that stays.

Every path from the text to a leaf becomes a row of an ordinary block, so that every rule judges trees as it judges
chains, and the path of which most stays wins.

Axis letters: B rows, N nodes, P paths of each row, D tokens of the longest path, V vocabulary.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from gistgate.block import Acceptance, Block, Reason
from gistgate.decoding.form import Judged, Settle
from gistgate.optional.trees.shape import paths_of, stacked
from gistgate.optional.trees.walks import Walk, nodes_of, passing_with
from gistgate.rules.base import draw


def judge(nodes: Block, parents: Tensor, settle: Settle) -> Judged:
    """The path of every row of which most stays; of equals the one with fewer loose tokens, then the likelier one.

    Args:
        nodes: a block whose position n is node n and whose row n + 1 is the target's behind it.
        parents: the tree [B, N].
        settle: judges a block of B * P paths, P being its second argument.
    """
    paths = paths_of(parents, nodes.valid)
    batch, num_paths, _ = paths.shape
    block, acceptance = settle(unfold(nodes, paths), num_paths)
    best = torch.arange(batch, device=paths.device) * num_paths + best_of(block, acceptance, num_paths)
    chosen = Acceptance(acceptance.length[best], acceptance.own_ids[best], acceptance.reasons[best])
    winners = paths.flatten(0, 1)[best].tolist()
    kept = [path[:length] for path, length in zip(winners, chosen.length.tolist(), strict=True)]
    return Judged(rows_of(block, best), chosen, kept)


def best_of(block: Block, acceptance: Acceptance, num_paths: int) -> Tensor:
    """The number of each tree's best path [B]."""
    width = block.draft_ids.shape[1]
    stays = torch.arange(width, device=acceptance.length.device) < acceptance.length[:, None]
    loose = (stays & (acceptance.reasons == Reason.LOOSE)).sum(-1).tolist()
    likely = block.draft_logprob.masked_fill(~stays, 0).sum(-1).tolist()
    marks = list(zip(acceptance.length.tolist(), [-num for num in loose], likely, strict=True))
    trees = [marks[start : start + num_paths] for start in range(0, len(marks), num_paths)]
    return torch.tensor([marks.index(max(marks)) for marks in trees], device=acceptance.length.device)


def walked(nodes: Block, parents: Tensor, walk: Walk) -> Judged:
    """The same for sampled trees: one path is found on the way, and the target's own token with it."""
    assert nodes.uniforms is not None
    tests = nodes.uniforms[:, :-1].tolist()
    rows = [walk(one, passing_with(u)) for one, u in zip(nodes_of(nodes, parents), tests, strict=True)]
    paths = [path for path, _ in rows]
    block = unfold(nodes, stacked([[path] for path in paths], parents.device))
    own = draw(torch.stack([weights for _, weights in rows]), nodes.uniforms[:, -1])
    length = torch.tensor([len(path) for path in paths], device=parents.device)
    return Judged(block, Acceptance(length, own, torch.full_like(block.draft_ids, int(Reason.STRICT))), paths)


def unfold(nodes: Block, paths: Tensor) -> Block:
    """Paths `[B, P, D]` of nodes (-1: ended) as the rows of a block [B * P, D]."""
    num_paths = paths.shape[1]
    index = paths.flatten(0, 1)
    rows = torch.cat([torch.zeros_like(index[:, :1]), index + 1], dim=1)
    at = index.clamp_min(0)
    ids = taken(nodes.draft_ids, at, num_paths)
    uniforms = nodes.uniforms
    if uniforms is not None:
        own = uniforms[:, -1:].repeat_interleave(num_paths, 0)
        uniforms = torch.cat([taken(uniforms[:, :-1], at, num_paths), own], dim=1)
    block = replace(
        nodes,
        draft_ids=ids,
        valid=index >= 0,
        logits=taken(nodes.logits, rows, num_paths),
        q=None if nodes.q is None else taken(nodes.q, at, num_paths),
        hidden={layer: taken(state, rows, num_paths) for layer, state in nodes.hidden.items()},
        uniforms=uniforms,
    )
    # paths share most of their rows: what every rule asks for is worked out once per node
    tree = torch.arange(len(paths), device=paths.device).repeat_interleave(num_paths)[:, None]
    block.__dict__["top_ids"] = nodes.top_ids[tree, rows]
    block.__dict__["draft_logprob"] = nodes.logprobs[tree, rows[:, :-1], ids]
    return block


def taken(values: Tensor, index: Tensor, num_paths: int) -> Tensor:
    """Of `values [B, X, ..]` the entries `index [B * P, D]` -> [B * P, D, ..]."""
    row = torch.arange(len(values), device=values.device).repeat_interleave(num_paths)
    if not values.shape[1]:  # no node at all: nothing of what comes out is valid
        return values.new_zeros(*index.shape, *values.shape[2:])
    return values[row[:, None], index]


def rows_of(block: Block, index: Tensor) -> Block:
    """Only these rows of a block [B']."""

    def some(values: Tensor | None) -> Tensor | None:
        return None if values is None else values[index]

    return replace(
        block,
        draft_ids=block.draft_ids[index],
        valid=block.valid[index],
        logits=block.logits[index],
        q=some(block.q),
        hidden={layer: state[index] for layer, state in block.hidden.items()},
        gate_probs=some(block.gate_probs),
        uniforms=some(block.uniforms),
        begins=some(block.begins),
        thinking=some(block.thinking),
        cost=some(block.cost),
    )
