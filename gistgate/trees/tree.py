"""Trees of drafted tokens: how the target reads one, which path of it stays, and what of it the
caches keep.

Axis letters: B rows, N nodes, P paths of a row, D nodes of a path, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.architecture import BY_SLOT, has_window
from gistgate.core.attention import additive
from gistgate.core.block import Acceptance, Block, Draft, Reason
from gistgate.core.cache import Texts
from gistgate.core.drafter import Chains, Drafter, Judged, Settle
from gistgate.core.reader import Layout, Reader
from gistgate.core.rule import Rule
from gistgate.core.utils import UserError
from gistgate.drafters.text import right_padded


def lineage(parents: Tensor) -> Tensor:
    """Whether node m is node n itself or one of its ancestors [B, N, N], for `parents [B, N]`."""
    batch, num = parents.shape
    steps = torch.eye(num, device=parents.device).expand(batch, -1, -1).clone()
    has_parent = (parents >= 0).float()
    steps.scatter_add_(-1, parents.clamp_min(0)[..., None], has_parent[..., None])
    reached = 1
    while reached < num:  # every product doubles how many generations are covered
        steps = (steps @ steps).clamp_max(1)
        reached *= 2
    return steps > 0


def paths_of(parents: Tensor, valid: Tensor) -> Tensor:
    """The nodes from the text to each leaf among the valid ones [B, P, D], filled up with -1; P and
    D at least 1.
    """
    rows = []
    for above, exists in zip(parents.tolist(), valid.tolist()):
        nodes = [node for node in range(len(above)) if exists[node]]
        inner = {above[node] for node in nodes}
        rows.append([path_to(node, above) for node in nodes if node not in inner])
    return stacked(rows, parents.device)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the text down to `node`; none for -1."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def stacked(rows: Sequence[Texts], device: torch.device) -> Tensor:
    """Paths of unequal number and length as [B, P, D], filled up with -1; P and D at least 1."""
    num = max([1, *(len(row) for row in rows)])
    deepest = max([1, *(len(path) for row in rows for path in row)])
    paths: list[Sequence[int]] = []
    for row in rows:
        paths += [*row, *[[]] * (num - len(row))]
    return right_padded(paths, deepest, -1).view(len(rows), num, deepest).to(device)


MASKABLE = ("sdpa", "eager")  # attention of transformers that takes a mask for every pair of tokens


def tree_layout(parents: Tensor) -> Layout:
    """The layout of a read whose last slots, with those of earlier reads, are the nodes of a tree
    [B, T].
    """

    def arranged(
        model: PreTrainedModel, used: Tensor, num_new: int
    ) -> tuple[Tensor, Tensor | dict[str, Tensor]]:
        family = lineage(parents)
        text = used[:, : used.shape[1] - parents.shape[1]]
        text_positions = text.cumsum(-1) - 1
        node_positions = text.sum(-1, keepdim=True) + family.sum(-1) - 1
        positions = torch.cat([text_positions, node_positions], dim=1)
        sees = visible(family, used, num_new)
        distance = positions[:, -num_new:, None] - positions[:, None]
        window = getattr(model.config.get_text_config(), "sliding_window", None)
        masks = {}
        for kind in attention_kinds(model):
            seen = sees
            if kind == "sliding_attention" and window is not None:
                seen = sees & (distance < int(window))
            masks[kind] = additive(seen, model.dtype)
        mask = masks if len(masks) > 1 else next(iter(masks.values()))
        return positions[:, -num_new:].clamp_min(0), mask

    return arranged


def visible(family: Tensor, used: Tensor, num_new: int) -> Tensor:
    """What each of the last `num_new` slots sees [B, new, S]: the text and, of the nodes in the
    last slots, those of its `family [B, T, T]`.
    """
    slots = used.shape[1]
    nodes = family.shape[1]
    slot = torch.arange(slots, device=used.device)
    new = slot[slots - num_new :, None]
    sees = (slot <= new).expand(len(used), -1, -1).clone()
    new_nodes = min(num_new, nodes)
    sees[:, num_new - new_nodes :, slots - nodes :] = family[:, nodes - new_nodes :]
    # Padding sees itself: a softmax over nothing is not defined.
    return (sees & used[:, None]) | (slot == new)


def attention_kinds(model: PreTrainedModel) -> set[str]:
    """The kinds of attention in the layers of `model`; UserError where one cannot read a tree."""
    config = model.config.get_text_config()
    name = type(model).__name__
    # Where a configuration names no kinds, all layers are of one.
    only = "sliding_attention" if has_window(model) else "full_attention"
    kinds = set(getattr(config, "layer_types", None) or [only])
    if config.model_type in BY_SLOT or not kinds <= {"full_attention", "sliding_attention"}:
        raise UserError(
            f"{name} cannot read a tree: its layers are of {', '.join(sorted(kinds))}, or measure"
            " distances in slots of the cache. Use a drafter of chains."
        )
    implementation = config._attn_implementation
    if implementation not in MASKABLE:
        raise UserError(
            f"{name} runs with the attention '{implementation}', which takes no mask of a tree."
            f" Load it with attn_implementation='{MASKABLE[0]}', or use a drafter of chains."
        )
    return kinds


def tree(ids: Texts, parents: Texts) -> Draft:
    """Trees of unequal size as a draft, N as many nodes as the largest; a chain where no row
    branches.
    """
    sizes = [len(row) for row in ids]
    widest = max(sizes)
    valid = torch.arange(widest) < torch.tensor(sizes)[:, None]
    has_branches = any(list(row) != list(range(-1, len(row) - 1)) for row in parents)
    above = right_padded(parents, widest, -1) if has_branches else None
    return Draft(right_padded(ids, widest), valid, parents=above)


Passing = Callable[[int, float], bool]
"""Whether node n passes a test that it has to pass with a probability."""


@dataclass(frozen=True)
class Nodes:
    """One tree and what both models say about it."""

    ids: list[int]  # token of each node [N]
    # The nodes behind each node, first to be tried first; -1 is the text.
    children: dict[int, list[int]]
    p: Tensor  # the target behind the text and behind each node [N + 1, V], float64
    q: Tensor | None  # what each node was drawn from [N, V]; None: it was certain

    def drawn_from(self, node: int) -> Tensor:
        """The distribution [V] that `node` is a draw of, float64."""
        if self.q is not None:
            return self.q[node].double()
        certain = torch.zeros_like(self.p[0])
        certain[self.ids[node]] = 1.0
        return certain


Walk = Callable[[Nodes, Passing], tuple[list[int], Tensor]]
"""-> the accepted nodes, weights [V] of the target's own token."""


