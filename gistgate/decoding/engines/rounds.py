"""The device's share of a round as pure functions of tensors: draft K tokens; verify, judge and accept them.

Axis letters: B rows, K drafted tokens, V vocabulary, M memory tensors of a model. `feed [B, 5]` is what the host says
about each row: its last two tokens, the number of the last one, how many drafted tokens there is room for, and 1 where
the answer begins.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from gistgate.block import Block, Sampling
from gistgate.decoding.engines.program import Program, UnsupportedError
from gistgate.decoding.engines.slots import forward
from gistgate.decoding.parts import Parts
from gistgate.forward.states import tap
from gistgate.rules.base import draw, settle

PREVIOUS, LAST, AT, ROOM, BEGINS = range(5)
"""Columns of `feed`."""
FEED = 5
"""How many they are."""


@dataclass(frozen=True)
class DraftToken:
    """One step of the draft model."""

    model: PreTrainedModel
    vocabulary: int
    sampling: Sampling
    gives_q: bool

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, ids [B, N] with their numbers [B, N], uniforms [B, 1 or 0] -> x [B] and q [B, V] ([B, 0]: unasked).

        The token that is drawn follows the last of `ids`.
        """
        *memory, ids, positions, uniform = tensors
        z = forward(self.model, memory, ids, positions, 1)
        z_BV = self.sampling.logits(z[:, -1, : self.vocabulary])
        if self.sampling.greedy and not self.gives_q:
            return z_BV.argmax(-1), z_BV[:, :0]
        q_BV = z_BV.softmax(-1)
        x_B = z_BV.argmax(-1) if self.sampling.greedy else draw(q_BV, uniform[:, 0])
        return x_B, q_BV if self.gives_q else q_BV[:, :0]


@dataclass(frozen=True)
class DraftSteps:
    """`num` steps of a draft model, each reading what the one before drew."""

    num: int
    first: Program
    """`DraftToken` for two tokens."""
    later: Program
    """`DraftToken` for one."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, feed [B, 5], uniforms [B, K] -> x [B, K] and q [B, K, V] (empty where nobody asks)."""
        *memory, feed, uniforms = tensors
        # The last drafted token of a block is never read, so after a whole block two tokens are new. Reading both
        # always keeps the shape, and reading one again changes nothing.
        ids = anew(feed[:, PREVIOUS : LAST + 1])
        positions = feed[:, AT : AT + 1] + torch.arange(-1, 1, device=feed.device)
        tokens, rows = [], []
        for step in range(self.num):
            program = self.later if step else self.first
            x_B, q_BV = program(*memory, ids, positions, anew(uniforms[:, step : step + 1]))
            tokens.append(x_B)
            rows.append(q_BV)
            ids, positions = x_B[:, None], positions[:, -1:] + 1
        return torch.stack(tokens, dim=1), torch.stack(rows, dim=1)


def anew(columns: Tensor) -> Tensor:
    """The same values with the strides of a new tensor, which programs are built for.

    `Tensor.contiguous` keeps the stride of the only row.
    """
    return columns.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True)
class VerifyRound:
    """One forward of the target, the gate, the rule, and everything that the host has to know in one tensor."""

    parts: Parts
    num: int
    sampling: Sampling
    protocol: Tensor
    """Ids that are never accepted loosely [P]."""

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Memory M, feed [B, 5], x [B, K], valid [B, K], q [B, K, V or 0], uniforms [B, K + 1] -> [B, 2K + 2].

        The columns: K draft tokens, K reasons, the accepted length, the target's own token.
        """
        *memory, feed, x_BK, valid_BK, q_BKV, uniforms = tensors
        parts, num = self.parts, self.num
        ids = torch.cat([feed[:, LAST : LAST + 1], x_BK], dim=1)
        steps = torch.arange(num + 1, device=ids.device)
        with tap(parts.target, parts.layers) as states:
            z = forward(parts.target, memory, ids, feed[:, AT : AT + 1] + steps, num + 1)
        block = Block(
            x_BK,
            valid_BK & (steps[:-1] < feed[:, ROOM : ROOM + 1]),
            self.sampling.logits(z[..., : parts.vocabulary]),
            q=q_BKV if q_BKV.shape[-1] else None,
            hidden={layer: state[:, -num - 1 :] for layer, state in states.items()},
            uniforms=uniforms if uniforms.shape[1] else None,
            greedy=self.sampling.greedy,
            protocol=self.protocol,
            begins=feed[:, BEGINS] > 0,
        )
        if parts.judged:
            assert parts.gate is not None
            block = block.with_gate(parts.gate)
        acceptance = settle(parts.rule, block, {})
        if parts.rule.advance(block, acceptance, {}):
            raise UnsupportedError(f"the rule '{parts.rule.id}' remembers something from round to round")
        own = torch.stack([acceptance.length, acceptance.own_ids], dim=1)
        return (torch.cat([x_BK, acceptance.reasons, own], dim=1),)
