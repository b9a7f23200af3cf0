"""Divergences, and rules that compare the target with the draft: KL judge, FSD and the ensemble."""

import math
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import kl_div, one_hot
from transformers import GenerationConfig, PreTrainedModel

from gistgate.core.block import Block
from gistgate.core.decoder import Decoder
from gistgate.core.utils import UserError
from gistgate.drafters.model import ModelDrafter
from gistgate.drafters.text import PromptLookup
from gistgate.rules import make_rule
from gistgate.rules.divergence import (
    DIVERGENCES,
    FSD,
    Ensemble,
    KLJudge,
    ag,
    draft_probs,
    js,
    kl,
    tv,
)
from tests.architectures import noisy_copy, prompts, tiny_model
from tests.blocks import SPLIT, SURE, TORN, accepted, block, random_block
from tests.core.watching import continued
from tests.rules.enumerating import P, Q, first_token

HALVES = torch.tensor([0.5, 0.5, 0.0])
LN2 = math.log(2)
Z = [math.log(0.5), math.log(0.25), math.log(0.25)]
CLOSE, FAR = [0.4, 0.35, 0.25], [0.05, 0.9, 0.05]
"""Draft probabilities whose KL(p || q) is 0.027 and 1.233 nats."""


def random_pair(vocabulary: int = 7) -> tuple[Tensor, Tensor]:
    p, q = 2 * torch.randn(2, 50, vocabulary, generator=torch.Generator().manual_seed(0))
    return p.softmax(-1), q.softmax(-1)


def probs(z: list[float]) -> list[float]:
    return torch.tensor(z).softmax(-1).tolist()


@pytest.mark.parametrize("divergence", [kl, js, ag, tv])
def test_a_distribution_is_no_way_from_itself_and_one_that_underflows_does_no_harm(divergence: Any):
    p, _ = random_pair()
    assert (
        torch.allclose(divergence(p, p), torch.zeros(50), atol=1e-6)
        and (divergence(p, p) >= 0).all()
    )
    assert divergence(HALVES, HALVES) == 0
    p, q = torch.tensor([1.0, 1e-45]), torch.tensor([1.0, 0.0])
    assert divergence(p, q) < 1e-6 and divergence(q, p) < 1e-6
    sure = torch.tensor([0.0, 1.0, 0.0])  # what the other forbids costs the floor, and is finite
    assert divergence(HALVES, sure).isfinite() and divergence(HALVES, sure) > 0.2
    assert kl(HALVES, sure).item() == pytest.approx(0.5 * math.log(0.25e10), rel=1e-5)


@pytest.mark.parametrize("vocabulary", [7, 300])
def test_divergences_as_torch_computes_them(vocabulary: int):
    p, q = random_pair(vocabulary)
    m = (p + q) / 2

    def reference(a: Tensor, b: Tensor) -> Tensor:
        return kl_div(b.log(), a, reduction="none").sum(-1)

    assert torch.allclose(kl(p, q), reference(p, q), atol=1e-5)
    assert torch.allclose(js(p, q), (reference(p, m) + reference(q, m)) / 2, atol=1e-5)
    assert torch.allclose(ag(p, q), (reference(m, p) + reference(m, q)) / 2, atol=1e-5)
    assert (js(p, q) <= LN2).all() and (tv(p, q) <= 1).all()


def test_a_draft_without_probabilities_was_certain():
    certain = draft_probs(block(SURE[0], SURE[0], SURE[0], draft=[2, 1]))[0]
    assert torch.equal(certain, one_hot(torch.tensor([2, 1]), 4).float())
    assert draft_probs(block(SURE[0], draft=[])).shape == (1, 0, 4)


# KL judge: the distance of the distributions decides, not the token


EVEN = [0.0, 0.0, -torch.inf]
"""Against q = 1/4, 1/4, 1/2 the divergence is ln 2; a forbidden token of the target is no
obstacle.
"""