def token_wise(nodes: Nodes, passes: Passing) -> tuple[list[int], Tensor]:
    """Down the tree, sibling after sibling, each refusal leaving the next one its residual (arXiv
    2305.09781).
    """
    path: list[int] = []
    here = -1
    while True:
        p = nodes.p[here + 1]
        for node in nodes.children.get(here, []):
            q = nodes.drawn_from(node)
            x = nodes.ids[node]
            chance = quotient(float(p[x]), float(q[x]))
            if chance > 0 and passes(node, chance):
                break
            p = normalised(p - q, p)
        else:
            return path, p
        path.append(node)
        here = node


def traverse(nodes: Nodes, passes: Passing) -> tuple[list[int], Tensor]:
    """Leaves first: a path is judged as a whole, and what it is refused goes to its parent (arXiv
    2505.12398).
    """
    accepted = below(nodes, passes, -1, 1.0)
    assert accepted is not None
    return accepted


def below(
    nodes: Nodes, passes: Passing, here: int, ratio: float
) -> tuple[list[int], Tensor] | None:
    """The first accepted path at or behind `here`, whose own path ratio is P; None where nothing
    passes.
    """
    p = nodes.p[here + 1]
    for node in nodes.children.get(here, []):
        q = nodes.drawn_from(node)
        x = nodes.ids[node]
        behind = min(1.0, quotient(ratio * float(p[x]), float(q[x])))
        accepted = below(nodes, passes, node, behind) if behind > 0 else None
        if accepted is not None:
            path, weights = accepted
            return [node, *path], weights
        residual = (ratio * p - q).clamp_min(0)
        mass = float(residual.sum())
        p = residual / mass if mass > 0 else p
        # 0 / 0 means P = 1 and p = q: nothing that was refused is left to give.
        whole = mass + (1 - ratio)
        ratio = mass / whole if whole > 0 else 1.0
    return ([], p) if here < 0 or passes(here, ratio) else None


def quotient(p: float, q: float) -> float:
    """p / q, large but finite where q is 0."""
    return p / max(q, 1e-300)


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """norm([w]_+), or another distribution where nothing is left."""
    weights = weights.clamp_min(0)
    mass = weights.sum()
    return weights / mass if mass > 0 else otherwise


WALKS: dict[str, Walk] = {"exact": token_wise, "traversal": traverse}
"""Lossless walks through sampled trees, by rule."""


def walk_of(rule: Any) -> Walk:
    """How a rule walks sampled trees."""
    if rule.id not in WALKS:
        raise UserError(
            f"The rule '{rule.id}' samples along chains only. Use 'exact', 'traversal', or"
            " temperature 0."
        )
    return WALKS[rule.id]


def judge(nodes: Block, parents: Tensor, settle: Settle) -> Judged:
    """The path of every row of which most stays; of equals the one with fewer loose tokens, then
    the likelier one.
    """
    paths = paths_of(parents, nodes.valid)
    num_paths = paths.shape[1]
    block, acceptance = settle(unfold(nodes, paths), num_paths)
    places = torch.arange(paths.shape[2], device=paths.device)
    stays = places < acceptance.length[:, None]
    loose = (stays & (acceptance.reasons == Reason.LOOSE)).sum(-1)
    likely = block.draft_logprob.masked_fill(~stays, 0).sum(-1)
    marks = list(zip(acceptance.length.tolist(), (-loose).tolist(), likely.tolist()))
    best = [
        max(range(start, start + num_paths), key=marks.__getitem__)
        for start in range(0, len(marks), num_paths)
    ]
    index = torch.tensor(best, device=paths.device)
    length = acceptance.length[index]
    chosen = Acceptance(length, acceptance.own_ids[index], acceptance.reasons[index])
    winners = zip(paths.flatten(0, 1)[index].tolist(), length.tolist())
    return Judged(block.of_rows(index), chosen, [path[:num] for path, num in winners])


