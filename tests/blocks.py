"""Blocks made by hand, and random ones with everything in them that a rule may ask for."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from gistgate.core.block import Acceptance, Block, Sampling
from gistgate.core.rule import settle

SURE = dict(enumerate((9 * torch.eye(4)).tolist()))
"""Logits that leave no doubt about t."""
TORN = [2.0, 2.0, 0.0, 0.0]
"""Undecided between 0 and 1; the argmax is 0."""
SPLIT = [2.5, 2.4, 2.3, -9.0]
"""0 by a hair, then 1, then 2; 3 is out of the question."""


def block(*rows: list[float], draft: list[int], valid: int | None = None, **more: Any) -> Block:
    """One row (B = 1): the target's logits `rows` (K + 1 of them) and the drafted tokens."""
    ids = torch.tensor([draft], dtype=torch.long)
    is_there = torch.arange(len(draft)) < (len(draft) if valid is None else valid)
    more = {
        name: torch.tensor([value]) if isinstance(value, list) else value
        for name, value in more.items()
    }
    return Block(ids, is_there[None], torch.tensor([rows], dtype=torch.float32), **more)


def random_block(
    seed: int = 0,
    batch: int = 16,
    num: int = 8,
    vocabulary: int = 6,
    temperature: float = 0.0,
    with_q: bool = True,
) -> Block:
    """Ragged drafts that often match, some forbidden tokens, protocol id 5, gate, states, and
    numbers to draw with.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    z = 2 * noise(batch, num + 1, vocabulary)
    z = z.masked_fill(torch.rand(z.shape, generator=generator) < 0.15, -torch.inf)
    z[..., 0] = z[..., 0].clamp_min(-3)  # one token is always possible
    q = (2 * noise(batch, num, vocabulary)).softmax(-1)
    guess = torch.randint(vocabulary, (batch, num), generator=generator)
    matches = torch.rand(batch, num, generator=generator) < 0.6
    lengths = torch.randint(num + 1, (batch, 1), generator=generator)
    lengths[: batch // 2] = num
    x = torch.where(matches, z[:, :-1].argmax(-1), guess)
    return Block(
        x,
        torch.arange(num) < lengths,
        Sampling(temperature).logits(z),
        q=q if with_q else None,
        hidden={"post": noise(batch, num + 1, 3), "pre": noise(batch, num + 1, 3)},
        gate_probs=torch.rand(batch, num, generator=generator),
        uniforms=torch.rand(batch, num + 1, generator=generator, dtype=torch.float64).clamp(
            1e-9, 1 - 1e-9
        ),
        greedy=temperature == 0.0,
        protocol=torch.tensor([5]),
        # whoever reads a draft a second time tends to copy it
        second=Sampling(temperature).logits(z[:, :-1] + 40 * F.one_hot(x, vocabulary)),
        thinking=torch.rand(batch, num, generator=generator) < 0.5,
        cost=torch.rand(batch, generator=generator),
    )


def accepted(rule: Any, whole: Block) -> Acceptance:
    """The rule's verdict, composed as the decoder does it."""
    return settle(rule, whole)