@pytest.mark.parametrize(
    "settings, z, draft, q, expected",
    [({"tau": tau}, Z, [1, 1], [CLOSE, FAR], expected)
     for tau, expected in ((-0.1, [0, 0]), (0.02, [0, 0]), (0.4, [1, 0]), (1.3, [1, 1]))]
    # KL(q || p) of FAR is 0.957 nats: between the two, the order shows
    + [({"tau": 1.1}, Z, [1], [FAR], [0]),
       # a sure target is not overruled whatever the draft says
       ({"tau": 99.0}, SURE[0], [1], [probs(SURE[0])], [0]),
       ({"tau": 99.0, "max_p": 1.0}, SURE[0], [1], [probs(SURE[0])], [1]),
       ({"tau": 0.1}, TORN, [1], [probs(TORN)], [1]),
       # where both agree an improbable token passes
       ({"tau": 0.1}, SPLIT, [3], [probs(SPLIT)], [1]),
       # finite where the draft forbids, and never below zero
       ({"tau": 30.0}, Z, [1], [[0.0, 1.0, 0.0]], [1]),
       ({"tau": -1e-9}, Z, [1], [[0.5, 0.25, 0.25]], [0]),
       ({"tau": 0.8}, EVEN, [1], [[0.25, 0.25, 0.5]], [1]),
       ({"tau": 0.6}, EVEN, [1], [[0.25, 0.25, 0.5]], [0]),
       ({"tau": 0.3}, Z, [1], [FAR], [0])],
)  # fmt: skip
def test_kl_judge(
    settings: dict[str, Any], z: list[float], draft: list[int], q: list[Any], expected: list[int]
):
    judged = block(*[z] * (len(draft) + 1), draft=draft, q=q)
    assert KLJudge(**settings).accept(judged).tolist() == [[bool(one) for one in expected]]


# Fuzzy speculative decoding: a position is trusted or not, whatever its token

EXPECTED = {
    "js": (0.00697, 0.24073),
    "ag": (0.00702, 0.30694),
    "kl": (0.02851, 0.95724),
    "reverse-kl": (0.02745, 1.23342),
    "tv": (0.1, 0.65),
}
"""Div(p, q) for both drafts, computed apart from the code under test."""


def trusted(rule: FSD, draft: list[int], q: list[list[float]]) -> list[bool]:
    return rule.accept(block(*[Z] * (len(draft) + 1), draft=draft, q=q))[0].tolist()


@pytest.mark.parametrize("div", DIVERGENCES)
def test_fsd_sometimes(div: Any):
    close, far = EXPECTED[div]
    for factor, expected in (
        (0.95, [[False, False], [True, False]]),
        (1.05, [[True, False], [True, True]]),
    ):
        assert [
            trusted(FSD(one * factor, div), [1, 1], [CLOSE, FAR]) for one in (close, far)
        ] == expected


def test_fsd_reduced_keeps_a_match_that_the_full_variant_refuses():
    judged = block(Z, Z, draft=[0], q=[FAR])
    assert accepted(FSD(0.1), judged).length.tolist() == [1]
    full = accepted(FSD(0.1, reduced=False), judged)
    assert full.length.tolist() == [0] and full.own_ids.tolist() == [0]


def test_fsd_with_the_reversed_kl_is_the_kl_judge_without_its_guard():
    judged = random_block(batch=300)
    for threshold in (0.2, 1.0, 3.0):
        ours = FSD(threshold, "reverse-kl").accept(judged)
        assert (
            torch.equal(ours, KLJudge(threshold, max_p=1.0).accept(judged))
            and ours.any()
            and not ours.all()
        )


@pytest.mark.parametrize(
    "threshold, settings, wanted",
    [
        (0.26, {"reduced": False, "replacement": "p"}, Q),
        (0.24, {"reduced": False, "replacement": "p"}, P),
        (0.26, {}, Q),
        (0.24, {}, P),
        # as published: half of x = 2 is refused, and drawn from p
        (0.24, {"replacement": "p"}, torch.tensor([0.25, 0.25, 0.25]) + 0.25 * P),
    ],
)
def test_fsd_sampled_the_texts_are_the_draft_s_where_trusted(
    threshold: float, settings: Any, wanted: Tensor
):
    """Of p = 3/8, 3/8, 2/8 and q = 1/4, 1/4, 2/4 the total variation is 1/4."""
    assert torch.allclose(first_token(FSD(threshold, "tv", **settings)), wanted, atol=1e-6)


