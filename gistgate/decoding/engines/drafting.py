"""Programs of a draft model: all steps of a block as one, or step by step where one would take too long to build."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gistgate.decoding.engines.program import Program
from gistgate.decoding.engines.rounds import FEED, DraftSteps, DraftToken
from gistgate.decoding.engines.slots import attending_to_slots
from gistgate.decoding.engines.store import store_of

MOST_LAYERS = 64
"""Most layers of one program. Compiling takes about a second for each, and a model with so many layers in a block
spends so long in every step that calling a program for each costs nothing beside it. On a GPU one graph replays all
steps either way."""


def draft_program(token: DraftToken, num: int, memory: Sequence[Tensor], width: int) -> Program:
    """What drafts `num` tokens: memory M, feed [B, 5], uniforms [B, width] -> x [B, K], q [B, K, V].

    `width` is `num`, or 0 where nothing is drawn at random.
    """
    model = token.model
    batch, slots, device = memory[0].shape[0], memory[0].shape[-2], memory[0].device
    store, about = store_of(model), (token.vocabulary, token.sampling, token.gives_q, bool(width))

    def numbers(columns: int) -> Tensor:
        return torch.zeros(batch, columns, dtype=torch.long, device=device)

    def uniforms(columns: int) -> Tensor:
        return torch.zeros(batch, columns, dtype=torch.float64, device=device)

    def of_one(tokens: int) -> Program:
        inputs = [numbers(tokens), numbers(tokens), uniforms(min(width, 1))]
        return store.compiled((batch, slots, "draft token", tokens, *about), token, memory, inputs)

    with attending_to_slots(model):
        key, inputs = (batch, slots, "draft", num, *about), [numbers(FEED), uniforms(width)]
        if num * model.config.get_text_config().num_hidden_layers > MOST_LAYERS:
            return store.replayed(key, lambda: DraftSteps(num, of_one(2), of_one(1)), memory, inputs)
        return store.program(key, DraftSteps(num, token, token), memory, inputs)
