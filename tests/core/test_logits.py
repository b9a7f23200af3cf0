"""The last rows of a forward reach the output layer in one piece, whatever the architecture."""

from __future__ import annotations

import pytest
import torch

from gistgate.core.reader import Reader, last_logits
from tests.architectures import SIZES, pair, prompts
from tests.core.heads import head_inputs, in_one_piece


@pytest.mark.parametrize("rows, keep", [(3, 4), (3, 1), (1, 4), (1, 1)])
@pytest.mark.parametrize("kind", SIZES)
def test_the_output_layer_reads_rows_in_one_piece(kind: str, rows: int, keep: int):
    """A slice of the states has gaps between the rows of a batch, and such an input has the weight copied."""
    model = pair(kind)[0]
    with head_inputs(model) as seen:
        Reader(model, rows).read(torch.tensor(prompts(*[9] * rows)), None, keep=keep)
    assert [tuple(states.shape) for states in seen] == [(rows, keep, 32)]
    assert in_one_piece(seen[0])


@torch.no_grad()
@pytest.mark.parametrize("kind", SIZES)
def test_they_are_the_rows_of_a_plain_forward_and_no_hook_stays(kind: str):
    model, ids = pair(kind)[0], torch.tensor(prompts(9, 9))
    before = len(model.get_output_embeddings()._forward_pre_hooks)
    assert torch.allclose(last_logits(model, 4, input_ids=ids), model(ids).logits[:, -4:], atol=1e-5)
    assert len(model.get_output_embeddings()._forward_pre_hooks) == before
