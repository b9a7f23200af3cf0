"""What a model is told so that it reads a whole tree at once: who sees whom, and where everyone stands.

Siblings share a position, so the order of the cache says nothing about who comes before whom; windows are measured in
positions for the same reason.

Axis letters: B rows, S cache slots with the new ones, N new tokens, T nodes of the tree.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.errors import UserError
from gistgate.forward.reader import BY_SLOT, Layout
from gistgate.optional.trees.shape import lineage

MASKABLE = ("sdpa", "eager")
"""Attention of transformers that takes a mask for every pair of tokens."""


def tree_layout(parents: Tensor) -> Layout:
    """The layout of a read whose last slots, together with those of earlier reads, are the nodes of a tree [B, T]."""

    def arranged(model: PreTrainedModel, used: Tensor, num_new: int) -> tuple[Tensor, Tensor | dict[str, Tensor]]:
        positions, sees = layout(used, num_new, parents)
        return positions[:, -num_new:].clamp_min(0), masks(model, positions, sees)

    return arranged


def layout(used: Tensor, num_new: int, parents: Tensor) -> tuple[Tensor, Tensor]:
    """Positions of all slots, and which of them each new token sees.

    Args:
        used: slots in use, new ones included [B, S].
        num_new: N; the new tokens stand in the last slots.
        parents: the tree in the last T slots, read now or before [B, T].

    Returns:
        Positions [B, S], below 0 where not in use, and who is seen [B, N, S].
    """
    slots, nodes = used.shape[1], parents.shape[1]
    family = lineage(parents)
    text = used[:, : slots - nodes]
    positions = torch.cat([text.cumsum(-1) - 1, text.sum(-1, keepdim=True) + family.sum(-1) - 1], dim=1)
    slot, new = torch.arange(slots, device=used.device), torch.arange(slots - num_new, slots, device=used.device)
    sees = (slot <= new[:, None]).expand(len(used), -1, -1).clone()
    new_nodes = min(num_new, nodes)
    sees[:, num_new - new_nodes :, slots - nodes :] = family[:, nodes - new_nodes :]
    itself = slot == new[:, None]
    return positions, (sees & used[:, None]) | itself  # padding sees itself: a softmax over nothing is not defined


def masks(model: PreTrainedModel, positions: Tensor, sees: Tensor) -> Tensor | dict[str, Tensor]:
    """The mask [B, 1, N, S] that `model` adds to its attention, or one for every kind of layer that it has.

    Raises:
        UserError: attention that takes no such mask.
    """
    kinds = attention_kinds(model)
    window = getattr(model.config.get_text_config(), "sliding_window", None)

    def seen(kind: str) -> Tensor:
        if kind == "full_attention" or window is None:
            return sees
        distance = positions[:, -sees.shape[1] :, None] - positions[:, None]
        return sees & (distance < int(window))

    added = {kind: additive(seen(kind), model.dtype) for kind in kinds}
    return added if len(added) > 1 else next(iter(added.values()))


def additive(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where seen, the most negative number elsewhere [B, 1, N, S]."""
    return torch.zeros((), dtype=dtype, device=sees.device).masked_fill(~sees[:, None], torch.finfo(dtype).min)


def attention_kinds(model: PreTrainedModel) -> set[str]:
    """The kinds of attention in the layers of `model`.

    Raises:
        UserError: one of them cannot be given a tree.
    """
    config = model.config.get_text_config()
    windowed = bool(getattr(config, "sliding_window", None)) and getattr(config, "use_sliding_window", True)
    kinds = set(getattr(config, "layer_types", None) or ["sliding_attention" if windowed else "full_attention"])
    name = type(model).__name__
    if strange := kinds - {"full_attention", "sliding_attention"}:
        raise UserError(
            f"{name} has layers of {', '.join(sorted(strange))}, which cannot read a tree. Use a drafter of chains."
        )
    if config.model_type in BY_SLOT:
        raise UserError(f"{name} measures distances in slots of its cache, not along a tree. Use a drafter of chains.")
    if (chosen := config._attn_implementation) not in MASKABLE:
        raise UserError(
            f"{name} runs with the attention '{chosen}', which takes no mask of a tree. "
            f"Load it with attn_implementation='{MASKABLE[0]}', or use a drafter of chains."
        )
    return kinds
