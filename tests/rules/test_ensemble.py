"""Ensemble weight: by hand, by enumeration, and token for token against transformers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import utils as theirs

from gistgate.core.block import Block
from gistgate.core.decoder import Decoder
from gistgate.core.rule import draw
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.rules.divergence import Ensemble
from tests.architectures import noisy_copy, prompts, tiny_model
from tests.blocks import accepted, block, random_block
from tests.core.watching import continued
from tests.rules.enumerating import P, Q, first_token

Z = [math.log(0.5), math.log(0.3), math.log(0.2)]
"""p."""
HF = {"superset": False, "replacement": "argmax_nu"}
"""What transformers does."""


@pytest.mark.parametrize("w, expected", [(0.9, False), (0.7, False), (0.5, True), (0.0, True)])
def test_greedy_the_mixture_decides(w: float, expected: bool):
    """q = 0.2, 0.6, 0.2: nu prefers 1 below w = 0.667."""
    judged = block(Z, Z, draft=[1], q=[[0.2, 0.6, 0.2]])
    assert Ensemble(w).accept(judged, {}).tolist() == [[expected]]


def third(draft: int) -> Block:
    """p and q each prefer another token, and their mean a third: nu = 0.255, 0.245, 0.49, 0.01."""
    p = [math.log(x) for x in (0.5, 0.01, 0.48, 0.01)]
    return block(p, p, draft=[draft], q=[[0.01, 0.48, 0.5, 0.01]])


@pytest.mark.parametrize(
    "settings, draft, length, own",
    [
        ({}, 1, 0, 0),  # refused, and corrected by the target
        ({}, 0, 1, 0),  # an exact match is never refused
        ({}, 2, 1, 0),
        ({"replacement": "argmax_nu"}, 1, 0, 2),
        ({"superset": False}, 0, 0, 0),  # refused, and written by the target all the same
        (HF, 0, 0, 2),
        (HF, 2, 1, 0),  # the bonus is the target's
    ],
)
def test_greedy_a_third_token_may_win(settings: dict[str, Any], draft: int, length: int, own: int):
    outcome = accepted(Ensemble(0.5, **settings), third(draft))
    assert outcome.length.tolist() == [length] and outcome.own_ids.tolist() == [own]


def test_the_mixture_never_writes_what_the_target_may_not():
    z = [1.0, 0.0, -torch.inf]
    for draft in (0, 1, 2):
        outcome = accepted(Ensemble(0.1, **HF), block(z, z, draft=[draft], q=[[0.1, 0.2, 0.7]]))
        kept = [draft] * outcome.length.item()
        assert 2 not in [*kept, outcome.own_ids.item()]


def test_the_mixture_neither_ends_an_answer_nor_keeps_it_going():
    for steering in (0, 2):
        judged = third(1)
        judged = replace(judged, protocol=torch.tensor([steering]))
        assert accepted(Ensemble(0.5, **HF), judged).own_ids.tolist() == [0]


@pytest.mark.parametrize("w", [1.0, 0.75, 0.5, 0.25, 0.0])
@pytest.mark.parametrize("superset", [True, False])
def test_sampled_texts_are_distributed_as_the_mixture(w: float, superset: bool):
    assert torch.allclose(first_token(Ensemble(w, superset=superset)), w * P + (1 - w) * Q, atol=1e-6)


def test_at_weight_one_it_is_exact_also_where_probabilities_round_to_a_tie():
    z = [1e-9, 2e-9, -1.0]
    judged = block(z, z, z, draft=[0, 1], q=[[0.4, 0.3, 0.3]] * 2)
    p = judged.logits[0, 0].softmax(-1)
    assert judged.top_ids[0, 0] == 1 and p[0] == p[1]
    for settings in ({}, HF):
        mine, exact = accepted(Ensemble(1.0, **settings), judged), accepted(make_rule("exact"), judged)
        assert torch.equal(mine.length, exact.length) and torch.equal(mine.own_ids, exact.own_ids)


def test_where_the_draft_is_the_draft_model_s_favourite_a_smaller_weight_accepts_more():
    for seed in range(3):
        judged = random_block(seed, batch=300)
        judged = replace(judged, draft_ids=judged.q.argmax(-1))
        for superset in (True, False):
            lengths = [accepted(Ensemble(w / 10, superset=superset), judged).length for w in range(10, -1, -1)]
            assert all((less <= more).all() for less, more in pairwise(lengths))
            assert (lengths[0] < lengths[-1]).any()


def test_a_retrieval_drafter_is_refused():
    with pytest.raises(UserError, match="draft probabilities"):
        Decoder(models("llama", 0.1)[0], PromptLookup(), Ensemble(0.5), 4)


# Against transformers. GPT-2 is not among the pairs: the drafter of transformers 5.23 loses its place there, and its
# logits are no longer those of the draft model for the same text.

PROMPTS, NUM = prompts(6, 11, 3), 30
has_weight = pytest.mark.skipif(
    not hasattr(GenerationConfig(), "assistant_ensemble_weight"), reason="this transformers has no ensemble weight"
)


@cache
def models(kind: str, noise: float) -> tuple[PreTrainedModel, PreTrainedModel]:
    """A pair of our own: transformers keeps its settings for drafting in the draft model."""
    target = tiny_model(kind)
    return target, noisy_copy(target, noise)


def of_transformers(kind: str, noise: float, w: float | None, block: int) -> list[list[int]]:
    target, draft = models(kind, noise)
    settings = draft.generation_config
    settings.num_assistant_tokens, settings.num_assistant_tokens_schedule = block, "constant"
    settings.assistant_confidence_threshold = 0.0
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        out = target.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            assistant_model=draft,
            assistant_ensemble_weight=w,
            max_new_tokens=NUM,
            do_sample=False,
            pad_token_id=0,
        )
        answers.append(out[0, len(prompt) :].tolist())
    return answers


def of_ours(kind: str, noise: float, rule: Any, block: int) -> list[list[int]]:
    target, draft = models(kind, noise)
    decoder = Decoder(target, ModelDrafter(draft), rule, block)
    return [answer.ids for answer in continued(decoder, PROMPTS, NUM)]


@has_weight
@pytest.mark.parametrize(
    "kind, noise", [("llama", 0.1), ("llama", 0.3), ("qwen2", 0.1), ("mistral", 0.1), ("gemma2", 0.1)]
)
@pytest.mark.parametrize("w, block", [(0.8, 4), (0.5, 3), (0.2, 5)])
def test_greedy_the_texts_are_those_of_transformers(kind: str, noise: float, w: float, block: int):
    wanted = of_transformers(kind, noise, w, block)
    assert of_ours(kind, noise, Ensemble(w, **HF), block) == wanted
    assert of_ours(kind, noise, make_rule("exact"), block) != wanted, "the weight must have changed something"


@has_weight
def test_greedy_the_correction_by_the_target_is_another_text():
    """Only with the published replacement are both the same; the comparison above notices the difference."""
    assert of_ours("llama", 0.3, Ensemble(0.5), 3) != of_transformers("llama", 0.3, 0.5, 3)


@has_weight
@pytest.mark.parametrize("w", [0.2, 0.5, 0.9])
def test_sampled_the_same_numbers_give_the_tokens_of_transformers(w: float, monkeypatch: pytest.MonkeyPatch):
    judged = random_block(batch=200, num=5, temperature=1.0)
    valid, possible = torch.ones_like(judged.valid), judged.logits.clamp_min(-12.0)
    judged = replace(judged, valid=valid, logits=possible, protocol=None)
    outcome = accepted(Ensemble(w, superset=False), judged)
    assert 0 < (outcome.length == 5).sum() < 200
    for row in range(200):
        uniforms = judged.uniforms[row]

        def numbers(like: Tensor, given: Tensor = uniforms) -> Tensor:
            return given[:-1].expand_as(like)

        def one_draw(weights: Tensor, num_samples: int, given: Tensor = uniforms) -> Tensor:
            return draw(weights, given[-1:])[:, None]

        monkeypatch.setattr(torch, "rand_like", numbers)
        monkeypatch.setattr(torch, "multinomial", one_draw)
        ids = judged.draft_ids[row : row + 1]
        tokens, num_matches = theirs._speculative_sampling(
            ids, judged.q[row : row + 1].log(), 5, judged.logits[row : row + 1], assistant_ensemble_weight=w
        )
        length = outcome.length[row].item()
        assert num_matches == length
        assert tokens[0].tolist() == [*ids[0, :length].tolist(), outcome.own_ids[row].item()]
