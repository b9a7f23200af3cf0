"""A forward in memory of a fixed shape hands its rows to the output layer in one piece, and reads as a plain one."""

from __future__ import annotations

import pytest
import torch

from gistgate.compiled.memory import allocate, attending_to_slots, forward
from tests.architectures import pair, prompts
from tests.core.watching import head_inputs, in_one_piece

NUM = 9


@pytest.mark.parametrize("rows, keep", [(3, 4), (3, 1), (3, NUM), (1, 4), (1, 1)])
@pytest.mark.parametrize("kind", ["llama", "qwen2", "gpt2"])
@torch.no_grad()
def test_the_output_layer_reads_rows_in_one_piece(kind: str, rows: int, keep: int):
    """Each of its weights would be copied for every row otherwise, in every round of the compiled engine."""
    model, ids = pair(kind)[0], torch.tensor(prompts(*[NUM] * rows))
    memory = allocate(model, rows, NUM + 5)
    positions = torch.arange(NUM).expand(rows, NUM)
    with attending_to_slots(model), head_inputs(model) as seen:
        logits = forward(model, memory, ids, positions, keep)
    assert [tuple(states.shape) for states in seen] == [(rows, keep, 32)]
    assert in_one_piece(seen[0])
    assert torch.allclose(logits, model(ids).logits[:, -keep:], atol=1e-5)