def walked(nodes: Block, parents: Tensor, walk: Walk) -> Judged:
    """The same for sampled trees: one path is found on the way, and the target's own token with
    it.
    """
    p = nodes.logprobs.double().exp()
    paths = []
    weights = []
    for row, tests in enumerate(nodes.tests.tolist()):
        q = None if nodes.q is None else nodes.q[row]
        ids = nodes.draft_ids[row].tolist()
        one_tree = Nodes(ids, children_of(parents[row], nodes.valid[row]), p[row], q)
        path, own_weights = walk(one_tree, partial(passes, tests))
        paths.append(path)
        weights.append(own_weights)
    block = unfold(nodes, stacked([[path] for path in paths], parents.device))
    own_ids = nodes.draw(torch.stack(weights))
    length = torch.tensor([len(path) for path in paths], device=parents.device)
    reasons = torch.full_like(block.draft_ids, int(Reason.STRICT))
    return Judged(block, Acceptance(length, own_ids, reasons), paths)


def passes(uniforms: Sequence[float], node: int, chance: float) -> bool:
    """Whether a node passes the test with its number in (0, 1)."""
    return uniforms[node] <= chance


def children_of(parents: Tensor, valid: Tensor) -> dict[int, list[int]]:
    """The valid nodes behind each node of one tree, in their order; -1 is the text."""
    children: dict[int, list[int]] = {}
    for node, parent in enumerate(parents.tolist()):
        if valid[node]:
            children.setdefault(parent, []).append(node)
    return children


def unfold(nodes: Block, paths: Tensor) -> Block:
    """Paths `[B, P, D]` of nodes (-1: ended) as the rows of a block [B * P, D]."""
    num_paths = paths.shape[1]
    index = paths.flatten(0, 1)
    rows = torch.cat([torch.zeros_like(index[:, :1]), index + 1], dim=1)
    at = index.clamp_min(0)
    ids = taken(nodes.draft_ids, at, num_paths)
    uniforms = nodes.uniforms
    if uniforms is not None:
        own_uniforms = uniforms[:, -1:].repeat_interleave(num_paths, 0)
        uniforms = torch.cat([taken(uniforms[:, :-1], at, num_paths), own_uniforms], dim=1)
    block = replace(
        nodes,
        draft_ids=ids,
        valid=index >= 0,
        logits=taken(nodes.logits, rows, num_paths),
        q=None if nodes.q is None else taken(nodes.q, at, num_paths),
        hidden={layer: taken(state, rows, num_paths) for layer, state in nodes.hidden.items()},
        uniforms=uniforms,
    )
    # Paths share most of their rows: what every rule asks for is worked out once per node.
    tree_row = torch.arange(len(paths), device=paths.device).repeat_interleave(num_paths)[:, None]
    block.__dict__["top_ids"] = nodes.top_ids[tree_row, rows]
    block.__dict__["draft_logprob"] = nodes.logprobs[tree_row, rows[:, :-1], ids]
    return block


def taken(values: Tensor, index: Tensor, num_paths: int) -> Tensor:
    """Of `values [B, X, ..]` the entries `index [B * P, D]` -> [B * P, D, ..]."""
    row = torch.arange(len(values), device=values.device).repeat_interleave(num_paths)
    return values[row[:, None], index]


class Trees(Chains):
    """Drafts that may branch; one that does not is treated as the chain that it is."""

    def check(self, models: Sequence[PreTrainedModel], rule: Rule) -> None:
        if rule.verifier is not None:
            raise UserError(
                f"The rule '{rule.id}' reads a draft twice. Use a drafter of chains, such as"
                " 'model'."
            )
        for model in models:
            attention_kinds(model)

    def check_sampled(self, rule: Rule) -> None:
        walk_of(rule)

    def places(self, draft: Draft) -> Tensor:
        if draft.parents is None:
            return super().places(draft)
        return lineage(draft.parents).sum(-1) - 1

    def layout(self, draft: Draft) -> Layout | None:
        return None if draft.parents is None else tree_layout(draft.parents)

    def judge(self, block: Block, draft: Draft, rule: Rule, settle: Settle) -> Judged:
        if draft.parents is None:
            return super().judge(block, draft, rule, settle)
        if block.greedy:
            return judge(block, draft.parents, settle)
        return walked(block, draft.parents, walk_of(rule))

    def keep(self, reader: Reader, drafter: Drafter, draft: Draft, judged: Judged) -> None:
        if judged.paths is None:
            super().keep(reader, drafter, draft, judged)
            return
        reader.keep_paths(draft.width, judged.paths, draft.valid.sum(-1).tolist())
        drafter.keep_paths(judged.paths)
