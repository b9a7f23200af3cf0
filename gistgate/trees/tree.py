"""Trees of drafted tokens: how the target reads one, which path of it stays, and what of it the
caches keep.

Axis letters: B rows, N nodes, V vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.core.block import Acceptance, Block, Draft, Reason
from gistgate.core.drafter import Drafter
from gistgate.core.reader import BY_SLOT, Layout, Reader
from gistgate.core.rule import Rule, draw
from gistgate.core.session import Chains, Judged, Settle
from gistgate.core.utils import UserError
from gistgate.drafters.text import right_padded


def lineage(parents: Tensor) -> Tensor:
    """Whether node m is node n itself or one of its ancestors [B, N, N], for `parents [B, N]`."""
    batch, num = parents.shape
    steps = torch.eye(num, device=parents.device).expand(batch, -1, -1).clone()
    if num:
        steps.scatter_add_(-1, parents.clamp_min(0)[..., None], (parents >= 0).float()[..., None])
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
    for above, known in zip(parents.tolist(), valid.tolist(), strict=True):
        real = [node for node, there in enumerate(known) if there]
        inner = {above[node] for node in real}
        rows.append([path_to(node, above) for node in real if node not in inner])
    return stacked(rows, parents.device)


def path_to(node: int, parents: Sequence[int]) -> list[int]:
    """The nodes from the text down to `node`; none for -1."""
    path = []
    while node >= 0:
        path.append(node)
        node = parents[node]
    return path[::-1]


def stacked(rows: Sequence[Sequence[Sequence[int]]], device: torch.device) -> Tensor:
    """Paths of unequal number and length as [B, P, D], filled up with -1; P and D at least 1."""
    num = max([1, *map(len, rows)])
    deepest = max([1, *(len(path) for row in rows for path in row)])
    paths = [path for row in rows for path in (*row, *[[]] * (num - len(row)))]
    return right_padded(paths, deepest, -1).view(len(rows), num, deepest).to(device)


MASKABLE = ("sdpa", "eager")  # attention of transformers that takes a mask for every pair of tokens


def tree_layout(parents: Tensor) -> Layout:
    """The layout of a read whose last slots, with those of earlier reads, are the nodes of a tree
    [B, T].
    """

    def arranged(
        model: PreTrainedModel, used: Tensor, num_new: int
    ) -> tuple[Tensor, Tensor | dict[str, Tensor]]:
        slots = used.shape[1]
        nodes = parents.shape[1]
        family = lineage(parents)
        text = used[:, : slots - nodes]
        positions = torch.cat(
            [text.cumsum(-1) - 1, text.sum(-1, keepdim=True) + family.sum(-1) - 1], dim=1
        )
        slot = torch.arange(slots, device=used.device)
        new = torch.arange(slots - num_new, slots, device=used.device)
        sees = (slot <= new[:, None]).expand(len(used), -1, -1).clone()
        new_nodes = min(num_new, nodes)
        sees[:, num_new - new_nodes :, slots - nodes :] = family[:, nodes - new_nodes :]
        # padding sees itself: a softmax over nothing is not defined
        sees = (sees & used[:, None]) | (slot == new[:, None])
        distance = positions[:, -num_new:, None] - positions[:, None]
        window = getattr(model.config.get_text_config(), "sliding_window", None)
        hidden = torch.finfo(model.dtype).min
        added = {}
        for kind in attention_kinds(model):
            seen = (
                sees
                if kind == "full_attention" or window is None
                else sees & (distance < int(window))
            )
            mask = torch.zeros((), dtype=model.dtype, device=used.device)
            added[kind] = mask.masked_fill(~seen[:, None], hidden)
        return positions[:, -num_new:].clamp_min(0), (
            added if len(added) > 1 else next(iter(added.values()))
        )

    return arranged


def attention_kinds(model: PreTrainedModel) -> set[str]:
    """The kinds of attention in the layers of `model`."""
    config = model.config.get_text_config()
    windowed = bool(getattr(config, "sliding_window", None)) and getattr(
        config, "use_sliding_window", True
    )
    kinds = set(
        getattr(config, "layer_types", None)
        or ["sliding_attention" if windowed else "full_attention"]
    )
    name = type(model).__name__
    if strange := kinds - {"full_attention", "sliding_attention"}:
        raise UserError(
            f"{name} has layers of {', '.join(sorted(strange))}, which cannot read a tree. Use a"
            " drafter of chains."
        )
    if config.model_type in BY_SLOT:
        raise UserError(
            f"{name} measures distances in slots of its cache, not along a tree. Use a drafter of"
            " chains."
        )
    if (chosen := config._attn_implementation) not in MASKABLE:
        raise UserError(
            f"{name} runs with the attention '{chosen}', which takes no mask of a tree. "
            f"Load it with attn_implementation='{MASKABLE[0]}', or use a drafter of chains."
        )
    return kinds


Candidate = tuple[
    Sequence[int], float
]  # tokens that may follow, and how good they are held to be; higher is better


def merge(candidates: Sequence[Sequence[Candidate]], num_nodes: int, depth: int) -> Draft:
    """One tree for every row's candidates: those that begin alike share their beginning (arXiv
    2606.00021).

    The best come first, of at most `depth` tokens, until a row has `num_nodes` nodes, parents
    before children. Where no row branches the draft is a plain chain, without `parents`.
    """
    grown: list[dict[tuple[int, int], int]] = []
    for row in candidates:
        children: dict[tuple[int, int], int] = {}  # (parent, token): node
        for tokens, _ in sorted(row, key=lambda one: -one[1]):
            node = -1
            for token in tokens[:depth]:
                step = (node, int(token))
                if step not in children and len(children) == num_nodes:
                    break
                node = children.setdefault(step, len(children))
        grown.append(children)
    return tree(
        [[token for _, token in row] for row in grown],
        [[parent for parent, _ in row] for row in grown],
    )


def tree(ids: Sequence[Sequence[int]], parents: Sequence[Sequence[int]]) -> Draft:
    """Trees of unequal size as a draft, N as many nodes as the largest; a chain where no row
    branches.
    """
    widest = max((len(row) for row in ids), default=0)
    branches = any(parent != node - 1 for row in parents for node, parent in enumerate(row))
    valid = (
        torch.arange(widest) < torch.tensor([len(row) for row in ids], dtype=torch.long)[:, None]
    )
    above = right_padded(parents, widest, -1) if branches else None
    return Draft(right_padded(ids, widest), valid, parents=above)


Passing = Callable[
    [int, float], bool
]  # whether node n passes a test that it has to pass with a probability


@dataclass(frozen=True)
class Nodes:
    """One tree and what both models say about it."""

    ids: list[int]  # token of each node [N]
    children: dict[
        int, list[int]
    ]  # the nodes behind each node, first to be tried first; -1 is the text
    p: Tensor  # the target behind the text and behind each node [N + 1, V], float64
    q: Tensor | None  # what each node was drawn from [N, V]; None: it was certain

    def drawn_from(self, node: int) -> Tensor:
        """The distribution [V] that `node` is a draw of, float64."""
        if self.q is None:
            return torch.zeros_like(self.p[0]).index_fill(
                0, torch.tensor(self.ids[node], device=self.p.device), 1.0
            )
        return self.q[node].double()


Walk = Callable[
    [Nodes, Passing], tuple[list[int], Tensor]
]  # -> the accepted nodes, weights [V] of the own token


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
            if p[x] > 0 and passes(node, float(p[x]) / max(float(q[x]), 1e-300)):
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
    found = below(nodes, passes, -1, 1.0)
    assert found is not None
    return found


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
        reached = ratio * float(p[x])
        behind = min(1.0, reached / max(float(q[x]), 1e-300)) if reached > 0 else 0.0
        found = below(nodes, passes, node, behind) if behind > 0 else None
        if found is not None:
            return [node, *found[0]], found[1]
        rest = (ratio * p - q).clamp_min(0)
        mass = float(rest.sum())
        p = rest / mass if mass > 0 else p
        # 0 / 0 means P = 1 and p = q: nothing that was refused is left to give
        whole = mass + (1 - ratio)
        ratio = mass / whole if whole > 0 else 1.0
    return ([], p) if here < 0 or passes(here, ratio) else None


def normalised(weights: Tensor, otherwise: Tensor) -> Tensor:
    """norm([w]_+), or another distribution where nothing is left."""
    rest = weights.clamp_min(0)
    mass = rest.sum()
    return rest / mass if mass > 0 else otherwise


WALKS: dict[str, Walk] = {
    "exact": token_wise,
    "traversal": traverse,
}  # lossless for sampled trees, by rule


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
    stays = torch.arange(paths.shape[2], device=paths.device) < acceptance.length[:, None]
    loose = (stays & (acceptance.reasons == Reason.LOOSE)).sum(-1).tolist()
    likely = block.draft_logprob.masked_fill(~stays, 0).sum(-1).tolist()
    marks = list(zip(acceptance.length.tolist(), [-num for num in loose], likely, strict=True))
    firsts = range(0, len(marks), num_paths)
    best = torch.tensor(
        [max(range(at, at + num_paths), key=marks.__getitem__) for at in firsts],
        device=paths.device,
    )
    chosen = Acceptance(acceptance.length[best], acceptance.own_ids[best], acceptance.reasons[best])
    winners = paths.flatten(0, 1)[best].tolist()
    kept = [path[:length] for path, length in zip(winners, chosen.length.tolist(), strict=True)]
    return Judged(block.of_rows(best), chosen, kept)


def walked(nodes: Block, parents: Tensor, walk: Walk) -> Judged:
    """The same for sampled trees: one path is found on the way, and the target's own token with
    it.
    """
    assert nodes.uniforms is not None
    columns = nodes.draft_ids, parents, nodes.valid, nodes.uniforms[:, :-1]
    p = nodes.logprobs.double().exp()
    rows = []
    for row, (ids, above, valid, tests) in enumerate(
        zip(*(one.tolist() for one in columns), strict=True)
    ):
        children: dict[int, list[int]] = {}
        for node, parent in enumerate(above):
            if valid[node]:
                children.setdefault(parent, []).append(node)
        one = Nodes(ids, children, p[row], None if nodes.q is None else nodes.q[row])
        rows.append(walk(one, lambda node, chance, tests=tests: tests[node] <= chance))  # type: ignore[misc]
    paths = [path for path, _ in rows]
    block = unfold(nodes, stacked([[path] for path in paths], parents.device))
    own = draw(torch.stack([weights for _, weights in rows]), nodes.uniforms[:, -1])
    length = torch.tensor([len(path) for path in paths], device=parents.device)
    return Judged(
        block, Acceptance(length, own, torch.full_like(block.draft_ids, int(Reason.STRICT))), paths
    )


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
        return (
            super().places(draft) if draft.parents is None else lineage(draft.parents).sum(-1) - 1
        )

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
        reader.keep_paths(draft.ids.shape[1], judged.paths, draft.valid.sum(-1).tolist())
        drafter.keep_paths(judged.paths)
