"""The draft model proposes what it would write itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from gistgate.core.block import Sampling
from gistgate.drafters.model import ModelDrafter
from tests.architectures import SIZES, greedy, pair, prompts

GREEDY: dict[str, Any] = {"vocabulary": 259, "sampling": Sampling(), "uniforms": None, "want_q": False}


@pytest.mark.parametrize("kind", SIZES)
def test_a_proposal_is_the_model_s_own_greedy_text(kind: str):
    """Also after parts of earlier proposals were refused, row by row."""
    drafter = ModelDrafter(pair(kind)[0])
    texts = prompts(5, 11, 2)
    drafter.start(3)
    with torch.inference_mode():
        for accepted in ([0, 3, 1], [3, 0, 2], [3, 3, 3], [0, 0, 0]):
            draft = drafter.propose(texts, 3, **GREEDY)
            assert draft.ids.tolist() == [greedy(kind, tuple(text), 3) for text in texts]
            assert draft.valid.all() and draft.q is None and draft.forwards == 3
            drafter.keep(accepted)
            kept = [ids[:num] for ids, num in zip(draft.ids.tolist(), accepted, strict=True)]
            texts = [[*text, *ids, 9] for text, ids in zip(texts, kept, strict=True)]


def test_probabilities_are_those_it_drew_from():
    drafter, texts = ModelDrafter(pair("llama")[0]), prompts(5, 11)
    uniforms = torch.tensor([[0.2, 0.9], [0.6, 0.4]], dtype=torch.float64)
    sampling = Sampling(0.7, top_k=5)
    drafter.start(2)
    with torch.inference_mode():
        draft = drafter.propose(texts, 2, vocabulary=200, sampling=sampling, uniforms=uniforms, want_q=True)
        assert draft.q is not None and draft.q.shape == (2, 2, 200)
        for row, text in enumerate(texts):
            whole = torch.tensor([[*text, int(draft.ids[row, 0])]])
            q = sampling.logits(pair("llama")[0](whole).logits[0, -2:, :200]).softmax(-1)
            torch.testing.assert_close(draft.q[row], q, atol=1e-4, rtol=0)
            for step in (0, 1):
                below = q[step, : draft.ids[row, step]].sum()
                assert below <= uniforms[row, step] <= below + q[step, draft.ids[row, step]]


def test_rows_that_leave_are_forgotten():
    drafter, texts = ModelDrafter(pair("llama")[0]), prompts(5, 11, 2)
    drafter.start(3)
    with torch.inference_mode():
        drafter.propose(texts, 3, **GREEDY)
        drafter.keep([1, 0, 2])
        drafter.select([2, 0])
        rest = [[*texts[2], 8, 9, 10, 11], [*texts[0], 8]]
        memory = drafter.snapshot([1])
        # what was accepted is not what the model proposed, so it has to read these rows' texts from the prompt on
        drafter.restore(drafter.snapshot([0, 1]), [2, 5])
        assert drafter.propose(rest, 2, **GREEDY).ids.tolist() == [greedy("llama", tuple(text), 2) for text in rest]
        drafter.restore(memory, [5])
        assert drafter.propose([rest[1]], 2, **GREEDY).ids.tolist() == [greedy("llama", tuple(rest[1]), 2)]