# The ensemble weight: by hand, by enumeration, and token for token against transformers

HF = {"superset": False, "replacement": "argmax_nu"}
"""What transformers does."""


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
def test_ensemble_greedy_a_third_token_may_win(
    settings: dict[str, Any], draft: int, length: int, own: int
):
    outcome = accepted(Ensemble(0.5, **settings), third(draft))
    assert outcome.length.tolist() == [length] and outcome.own_ids.tolist() == [own]


def test_ensemble_never_writes_what_the_target_may_not_nor_ends_an_answer_nor_keeps_it_going():
    z = [1.0, 0.0, -torch.inf]
    for draft in (0, 1, 2):
        outcome = accepted(Ensemble(0.1, **HF), block(z, z, draft=[draft], q=[[0.1, 0.2, 0.7]]))
        assert 2 not in [*[draft] * outcome.length.item(), outcome.own_ids.item()]
    for steering in (0, 2):
        judged = replace(third(1), protocol=torch.tensor([steering]))
        assert accepted(Ensemble(0.5, **HF), judged).own_ids.tolist() == [0]


@pytest.mark.parametrize("w", [1.0, 0.75, 0.5, 0.25, 0.0])
@pytest.mark.parametrize("superset", [True, False])
def test_ensemble_sampled_texts_are_distributed_as_the_mixture(w: float, superset: bool):
    assert torch.allclose(
        first_token(Ensemble(w, superset=superset)), w * P + (1 - w) * Q, atol=1e-6
    )


def test_ensemble_at_weight_one_is_exact_also_where_probabilities_round_to_a_tie():
    z = [1e-9, 2e-9, -1.0]
    judged = block(z, z, z, draft=[0, 1], q=[[0.4, 0.3, 0.3]] * 2)
    p = judged.logits[0, 0].softmax(-1)
    assert judged.top_ids[0, 0] == 1 and p[0] == p[1]
    for settings in ({}, HF):
        mine, exact = (
            accepted(Ensemble(1.0, **settings), judged),
            accepted(make_rule("exact"), judged),
        )
        assert torch.equal(mine.length, exact.length) and torch.equal(mine.own_ids, exact.own_ids)


@pytest.mark.parametrize("superset", [True, False])
def test_ensemble_a_smaller_weight_accepts_more_of_the_draft_model_s_favourites(superset: bool):
    for seed in range(3):
        judged = random_block(seed, batch=300)
        judged = replace(judged, draft_ids=judged.q.argmax(-1))
        lengths = [
            accepted(Ensemble(w / 10, superset=superset), judged).length for w in range(10, -1, -1)
        ]
        assert all((less <= more).all() for less, more in pairwise(lengths))
        assert (lengths[0] < lengths[-1]).any()


def test_ensemble_a_retrieval_drafter_is_refused():
    with pytest.raises(UserError, match="draft probabilities"):
        Decoder(models("llama", 0.1)[0], PromptLookup(), Ensemble(0.5), 4)


# Against transformers. GPT-2 is not among the pairs: the drafter of transformers 5.23 loses its
# place there, and its logits are no longer those of the draft model for the same text.

PROMPTS, NUM = prompts(6, 11, 3), 30
has_weight = pytest.mark.skipif(
    not hasattr(GenerationConfig(), "assistant_ensemble_weight"),
    reason="this transformers has no ensemble weight",
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
    "kind, noise",
    [("llama", 0.1), ("llama", 0.3), ("qwen2", 0.1), ("mistral", 0.1), ("gemma2", 0.1)],
)
@pytest.mark.parametrize("w, block", [(0.8, 4), (0.5, 3), (0.2, 5)])
def test_ensemble_greedy_the_texts_are_those_of_transformers(
    kind: str, noise: float, w: float, block: int
):
    wanted = of_transformers(kind, noise, w, block)
    assert of_ours(kind, noise, Ensemble(w, **HF), block) == wanted
    assert of_ours(kind, noise, make_rule("exact"), block) != wanted, (
        "the weight must have changed something"
    )
